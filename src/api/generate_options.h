// What generate() and generate_batch() share.

#pragma once

#include "api/state.h"
#include "model/generate.h"
#include "sluice/generate.h"

namespace sluice::impl::api {

// Throws Error for a value out of range.
GenerateOptions wanted_of(const sluice::GenerateOptions& options);

// generate() of tokens; `wanted` is wanted_of() of the options.
sluice::GenerateResult run_generate(sluice::Model::State& state, std::vector<int32_t> tokens,
                                    GenerateOptions wanted, const sluice::GenerateOptions& options);

// Of a run that came to its end.
void take_run(GenerateResult run, std::string text, sluice::GenerateResult& to);

}  // namespace sluice::impl::api
