// Profiles as `runs` of results.json: docs/results.md, "analyze".

#pragma once

#include <nlohmann/json_fwd.hpp>

#include "eval/profile.h"

namespace sluice {

// `rules` are those that the profile was made with.
nlohmann::json profile_json(const Profile& profile, const std::vector<SelectRule>& rules);

}  // namespace sluice
