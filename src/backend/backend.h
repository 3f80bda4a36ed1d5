// The seam between the model and the hardware: one interface for each subject, and what only some
// devices can do.

#pragma once

#include "backend/attention_ops.h"
#include "backend/capabilities.h"
#include "backend/core_ops.h"
#include "backend/ragged.h"
#include "backend/select.h"
#include "backend/subspace_ops.h"

namespace sluice::impl {

class Backend : public CoreOps, public AttentionOps, public SelectionOps, public SubspaceOps {
 public:
  // One after the other, where a backend has nothing better.
  void store_and_attend(const RotaryArgs* rotary, const StoreKvArgs& store,
                        const AttendDenseArgs& attend) override {
    if (rotary != nullptr) rotate(*rotary);
    store_kv(store);
    attend_dense(attend);
  }
  void attend_ragged(const AttendRaggedArgs& args) override {
    for (const RaggedSequence& sequence : args.sequences) {
      store_kv(args.store_of(sequence));
      attend_dense(args.attend_of(sequence));
    }
  }
  std::unique_ptr<BaselineAttention> make_baseline_attention(const BaselineSpec&) override {
    throw Error(std::string(name()) + " has no baselines", "--device cpu");
  }

  virtual StepRecorder* recorder() { return nullptr; }
  virtual DeviceGates* device_gates() { return nullptr; }
  virtual ScoreComparer* score_comparer() { return nullptr; }
  virtual SharedDevice* shared_device() { return nullptr; }
  virtual DeviceRanks* device_ranks() { return nullptr; }
  // Whether a step is being recorded: its operations are noted down and not done.
  bool recording() { return recorder() != nullptr && recorder()->active(); }
};

// dtype: kF32 or kBF16. The plain loops every other backend is compared with.
std::unique_ptr<Backend> make_reference_backend(DType dtype);
// oneDNN or our own packed kernels, and Highway: the fastest this CPU has.
std::unique_ptr<Backend> make_cpu_backend(DType dtype);
// On the first device. Error in a build without CUDA.
std::unique_ptr<Backend> make_cuda_backend(DType dtype);
// For the process of this number among those of its machine, which have the devices one after the
// other, and again from the first where there are more processes.
std::unique_ptr<Backend> make_cuda_backend_for(DType dtype, int process);

// Where another library of this process works.
struct CudaPlace {
  int device = 0;
  void* stream = nullptr;  // a cudaStream_t, which outlives its use; null is CUDA's default stream
};
// The thread's current device stays what it was; the backend's operations need enter()
// (SharedDevice).
std::unique_ptr<Backend> make_cuda_backend_at(DType dtype, const CudaPlace& place);

}  // namespace sluice::impl
