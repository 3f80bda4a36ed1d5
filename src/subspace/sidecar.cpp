#include "subspace/sidecar.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <random>

#include "core/error.h"
#include "core/quote.h"
#include "io/mapped_file.h"
#include "io/safetensors_header.h"
#include "io/safetensors_writer.h"
#include "io/weight_store.h"

namespace sluice::impl {
namespace {

constexpr const char* kFormat = "sluice-bases";
constexpr const char* kVersion = "1";
constexpr const char* kHint = "make it again with sluice calibrate";

std::string name_of(const Basis& basis) {
  return fmt::format("layers.{}.{}", basis.layer, basis_input_name(basis.input));
}

const std::string& require(const SafetensorsMetadata& metadata, const char* name,
                           const std::string& label) {
  const auto found = metadata.find(name);
  if (found == metadata.end())
    throw Error(fmt::format("{}: metadata {} is missing", label, quote(name)),
                "is this a file of sluice calibrate?");
  return found->second;
}

// A whole number of 0 or more that is all of `text`.
std::optional<int64_t> whole_number(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

void read_metadata(const SafetensorsMetadata& metadata, const std::string& label,
                   const BasesModel& model, Bases& bases) {
  if (const std::string& format = require(metadata, "format", label); format != kFormat)
    throw Error(fmt::format("{}: format is {}, expected {}", label, quote(format), quote(kFormat)),
                "is this a file of sluice calibrate?");
  if (const std::string& version = require(metadata, "version", label); version != kVersion)
    throw Error(fmt::format("{}: version {}, this program reads {}", label, quote(version),
                            quote(kVersion)),
                kHint);
  bases.model_sha256 = require(metadata, "model_sha256", label);
  if (bases.model_sha256 != model.sha256)
    throw Error(fmt::format("{}: made for another model (sha256 {}, this one's is {})", label,
                            quote(bases.model_sha256), quote(model.sha256)),
                "make bases for this model with sluice calibrate");
  bases.text_path = require(metadata, "text_path", label);
  bases.text_sha256 = require(metadata, "text_sha256", label);
  const std::string& n_tokens = require(metadata, "n_tokens", label);
  const auto count = whole_number(n_tokens);
  if (!count)
    throw Error(fmt::format("{}: n_tokens is {}, expected a number", label, quote(n_tokens)),
                kHint);
  bases.n_tokens = *count;
}

// What "layers.3.mlp_inner.vectors" names.
struct TensorName {
  int64_t layer;
  BasisInput input;
  bool is_vectors;
  friend auto operator<=>(const TensorName&, const TensorName&) = default;
};

TensorName parse_name(const std::string& name, const std::string& label, const BasesModel& model) {
  constexpr std::string_view kBegin = "layers.";
  const auto refuse = [&](const std::string& why) {
    throw Error(fmt::format("{}: tensor {} {}", label, quote(name), why), kHint);
  };
  const size_t dot = name.find('.', kBegin.size()), last = name.rfind('.');
  if (!name.starts_with(kBegin) || dot == name.npos || last <= dot)
    refuse("is not part of a basis");
  const std::string_view text = name;
  const auto layer = whole_number(text.substr(kBegin.size(), dot - kBegin.size()));
  const auto input = basis_input_of(text.substr(dot + 1, last - dot - 1));
  const std::string_view part = text.substr(last + 1);
  if (!layer || !input || (part != "vectors" && part != "spectrum"))
    refuse("is not part of a basis");
  if (*layer >= model.n_layers)
    refuse(fmt::format("is beyond the model's {} layers", model.n_layers));
  return {*layer, *input, part == "vectors"};
}

std::vector<float> read_tensor(const SafetensorsEntry& entry, const std::string& label) {
  const StoredTensor tensor{entry.name, *entry.dtype, entry.shape, entry.bytes};
  std::vector<float> values(static_cast<size_t>(entry.shape.numel()));
  expand(tensor, 0, values);
  if (!std::all_of(values.begin(), values.end(), [](float x) { return std::isfinite(x); }))
    throw Error(
        fmt::format("{}: tensor {} holds a number that is not finite", label, quote(entry.name)),
        kHint);
  return values;
}

// Rows are orthonormal when V Vᵀ z = z for every z. Random z of ±1 find out in a few passes: a
// wrong row shows in its own coordinate. Rounding to float32 moves that by about 1e-7 √k.
constexpr double kOrthonormalTolerance = 1e-4;
bool orthonormal(const Basis& basis) {
  constexpr int kProbes = 4;
  std::mt19937 random(1);
  const auto k = static_cast<size_t>(basis.rank), d = static_cast<size_t>(basis.d);
  std::vector<double> z(k), sum(d);
  for (int probe = 0; probe < kProbes; ++probe) {
    std::fill(sum.begin(), sum.end(), 0.0);
    for (size_t i = 0; i < k; ++i) {
      z[i] = random() % 2 == 0 ? 1 : -1;
      for (size_t j = 0; j < d; ++j) sum[j] += z[i] * double{basis.vectors[i * d + j]};
    }
    for (size_t i = 0; i < k; ++i) {
      double back = 0;
      for (size_t j = 0; j < d; ++j) back += double{basis.vectors[i * d + j]} * sum[j];
      if (!(std::abs(back - z[i]) <= kOrthonormalTolerance)) return false;
    }
  }
  return true;
}

// Descending shares of a whole, as far as float32 keeps that.
bool is_spectrum(const std::vector<double>& spectrum) {
  double sum = 0, last = 1;
  for (const double share : spectrum) {
    if (share < 0 || share > last + 1e-6) return false;
    last = share;
    sum += share;
  }
  return sum <= 1 + 1e-4;
}

void check_entry(const SafetensorsEntry& entry, const TensorName& name, const std::string& label,
                 const BasesModel& model) {
  const int64_t d = model.widths.of(name.input);
  const std::string where = fmt::format("{}: tensor {}", label, quote(entry.name));
  if (entry.dtype != DType::kF32)
    throw Error(fmt::format("{} is {}, expected F32", where, quote(entry.type)), kHint);
  if (name.is_vectors ? entry.shape.rank() != 2 || entry.shape[1] != d || entry.shape[0] < 1 ||
                            entry.shape[0] > d
                      : entry.shape.rank() != 1 || entry.shape[0] < 1 || entry.shape[0] > d)
    throw Error(fmt::format("{} is {}, expected ({}) with 1 to {}", where, entry.shape.str(),
                            name.is_vectors ? fmt::format("rank, {}", d) : "rank", d),
                kHint);
}

Basis read_basis(const SafetensorsEntry& vectors, const SafetensorsEntry* spectrum,
                 const TensorName& name, const std::string& label) {
  Basis basis;
  basis.layer = name.layer;
  basis.input = name.input;
  basis.rank = vectors.shape[0];
  basis.d = vectors.shape[1];
  const std::string where = fmt::format("{}: basis {}", label, quote(name_of(basis)));
  if (spectrum == nullptr || spectrum->shape[0] < basis.rank)
    throw Error(fmt::format("{} has no spectrum of {} shares", where, basis.rank), kHint);
  basis.vectors = read_tensor(vectors, label);
  if (!orthonormal(basis)) throw Error(fmt::format("{} is not orthonormal", where), kHint);
  const std::vector<float> shares = read_tensor(*spectrum, label);
  basis.spectrum.assign(shares.begin(), shares.end());
  if (!is_spectrum(basis.spectrum))
    throw Error(fmt::format("{}: its spectrum is not descending shares of one", where), kHint);
  return basis;
}

}  // namespace

void write_bases(const Bases& bases, const std::filesystem::path& path) {
  std::vector<std::vector<float>> spectra;
  spectra.reserve(bases.list.size());
  std::vector<TensorToWrite> tensors;
  for (const Basis& basis : bases.list) {
    SLUICE_CHECK(static_cast<int64_t>(basis.vectors.size()) == basis.rank * basis.d);
    std::vector<float>& spectrum = spectra.emplace_back();
    for (const double share : basis.spectrum) spectrum.push_back(static_cast<float>(share));
    tensors.push_back({name_of(basis) + ".vectors",
                       ConstTensor(basis.vectors.data(), DType::kF32, {basis.rank, basis.d})});
    tensors.push_back(
        {name_of(basis) + ".spectrum",
         ConstTensor(spectrum.data(), DType::kF32, {static_cast<int64_t>(spectrum.size())})});
  }
  write_safetensors(path,
                    {{"format", kFormat},
                     {"version", kVersion},
                     {"model_sha256", bases.model_sha256},
                     {"text_path", bases.text_path},
                     {"text_sha256", bases.text_sha256},
                     {"n_tokens", std::to_string(bases.n_tokens)}},
                    tensors);
}

Bases parse_bases(std::span<const std::byte> bytes, const std::string& label,
                  const BasesModel& model) {
  SafetensorsMetadata metadata;
  const std::vector<SafetensorsEntry> entries = read_safetensors_header(bytes, label, &metadata);
  Bases bases;
  read_metadata(metadata, label, model, bases);
  std::map<TensorName, const SafetensorsEntry*> found;
  for (const SafetensorsEntry& entry : entries) {
    const TensorName name = parse_name(entry.name, label, model);
    check_entry(entry, name, label, model);
    // layers.1 and layers.01 are one.
    if (!found.emplace(name, &entry).second)
      throw Error(fmt::format("{}: tensor {} is there twice", label, quote(entry.name)), kHint);
  }
  for (const auto& [name, entry] : found) {
    TensorName other = name;
    other.is_vectors = !name.is_vectors;
    const auto partner = found.find(other);
    if (name.is_vectors)
      bases.list.push_back(
          read_basis(*entry, partner == found.end() ? nullptr : partner->second, name, label));
    else if (partner == found.end())
      throw Error(fmt::format("{}: tensor {} has no vectors", label, quote(entry->name)), kHint);
  }
  return bases;
}

Bases read_bases(const std::filesystem::path& path, const BasesModel& model) {
  return parse_bases(MappedFile::open(path)->bytes(), path_label(path), model);
}

}  // namespace sluice::impl
