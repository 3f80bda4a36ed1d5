// Rows of keys and values into the cache of dense attention.

#include <cstring>

#include "backend/cpu/attention/dense/dense.h"
#include "backend/cpu/primitives/int8_rows.h"
#include "core/threads.h"

namespace sluice::impl::cpu::dense {
namespace {

constexpr int64_t kGrain = 16384;  // numbers that a thread stores at least

// One head of row r of (n_rows, n_kv_heads, head_dim).
template <typename T>
void put_int8(const ConstTensor& from, int64_t r, int64_t head, const Tensor& cache,
              const Tensor& scales, int64_t row) {
  const int64_t head_dim = cache.shape()[3];
  scales.data<float>()[row] = primitives::to_int8_row(from.row<T>(r) + head * head_dim, head_dim,
                                                      cache.data<int8_t>() + row * head_dim);
}

}  // namespace

void store(const StoreKvArgs& args) {
  const Shape& cache = args.cache.keys.shape();
  const int64_t n_kv_heads = cache[1], capacity = cache[2];
  const DType dtype = args.keys.dtype();
  const int64_t bytes = cache[3] * element_bytes(dtype);
  const bool int8 = args.cache.is_int8();
  SLUICE_CHECK(int8 || dtype == args.cache.keys.dtype());
  SLUICE_CHECK(args.first_position + args.n_tokens <= capacity);
  const auto put = [&](const ConstTensor& from, const Tensor& to, const Tensor& scales, int64_t r) {
    const int64_t batch = r / args.n_tokens;
    const int64_t position = args.first_position + r % args.n_tokens;
    for (int64_t head = 0; head < n_kv_heads; ++head) {
      const int64_t row = (batch * n_kv_heads + head) * capacity + position;
      if (!int8)
        std::memcpy(to.bytes() + row * bytes,
                    from.bytes() + r * from.row_stride() * element_bytes(dtype) + head * bytes,
                    static_cast<size_t>(bytes));
      else if (dtype == DType::kBF16)
        put_int8<BFloat16>(from, r, head, to, scales, row);
      else
        put_int8<float>(from, r, head, to, scales, row);
    }
  };
  const int64_t grain = std::max<int64_t>(1, kGrain / (2 * args.keys.row_elements()));
  parallel_for(args.keys.rows(), grain, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      put(args.keys, args.cache.keys, args.cache.key_scales, r);
      put(args.values, args.cache.values, args.cache.value_scales, r);
    }
  });
}

}  // namespace sluice::impl::cpu::dense
