// results.json: what every command that measures writes. Keys are documented in docs/results.md.

#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "eval/compare/compare_plans.h"
#include "eval/sidecar_bases.h"
#include "model/model.h"

namespace sluice::impl {

// A value, or null.
nlohmann::json or_null(const std::optional<double>& value);
nlohmann::json or_null(const std::optional<int64_t>& value);
nlohmann::json or_null(const std::optional<bool>& value);

// schema, command, command_line, timestamp, sluice_version, commit and machine, the same in every
// file. command_line is what was typed: eval/shell_line.h.
nlohmann::json results_header(const std::string& command, const std::string& command_line,
                              const Backend& backend, int n_ranks = 1);
// The `model` entry; reads every byte of the checkpoint for its sha256, unless that is known.
nlohmann::json describe_model(const Checkpoint& checkpoint, const Backend& backend,
                              const std::string& known_sha256 = "");
// Processor and instruction set of a backend in one line, for people and for comparing.
std::string device_text(const Backend& backend);
// The sha256 of that entry alone.
std::string model_sha256(const Checkpoint& checkpoint);
nlohmann::json describe_text(const std::filesystem::path& path, int64_t n_tokens);

// Where the figures of a command that runs a model come from.
struct ResultsOrigin {
  std::string command_line;
  const Checkpoint& checkpoint;
  const Model& model;
  std::filesystem::path text = {};
  std::string model_sha256 = "";        // where it is known already
  const SidecarBases* bases = nullptr;  // in use
  int n_ranks = 1;                      // processes that worked on it
};
// Header and `model` of a command; `text`, where it has one, of n_tokens; `bases`, the same.
nlohmann::json results_of(const std::string& command, const ResultsOrigin& origin,
                          int64_t n_tokens = 0);

// The `metrics` of a plan compared with exact attention.
nlohmann::json describe_comparison(const PlanComparison& plan);

// Shares of all linear layers together, among the `metrics` of a run.
nlohmann::json describe_linear_shares(const LinearWork& work);
// The `linear` of a run: what each layer's linear inputs did that are not dense.
nlohmann::json describe_linear_work(const LinearWork& work);

// The `cache` of a run: the bytes of its parts.
nlohmann::json describe_cache(const CacheMemory& cache);

// SHA-256 of files one after another, as lower-case hex.
std::string sha256_of(const std::vector<std::filesystem::path>& files);

// As a file has it. Bytes that are not UTF-8, which paths may hold, are replaced.
std::string results_text(const nlohmann::json& results);
// As write_file has it.
void write_json(const nlohmann::json& results, const std::filesystem::path& path);

}  // namespace sluice::impl
