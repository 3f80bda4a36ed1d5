#include "backend/refine.h"

#include "core/error.h"

namespace sluice::impl {

void check_refine(const RefineSpec& spec) {
  SLUICE_CHECK(spec.n_kv_heads > 0 && spec.n_heads % spec.n_kv_heads == 0);
  SLUICE_CHECK(static_cast<int64_t>(spec.heads.size()) == spec.n_kv_heads);
  SLUICE_CHECK(spec.page > 0 && spec.segment > 0 && spec.segment % spec.page == 0);
  SLUICE_CHECK(spec.sinks >= 0 && spec.sinks % spec.page == 0 && spec.sinks < spec.segment);
  SLUICE_CHECK(spec.early == 0 || (spec.early > spec.sinks && spec.early % spec.page == 0 &&
                                   spec.segment % spec.early == 0));
  SLUICE_CHECK(spec.tile > 0 && spec.window >= 0);
  SLUICE_CHECK(spec.window % spec.tile == 0 && spec.segment % spec.tile == 0);
  SLUICE_CHECK(spec.capacity > 0 && spec.tile_factor > 0);
  for (const RefineHead& head : spec.heads) {
    SLUICE_CHECK(head.delta >= 0);  // infinity: only means
    SLUICE_CHECK(spec.causal || head.kind != HeadKind::kWindow);
  }
}

}  // namespace sluice::impl
