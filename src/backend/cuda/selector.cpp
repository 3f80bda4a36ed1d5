#include "backend/cuda/selector.h"

#include <algorithm>
#include <cstring>

#include "backend/cuda/accelerated.h"

namespace sluice::cuda {
namespace {

// What a bf16 product may err by, as a cosine. The matrix units add 16 products at a time to a sum,
// aligned to the largest of these 17 numbers and cut off below its 23rd bit: 17 / 16 units of 2^-23
// per element, of numbers that no product of unit rows makes larger than 1. The rest is for norms
// and unit elements in f32. Rows that were f32 lose 2^-9 of each element, in both factors.
double product_error(int64_t padded, bool bf16) {
  const double sums = (1.1 * static_cast<double>(padded) + 16) * 0x1p-23;
  return bf16 ? sums : sums + 1.01 * 0x1p-8;
}

Buffer host_rows(Context& context, const ConstTensor& rows) {
  Buffer host = host_buffer(rows.dtype(), {rows.rows(), rows.row_elements()});
  const auto width = static_cast<size_t>(rows.row_elements() * element_bytes(rows.dtype()));
  const auto pitch = static_cast<size_t>(rows.row_stride() * element_bytes(rows.dtype()));
  check(
      cudaMemcpy2DAsync(host.view().bytes(), width, rows.bytes(), pitch, width,
                        static_cast<size_t>(rows.rows()), cudaMemcpyDeviceToHost, context.stream()),
      "copy from the device");
  context.synchronize();
  return host;
}

}  // namespace

struct CudaSelector::Pass {
  ConstTensor rows;
  DeviceArray<double> inverse, residual_inverse;
  DeviceArray<uint8_t> exempt;     // (n)
  DeviceArray<uint8_t> inherited;  // (n_sets, n)
};

// Memory for one chunk after the other.
struct CudaSelector::Chunk {
  Chunk(const std::shared_ptr<Context>& context, int64_t n, int64_t padded, int64_t n_sets,
        int64_t n_splits)
      : splits(n_splits),
        rows(context, n * padded),
        scale(context, n),
        inverse(context, n),
        inherited(context, n_sets * n),
        local(context, n * kChunk),
        largest(context, n_sets * 2 * n_splits * n),
        conflicts(context, n_sets * n * kWords),
        sure(context, n_sets * 3 * kWords),
        verdict(context, n_sets * n),
        sources(context, kChunk) {}
  int64_t splits;
  DeviceArray<uint16_t> rows;
  DeviceArray<float> scale;
  DeviceArray<double> inverse;
  DeviceArray<uint8_t> inherited;
  DeviceArray<float> local;
  DeviceArray<Largest> largest;
  DeviceArray<uint32_t> conflicts, sure;
  DeviceArray<uint8_t> verdict;
  DeviceArray<int32_t> sources;
};

CudaSelector::CudaSelector(std::shared_ptr<Context> context, const SelectorSpec& spec)
    : Selector(spec),
      context_(std::move(context)),
      padded_(round_up(spec.d_model, 64)),
      live_(std::any_of(spec.taus.begin(), spec.taus.end(), [](double tau) { return tau > 0; })),
      device_sets_(context_, spec.taus.size()),
      arriving_(static_cast<int64_t>((2 + spec.taus.size()) * sizeof(int32_t))) {
  std::vector<double> thresholds;
  for (const double tau : spec_.taus) {
    SLUICE_CHECK(tau >= 0 && tau < 1);
    thresholds.push_back(tau > 0 ? threshold_of(tau) : 0);
  }
  thresholds_ = DeviceArray<double>(context_, std::span<const double>(thresholds));
  median_state_ = DeviceArray<double>(context_, kMedianState);
  device_counts_ = DeviceArray<int32_t>(context_, static_cast<int64_t>(2 + spec.taus.size()));
  device_products_ = DeviceArray<int64_t>(context_, 1);
  check(cudaEventCreateWithFlags(&arrived_, cudaEventDisableTiming), "event");
  CudaSelector::reset();
}

CudaSelector::~CudaSelector() {
  if (on_the_way_) cudaEventSynchronize(arrived_);
  cudaEventDestroy(arrived_);
}

void CudaSelector::reset() {
  if (on_the_way_) take_counts();
  n_tokens_ = n_counted_ = n_fetched_ = n_sent_ = 0;
  counts_.assign(1 + spec_.taus.size(), 0);
  sets_.assign(spec_.taus.size(), {});
  for (size_t i = 0; i < sets_.size(); ++i) sets_[i].tau = spec_.taus[i];
  products_ = 0;
  const auto clear = [&](void* data, int64_t bytes) {
    check(cudaMemsetAsync(data, 0, static_cast<size_t>(bytes), context_->stream()), "reset");
  };
  clear(median_state_.data(), kMedianState * int64_t{sizeof(double)});
  clear(device_counts_.data(), device_counts_.size() * int64_t{sizeof(int32_t)});
  clear(device_products_.data(), sizeof(int64_t));
  if (on_host_ != nullptr) on_host_->reset();
}

// Asks for the numbers of columns and clusters, to be looked at in the next pass.
void CudaSelector::send_counts() {
  check(cudaMemcpyAsync(arriving_.data(), device_counts_.data(),
                        static_cast<size_t>(device_counts_.size()) * sizeof(int32_t),
                        cudaMemcpyDeviceToHost, context_->stream()),
        "copy of counts");
  check(cudaEventRecord(arrived_, context_->stream()), "copy of counts");
  on_the_way_ = true;
  n_sent_ = n_tokens_;
}

void CudaSelector::take_counts() const {
  if (!on_the_way_) return;
  check(cudaEventSynchronize(arrived_), "copy of counts");
  on_the_way_ = false;
  n_counted_ = n_sent_;
  std::vector<int32_t> arrived(2 + spec_.taus.size());
  std::memcpy(arrived.data(), arriving_.data(), arrived.size() * sizeof(int32_t));
  counts_[0] = arrived[0];
  for (size_t i = 0; i < spec_.taus.size(); ++i) counts_[1 + i] = arrived[2 + i];
}

int64_t CudaSelector::bytes() const {
  if (on_host_ != nullptr) return on_host_->bytes();
  take_counts();
  const int64_t exact = bf16_ ? 0 : spec_.d_model * int64_t{sizeof(float)};
  return counts_[0] * (padded_ * int64_t{sizeof(uint16_t)} + exact);
}

void CudaSelector::fetch() const {
  if (n_fetched_ == n_tokens_) return;
  device_sets_.download(sets_, n_tokens_, spec_.want_cosines);
  std::vector<int32_t> counts(static_cast<size_t>(device_counts_.size()));
  context_->fetch(device_counts_.data(), counts.data(),
                  device_counts_.size() * int64_t{sizeof(int32_t)});
  for (size_t i = 0; i < sets_.size(); ++i) sets_[i].n_clusters = counts[2 + i];
  context_->fetch(device_products_.data(), &products_, sizeof(int64_t));
  n_fetched_ = n_tokens_;
}

// Room for the columns there are and n_more, and not much more than that.
void CudaSelector::reserve_columns(int64_t n_more, bool bf16) {
  SLUICE_CHECK(n_tokens_ == 0 || bf16 == bf16_);
  if (bf16 != bf16_) capacity_ = 0;  // a new sequence: what is there is for the other kind
  bf16_ = bf16;
  take_counts();
  const int64_t n_used = counts_[0], needed = n_used + n_more;
  if (capacity_ >= needed && capacity_ <= 2 * needed + kChunk) return;
  const int64_t capacity = round_up(needed, kGramTile);
  const auto n_sets = static_cast<int64_t>(spec_.taus.size());
  const auto move = [&](auto& array, int64_t width) {
    using Array = std::remove_reference_t<decltype(array)>;
    Array larger(context_, capacity * width);
    if (n_used > 0)
      check(cudaMemcpyAsync(larger.data(), array.data(),
                            static_cast<size_t>(n_used * width) * sizeof(*array.data()),
                            cudaMemcpyDeviceToDevice, context_->stream()),
            "copy of columns");
    array = std::move(larger);
  };
  move(columns_, padded_);
  move(column_scale_, 1);
  move(column_inverse_, 1);
  move(position_, 1);
  if (!bf16) move(exact_columns_, spec_.d_model);
  DeviceArray<uint8_t> flags(context_, capacity * n_sets);
  if (n_used > 0)
    check(cudaMemcpy2DAsync(flags.data(), static_cast<size_t>(capacity), flags_.data(),
                            static_cast<size_t>(capacity_), static_cast<size_t>(n_used),
                            static_cast<size_t>(n_sets), cudaMemcpyDeviceToDevice,
                            context_->stream()),
          "copy of columns");
  flags_ = std::move(flags);
  capacity_ = capacity;
}

void CudaSelector::mark_inherited(const SelectArgs& args, Pass& pass) {
  const auto n_sets = static_cast<int64_t>(sets_.size());
  const int64_t n = args.rows.rows();
  pass.inherited = DeviceArray<uint8_t>(context_, n_sets * n);
  if (!inherits(spec_.rule)) {
    check(cudaMemsetAsync(pass.inherited.data(), 0, static_cast<size_t>(n_sets * n),
                          context_->stream()),
          "inherited flags");
    return;
  }
  SLUICE_CHECK(args.inherited.size() == sets_.size());
  for (size_t i = 0; i < sets_.size(); ++i) {
    uint8_t* flags = pass.inherited.data() + static_cast<int64_t>(i) * n;
    const Inherited& from = args.inherited[i];
    if (const auto* above = dynamic_cast<const CudaSelector*>(from.above())) {
      SLUICE_CHECK(above->n_decided() >= n_tokens_ + n);
      mark_members(*context_, above->device_sets().status(from.set()) + n_tokens_, n, flags);
    } else {
      const std::vector<uint8_t> given = from.flags(n_tokens_, n);
      context_->send(given.data(), flags, n);
    }
  }
}

void CudaSelector::begin_pass(const SelectArgs& args, Pass& pass) {
  const int64_t n = args.rows.rows();
  pass.rows = args.rows;
  pass.inverse = DeviceArray<double>(context_, n);
  ordered_inverse_norms(*context_, args.rows, pass.inverse.data());
  const bool outliers = spec_.outlier_ratio > 0;
  if (outliers) {
    SLUICE_CHECK(args.residual.rows() == n);
    pass.residual_inverse = DeviceArray<double>(context_, n);
    ordered_inverse_norms(*context_, args.residual, pass.residual_inverse.data());
  }
  pass.exempt = DeviceArray<uint8_t>(context_, n);
  mark_exempt(*context_, outliers ? pass.residual_inverse.data() : nullptr, n_tokens_, n,
              spec_.sinks, spec_.outlier_ratio, median_state_.data(), pass.exempt.data());
  mark_inherited(args, pass);
  device_sets_.reserve(n_tokens_ + n, n_tokens_, spec_.want_cosines);
  reserve_columns(live_ ? n : 0, args.rows.dtype() == DType::kBF16);
}

void CudaSelector::decide_chunk(const Pass& pass, int64_t first, int64_t n, Chunk& chunk) {
  const auto n_sets = static_cast<int64_t>(sets_.size());
  const ConstTensor rows = pass.rows.rows_from(first, n);
  const double* inverse = pass.inverse.data() + first;
  prepare_rows(*context_, rows, inverse, padded_, chunk.rows.data(), chunk.scale.data(),
               chunk.inverse.data());
  check(cudaMemcpy2DAsync(chunk.inherited.data(), static_cast<size_t>(n),
                          pass.inherited.data() + first, static_cast<size_t>(pass.rows.rows()),
                          static_cast<size_t>(n), static_cast<size_t>(n_sets),
                          cudaMemcpyDeviceToDevice, context_->stream()),
        "inherited flags");
  ChunkView view;
  view.n = n;
  view.first = n_tokens_;
  view.d = spec_.d_model;
  view.padded = padded_;
  view.n_sets = static_cast<int>(n_sets);
  view.n_splits = static_cast<int>(chunk.splits);
  view.tile_columns = hopper() ? kHopperGramColumns : kGramTile;
  view.rule = rule_view(spec_.rule);
  view.slack = product_error(padded_, bf16_);
  view.bf16 = bf16_;
  view.want_cosines = spec_.want_cosines;
  view.thresholds = thresholds_.data();
  view.rows = chunk.rows.data();
  view.scale = chunk.scale.data();
  view.exact = bf16_ ? ExactRows{chunk.rows.data(), padded_, chunk.inverse.data()}
                     : ExactRows{rows.bytes(), rows.row_stride(), inverse};
  view.exempt = pass.exempt.data() + first;
  view.inherited = chunk.inherited.data();
  view.local = chunk.local.data();
  view.largest = chunk.largest.data();
  view.conflicts = chunk.conflicts.data();
  view.sure = chunk.sure.data();
  view.verdict = chunk.verdict.data();
  view.columns = columns_.data();
  view.column_scale = column_scale_.data();
  view.exact_columns =
      bf16_ ? ExactRows{columns_.data(), padded_, column_inverse_.data()}
            : ExactRows{exact_columns_.data(), spec_.d_model, column_inverse_.data()};
  view.position = position_.data();
  view.flags = flags_.data();
  view.capacity = capacity_;
  view.n_columns = device_counts_.data();
  view.status = device_sets_.status();
  view.owner = device_sets_.owner();
  view.cluster = device_sets_.cluster();
  view.cosine = device_sets_.cosine();
  view.set_stride = device_sets_.stride();
  if (live_) {
    if (hopper())
      multiply_chunk_hopper(*context_, view);
    else
      multiply_chunk(*context_, view);
    judge_chunk(*context_, view);
  }
  resolve_chunk(*context_, view);
  find_owners(*context_, view);
  keep_chunk(*context_, {.chunk = view,
                         .columns = columns_.data(),
                         .column_scale = column_scale_.data(),
                         .exact_columns = bf16_ ? nullptr : exact_columns_.data(),
                         .column_inverse = column_inverse_.data(),
                         .position = position_.data(),
                         .flags = flags_.data(),
                         .n_columns = device_counts_.data(),
                         .sources = chunk.sources.data(),
                         .n_clusters = device_counts_.data() + 2,
                         .products = device_products_.data()});
}

void CudaSelector::extend(const SelectArgs& args) {
  const int64_t n = args.rows.rows();
  SLUICE_CHECK(args.rows.row_elements() == spec_.d_model);
  if (looks_ahead()) return extend_on_host(args);
  if (n == 0) return;
  Pass pass;
  begin_pass(args, pass);
  const int64_t most = std::min<int64_t>(n, kChunk);
  const int64_t tiles = ceil_div(most, kGramTile), columns = counts_[0] + n;
  // Two blocks to a multiprocessor; on Hopper every tile of columns is looked at by itself.
  const int64_t splits =
      hopper() ? ceil_div(columns, kHopperGramColumns)
               : std::max<int64_t>(1, std::min(ceil_div(2 * context_->multiprocessors(), tiles),
                                               ceil_div(columns, kGramTile)));
  Chunk chunk(context_, most, padded_, static_cast<int64_t>(sets_.size()), splits);
  for (int64_t first = 0; first < n; first += kChunk) {
    const int64_t size = std::min<int64_t>(n - first, kChunk);
    decide_chunk(pass, first, size, chunk);
    n_tokens_ += size;
  }
  send_counts();
}

// Rules and owners that look ahead take a sequence whole, and are for analysis and encoders: the
// host decides, from rows it downloads.
void CudaSelector::extend_on_host(const SelectArgs& args) {
  SLUICE_CHECK(n_tokens_ == 0);
  const int64_t n = args.rows.rows();
  const Buffer rows = host_rows(*context_, args.rows);
  const Buffer residual = spec_.outlier_ratio > 0 ? host_rows(*context_, args.residual) : Buffer();
  if (on_host_ == nullptr) {
    host_ = make_cpu_backend(args.rows.dtype());
    on_host_ = host_->make_selector(spec_);
  }
  std::vector<std::vector<uint8_t>> flags;
  SelectArgs here{.rows = rows.view(), .residual = residual.view(), .inherited = {}};
  for (const Inherited& set : args.inherited) flags.push_back(set.flags(0, n));
  for (const auto& set : flags) here.inherited.emplace_back(set);
  on_host_->extend(here);
  sets_ = on_host_->sets();
  products_ = on_host_->products();
  n_tokens_ = n_fetched_ = n_counted_ = n;
  for (size_t i = 0; i < sets_.size(); ++i) counts_[1 + i] = sets_[i].n_clusters;
  device_sets_.upload(sets_);
}

std::unique_ptr<Selector> make_cuda_selector(std::shared_ptr<Context> context,
                                             const SelectorSpec& spec) {
  return std::make_unique<CudaSelector>(std::move(context), spec);
}

}  // namespace sluice::cuda
