// plan.json: a plan with what it was made for. Schema: docs/plan.md.

#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "plan/plan.h"

namespace sluice::impl {

inline constexpr std::string_view kPlanFormat = "sluice-plan";
inline constexpr int64_t kPlanVersion = 1;
inline constexpr size_t kMaxPlanBytes = size_t{16} << 20;  // 32 layers of 32 heads: 85 KiB

// What a plan is meant to save: time of prefill or decoding, memory, or keys that are read by
// prefill or decoding. The last three do not depend on a machine.
enum class PlanObjective : uint8_t { kPrefill, kDecode, kMemory, kReads, kDecodeReads };

inline bool is_time(PlanObjective objective) {
  return objective == PlanObjective::kPrefill || objective == PlanObjective::kDecode;
}
// "prefill", "decode", "memory", "reads", "decode-reads"
std::string_view objective_name(PlanObjective objective);
std::optional<PlanObjective> objective_of(std::string_view name);

struct PlanModel {
  std::string sha256;  // as `model.sha256` of results.json
  std::string family;
  int64_t n_layers = 0, n_kv_heads = 0;

  bool operator==(const PlanModel&) const = default;
};

// The loss that was accepted; what is absent was not limited.
struct PlanContract {
  std::optional<double> max_kl = {}, max_kl_p99 = {}, max_kl_p999 = {};
  std::optional<double> max_ppl_ratio = {};

  bool operator==(const PlanContract&) const = default;
};

// Prompt lengths from which the plan was measured faster than dense; absent: at none.
struct PlanAuto {
  std::optional<int64_t> prefill_from, decode_from;

  bool operator==(const PlanAuto&) const = default;
};

// Where times and losses were measured.
struct PlanMeasured {
  std::string dtype;   // "f32", "bf16"
  std::string device;  // processor and instruction set, for people
  int64_t threads = 0;

  bool operator==(const PlanMeasured&) const = default;
};

// The sidecar that gsi groups and joint layers need.
struct PlanBases {
  std::string path;  // as it stands in the file: bases_path
  std::string text_sha256;

  bool operator==(const PlanBases&) const = default;
};

struct PlanFile {
  Plan plan;
  PlanModel model;
  int64_t context = 0;  // that the plan was made for
  PlanObjective objective = PlanObjective::kPrefill;
  std::optional<PlanContract> contract = {};
  std::optional<PlanAuto> auto_from = {};  // absent: nothing was measured
  std::optional<PlanMeasured> measured = {};
  std::optional<PlanBases> bases = {};
  nlohmann::json provenance = nullptr;  // how it was made: an object of any content, or null

  bool operator==(const PlanFile&) const = default;
};

// The file's content. What has no meaning in a layer's mode is left out: a plan comes back from it
// with defaults there, with a layer for each of the model's, and without linear layers where all
// are dense.
nlohmann::json plan_file_json(const PlanFile& file);
void write_plan_file(const PlanFile& file, const std::filesystem::path& path);

// Throws Error, naming the path inside the file, for whatever is not a plan that some model could
// follow.
PlanFile read_plan_file(const std::filesystem::path& path);
// The same from memory; `label` stands for the path in errors.
PlanFile parse_plan_file(std::string_view text, const std::string& label);

// Why a prompt of so many tokens is run dense and not by the plan; empty where the plan is
// followed: its loss was measured so far, and it was measured to be faster, reading the prompt, and
// generating after it where more than a token is asked for.
std::string why_dense(const PlanFile& file, int64_t n_prompt, int64_t n_predict);

// Whether a path of bases leads out of the folder of its plan. A plan may come from anyone, and
// names no file elsewhere.
bool leaves_folder(const std::filesystem::path& path);
// Where the bases of a plan at `plan_path` are: in the plan's folder.
std::filesystem::path bases_path(const PlanBases& bases, const std::filesystem::path& plan_path);

// The model that a plan is wanted for.
struct PlanTarget {
  std::string sha256;
  PlanShape shape;
  LinearShape linear;
  const Bases* bases = nullptr;  // nullptr: there are none
};
// Throws Error beginning with `label` when the plan was made for another model or other bases, or
// when this one cannot follow it.
void check_plan_file(const PlanFile& file, const std::string& label, const PlanTarget& target);

}  // namespace sluice::impl
