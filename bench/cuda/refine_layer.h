// One layer of refined attention, and of dense attention, as pieces of work to be timed.

#pragma once

#include <functional>
#include <memory>

#include "backend/backend.h"
#include "cuda/plant.h"
#include "cuda/stopwatch.h"

namespace sluice::impl::bench {

// Everything is bf16. Rows are random around planted centres.
class RefineLayer {
 public:
  static constexpr int64_t kHeads = 32, kHeadDim = 128;
  // rounds: samples of each time; 0 takes as many as usual.
  RefineLayer(const std::shared_ptr<cuda::Context>& context, Backend& backend, int64_t n_tokens,
              int rounds);

  struct Found {
    double delta, share;
  };
  // Delta at which prefill, or the first decode steps behind it, open `share` of dense attention's
  // keys.
  Found find_delta(double share, bool decode) const;

  // Clustering, deciding and attending.
  Timing time_prefill(double delta) const;
  // Of one layer's step, recorded as whole models record theirs.
  Timing time_decode(double delta) const;
  struct DenseTimes {
    Timing prefill, decode;
  };
  DenseTimes time_dense() const;

 private:
  static constexpr int64_t kModel = kHeads * kHeadDim;
  struct Rows {
    Rows(const std::shared_ptr<cuda::Context>& context, int64_t n)
        : memory(context, n * kModel * 2),
          view(memory.data(), DType::kBF16, {n, kModel}, Device::kCuda) {}
    Tensor heads(int64_t first, int64_t n) const {
      return Tensor(view.row<BFloat16>(first), DType::kBF16, {n, kHeads, kHeadDim}, Device::kCuda);
    }
    cuda::DeviceArray<std::byte> memory;
    Tensor view;
  };

  int rounds(int usual) const { return rounds_ > 0 ? rounds_ : usual; }
  std::unique_ptr<RefineAttention> make(double delta) const;
  void attend(RefineAttention& attention, int64_t first, int64_t n) const;
  // Of a layer's step, steps recorded and replayed one after another.
  Timing time_steps(const std::function<void(int64_t)>& step) const;

  Backend& backend_;
  int64_t n_;
  int rounds_;
  Rows queries_, keys_, values_, out_;
};

}  // namespace sluice::impl::bench
