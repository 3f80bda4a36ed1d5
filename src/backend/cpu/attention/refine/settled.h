// Settled tokens of one key/value head: clusters and their members. docs/algorithm.md, section 7.

#pragma once

#include <vector>

#include "backend/cpu/attention/common/near.h"
#include "backend/cpu/attention/refine/estimate.h"
#include "backend/refine.h"

namespace sluice::impl::cpu::refine {

// Tokens of whole parts of the text (segments, then early parts of the next one), or of one part.
// The sinks come first, in order of position. The other rows of a part are permuted, so that the
// members of a cluster lie side by side; those of dense heads keep their order and have no
// clusters. Window heads keep the sinks only.
template <typename T>
struct Settled {
  std::vector<T> keys, values;  // (n_rows, head_dim); the sinks alone where members are int8:
  std::vector<int8_t> small_keys, small_values;  // (n_members, head_dim)
  std::vector<float> key_scales, value_scales;   // (n_members)
  std::vector<T> mean_keys, mean_values;         // (n_clusters, head_dim)
  Spreads spreads;                               // (groups, n_clusters) ClusterStats::spreads
  std::vector<float> rhos;                       // (n_clusters) ClusterStats::rho
  std::vector<int64_t> ends;                     // (n_parts) clusters up to the end of each

  int64_t n_clusters() const { return static_cast<int64_t>(rhos.size()); }
  // Clusters of the first n parts.
  int64_t clusters_of(int64_t n) const { return n == 0 ? 0 : ends[static_cast<size_t>(n - 1)]; }
  // Room for the rows of a whole sequence, so that no growth moves or doubles them.
  void reserve(const RefineSpec& spec);
  void append(const Settled& next);
  // Keeps the first n parts, which have n_tokens.
  void truncate(int64_t n, int64_t n_tokens, HeadKind kind, const RefineSpec& spec);
  // Rows [row, row + n): where they lie, or, where they are int8, expanded into `to`, which has
  // room for 2 n rows.
  struct Rows {
    const T* keys;    // (n, head_dim)
    const T* values;  // (n, head_dim)
  };
  Rows rows(int64_t row, int64_t n, int64_t head_dim, T* to) const;
  int64_t bytes() const;
};

// A head's clusters are made of its tokens, with spreads in these groups of dimensions.
template <typename T>
struct SettleFrom {
  HeadKind kind;
  const attention::HeadTokens<T>& tokens;
  const DimGroups& dims;
};
// The part of the text that is tokens [begin, end), as a head of this kind keeps it.
template <typename T>
Settled<T> settle_part(const RefineSpec& spec, const SettleFrom<T>& head, int64_t begin,
                       int64_t end);
// Groups the dimensions of a head whose first segment is there.
template <typename T>
DimGroups dim_groups_of(const RefineSpec& spec, const attention::HeadTokens<T>& tokens);

}  // namespace sluice::impl::cpu::refine
