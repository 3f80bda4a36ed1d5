#include <algorithm>
#include <cstring>

#include "backend/cuda/selection/selector.h"

namespace sluice::impl::cuda::selection {
namespace {

// A larger array with the first n_used of every row of the old one.
template <typename T>
DeviceArray<T> widened(const std::shared_ptr<Context>& context, const DeviceArray<T>& from,
                       int64_t n_rows, int64_t stride, int64_t wider, int64_t n_used) {
  DeviceArray<T> to(context, n_rows * wider);
  if (n_used > 0)
    check(cudaMemcpy2DAsync(to.data(), static_cast<size_t>(wider) * sizeof(T), from.data(),
                            static_cast<size_t>(stride) * sizeof(T),
                            static_cast<size_t>(n_used) * sizeof(T), static_cast<size_t>(n_rows),
                            cudaMemcpyDeviceToDevice, context->stream()),
          "copy of sets");
  return to;
}

}  // namespace

void DeviceSets::reserve(int64_t n_tokens, int64_t n_used, bool cosines) {
  if (n_tokens <= stride_) return;
  const int64_t wider = std::max<int64_t>(round_up(n_tokens, 256), stride_ + stride_ / 2);
  status_ = widened(context_, status_, n_sets_, stride_, wider, n_used);
  owner_ = widened(context_, owner_, n_sets_, stride_, wider, n_used);
  cluster_ = widened(context_, cluster_, n_sets_, stride_, wider, n_used);
  if (cosines) cosine_ = widened(context_, cosine_, n_sets_, stride_, wider, n_used);
  stride_ = wider;
}

void DeviceSets::upload(std::span<const TokenSet> sets) {
  SLUICE_CHECK(static_cast<int64_t>(sets.size()) == n_sets_);
  for (const TokenSet& set : sets) reserve(set.n_tokens(), 0, false);
  for (size_t i = 0; i < sets.size(); ++i) {
    const int64_t n = sets[i].n_tokens();
    context_->send(sets[i].status.data(), status(i), n);
    context_->send(sets[i].owner.data(), owner(i), n * int64_t{sizeof(int32_t)});
    context_->send(sets[i].cluster.data(), cluster(i), n * int64_t{sizeof(int32_t)});
  }
}

int64_t DeviceSets::bytes_of(int64_t n, bool cosines) const {
  return n_sets_ * n * (cosines ? 13 : 9);
}

// Owners, clusters, cosines, statuses: of one set after the other.
void DeviceSets::send(int64_t first, int64_t n, bool cosines, std::byte* to) const {
  const auto take = [&](const auto& array) {
    const auto size = static_cast<int64_t>(sizeof(*array.data()));
    check(
        cudaMemcpy2DAsync(to, static_cast<size_t>(n * size), array.data() + first,
                          static_cast<size_t>(stride_ * size), static_cast<size_t>(n * size),
                          static_cast<size_t>(n_sets_), cudaMemcpyDeviceToHost, context_->stream()),
        "copy of sets");
    to += n_sets_ * n * size;
  };
  take(owner_);
  take(cluster_);
  if (cosines) take(cosine_);
  take(status_);
}

void DeviceSets::append(std::vector<TokenSet>& sets, int64_t n, bool cosines,
                        const std::byte* from) {
  const auto put = [&](auto& values) {
    const size_t before = values.size(), bytes = static_cast<size_t>(n) * sizeof(values[0]);
    values.resize(before + static_cast<size_t>(n));
    std::memcpy(values.data() + before, from, bytes);
    from += bytes;
  };
  for (TokenSet& set : sets) put(set.owner);
  for (TokenSet& set : sets) put(set.cluster);
  if (cosines)
    for (TokenSet& set : sets) put(set.cosine);
  for (TokenSet& set : sets) put(set.status);
}

}  // namespace sluice::impl::cuda::selection
