#include "backend/cpu/attention/refine/tile_plan.h"

namespace sluice::impl::cpu::refine {
namespace {

// Smaller tiles share a unit: gathering for few queries costs more than their products. Strict
// units of 64 took 1.4 times as long (8192 tokens, 0.04 of the members opened): they open more.
constexpr int64_t kLeastUnit = 16;
constexpr int64_t kRegionKeys = 512;  // members of a region, about
constexpr int64_t kVector = 16;       // numbers of a vector, at most

// Room that the members of all clusters of a segment take.
int64_t region_room(const RefineSpec& spec, int64_t align) {
  return spec.segment / spec.page * attention::round_up(spec.page, align);
}

}  // namespace

TilePlan::TilePlan(const RefineSpec& spec)
    : mixed(spec.tile < kLeastUnit),
      unit(mixed ? std::max<int64_t>(1, kLeastUnit / spec.tile) * spec.tile : spec.tile),
      cluster_align(std::max(kVector, gemm::kernel_for(spec.dtype).k_step)),
      region_segments(std::max<int64_t>(1, kRegionKeys / region_room(spec, cluster_align))),
      shape(spec.dtype, spec.head_dim,
            mixed ? region_segments * region_room(spec, cluster_align) : 128) {}

}  // namespace sluice::impl::cpu::refine
