#include "sluice/model.h"

#include <fmt/format.h>

#include "api/backends.h"
#include "api/state.h"
#include "core/threads.h"
#include "eval/plan_in_use.h"
#include "eval/results.h"

namespace sluice {
namespace {

using impl::api::with_files;

ModelInfo info_of(const impl::Model& model) {
  const impl::ModelSpec& spec = model.spec();
  return {.family = spec.family,
          .n_layers = spec.n_layers,
          .d_model = spec.d_model,
          .n_heads = spec.n_heads,
          .n_kv_heads = spec.n_kv_heads,
          .head_dim = spec.head_dim,
          .vocab = spec.vocab,
          .context = model.context(),
          .max_context = spec.max_positions,
          .is_encoder = !spec.causal,
          .has_logits = model.has_head(),
          .weight_bytes = model.weight_bytes(),
          .device = impl::device_text(model.backend()),
          .end_tokens = spec.eos_ids};
}

int64_t checked_context(int64_t context) {
  if (context < 0)
    throw Error(fmt::format("a context of {} tokens is less than none", context),
                "0 for the model's own, or more");
  return context;
}

}  // namespace

Model::State::State(const std::filesystem::path& path, const LoadOptions& options)
    : checkpoint(with_files([&] { return impl::open_checkpoint(path); })),
      model(checkpoint, impl::api::make_backend(options.device, options.dtype),
            {.context = checked_context(options.context),
             .progress = options.progress,
             .weights = impl::api::weight_type(options.weights)}),
      info(info_of(model)) {
  try {
    tokenizer_ = with_files([&] { return impl::open_tokenizer_of(*checkpoint); });
  } catch (const Error& error) {  // token ids alone may be all that is wanted
    no_tokenizer_ = error;
  }
}

const impl::Tokenizer& Model::State::tokenizer() const {
  if (no_tokenizer_) throw *no_tokenizer_;
  return *tokenizer_;
}

const std::string& Model::State::sha256() {
  if (sha256_.empty()) sha256_ = impl::model_sha256(*checkpoint);
  return sha256_;
}

const impl::Plan& Model::State::prepared(const Plan& plan) {
  static const impl::Plan dense;
  const std::shared_ptr<const Plan::State>& wanted = Access::of(plan);
  if (wanted == nullptr) return dense;
  for (const auto& [known, found] : prepared_)
    if (known == wanted) return *found;
  impl::Plan ready;
  if (wanted->uniform) {
    ready = impl::uniform_plan({.attention = *wanted->uniform}, model.plan_shape(),
                               model.linear_shape());
    impl::check_plan(ready.attention, model.plan_shape());
  } else {
    const impl::PlanInUse used = with_files(
        [&] { return impl::plan_in_use(*wanted->file, wanted->path, *checkpoint, {}, sha256()); });
    ready = impl::prepare_plan(model, used.file.plan, used.bases);
  }
  prepared_.emplace_back(wanted, std::make_unique<impl::Plan>(std::move(ready)));
  return *prepared_.back().second;
}

void Model::State::check_logits() const {
  if (!model.has_head())
    throw Error("this checkpoint has no output matrix, and so no logits",
                "use the variant saved with its language-model head");
}

void Model::State::check_ids(std::span<const int32_t> tokens) const {
  for (const int32_t token : tokens)
    if (token < 0 || token >= info.vocab)
      throw Error(fmt::format("token {} is not in the model's vocabulary of {}", token, info.vocab),
                  "are the tokens this model's?");
}

Model::Model(std::shared_ptr<State> state) : state_(std::move(state)) {}
Model::Model(Model&&) noexcept = default;
Model& Model::operator=(Model&&) noexcept = default;
Model::~Model() = default;

Model Model::load(const std::filesystem::path& path, const LoadOptions& options) {
  return Access::make(std::make_shared<State>(path, options));
}

const ModelInfo& Model::info() const { return Access::of(*this)->info; }

std::vector<int32_t> Model::tokenize(std::string_view text, bool add_special) const {
  return Access::of(*this)->tokenizer().encode(text, add_special);
}

std::string Model::detokenize(std::span<const int32_t> tokens, bool with_special) const {
  const State& state = *Access::of(*this);
  state.check_ids(tokens);
  return state.tokenizer().decode(tokens, /*skip_special=*/!with_special);
}

void set_threads(int count) {
  if (count < 0)
    throw Error(fmt::format("{} threads are less than none", count), "0 for every processor");
  impl::set_threads(count);
}

int threads() { return impl::threads(); }

}  // namespace sluice
