// Steps of one token to a sequence, recorded where the backend can.

#include <utility>

#include "model/model.h"

namespace sluice::impl {

bool Model::can_record(const KvCache& cache) const {
  return share_ == nullptr && !observer_ && !linear_observer_ && !cache.waits_to_time() &&
         cache.can_record();
}

void Model::run_step(bool exact, const Tensor& hidden, KvCache& cache) {
  const auto position = static_cast<int32_t>(cache.length());
  StepWork work{.run = [&] { run_blocks({.exact = exact}, hidden, cache); },
                .positions = {&position, 1}};
  if (!exact) work.before_replay = [&] { cache.expect_token(); };
  run_recorded(exact ? exact_step_ : step_, {cache.id()}, work);
}

void Model::run_recorded(RecordedStep& step, std::vector<uint64_t> caches, const StepWork& work) {
  StepMemory memory{.caches = std::move(caches),
                    .n_rows = workspace_.capacity(),
                    .n_hidden = hidden_.view().rows(),
                    .n_positions = rotary_.cosine.defined() ? rotary_.cosine.view().rows() : 0};
  const bool same = memory == step.memory;
  step.memory = std::move(memory);
  if (!same || (step.recording != nullptr && !step.recording->valid())) {
    step.recording = nullptr;
    step.tried = false;
  } else if (!std::exchange(step.tried, true) && backend_->recorder() != nullptr) {
    step.recording = backend_->recorder()->record(work.run, std::ssize(work.positions));
  }
  replays_ = step.recording != nullptr;
  if (!replays_) return work.run();
  if (work.before_replay) work.before_replay();
  step.recording->replay(work.positions);
}

}  // namespace sluice::impl
