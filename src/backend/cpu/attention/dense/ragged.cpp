// Exact attention of a ragged batch: sequences of one or a few new tokens are divided over threads
// by sequence and key head, since a step of one sequence alone is too short for all of them.

#include <vector>

#include "backend/cpu/attention/common/packed.h"
#include "backend/cpu/attention/dense/dense.h"
#include "core/threads.h"

namespace sluice::impl::cpu::dense {
namespace {

// Heads [begin, begin + count) of rows (n_rows, n_heads, head_dim).
template <typename AnyTensor>
AnyTensor heads_from(const AnyTensor& rows, int64_t begin, int64_t count) {
  const int64_t head_dim = rows.shape()[2];
  return AnyTensor(rows.bytes() + begin * head_dim * element_bytes(rows.dtype()), rows.dtype(),
                   {rows.rows(), count, head_dim}, rows.device())
      .with_row_stride(rows.row_stride());
}

// One key head of a cache of one sequence.
KvView head_of(const KvView& cache, int64_t head) {
  const int64_t capacity = cache.keys.shape()[2], head_dim = cache.keys.shape()[3];
  const auto part = [&](const Tensor& all, const Shape& shape) {
    if (!all.defined()) return Tensor();
    return Tensor(all.bytes() + head * shape.numel() * element_bytes(all.dtype()), all.dtype(),
                  shape, all.device());
  };
  const Shape rows{1, 1, capacity, head_dim}, scales{1, 1, capacity};
  return {part(cache.keys, rows), part(cache.values, rows), part(cache.key_scales, scales),
          part(cache.value_scales, scales)};
}

}  // namespace

void attend_ragged(const AttendRaggedArgs& args) {
  const int64_t n_kv_heads = args.keys.shape()[1];
  const int64_t group = args.attend.queries.shape()[1] / n_kv_heads;
  std::vector<const RaggedSequence*> few;
  for (const RaggedSequence& sequence : args.sequences) {
    SLUICE_CHECK(sequence.cache.keys.shape()[0] == 1);
    if (sequence.n_tokens < attention::kMinPackedQueries) {
      few.push_back(&sequence);
      continue;
    }
    store(args.store_of(sequence));
    attend(args.attend_of(sequence));
  }
  if (std::ssize(few) * n_kv_heads < 2 * threads()) {  // too few: each is divided by itself
    for (const RaggedSequence* sequence : few) {
      store(args.store_of(*sequence));
      attend(args.attend_of(*sequence));
    }
    return;
  }
  parallel_each(std::ssize(few) * n_kv_heads, [&](int64_t item) {
    const RaggedSequence& sequence = *few[static_cast<size_t>(item / n_kv_heads)];
    const int64_t head = item % n_kv_heads;
    const KvView cache = head_of(sequence.cache, head);
    StoreKvArgs stored = args.store_of(sequence);
    stored.keys = heads_from(stored.keys, head, 1);
    stored.values = heads_from(stored.values, head, 1);
    stored.cache = cache;
    store(stored);
    AttendDenseArgs one = args.attend_of(sequence);
    one.queries = heads_from(one.queries, head * group, group);
    one.out = heads_from(one.out, head * group, group);
    one.cache = cache;
    attend(one);
  });
}

}  // namespace sluice::impl::cpu::dense
