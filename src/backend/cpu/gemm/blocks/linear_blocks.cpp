// x W^T with W in its stored blocks, packed once (gemm/blocks/layout.h). A few rows of x are
// rounded to 8 bits and multiplied with the blocks as they are. Many are rounded too and meet tiles
// of 8-bit integers, where the compute dtype is bf16 and the CPU has them; else they meet slices of
// the matrix that are expanded to the compute dtype's panels.

#include <algorithm>
#include <vector>

#include "backend/cpu/gemm/blocks/activations.h"
#include "backend/cpu/gemm/blocks/expand.h"
#include "backend/cpu/gemm/blocks/layout.h"
#include "backend/cpu/gemm/blocks/tiled_product.h"
#include "backend/cpu/gemm/panel_linear.h"
#include "backend/cpu/gemm/scratch.h"
#include "backend/cpu/primitives/rows.h"
#include "core/threads.h"

namespace sluice::impl::cpu::gemm {
namespace {

// Rows that share an expanded slice.
constexpr int64_t kRowBlock = 512;

bool is_block(const StoredRows& rows) { return block_size(rows.dtype).elements > 1; }

int64_t groups_of(int64_t n_out) { return (n_out + kGroupRows - 1) / kGroupRows; }
int64_t group_bytes(DType type, int64_t n_in) {
  const BlockLayout layout = make_block_layout(type);
  return n_in / layout.block * layout.bytes;
}

// Rows of one block type.
class BlockLinear final : public PanelLinear {
 public:
  BlockLinear(const MatrixSource& source, DType compute)
      : PanelLinear(source,
                    groups_of(source.n_out) * group_bytes(source.stored.front().dtype, source.n_in),
                    kernel_for(compute), source.bias),
        type_(source.stored.front().dtype),
        tiles_(compute == DType::kBF16 ? block_tiles(type_) : nullptr),
        group_bytes_(gemm::group_bytes(type_, source.n_in)),
        groups_(host_buffer(DType::kBF16, {groups_of(source.n_out), group_bytes_ / 2})) {
    const BlockSize block = block_size(type_);
    SLUICE_CHECK(source.n_in % block.elements == 0);
    const int64_t row_bytes = source.n_in / block.elements * block.bytes;
    const int64_t block_bytes = make_block_layout(type_).bytes;
    parallel_for(groups_of(source.n_out), 1, [&](int64_t begin, int64_t end) {
      for (int64_t group = begin; group < end; ++group) {
        const std::byte* rows[kGroupRows] = {};
        for (int64_t r = 0; r < kGroupRows; ++r)
          for (const StoredRows& part : source.stored)
            if (const int64_t row = group * kGroupRows + r; row >= part.begin && row < part.end)
              rows[r] = part.bytes + (row - part.begin) * row_bytes;
        for (int64_t b = 0; b < source.n_in / block.elements; ++b)
          pack_group_block(type_, rows, b, group_at(group) + b * block_bytes);
      }
    });
  }

  const char* provider() const override { return block_kernel().name; }

  void run(const LinearArgs& args) const override {
    if (args.x.rows() > (tiles_ != nullptr ? tiles_->few_rows : kFewRows)) return run_many(args);
    parallel_for(groups_of(n_out()), 1, [&](int64_t begin, int64_t end) {
      run_few(args, {begin, end});
    });
  }

 private:
  std::byte* group_at(int64_t group) const { return groups_.view().bytes() + group * group_bytes_; }

  void run_many(const LinearArgs& args) const {
    if (tiles_ == nullptr) return multiply(args, {.row_block = kRowBlock, .row_parts = 1});
    multiply_by_tiles({.linear = &args,
                       .kernel = tiles_,
                       .type = type_,
                       .groups = groups_.view().bytes(),
                       .group_bytes = group_bytes_,
                       .n_out = n_out(),
                       .n_in = n_in(),
                       .bias = bias()});
  }

  PanelSlices slices(Range panels, int64_t k, int64_t depth) const override {
    thread_local Scratch scratch;
    const int64_t stride = depth * kernel().nr * element_bytes(kernel().b_dtype);
    std::byte* const out = scratch.at_least((panels.end - panels.begin) * stride);
    expand_panels({.type = type_,
                   .groups = groups_.view().bytes(),
                   .group_bytes = group_bytes_,
                   .n_out = n_out(),
                   .first_column = panels.begin * kernel().nr,
                   .n_columns = (panels.end - panels.begin) * kernel().nr,
                   .k = k,
                   .depth = depth,
                   .kernel = &kernel(),
                   .out = out});
    return {out, stride};
  }

  // Every thread rounds the rows for itself: less time than to wait for another.
  void run_few(const LinearArgs& args, Range groups) const {
    const BlockKernel& blocks = block_kernel();
    const int64_t width = (groups.end - groups.begin) * kGroupRows;
    thread_local QuantisedRows x;
    thread_local std::vector<float> sums;
    x.set(args.x, type_, blocks);
    const int64_t n_rows = x.size();
    if (sums.size() < static_cast<size_t>(n_rows * width))
      sums.resize(static_cast<size_t>(n_rows * width));
    for (int64_t first = 0; first < n_rows; first += blocks.max_rows)
      multiply_groups(x, first, std::min(blocks.max_rows, n_rows - first), groups, sums.data());
    const int64_t column = groups.begin * kGroupRows;
    for (int64_t row = 0; row < n_rows; ++row)
      finish_row({.linear = &args,
                  .bias = bias(),
                  .row = row,
                  .column = column,
                  .n = std::min(groups.end * kGroupRows, n_out()) - column,
                  .sums = sums.data() + row * width});
  }

  // Rows [first, first + n_rows) with all of the groups, to sums (rows of x, 8 to a group). Where
  // there are one or two rows several stretches of the groups are read side by side.
  void multiply_groups(const QuantisedRows& x, int64_t first, int64_t n_rows, Range groups,
                       float* sums) const {
    const BlockKernel& blocks = block_kernel();
    const int64_t n_groups = groups.end - groups.begin;
    const int64_t streams = n_rows <= 2 ? blocks.streams : 1, stretch = n_groups / streams;
    GroupArgs call{.weights = nullptr,
                   .n_blocks = n_in() / block_size(type_).elements,
                   .x = {},
                   .out = nullptr,
                   .out_stride = n_groups * kGroupRows,
                   .group_stride = stretch * group_bytes_,
                   .out_group_stride = stretch * kGroupRows};
    for (int64_t r = 0; r < n_rows; ++r) call.x[r] = x.row(first + r);
    const auto multiply = [&](int64_t index, int64_t together) {
      call.weights = group_at(groups.begin + index);
      call.out = sums + first * call.out_stride + index * kGroupRows;
      blocks.group(type_, n_rows, together)(call);
      add_terms(x, first, n_rows, call, together);
    };
    for (int64_t i = 0; i < stretch; ++i) multiply(i, streams);
    for (int64_t i = streams * stretch; i < n_groups; ++i) multiply(i, 1);
  }

  // Adds second terms of blocks of the rows and groups of a call, while those are in a cache.
  void add_terms(const QuantisedRows& x, int64_t first, int64_t n_rows, const GroupArgs& call,
                 int64_t together) const {
    for (int64_t t = 0; t < x.n_terms(); ++t) {
      const BlockTerm term = x.term(t);
      if (term.row < first || term.row >= first + n_rows) continue;
      float of_term[kMostStreams * kGroupRows];
      block_kernel().group(type_, 1, together)(
          {.weights = call.weights + term.block * make_block_layout(type_).bytes,
           .n_blocks = 1,
           .x = {term.x},
           .out = of_term,
           .out_stride = kGroupRows,
           .group_stride = call.group_stride,
           .out_group_stride = kGroupRows});
      float* const out = call.out + (term.row - first) * call.out_stride;
      for (int64_t g = 0; g < together; ++g)
        for (int64_t i = 0; i < kGroupRows; ++i)
          out[g * call.out_group_stride + i] += of_term[g * kGroupRows + i];
    }
  }

  DType type_;
  const BlockTileKernel* tiles_;  // nullptr: many rows meet expanded panels
  int64_t group_bytes_;
  Buffer groups_;  // (groups, bytes)
};

// Rows of several types: a matrix to each run of rows of one type.
class StackedLinear final : public Linear {
 public:
  struct Part {
    int64_t begin;
    std::unique_ptr<Linear> weights;
  };
  StackedLinear(const MatrixSource& source, int64_t bytes, std::vector<Part> parts)
      : Linear(source.n_out, source.n_in, bytes), parts_(std::move(parts)) {}

  const char* provider() const override { return parts_.front().weights->provider(); }

  void run(const LinearArgs& args) const override {
    for (const Part& part : parts_) {
      LinearArgs of_part = args;
      of_part.weights = part.weights.get();
      of_part.out = args.out.columns_from(part.begin, part.weights->n_out());
      part.weights->run(of_part);
    }
  }

 private:
  std::vector<Part> parts_;
};

// Rows [begin, end) of a source, which are `stored`.
MatrixSource rows_of(const MatrixSource& source, int64_t begin, int64_t end,
                     std::vector<StoredRows> stored) {
  MatrixSource part;
  part.n_out = end - begin;
  part.n_in = source.n_in;
  part.read_rows = [&source, begin](int64_t first, int64_t last, float* out) {
    source.read_rows(begin + first, begin + last, out);
  };
  if (!source.bias.empty())
    part.bias.assign(source.bias.begin() + begin, source.bias.begin() + end);
  for (StoredRows& rows : stored) {
    rows.begin -= begin;
    rows.end -= begin;
  }
  part.stored = std::move(stored);
  return part;
}

}  // namespace

std::unique_ptr<Linear> make_block_linear(const MatrixSource& source, DType dtype) {
  if (std::none_of(source.stored.begin(), source.stored.end(), is_block)) return nullptr;
  std::vector<StackedLinear::Part> parts;
  int64_t bytes = 0;
  for (size_t first = 0; first < source.stored.size();) {
    size_t last = first + 1;
    while (last < source.stored.size() && source.stored[last].dtype == source.stored[first].dtype)
      ++last;
    const MatrixSource part =
        rows_of(source, source.stored[first].begin, source.stored[last - 1].end,
                {source.stored.begin() + static_cast<ptrdiff_t>(first),
                 source.stored.begin() + static_cast<ptrdiff_t>(last)});
    std::unique_ptr<Linear> weights = is_block(part.stored.front())
                                          ? std::make_unique<BlockLinear>(part, dtype)
                                          : make_plain_linear(part, dtype);
    bytes += weights->bytes();
    parts.push_back({source.stored[first].begin, std::move(weights)});
    first = last;
  }
  if (parts.size() == 1) return std::move(parts.front().weights);
  return std::make_unique<StackedLinear>(source, bytes, std::move(parts));
}

}  // namespace sluice::impl::cpu::gemm
