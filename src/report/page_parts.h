// Checked results of any schema as the page reads them: the layout of schema 1 with one part for
// each generated text.

#pragma once

#include <nlohmann/json_fwd.hpp>
#include <vector>

namespace sluice::impl {

// `results` of one command. Rows of `analyze` become `layers`, with the sets of a layer together;
// its runs of plans become `plan_runs`. Each of the `runs` of `generate` becomes a part with its
// `generation`; texts that ended in an error are left out.
std::vector<nlohmann::json> page_parts(nlohmann::json results);

}  // namespace sluice::impl
