// What a run of tune is given: defaults that depend on the context, and what its measurements
// depend on.

#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "plan/plan_file.h"
#include "tune/tune.h"

namespace sluice::impl {

// Throws Error for an encoder where what is to be saved is no part of running one: decoding, or the
// memory of a cache.
void check_tunable(const ModelSpec& spec, PlanObjective objective);

// Tokens of a window; wanted 0: 1024, or `most` where that is fewer. Throws Error for more than
// `most`.
int64_t tune_context(int64_t wanted, int64_t most);

// Limits that are not given have their defaults.
Contract contract_of(const PlanContract& wanted);

// Sets the windows, unless some were given, and the sizes of `refine` that are 0. Throws Error for
// windows of an encoder, which has none.
void set_head_defaults(HeadOptions& heads, bool windows_given, int64_t context,
                       const ModelSpec& spec);

// Where a run's text, and bases where it has some, come from.
struct TuneSources {
  std::string model_sha256;
  std::filesystem::path text;
  std::string separator;
  std::filesystem::path bases = {};  // empty: none
};
// All that KLs depend on beyond rounding, for Measurements.
nlohmann::json measurements_key(const TuneSources& sources, const TuneOptions& options,
                                const Backend& backend);

// TuneOptions::machine: where times are taken.
std::string machine_text(const Backend& backend);

}  // namespace sluice::impl
