// Mode `keys` on the device: one pass over its tokens. The kernels and what they cost are in
// attention/keys/kernels.h.

#include "backend/cuda/attention/keys/keys.h"

#include <algorithm>

#include "backend/cuda/attention/dense/dense.h"
#include "backend/cuda/attention/keys/cache.h"
#include "backend/cuda/runtime/upload.h"

namespace sluice::impl::cuda::keys {
namespace {

// Some borders of a pass, ascending, and their queries in tiles that share one.
struct Queries {
  std::vector<Border> borders;
  std::vector<QueryTile> tiles;
  int64_t list_stride = 0;
};
// Lists have room for so many rows at a time, 256 MB of them, or for one border's.
constexpr int64_t kMostListed = int64_t{1} << 25;

class CudaKeysAttention final : public KeysAttention {
 public:
  CudaKeysAttention(std::shared_ptr<Context> context, const KeysSpec& spec)
      : context_(std::move(context)),
        spec_(spec),
        cache_(std::make_unique<KeysCache>(context_, spec)) {
    SLUICE_CHECK(static_cast<int64_t>(spec.heads.size()) == spec.n_kv_heads);
    SLUICE_CHECK(!spec.causal || (spec.block > 0 && spec.window % spec.block == 0));
    SLUICE_CHECK(spec.n_heads % spec.n_kv_heads == 0);
    dense::check_heads(spec.head_dim, group());
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
  void check_args(const AttendKeysArgs& args) const;
  std::vector<Queries> queries_of(int64_t first, int64_t n) const;
  FarLists make_lists(const selection::DeviceSets& sets, const RunningMeans& means,
                      const Queries& queries) const;
  ListKey list_key(uint64_t version, const AttendKeysArgs& args) const;
  KeysView view_of(const AttendKeysArgs& args, const RunningMeans& means) const;
  // fresh: lists_ are those of these very queries.
  void run(const AttendKeysArgs& args, KeysView view, const Queries& queries, bool fresh);
  int64_t group() const { return spec_.n_heads / spec_.n_kv_heads; }

  std::shared_ptr<Context> context_;
  KeysSpec spec_;
  std::unique_ptr<KeysCache> cache_;
  // The list of the last pass, where that had only one border: it serves until the border moves.
  int64_t n_listed_ = -1;
  std::shared_ptr<const FarLists> lists_;
};

void CudaKeysAttention::check_args(const AttendKeysArgs& args) const {
  SLUICE_CHECK(spec_.causal || cache_->n_tokens() == 0);
  const int64_t n = args.keys.rows(), end = cache_->n_tokens() + n;
  SLUICE_CHECK(args.queries.rows() == n && args.values.rows() == n && args.out.rows() == n);
  for (const ConstTensor& x : {args.queries, args.keys, args.values, ConstTensor(args.out)})
    SLUICE_CHECK(x.dtype() == spec_.dtype);
  for (const HeadKeys& head : spec_.heads)
    SLUICE_CHECK(spec_.causal || head.kind != HeadKind::kWindow);
  const int64_t needed = spec_.causal ? spec_.border(end) : end;
  const Selector* chooser = args.sets.chooser();
  for (const size_t set : cache_->sets()) {
    if (chooser != nullptr) {
      SLUICE_CHECK(set < chooser->spec().taus.size() && chooser->n_decided() >= needed);
    } else {
      const auto sets = args.sets.host();
      SLUICE_CHECK(set < sets.size() && sets[set].n_tokens() >= needed);
    }
  }
}

std::vector<Queries> CudaKeysAttention::queries_of(int64_t first, int64_t n) const {
  int64_t n_clusters = 0;
  for (size_t i = 0; i < cache_->sets().size(); ++i)
    n_clusters = std::max(n_clusters, cache_->n_clusters(i));
  std::vector<Queries> all(1);
  const auto n_lists = static_cast<int64_t>(cache_->lists().size());
  const int64_t end = first + n, per_tile = kKeysTileRows / group();
  for (int64_t t = first; t < end;) {
    const int64_t border = spec_.causal ? spec_.border(t) : end;
    const int64_t next = spec_.causal ? std::min(end, border + spec_.window + spec_.block) : end;
    const int64_t room = n_clusters + border - cache_->border();
    if (!all.back().borders.empty() && n_lists * (all.back().list_stride + room) > kMostListed)
      all.emplace_back();
    Queries& queries = all.back();
    for (int64_t row = t; row < next; row += per_tile)
      queries.tiles.push_back({.row = row - first,
                               .n = std::min(per_tile, next - row),
                               .border = border,
                               .list = static_cast<int64_t>(queries.borders.size())});
    queries.borders.push_back({.position = border, .offset = queries.list_stride});
    queries.list_stride += room;
    t = next;
  }
  return all;
}

FarLists CudaKeysAttention::make_lists(const selection::DeviceSets& sets, const RunningMeans& means,
                                       const Queries& queries) const {
  const auto n_lists = static_cast<int64_t>(cache_->lists().size());
  const auto n_borders = static_cast<int64_t>(queries.borders.size());
  Upload upload;
  const int64_t borders_at = upload.add(std::span<const Border>(queries.borders));
  const int64_t tiles_at = upload.add(std::span<const QueryTile>(queries.tiles));
  FarLists lists{.sent = upload.send(context_),
                 .rows = {context_, n_lists * queries.list_stride},
                 .n_far = {context_, n_lists * n_borders},
                 .bias = {context_, n_lists * queries.list_stride}};
  lists.borders = array_at<Border>(lists.sent, borders_at);
  lists.tiles = array_at<QueryTile>(lists.sent, tiles_at);
  for (int64_t list = 0; list < n_lists; ++list) {
    const auto [i, exempt_only] = cache_->lists()[static_cast<size_t>(list)];
    ListArgs args{.exempt_only = exempt_only,
                  .scale = spec_.scale,
                  .n_before = cache_->n_clusters(i),
                  .counts_before = cache_->counts(i),
                  .exempt_before = cache_->exempt(i),
                  .members = {},
                  .status = sets.status(cache_->sets()[i]) + cache_->border(),
                  .borders = lists.borders,
                  .n_borders = n_borders,
                  .list = {lists.rows.data() + list * queries.list_stride,
                           lists.bias.data() + list * queries.list_stride},
                  .n_far = lists.n_far.data() + list * n_borders};
    if (means.n > 0) args.members = means.linked->links[i].view();
    // Without members, no border lies behind the clusters of the cache.
    args.members.first = cache_->border();
    list_far_rows(*context_, args);
  }
  return lists;
}

ListKey CudaKeysAttention::list_key(uint64_t version, const AttendKeysArgs& args) const {
  return {.links = cache_->link_key(version),
          .lists = cache_->lists(),
          .first = cache_->n_tokens(),
          .n = args.keys.rows(),
          .per_tile = kKeysTileRows / group(),
          .window = spec_.window,
          .causal = spec_.causal,
          .scale = spec_.scale};
}

KeysView CudaKeysAttention::view_of(const AttendKeysArgs& args, const RunningMeans& means) const {
  KeysView view = view_of_queries(spec_, args);
  if (args.log_sums.defined()) {
    SLUICE_CHECK(args.log_sums.rows() == args.out.rows());
    view.queries.log_sums = args.log_sums.data<float>();
    view.queries.log_sum_stride = args.log_sums.row_stride();
  }
  view.queries.first_position = cache_->n_tokens();
  view.queries.n_tokens = args.keys.rows();
  view.heads.views = cache_->heads();
  view.rows = {.tokens = cache_->tokens(args.keys, args.values),
               .clusters = cache_->clusters(),
               .near = nullptr,
               .mean_keys = means.keys.data(),
               .mean_values = means.values.data(),
               .first_mean = means.first,
               .n_means = means.n};
  return view;
}

void CudaKeysAttention::run(const AttendKeysArgs& args, KeysView view, const Queries& queries,
                            bool fresh) {
  const FarLists none;
  const FarLists& lists = lists_ != nullptr ? *lists_ : none;
  DeviceArray<QueryTile> tiles;
  view.tiles.all = nullptr;
  if (queries.tiles.size() > 1) {
    if (!fresh) tiles = {context_, std::span<const QueryTile>(queries.tiles)};
    view.tiles.all = fresh ? lists.tiles : tiles.data();
  }
  view.tiles.only = queries.tiles[0];
  view.tiles.n = static_cast<int64_t>(queries.tiles.size());
  view.far = {.rows = lists.rows.data(),
              .bias = lists.bias.data(),
              .stride = queries.list_stride,
              .borders = lists.borders,
              .n = lists.n_far.data(),
              .n_borders = static_cast<int64_t>(queries.borders.size())};
  const auto fits = [&](const ConstTensor& x) {
    return dense::fits_tiles(spec_.dtype, spec_.head_dim, x, x);
  };
  const bool aligned = fits(args.queries) && fits(args.keys) && fits(args.values) && fits(args.out);
  view.split.n_few = view.queries.n_tokens <= kFewTokens ? view.queries.n_tokens : 0;
  view.split.most_keys =
      queries.list_stride + view.queries.first_position + view.queries.n_tokens - cache_->border();
  attend_keys(context_, spec_.dtype, aligned, view);
}

void CudaKeysAttention::attend(const AttendKeysArgs& args) {
  const int64_t n = args.keys.rows(), first = cache_->n_tokens();
  if (n == 0) return;
  check_args(args);
  const auto* chooser = dynamic_cast<const selection::CudaSelector*>(args.sets.chooser());
  selection::DeviceSets given(context_, chooser == nullptr && !cache_->sets().empty()
                                            ? args.sets.host().size()
                                            : 0);  // sets that come from the host
  if (chooser == nullptr && !cache_->sets().empty()) given.upload(args.sets.host());
  const selection::DeviceSets& sets = chooser != nullptr ? chooser->device_sets() : given;
  const uint64_t version = chooser != nullptr ? chooser->version() : 0;
  cache_->settle();
  const RunningMeans& means =
      cache_->find_means(sets, version, cache_->tokens(args.keys, args.values),
                         spec_.causal ? spec_.border(first + n) : first + n);
  const std::vector<Queries> slices = queries_of(first, n);
  const bool one = slices.size() == 1 && slices[0].borders.size() == 1;
  const int64_t border = slices[0].borders[0].position;
  const KeysView view = view_of(args, means);
  for (const Queries& queries : slices) {
    const bool fresh = !cache_->sets().empty() && !(one && n_listed_ == border);
    if (fresh)
      lists_ = cache_->shared().lists(list_key(slices.size() == 1 ? version : 0, args),
                                      [&] { return make_lists(sets, means, queries); });
    n_listed_ = one ? border : -1;
    run(args, view, queries, fresh);
    if (!one) lists_.reset();
  }
  cache_->keep(args.keys, args.values);
}

}  // namespace

// A few tiles do not fill the device: their keys are shared out. On Hopper that is done where they
// leave most of it empty; else one block to a tile is faster.
void attend_keys(const std::shared_ptr<Context>& context, DType dtype, bool aligned,
                 KeysView view) {
  constexpr int64_t kManySplits = 2;
  view.split.n = 1;
  if (!aligned) return attend_keys_plain(*context, view, dtype == DType::kBF16);
  // Rows with positions of their own: how many of a few tokens are rows decides nothing.
  const int64_t per_tile = kKeysTileRows / view.heads.group();
  const int64_t n_tiles = view.split.n_few > 0 && view.queries.positions != nullptr
                              ? ceil_div(view.split.n_few, per_tile)
                              : view.tiles.n;
  const bool few = view.split.n_few > 0 && n_tiles == 1;
  if (few && view.heads.head_dim <= kMostSplitDim) return attend_keys_split(context, view);
  const int64_t blocks = n_tiles * view.heads.n_kv_heads;
  const int64_t most = std::max<int64_t>(ceil_div(view.split.most_keys, 256), 1);
  const int64_t splits = std::clamp<int64_t>(int64_t{context->multiprocessors()} / blocks, 1, most);
  if (context->compute_capability() == 90 && !few && splits <= kManySplits)
    return attend_keys_hopper(*context, view);
  view.split.n = splits;
  attend_keys_tiles(context, view);
}

std::unique_ptr<KeysAttention> make_keys_attention(std::shared_ptr<Context> context,
                                                   const KeysSpec& spec) {
  return std::make_unique<CudaKeysAttention>(std::move(context), spec);
}

}  // namespace sluice::impl::cuda::keys
