// Kernels of refined attention that are not made yet.

#include "backend/cuda/attention/refine/kernels.h"

namespace sluice::cuda::refine {
namespace {

[[noreturn]] void refuse() { throw Error("this kernel of refined attention is not made yet"); }

}  // namespace

void attend_tiles(const std::shared_ptr<Context>&, const RefineView&) { refuse(); }
void attend_hopper(const std::shared_ptr<Context>&, const RefineView&) { refuse(); }
void attend_one(const std::shared_ptr<Context>&, const RefineView&, DType, const std::byte*,
                const std::byte*) {
  refuse();
}

}  // namespace sluice::cuda::refine
