// Mode `keys` on the device: one pass over its tokens. The kernels and what they cost are in
// keys_kernels.h.

#include <algorithm>

#include "backend/cuda/accelerated.h"
#include "backend/cuda/attend_dense.h"
#include "backend/cuda/keys_cache.h"

namespace sluice::cuda {
namespace {

// Borders of a pass, ascending, and its queries in tiles that share one.
struct Queries {
  std::vector<int64_t> borders, offsets;  // of each border's list
  std::vector<QueryTile> tiles;
  int64_t list_stride = 0;
};

class CudaKeysAttention final : public KeysAttention {
 public:
  CudaKeysAttention(std::shared_ptr<Context> context, const KeysSpec& spec)
      : context_(std::move(context)),
        spec_(spec),
        cache_(std::make_unique<KeysCache>(context_, spec)) {
    SLUICE_CHECK(static_cast<int64_t>(spec.heads.size()) == spec.n_kv_heads);
    SLUICE_CHECK(!spec.causal || (spec.block > 0 && spec.window % spec.block == 0));
    SLUICE_CHECK(spec.n_heads / spec.n_kv_heads <= kKeysTileRows);
  }

  void attend(const AttendKeysArgs& args) override;
  void reset() override {
    cache_->reset();
    n_listed_ = -1;
  }
  CacheBytes bytes() const override {
    cache_->settle();
    return cache_->bytes();
  }

 private:
  // Of the tokens [border, end) of one set.
  struct Means {
    std::vector<Links> links;  // per set
    DeviceArray<std::byte> keys, values;
    int64_t n = 0;
  };

  void check_args(const AttendKeysArgs& args, int64_t n_decided) const;
  Queries queries_of(int64_t first, int64_t n) const;
  Means find_means(const DeviceSets& sets, int64_t end);
  void make_lists(const DeviceSets& sets, const Means& means, const Queries& queries);
  int64_t splits_of(const Queries& queries) const;
  int64_t group() const { return spec_.n_heads / spec_.n_kv_heads; }

  std::shared_ptr<Context> context_;
  KeysSpec spec_;
  std::unique_ptr<KeysCache> cache_;
  // Lists of the last pass: in decoding they serve until the border moves.
  int64_t n_listed_ = -1;  // border of the only list, when there is no other
  DeviceArray<int32_t> rows_, n_far_;
  DeviceArray<float> bias_;
  DeviceArray<int64_t> offsets_;
};

void CudaKeysAttention::check_args(const AttendKeysArgs& args, int64_t n_decided) const {
  SLUICE_CHECK(spec_.causal || cache_->n_tokens() == 0);
  const int64_t n = args.keys.rows(), end = cache_->n_tokens() + n;
  SLUICE_CHECK(args.queries.rows() == n && args.values.rows() == n && args.out.rows() == n);
  SLUICE_CHECK(args.keys.dtype() == spec_.dtype && args.queries.dtype() == spec_.dtype);
  for (const HeadKeys& head : spec_.heads)
    SLUICE_CHECK(spec_.causal || head.kind != HeadKind::kWindow);
  SLUICE_CHECK(cache_->sets().empty() || n_decided >= (spec_.causal ? spec_.border(end) : end));
}

Queries CudaKeysAttention::queries_of(int64_t first, int64_t n) const {
  Queries queries;
  const int64_t end = first + n, per_tile = kKeysTileRows / group();
  for (int64_t t = first; t < end;) {
    const int64_t border = spec_.causal ? spec_.border(t) : end;
    const int64_t next = spec_.causal ? std::min(end, border + spec_.window + spec_.block) : end;
    for (int64_t row = t; row < next; row += per_tile)
      queries.tiles.push_back({.row = row - first,
                               .n = std::min(per_tile, next - row),
                               .border = border,
                               .list = static_cast<int64_t>(queries.borders.size())});
    queries.borders.push_back(border);
    t = next;
  }
  int64_t n_clusters = 0;
  for (size_t i = 0; i < cache_->sets().size(); ++i)
    n_clusters = std::max(n_clusters, cache_->n_clusters(i));
  for (const int64_t border : queries.borders) {
    queries.offsets.push_back(queries.list_stride);
    queries.list_stride += n_clusters + border - cache_->border();
  }
  return queries;
}

CudaKeysAttention::Means CudaKeysAttention::find_means(const DeviceSets& sets, int64_t end) {
  Means means;
  const int64_t first = cache_->border();
  means.n = end - first;
  if (means.n == 0) return means;
  const int64_t bytes = spec_.n_kv_heads * means.n * spec_.head_dim * element_bytes(spec_.dtype);
  means.keys = DeviceArray<std::byte>(context_, bytes);
  means.values = DeviceArray<std::byte>(context_, bytes);
  for (size_t i = 0; i < cache_->sets().size(); ++i) {
    const size_t set = cache_->sets()[i];
    means.links.emplace_back(context_, sets.cluster(set) + first, sets.status(set) + first, first,
                             means.n, cache_->n_clusters(i) + means.n);
    const Links& links = means.links.back();
    running_means(*context_, {.members = links.view(cache_->counts(i), cache_->n_clusters(i)),
                              .set = static_cast<int32_t>(i),
                              .n_kv_heads = spec_.n_kv_heads,
                              .head_dim = spec_.head_dim,
                              .block = spec_.causal ? spec_.block : end,
                              .bf16 = spec_.dtype == DType::kBF16,
                              .heads = cache_->heads(),
                              .counting_head = cache_->head_of(i),
                              .tokens = cache_->tokens(),
                              .before = cache_->clusters(),
                              .keys = means.keys.data(),
                              .values = means.values.data(),
                              .settle = false,
                              .counts = links.counts.data()});
  }
  return means;
}

void CudaKeysAttention::make_lists(const DeviceSets& sets, const Means& means,
                                   const Queries& queries) {
  const auto n_lists = static_cast<int64_t>(cache_->lists().size());
  const auto n_borders = static_cast<int64_t>(queries.borders.size());
  rows_.reserve(context_, n_lists * queries.list_stride);
  bias_.reserve(context_, n_lists * queries.list_stride);
  n_far_.reserve(context_, n_lists * n_borders);
  offsets_ = DeviceArray<int64_t>(context_, std::span<const int64_t>(queries.offsets));
  const DeviceArray<int64_t> borders(context_, std::span<const int64_t>(queries.borders));
  for (int64_t list = 0; list < n_lists; ++list) {
    const auto [i, exempt_only] = cache_->lists()[static_cast<size_t>(list)];
    ListArgs args{.exempt_only = exempt_only,
                  .scale = spec_.scale,
                  .n_before = cache_->n_clusters(i),
                  .counts_before = cache_->counts(i),
                  .exempt_before = cache_->exempt(i),
                  .first_new = nullptr,
                  .first = cache_->border(),
                  .n = means.n,
                  .next = nullptr,
                  .counts = nullptr,
                  .status = sets.status(cache_->sets()[i]) + cache_->border(),
                  .borders = borders.data(),
                  .offsets = offsets_.data(),
                  .n_borders = n_borders,
                  .list = {rows_.data() + list * queries.list_stride,
                           bias_.data() + list * queries.list_stride},
                  .n_far = n_far_.data() + list * n_borders};
    if (means.n > 0) {
      args.first_new = means.links[i].first_new.data();
      args.next = means.links[i].next.data();
      args.counts = means.links[i].counts.data();
    }
    list_far_rows(*context_, args);
  }
}

// A few tiles do not fill the device: their keys are shared out.
int64_t CudaKeysAttention::splits_of(const Queries& queries) const {
  const int64_t blocks = static_cast<int64_t>(queries.tiles.size()) * spec_.n_kv_heads;
  const int64_t n_near = cache_->n_tokens() - cache_->border();
  const int64_t most = ceil_div(queries.list_stride + n_near, 256);
  const int64_t wanted = 2 * int64_t{context_->multiprocessors()} / blocks;
  return std::clamp<int64_t>(wanted, 1, std::max<int64_t>(most, 1));
}

void CudaKeysAttention::attend(const AttendKeysArgs& args) {
  const int64_t n = args.keys.rows(), first = cache_->n_tokens();
  if (n == 0) return;
  const auto* chooser = dynamic_cast<const CudaSelector*>(args.sets.chooser());
  std::unique_ptr<DeviceSets> given;  // sets that come from the host
  if (chooser == nullptr && !cache_->sets().empty()) {
    const auto sets = args.sets.host();
    for (const size_t set : cache_->sets()) SLUICE_CHECK(set < sets.size());
    check_args(args, sets[cache_->sets()[0]].n_tokens());
    given = std::make_unique<DeviceSets>(context_, sets.size());
    given->upload(sets);
  } else {
    check_args(args, chooser != nullptr ? chooser->n_decided() : 0);
  }
  const DeviceSets nothing(context_, 0);
  const DeviceSets& sets = given != nullptr     ? *given
                           : chooser != nullptr ? chooser->device_sets()
                                                : nothing;
  cache_->settle();
  cache_->add(args.keys, args.values);
  const Queries queries = queries_of(first, n);
  const Means means =
      find_means(sets, cache_->sets().empty() ? cache_->border() : queries.borders.back());
  const bool same_list =
      queries.borders.size() == 1 && means.n == 0 && n_listed_ == queries.borders[0];
  if (!same_list && !cache_->sets().empty()) make_lists(sets, means, queries);
  n_listed_ = queries.borders.size() == 1 && means.n == 0 ? queries.borders[0] : -1;

  const DeviceArray<QueryTile> tiles(context_, std::span<const QueryTile>(queries.tiles));
  KeysView view{};
  view.queries = args.queries.bytes();
  view.out = args.out.bytes();
  view.query_stride = args.queries.row_stride();
  view.out_stride = args.out.row_stride();
  view.n_heads = spec_.n_heads;
  view.n_kv_heads = spec_.n_kv_heads;
  view.head_dim = spec_.head_dim;
  view.scale = spec_.scale;
  view.causal = spec_.causal;
  view.first_position = first;
  view.n_tokens = n;
  view.tiles = tiles.data();
  view.n_tiles = tiles.size();
  view.heads = cache_->heads();
  view.tokens = cache_->tokens();
  view.before = cache_->clusters();
  view.mean_keys = means.keys.data();
  view.mean_values = means.values.data();
  view.n_means = means.n;
  view.rows = rows_.data();
  view.bias = bias_.data();
  view.list_stride = queries.list_stride;
  view.offsets = offsets_.data();
  view.n_far = n_far_.data();
  view.n_borders = static_cast<int64_t>(queries.borders.size());
  view.n_splits = splits_of(queries);
  if (!fits_tiles(spec_.dtype, spec_.head_dim, args.queries, args.out))
    attend_keys_plain(*context_, view, spec_.dtype == DType::kBF16);
  else if (context_->compute_capability() == 90 && view.n_splits == 1)
    attend_keys_hopper(*context_, view);
  else
    attend_keys_tiles(context_, view);
  if (spec_.causal) cache_->pass(sets, spec_.border(cache_->n_tokens()));
}

}  // namespace

std::unique_ptr<KeysAttention> make_cuda_keys_attention(std::shared_ptr<Context> context,
                                                        const KeysSpec& spec) {
  return std::make_unique<CudaKeysAttention>(std::move(context), spec);
}

}  // namespace sluice::cuda
