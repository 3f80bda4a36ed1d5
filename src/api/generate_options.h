// What generate() and generate_batch() share.

#pragma once

#include "model/generate.h"
#include "sluice/generate.h"

namespace sluice::impl::api {

// Throws Error for a value out of range.
GenerateOptions wanted_of(const sluice::GenerateOptions& options);

// Of a run that came to its end.
void take_run(GenerateResult run, std::string text, sluice::GenerateResult& to);

}  // namespace sluice::impl::api
