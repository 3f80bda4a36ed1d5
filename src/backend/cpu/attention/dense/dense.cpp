// Exact attention, docs/algorithm.md section 3, mode `dense`.
//
// Key blocks start at multiples of their size from position 0, so a query's arithmetic does not
// depend on how a prompt is cut into chunks of kMinPackedQueries or more.

#include "backend/cpu/attention/dense/dense.h"

#include <algorithm>
#include <vector>

#include "backend/cpu/attention/common/group.h"
#include "backend/cpu/attention/common/packed.h"
#include "core/threads.h"

namespace sluice::impl::cpu::dense {
namespace {

// A cache of int8 as rows of all heads.
struct Int8Cache {
  explicit Int8Cache(const KvView& view)
      : keys{view.keys.data<int8_t>(), view.key_scales.data<float>()},
        values{view.values.data<int8_t>(), view.value_scales.data<float>()} {}
  attention::Int8Rows keys, values;
};

// A step of the softmax costs some operations for every row of a block, however many keys it has.
// Beside the products of AMX they count.
int64_t keys_of_block(DType dtype) {
  return &gemm::kernel_for(dtype) == gemm::kernel_amx() ? 256 : 128;
}

template <typename T>
void attend_tiles(const AttendDenseArgs& args) {
  const Shape& cache = args.cache.keys.shape();
  const int64_t n_keys = args.first_position + args.n_tokens;
  const DType dtype = args.queries.dtype();
  const attention::TileShape shape(dtype, cache[3], keys_of_block(dtype));
  // visit_block(first key, block, mask) of every block that queries [first, first + n) see.
  const auto each_block = [&](int64_t first, int64_t n, attention::Panels panels,
                              const auto& visit_block) {
    const int64_t position = args.first_position + first;
    const int64_t end = args.causal ? position + n : n_keys;
    const int64_t begin = args.window > 0 ? std::max<int64_t>(0, position + 1 - args.window) : 0;
    for (int64_t block = begin / shape.block_keys; block * shape.block_keys < end; ++block) {
      const int64_t first_key = block * shape.block_keys;
      const attention::Mask mask{
          .n_keys = shape.block_keys,
          .begin = args.window > 0 ? position + 1 - args.window - first_key : 0,
          .end = (args.causal ? position + 1 : n_keys) - first_key,
          .begin_step = args.window > 0 ? 1 : 0,
          .end_step = args.causal ? 1 : 0};
      visit_block(first_key, panels.from(shape, block), mask);
    }
  };
  const attention::PackedArgs packed{.queries = args.queries,
                                     .n_batch = cache[0],
                                     .n_kv_heads = cache[1],
                                     .n_keys = n_keys,
                                     .scale = args.scale,
                                     .cap = args.unscaled_cap(),
                                     .out = args.out};
  using Block = attention::Panels;
  if (args.cache.is_int8()) {
    const Int8Cache all(args.cache);
    const auto rows_of = [&](int64_t source) {
      const int64_t offset = source * cache[2] * cache[3];
      return attention::Int8HeadRows<T>(cache[3], all.keys.rows + offset, all.values.rows + offset);
    };
    const auto visit = [&](attention::QueryTile& tile, int64_t first, int64_t n, Block panels,
                           int64_t source) {
      each_block(first, n, panels, [&](int64_t key, Block block, const attention::Mask& mask) {
        const int64_t row = source * cache[2] + key;
        tile.visit_scaled(block, mask, {all.keys.scales + row, all.values.scales + row});
      });
    };
    return attention::attend_packed<T>(packed, shape, rows_of, visit);
  }
  const auto rows_of = [&](int64_t source) {
    const int64_t offset = source * cache[2] * cache[3];
    return attention::HeadRows<T>{cache[3], args.cache.keys.data<T>() + offset,
                                  args.cache.values.data<T>() + offset};
  };
  const auto visit = [&](attention::QueryTile& tile, int64_t first, int64_t n, Block panels,
                         int64_t) {
    each_block(first, n, panels,
               [&](int64_t, Block block, const attention::Mask& mask) { tile.visit(block, mask); });
  };
  attention::attend_packed<T>(packed, shape, rows_of, visit);
}

// Decoding, and prompts of a few tokens: the query heads of a key head in one pass over its keys.
// Keys are divided in stretches that start at multiples of kStretch, so that a few heads occupy
// many threads; sums do not depend on the number of threads.
constexpr int64_t kStretch = 512;

// Keys [begin, end) of one row of queries, and the stretches that have some of them.
struct KeyRange {
  int64_t begin, end;
  int64_t first_stretch() const { return begin / kStretch; }
  int64_t n_stretches() const { return (end + kStretch - 1) / kStretch - first_stretch(); }
};

template <typename T>
class Rows {
 public:
  explicit Rows(const AttendDenseArgs& args) : args_(args) {
    for (int64_t row = 0; row < args.n_tokens; ++row)
      n_stretches_ = std::max(n_stretches_, range_of(row).n_stretches());
  }

  void attend() {
    const int64_t n_groups = args_.queries.rows() * n_kv_heads_;
    parts_.resize(n_stretches_ > 1 ? static_cast<size_t>(n_groups * n_stretches_ * part_size_) : 0);
    parallel_each(n_groups * n_stretches_, [&](int64_t index) { attend_stretch(index); });
    for (int64_t item = 0; item < n_groups && n_stretches_ > 1; ++item) add_stretches(item);
  }

 private:
  KeyRange range_of(int64_t row) const {
    const int64_t position = args_.first_position + row % args_.n_tokens;
    return {args_.window > 0 ? std::max<int64_t>(0, position + 1 - args_.window) : 0,
            args_.causal ? position + 1 : args_.first_position + args_.n_tokens};
  }
  // item: a row of queries and a key head.
  void load(attention::QueryGroup<T>& queries, int64_t item) const {
    queries.load(args_.queries.row<T>(item / n_kv_heads_) + first_of(item),
                 {.n_queries = group_,
                  .head_dim = head_dim_,
                  .scale = args_.scale,
                  .cap = args_.unscaled_cap(),
                  .int8 = args_.cache.is_int8()});
  }
  void store(attention::QueryGroup<T>& queries, int64_t item) const {
    queries.store(args_.out.row<T>(item / n_kv_heads_) + first_of(item));
  }
  int64_t first_of(int64_t item) const { return item % n_kv_heads_ * group_ * head_dim_; }

  void attend_stretch(int64_t index) {
    thread_local attention::QueryGroup<T> queries;
    const int64_t item = index / n_stretches_, row = item / n_kv_heads_;
    const KeyRange keys = range_of(row);
    const int64_t stretch = keys.first_stretch() + index % n_stretches_;
    const int64_t begin = std::max(keys.begin, stretch * kStretch);
    const int64_t end = std::max(begin, std::min(keys.end, (stretch + 1) * kStretch));
    const int64_t head = row / args_.n_tokens * n_kv_heads_ + item % n_kv_heads_;
    const int64_t first = head * capacity_ + std::min(begin, keys.end);
    load(queries, item);
    if (args_.cache.is_int8()) {
      const Int8Cache all(args_.cache);
      queries.visit(all.keys.from(first, head_dim_), all.values.from(first, head_dim_),
                    end - begin);
    } else {
      queries.visit(args_.cache.keys.data<T>() + first * head_dim_,
                    args_.cache.values.data<T>() + first * head_dim_, end - begin);
    }
    if (n_stretches_ == 1)
      store(queries, item);
    else
      queries.save(parts_.data() + index * part_size_);
  }

  void add_stretches(int64_t item) {
    load(whole_, item);
    for (int64_t i = 0; i < range_of(item / n_kv_heads_).n_stretches(); ++i)
      whole_.add(parts_.data() + (item * n_stretches_ + i) * part_size_);
    store(whole_, item);
  }

  const AttendDenseArgs& args_;
  const int64_t n_kv_heads_ = args_.cache.keys.shape()[1], capacity_ = args_.cache.keys.shape()[2];
  const int64_t head_dim_ = args_.cache.keys.shape()[3];
  const int64_t group_ = args_.queries.shape()[1] / n_kv_heads_;
  const int64_t part_size_ = attention::QueryGroup<T>::part_size(group_, head_dim_);
  int64_t n_stretches_ = 1;   // of the row that has most
  std::vector<float> parts_;  // (rows, n_kv_heads, n_stretches, part_size)
  attention::QueryGroup<T> whole_;
};

template <typename T>
void attend(const AttendDenseArgs& args) {
  if (args.n_tokens < attention::kMinPackedQueries)
    Rows<T>(args).attend();
  else
    attend_tiles<T>(args);
}

}  // namespace

void attend(const AttendDenseArgs& args) {
  const Shape& cache = args.cache.keys.shape();
  SLUICE_CHECK(args.queries.shape()[2] == cache[3] && args.queries.shape()[1] % cache[1] == 0);
  SLUICE_CHECK(args.first_position + args.n_tokens <= cache[2]);
  SLUICE_CHECK(args.queries.rows() == cache[0] * args.n_tokens);
  if (args.queries.dtype() == DType::kBF16)
    attend<BFloat16>(args);
  else
    attend<float>(args);
}

}  // namespace sluice::impl::cpu::dense
