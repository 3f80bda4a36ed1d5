// One query's estimates of clusters, in SIMD: RefineEstimate of backend/refine.h on rows.

#pragma once

#include "backend/refine.h"

namespace sluice::impl::cpu::refine {

struct AskArgs {
  RefineRule rule;
  int64_t n;                // clusters
  const float* scores;      // (n) q . mean, not scaled
  const float* log_counts;  // (n)
  const float* deviations;  // (n) root of ClusterStats::spread
  const float* rhos;        // (n)
  float scale;              // of scores
  float q_norm;             // scale * |q|
  float near;               // log of the sum of exp over near scores; -inf: there are none
  float delta;
  float* masses;  // (n) scratch
  // (n) becomes 1 where the query asks to open a cluster, else stays. Of kMeanError the estimate is
  // added, where it is a number.
  float* asks;
};
void ask(const AskArgs& args);

}  // namespace sluice::impl::cpu::refine
