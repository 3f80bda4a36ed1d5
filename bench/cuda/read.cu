#include "cuda/read.h"

namespace sluice::impl::bench {
namespace {

constexpr int kThreads = 512, kLoads = 8;

__global__ void __launch_bounds__(kThreads) read_all(const uint4* data, int64_t n, uint32_t* sum) {
  uint32_t own = 0;
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t first = int64_t{blockIdx.x} * kThreads + threadIdx.x; first < n;
       first += kLoads * step) {
    uint4 bits[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i)
      bits[i] = first + i * step < n ? __ldcs(data + first + i * step) : make_uint4(0, 0, 0, 0);
#pragma unroll
    for (int i = 0; i < kLoads; ++i) own ^= bits[i].x ^ bits[i].y ^ bits[i].z ^ bits[i].w;
  }
  if (own == 0x9e3779b9u) *sum = own;
}

}  // namespace

void read_bytes(cuda::Context& context, const std::byte* data, int64_t bytes, uint32_t* sum) {
  read_all<<<static_cast<unsigned>(4 * context.multiprocessors()), kThreads, 0, context.stream()>>>(
      reinterpret_cast<const uint4*>(data), bytes / 16, sum);
  cuda::check_launch("read_all");
}

}  // namespace sluice::impl::bench
