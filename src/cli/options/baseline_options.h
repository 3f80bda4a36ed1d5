// Flags of the baselines that refined attention is compared with: --attention baseline:NAME and
// --keep, of sluice eval and needle. docs/baselines.md.

#pragma once

#include "cli/options/attention_options.h"

namespace sluice::impl::cli {

// What --attention takes: a mode, or, where the command has them, a baseline.
CLI::Validator mode_or_baseline(const AttentionFlags& flags);

// Lets --attention take baselines, and adds --keep. After add_attention_options.
void add_baseline_options(CLI::App& command, AttentionFlags& flags);

// Of every baseline given and every --keep; `common` says the rest. Throws CLI::ValidationError
// without --keep.
std::vector<UniformAttention> baseline_choices(const AttentionFlags& flags,
                                               const UniformAttention& common);

// Throws CLI::ValidationError for a baseline on a device that has none, before minutes of loading.
void check_baseline_device(const std::vector<UniformAttention>& choices, const std::string& device);

// A baseline with what its share comes to, for people.
std::string baseline_text(const BaselinePlan& plan);

}  // namespace sluice::impl::cli
