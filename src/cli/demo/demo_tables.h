// The tables and lists that `sluice demo` prints, narrow enough for a terminal.

#pragma once

#include "cli/analyze/analyze_tables.h"
#include "eval/analyze/token_map.h"
#include "eval/compare/compare_plans.h"
#include "eval/runs/bench_model.h"
#include "tune/tune.h"

namespace sluice::impl::cli {

// The tokens that the busiest representatives of a layer stand for.
void print_clusters(const Tokenizer& tokenizer, const TokenMap& map, size_t layer,
                    size_t n_clusters);

// "delta 0.01" or "tau 0.3".
std::string setting_of(const UniformAttention& choice);
// What each choice loses and reads.
TextTable quality_table(const CompareResult& result, const std::vector<UniformChoice>& choices);
// What each case takes, and of that selection and attention.
TextTable speed_table(const BenchResult& result);
// What a tuned plan loses and saves.
TextTable contract_table(const TuneOptions& options, const TuneResult& result);

}  // namespace sluice::impl::cli
