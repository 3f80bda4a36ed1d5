#include "backend/cuda/accelerated.h"

namespace sluice::cuda {

std::unique_ptr<Selector> make_cuda_selector(std::shared_ptr<Context>, const SelectorSpec&) {
  throw Error("selection is not on this device yet", "use --device cpu");
}

std::unique_ptr<KeysAttention> make_cuda_keys_attention(std::shared_ptr<Context>, const KeysSpec&) {
  throw Error("attention keys is not on this device yet", "use --device cpu");
}

std::unique_ptr<RepsAttention> make_cuda_reps_attention(std::shared_ptr<Context>, const RepsSpec&) {
  throw Error("attention copy is not on this device yet", "use --device cpu");
}

}  // namespace sluice::cuda
