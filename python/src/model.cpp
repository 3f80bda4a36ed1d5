// sluice._core.Model and Sequence.

#include <memory>

#include "bind.h"

namespace sluice::python {
namespace {

constexpr std::pair<const char*, Weights> kWeights[] = {
    {"as-stored", Weights::kAsStored}, {"f32", Weights::kF32},   {"bf16", Weights::kBF16},
    {"q8_0", Weights::kQ8_0},          {"q4_0", Weights::kQ4_0}, {"q4_1", Weights::kQ4_1},
    {"q5_0", Weights::kQ5_0},          {"q5_1", Weights::kQ5_1}, {"q4_k", Weights::kQ4_K},
    {"q5_k", Weights::kQ5_K},          {"q6_k", Weights::kQ6_K}};

Model load(const std::filesystem::path& path, const nb::dict& given) {
  Options options(given);
  LoadOptions wanted;
  options.take_word<Device>("device", kDevices, wanted.device);
  options.take_word<DType>("dtype", kDTypes, wanted.dtype);
  options.take_word<Weights>("weights", kWeights, wanted.weights);
  options.take("context", wanted.context);
  options.finish();
  wanted.progress = [](double) { check_signals(); };
  const nb::gil_scoped_release released;
  return Model::load(path, wanted);
}

nb::dict info_of(const Model& model) {
  const ModelInfo& info = model.info();
  nb::dict out;
  out["family"] = info.family;
  out["n_layers"] = info.n_layers;
  out["d_model"] = info.d_model;
  out["n_heads"] = info.n_heads;
  out["n_kv_heads"] = info.n_kv_heads;
  out["head_dim"] = info.head_dim;
  out["vocab"] = info.vocab;
  out["context"] = info.context;
  out["max_context"] = info.max_context;
  out["is_encoder"] = info.is_encoder;
  out["has_logits"] = info.has_logits;
  out["weight_bytes"] = info.weight_bytes;
  out["device"] = info.device;
  out["end_tokens"] = info.end_tokens;
  return out;
}

// The numbers become the array's own; nothing is copied.
template <typename T, typename... Shape>
auto array_of(std::vector<T> values, const Shape&... shape) {
  auto kept = std::make_unique<std::vector<T>>(std::move(values));
  T* data = kept->data();
  const nb::capsule owner(kept.release(),
                          [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return nb::ndarray<nb::numpy, T>(data, {static_cast<size_t>(shape)...}, owner);
}

nb::ndarray<nb::numpy, int32_t> tokenize(const Model& model, const std::string& text,
                                         bool add_special) {
  std::vector<int32_t> tokens = model.tokenize(text, add_special);
  const size_t n = tokens.size();
  return array_of(std::move(tokens), n);
}

nb::ndarray<nb::numpy, float> append_scored(Sequence& sequence, const Tokens& tokens) {
  std::vector<float> logits;
  {
    const nb::gil_scoped_release released;
    logits = sequence.append_scored(span_of(tokens));
  }
  const size_t vocab = logits.size() / tokens.size();
  return array_of(std::move(logits), tokens.size(), vocab);
}

nb::ndarray<nb::numpy, float> last_logits(const Sequence& sequence) {
  const std::span<const float> logits = sequence.logits();
  return array_of(std::vector<float>(logits.begin(), logits.end()), logits.size());
}

}  // namespace

void bind_model(nb::module_& core) {
  nb::class_<Model>(core, "Model", "A model in memory, and its tokenizer.")
      .def_static("load", &load, nb::arg("path"), nb::arg("options"))
      .def_prop_ro("info", &info_of)
      .def("tokenize", &tokenize, nb::arg("text"), nb::arg("add_special"))
      .def(
          "detokenize",
          [](const Model& model, const Tokens& tokens, bool with_special) {
            return model.detokenize(span_of(tokens), with_special);
          },
          nb::arg("tokens"), nb::arg("with_special"));

  nb::class_<Sequence>(core, "Sequence", "A text that a model has read so far.")
      .def(nb::init<Model&, const Plan&, int64_t>(), nb::arg("model"), nb::arg("plan"),
           nb::arg("capacity"))
      .def(
          "append",
          [](Sequence& sequence, const Tokens& tokens) {
            const nb::gil_scoped_release released;
            sequence.append(span_of(tokens));
          },
          nb::arg("tokens"))
      .def("append_scored", &append_scored, nb::arg("tokens"))
      .def("logits", &last_logits)
      .def_prop_ro("length", &Sequence::length)
      .def_prop_ro("capacity", &Sequence::capacity)
      .def("clear", &Sequence::clear)
      .def("truncate", &Sequence::truncate, nb::arg("length"));
}

}  // namespace sluice::python
