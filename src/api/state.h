// What the public classes hold, and how one of them gets at another's.

#pragma once

#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "io/tokenizer/tokenizer.h"
#include "model/model.h"
#include "plan/plan.h"
#include "plan/plan_file.h"
#include "sluice/attention_device.h"
#include "sluice/model.h"
#include "sluice/plan.h"

namespace sluice {

struct AttentionDevice::State {
  std::unique_ptr<impl::Backend> backend;
  Device kind;
  DType dtype;
  int ordinal = 0;
  bool has_stream = false;  // of the caller's

  // The device is the current one of this thread as long as the answer lives.
  std::shared_ptr<void> enter() const;
};

// One of the two is set.
struct Plan::State {
  std::optional<impl::UniformAttention> uniform = {};
  std::optional<impl::PlanFile> file = {};
  // Of the file. Errors name it; paths of bases are relative to its folder.
  std::filesystem::path path = {};
};

struct Model::State {
  State(const std::filesystem::path& path, const LoadOptions& options);

  std::shared_ptr<const impl::Checkpoint> checkpoint;
  impl::Model model;
  ModelInfo info;

  // Throws the Error that opening it gave.
  const impl::Tokenizer& tokenizer() const;
  const std::string& sha256();
  // The plan as this model follows it, with all that it needs prepared. Throws Error where it
  // cannot.
  const impl::Plan& prepared(const Plan& plan);
  // Throws Error for a model that has no logits.
  void check_logits() const;
  // Throws Error for ids outside of the vocabulary.
  void check_ids(std::span<const int32_t> tokens) const;

 private:
  std::unique_ptr<impl::Tokenizer> tokenizer_;
  std::optional<Error> no_tokenizer_;
  std::string sha256_;
  // Those in use so far: bases are read and plans compared once.
  std::vector<std::pair<std::shared_ptr<const Plan::State>, std::unique_ptr<impl::Plan>>> prepared_;
};

struct Access {
  static Model make(std::shared_ptr<Model::State> state) { return Model(std::move(state)); }
  static Plan make(std::shared_ptr<const Plan::State> state) { return Plan(std::move(state)); }
  // Throws Error for a model that was moved from.
  static const std::shared_ptr<Model::State>& of(const Model& model) {
    if (model.state_ == nullptr) throw Error("this model was moved from", "use the one moved to");
    return model.state_;
  }
  static const std::shared_ptr<const Plan::State>& of(const Plan& plan) { return plan.state_; }
  static AttentionDevice::State& of(const AttentionDevice& device) { return *device.state_; }
};

namespace impl::api {

// Throws Error for a value out of range.
UniformAttention uniform_of(const AttentionOptions& options);

// What the standard library throws where files are concerned, as an Error. Callbacks run outside of
// it: what they throw passes through.
template <typename F>
auto with_files(F&& action) {
  try {
    return action();
  } catch (const std::system_error& error) {
    throw Error(error.what(), "are the path and its permissions right?");
  }
}

}  // namespace impl::api
}  // namespace sluice
