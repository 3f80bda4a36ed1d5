// The selector of this backend: sets and owners are the reference's, and stay on the device.

#pragma once

#include "backend/backend.h"
#include "backend/cuda/selection/common/cover_view.h"

namespace sluice::impl::cuda::selection {

// The sets of a sequence on the device, (n_sets, stride).
class DeviceSets {
 public:
  DeviceSets(std::shared_ptr<Context> context, size_t n_sets)
      : context_(std::move(context)), n_sets_(static_cast<int64_t>(n_sets)) {}

  void reserve(int64_t n_tokens, int64_t n_used, bool cosines);
  void upload(std::span<const TokenSet> sets);
  // send() copies tokens [first, first + n) to pinned memory; append() adds them from there to
  // `sets`.
  int64_t bytes_of(int64_t n, bool cosines) const;
  void send(int64_t first, int64_t n, bool cosines, std::byte* to) const;
  static void append(std::vector<TokenSet>& sets, int64_t n, bool cosines, const std::byte* from);

  int64_t stride() const { return stride_; }
  uint8_t* status(size_t set = 0) const { return at(status_, set); }
  int32_t* owner(size_t set = 0) const { return at(owner_, set); }
  int32_t* cluster(size_t set = 0) const { return at(cluster_, set); }
  float* cosine() const { return cosine_.data(); }

 private:
  template <typename T>
  T* at(const DeviceArray<T>& array, size_t set) const {
    return array.data() + static_cast<int64_t>(set) * stride_;
  }

  std::shared_ptr<Context> context_;
  int64_t n_sets_, stride_ = 0;
  DeviceArray<uint8_t> status_;
  DeviceArray<int32_t> owner_, cluster_;
  DeviceArray<float> cosine_;
};

// What all sequences share of a basis.
struct SelectionVectors {
  DeviceArray<uint16_t> vectors;  // (rank, padded) bf16
  double deviation;
};

class CudaSelector final : public Selector {
 public:
  CudaSelector(std::shared_ptr<Context> context, const SelectorSpec& spec);
  ~CudaSelector() override;

  void extend(const SelectArgs& args) override;
  void reset() override;
  int64_t bytes() const override;
  int64_t n_decided() const override { return n_tokens_; }

  const DeviceSets& device_sets() const { return device_sets_; }
  // Of the sequence whose sets these are: no other has it.
  uint64_t version() const { return version_; }

 protected:
  void fetch() const override;

 private:
  struct Pass;

  // The paper's own rule and owners look ahead, and are for analysis: the host decides.
  bool for_analysis() const {
    return spec_.rule == SelectRule::kCascadePaper || spec_.owner == OwnerKind::kPaper;
  }
  bool owned_anywhere() const { return spec_.owner == OwnerKind::kAnywhere; }
  bool hopper() const { return context_->compute_capability() == 90; }
  void extend_on_host(const SelectArgs& args);
  // Whether tokens are compared with listed ones alone. Encoders' are compared with all kept ones
  // for their owners.
  bool covers() const {
    return hopper() && live_ && spec_.rule == SelectRule::kCascadeCover && !owned_anywhere();
  }
  Pass begin_pass(const SelectArgs& args);
  void mark_inherited(const SelectArgs& args, Pass& pass);
  ExemptArgs exempt_args(const Pass& pass, int64_t first, int64_t n) const;  // of a chunk
  ChunkView view_chunk(const Pass& pass, int64_t first, int64_t n) const;
  void decide_chunk(const Pass& pass, int64_t first, int64_t n);
  void multiply(const ChunkView& view);
  void find_owners_anywhere(const Pass& pass);
  KeepView keep_view(const ChunkView& view, int64_t* products);
  bool extend_by_one(const SelectArgs& args);  // false where it is not one token that fits
  void reserve_columns(int64_t n_more, bool bf16);
  // selection/basis.cpp
  void take_basis();
  BasisView view_basis(const Pass& pass, int64_t n_tokens) const;  // of a chunk
  void take_count() const;                                         // waits for the pass before
  void send_count();

  std::shared_ptr<Context> context_;
  int64_t padded_;  // d_model, for whole tiles
  bool live_;       // a tau is above 0
  bool bf16_ = false;
  uint64_t version_ = 0;
  int64_t n_tokens_ = 0;
  DeviceSets device_sets_;
  DeviceArray<double> thresholds_, median_state_;
  std::unique_ptr<Backend> host_;  // for_analysis()
  std::unique_ptr<Selector> on_host_;

  // Kept columns, room for capacity_.
  int64_t capacity_ = 0;
  DeviceArray<uint16_t> columns_;
  DeviceArray<float> column_scale_, exact_columns_;
  DeviceArray<double> column_inverse_;
  DeviceArray<int32_t> position_;
  DeviceArray<uint8_t> flags_;

  // The basis, where tokens are looked at in one, and coordinates of kept columns. Elsewhere rank_
  // is 0.
  int rank_ = 0;
  int64_t width_ = 0;
  std::shared_ptr<const SelectionVectors> device_basis_;
  mutable bool given_up_ = false;  // as far as the pass before knew
  DeviceArray<uint16_t> column_coordinates_;
  DeviceArray<float> column_rest_;
  DeviceArray<BasisProgress> basis_progress_;

  // Columns and clusters per set, before a chunk and after it: double-buffered.
  DeviceArray<int32_t> device_counts_;
  int counts_index_ = 0;
  int64_t n_counts() const { return static_cast<int64_t>(1 + spec_.taus.size()); }
  int32_t* counts_before() const { return device_counts_.data() + counts_index_ * n_counts(); }
  int32_t* counts_after() const { return device_counts_.data() + (1 - counts_index_) * n_counts(); }
  DeviceArray<int64_t> device_products_;
  DeviceArray<int32_t> parts_arrived_;
  DeviceArray<int32_t> odd_;  // (2) OddRows of a pass, and of the next one
  int odd_index_ = 0;
  PinnedBytes arriving_;
  Event arrived_;
  mutable bool count_pending_ = false;
  mutable int64_t n_columns_ = 0;  // of the pass before
  mutable int64_t n_fetched_ = 0;
  mutable PinnedBytes landing_;  // of sets that are fetched
  mutable int64_t landing_bytes_ = 0;
};

}  // namespace sluice::impl::cuda::selection
