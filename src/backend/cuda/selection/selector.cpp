#include "backend/cuda/selection/selector.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "backend/cuda/selection/selection.h"

namespace sluice::impl::cuda::selection {
namespace {

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

CudaSelector::CudaSelector(std::shared_ptr<Context> context, const SelectorSpec& spec)
    : Selector(spec),
      context_(std::move(context)),
      padded_(round_up(spec.d_model, 64)),
      live_(std::any_of(spec.taus.begin(), spec.taus.end(), [](double tau) { return tau > 0; })),
      device_sets_(context_, spec.taus.size()),
      arriving_(2 * sizeof(int32_t)) {
  SLUICE_CHECK(!spec.taus.empty());
  std::vector<double> thresholds;
  for (const double tau : spec_.taus) {
    SLUICE_CHECK(tau >= 0 && tau < 1);
    thresholds.push_back(tau > 0 ? threshold_of(tau) : 0);
  }
  thresholds_ = DeviceArray<double>(context_, std::span<const double>(thresholds));
  median_state_ = DeviceArray<double>(context_, kMedianState);
  device_counts_ = DeviceArray<int32_t>(context_, 2 * n_counts());
  device_products_ = DeviceArray<int64_t>(context_, 1);
  parts_arrived_ = DeviceArray<int32_t>(context_, context_->multiprocessors());
  odd_ = DeviceArray<int32_t>(context_, 2);
  take_basis();
  check(cudaEventCreateWithFlags(arrived_.to_set(), cudaEventDisableTiming), "event");
  CudaSelector::reset();
}

CudaSelector::~CudaSelector() {
  if (count_pending_) cudaEventSynchronize(arrived_.get());
}

void CudaSelector::reset() {
  static std::atomic<uint64_t> n_sequences = 0;
  version_ = ++n_sequences;
  take_count();
  n_tokens_ = n_fetched_ = n_columns_ = 0;
  sets_.assign(spec_.taus.size(), {});
  for (size_t i = 0; i < sets_.size(); ++i) sets_[i].tau = spec_.taus[i];
  products_ = pairs_dropped_ = 0;
  given_up_ = false;
  std::memset(arriving_.data(), 0, 2 * sizeof(int32_t));
  const auto clear = [&](void* data, int64_t bytes) {
    check(cudaMemsetAsync(data, 0, static_cast<size_t>(bytes), context_->stream()), "reset");
  };
  clear(median_state_.data(), kMedianState * int64_t{sizeof(double)});
  clear(device_counts_.data(), device_counts_.size() * int64_t{sizeof(int32_t)});
  clear(device_products_.data(), sizeof(int64_t));
  clear(parts_arrived_.data(), parts_arrived_.size() * int64_t{sizeof(int32_t)});
  if (rank_ > 0) clear(basis_progress_.data(), sizeof(BasisProgress));
  clear(odd_.data(), odd_.size() * int64_t{sizeof(int32_t)});
  if (on_host_ != nullptr) on_host_->reset();
}

// Marks the copy of the number of columns as pending; the next pass reads it.
void CudaSelector::send_count() {
  check(cudaEventRecord(arrived_.get(), context_->stream()), "number of columns");
  count_pending_ = true;
}

void CudaSelector::take_count() const {
  if (!count_pending_) return;
  check(cudaEventSynchronize(arrived_.get()), "number of columns");
  count_pending_ = false;
  int32_t arrived[2] = {};
  std::memcpy(arrived, arriving_.data(), sizeof(arrived));
  n_columns_ = arrived[0];
  given_up_ = arrived[1] != 0;
}

int64_t CudaSelector::bytes() const {
  if (on_host_ != nullptr) return on_host_->bytes();
  take_count();
  const int64_t exact = bf16_ ? 0 : spec_.d_model * int64_t{sizeof(float)};
  return n_columns_ * ((padded_ + width_) * int64_t{sizeof(uint16_t)} + exact);
}

// Decided tokens stay as they are, so only those since the last time are copied, and waited for
// once.
void CudaSelector::fetch() const {
  if (n_fetched_ == n_tokens_) return;
  const int64_t n = n_tokens_ - n_fetched_, counts = n_counts();
  const int64_t counts_bytes = round_up(counts * int64_t{sizeof(int32_t)}, 8);
  const int64_t sets_bytes = device_sets_.bytes_of(n, spec_.want_cosines);
  const int64_t pairs_bytes = 2 * int64_t{sizeof(int64_t)};  // multiplied, and dropped
  if (sets_bytes + counts_bytes + pairs_bytes > landing_bytes_) {
    landing_bytes_ = 2 * (sets_bytes + counts_bytes + pairs_bytes);
    landing_ = PinnedBytes(landing_bytes_);
  }
  const auto land = [&](const void* from, std::byte* to, int64_t bytes) {
    check(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost,
                          context_->stream()),
          "copy of sets");
  };
  std::byte *at = landing_.data(), *counts_at = at + pairs_bytes,
            *sets_at = counts_at + counts_bytes;
  land(device_products_.data(), at, sizeof(int64_t));
  if (rank_ > 0) land(&basis_progress_.data()->dropped, at + sizeof(int64_t), sizeof(int64_t));
  land(counts_before(), counts_at, counts * int64_t{sizeof(int32_t)});
  device_sets_.send(n_fetched_, n, spec_.want_cosines, sets_at);
  context_->synchronize();
  std::memcpy(&products_, at, sizeof(int64_t));
  if (rank_ > 0) std::memcpy(&pairs_dropped_, at + sizeof(int64_t), sizeof(int64_t));
  products_ -= pairs_dropped_;
  std::vector<int32_t> arrived(static_cast<size_t>(counts));
  std::memcpy(arrived.data(), counts_at, arrived.size() * sizeof(int32_t));
  for (size_t i = 0; i < sets_.size(); ++i) sets_[i].n_clusters = arrived[1 + i];
  DeviceSets::append(sets_, n, spec_.want_cosines, sets_at);
  n_fetched_ = n_tokens_;
}

// Room for the columns there are and n_more, and not much more than that.
void CudaSelector::reserve_columns(int64_t n_more, bool bf16) {
  SLUICE_CHECK(n_tokens_ == 0 || bf16 == bf16_);
  if (bf16 != bf16_) capacity_ = 0;  // a new sequence: what is there is for the other kind
  bf16_ = bf16;
  take_count();
  const int64_t n_used = n_columns_, needed = n_used + n_more;
  if (capacity_ >= needed && capacity_ <= 2 * needed + kChunk) return;
  const int64_t capacity = round_up(needed, kGramTile);
  const int64_t last = std::exchange(capacity_, 0);  // until all are there
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
  if (rank_ > 0) {
    move(column_coordinates_, width_);
    move(column_rest_, 1);
  }
  DeviceArray<uint8_t> flags(context_, capacity * n_sets);
  if (n_used > 0)
    check(cudaMemcpy2DAsync(flags.data(), static_cast<size_t>(capacity), flags_.data(),
                            static_cast<size_t>(last), static_cast<size_t>(n_used),
                            static_cast<size_t>(n_sets), cudaMemcpyDeviceToDevice,
                            context_->stream()),
          "copy of columns");
  flags_ = std::move(flags);
  capacity_ = capacity;
}

// From rows that the host downloads.
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
  pairs_dropped_ = on_host_->pairs_dropped();
  n_tokens_ = n_fetched_ = n;
  device_sets_.upload(sets_);
}

std::unique_ptr<Selector> make_selector(std::shared_ptr<Context> context,
                                        const SelectorSpec& spec) {
  return std::make_unique<CudaSelector>(std::move(context), spec);
}

}  // namespace sluice::impl::cuda::selection
