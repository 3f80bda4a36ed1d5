#include "report/shape_texts.h"

#include <array>

namespace sluice::impl {
namespace {

// Every command: what it was, the token map, plans and bases.
constexpr std::string_view kHeaderShapes = R"({
  "header": {
    "schema": "integer", "command": "text", "sluice_version?": "text", "command_line?": "text",
    "timestamp?": "text", "commit?": "text",
    "machine?": {"cpu?": "text", "isa?": "text", "threads?": "integer", "n_ranks?": "integer",
                 "gpu?": "text"},
    "model?": {
      "path?": "text", "family?": "text", "n_layers?": "integer", "d_model?": "integer",
      "n_heads?": "integer", "n_kv_heads?": "integer", "head_dim?": "integer",
      "vocab?": "integer", "dtype?": "text", "sha256?": "text"
    },
    "text?": {"path?": "text", "sha256?": "text", "n_tokens?": "integer"},
    "settings?": {}, "map?": "map", "plan?": "plan", "bases?": "bases"
  },
  "bases": {
    "path?": "text", "text?": {"path?": "text", "sha256?": "text", "n_tokens?": "integer"}
  },
  "map": {
    "tau": "number", "n_tokens": "integer", "space": "text", "rule": "text", "tokens": ["text"],
    "layers": [{
      "layer": "integer", "status": "text", "owner": ["integer"], "cosine": ["number"]
    }]
  },
  "plan": {
    "layers": [{
      "layer": "integer", "mode": "text", "window?": "integer", "block?": "integer",
      "segment?": "integer", "early?": "integer", "page?": "integer", "tile?": "integer",
      "tile_factor?": "number",
      "rule?": "text",
      "heads": [{"kind": "text", "tau?": "number", "far?": "text", "delta?": "number"}]
    }]
  }
})";

// analyze and calibrate.
constexpr std::string_view kAnalyzeShapes = R"({
  "analyze": {
    "runs": [{
      "tau?": "number", "n_tokens": "integer", "space?": "text", "n_windows?": "integer",
      "rows": [{"layer": "integer", "rule": "text", "*": "number"}],
      "heads?": [{"layer": "integer", "*": "number"}],
      "layers?": [{"layer": "integer", "*": "number"}],
      "summary?": {"rule?": "text", "sets?": {"*": "set"}, "*": "number"}
    }],
    "paper?": "printed", "subspace?": "subspaces", "joint?": "joint"
  },
  "analyze 1": {
    "runs": [{
      "tau": "number", "n_tokens": "integer", "space": "text", "n_windows?": "integer",
      "layers": [{
        "layer": "integer", "independent?": "set", "greedy?": "set", "cascade?": "set",
        "cascades?": ["set"], "controls?": {"*": "set"}, "heads?": [{"*": "number"}]
      }],
      "summary?": {"rule?": "text", "sets?": {"*": "set"}, "*": "number"}
    }],
    "plan_runs?": [{
      "n_tokens": "integer", "n_windows?": "integer", "summary?": {"*": "number"},
      "layers": [{
        "layer": "integer", "sets?": [{"tau": "number", "rule?": "text", "*": "number"}],
        "*": "number"
      }]
    }],
    "paper?": "printed", "subspace?": "subspaces", "joint?": "joint"
  },
  "printed": {
    "name": "text", "tau?": "number", "n_tokens?": "integer", "space?": "text",
    "counts?": [{"layer": "integer", "n_reps": "number"}],
    "coherence?": [{"layer": "integer", "jaccard": "number"}],
    "layers?": [{
      "layer": "integer", "n_reps_independent?": "number", "n_reps_cascade?": "number",
      "jaccard_prev?": "number", "turnover?": "number"
    }]
  },
  "subspaces": {"rank": "integer", "n_tokens?": "integer", "groups": ["directions"]},
  "joint": {
    "rule": "text", "tau": "number", "space": "text", "n_tokens": "integer",
    "n_windows?": "integer", "bases?": "bases",
    "layers": [{
      "layer": "integer", "seconds": "number", "products?": "number",
      "ranks": [{"rank": "integer", "*": "number"}]
    }]
  },
  "directions": {
    "layer": "integer", "input": "text", "d": "integer", "energy": "number",
    "effective_rank_90?": "integer", "effective_rank_95?": "integer",
    "effective_rank_99?": "integer", "coherence_prev?": "number",
    "smallest_cosine_prev?": "number", "rank?": "integer", "spectrum?": ["number"],
    "energies?": [{"rank": "integer", "energy": "number"}], "iterations?": "integer",
    "start_energy?": "number", "work_saved?": "number", "seconds?": "number",
    "fresh_energy?": "number", "fresh_seconds?": "number"
  },
  "calibrate": {"groups": ["directions"], "summary?": {"*": "number"}},
  "set": {"rule?": "text", "*": "number"}
})";

// eval; `metrics` and `cache` also of other commands.
constexpr std::string_view kEvalShapes = R"({
  "eval": {
    "metrics?": "metrics", "cache?": "cache", "window?": {"tokens": ["text"]},
    "runs?": [{
      "settings": "choice", "metrics": "metrics", "cache?": "cache", "plan?": "plan",
      "linear?": ["linear"], "refine_reads?": ["reads?"], "token_kl?": ["number?"],
      "row_errors?": [{"layer": "integer", "cosine": "number", "relative_error": "number"}]
    }]
  },
  "reads": {
    "near": "share", "clusters": "share", "opened": "share", "opened_by_head": ["share"],
    "positions": [{
      "begin": "integer", "near": "share", "clusters": "share", "opened": "share"
    }]
  },
  "linear": {
    "layer": "integer", "input": "text", "kind?": "text", "rank?": "integer",
    "epsilon?": "number", "fast_path_fraction?": "number", "bytes_fraction?": "number",
    "residual_median?": "number", "residual_p90?": "number", "kept_fraction?": "number"
  },
  "metrics": {"*": "number"},
  "cache": {"*": "number"},
  "choice": {
    "keep?": "number",
    "attention": "text", "select?": "text", "space?": "text", "tau?": "number", "far?": "text",
    "window?": "integer", "block?": "integer", "sinks?": "integer", "outlier_ratio?": "number",
    "from_layer?": "integer", "delta?": "number", "segment?": "integer", "early?": "integer",
    "page?": "integer", "tile?": "integer", "tile_factor?": "number", "rule?": "text",
    "cache?": "text", "plan?": "text"
  }
})";

// generate; `audit` also of bench.
constexpr std::string_view kGenerateShapes = R"({
  "generate": {
    "runs": [{
      "prompt": "text", "text?": "text", "error?": "text", "tokens?": ["integer"],
      "end?": "text", "n_prompt_tokens?": "integer", "prefill_tokens_per_s?": "number",
      "decode_tokens_per_s?": "number", "metrics?": "metrics", "cache?": "cache",
      "linear?": ["linear"], "audit?": "audit"
    }]
  },
  "generate 1": {
    "generation": {
      "prompt": "text", "text": "text", "tokens?": ["integer"], "end?": "text",
      "n_prompt_tokens?": "integer", "prefill_tokens_per_s?": "number",
      "decode_tokens_per_s?": "number"
    },
    "metrics?": "metrics", "cache?": "cache", "linear?": ["linear"], "audit?": "audit"
  },
  "audit": {
    "mode?": "text", "every?": "integer", "max_kl?": "number", "n_steps?": "integer",
    "n_compared?": "integer", "samples?": [{
      "position": "integer", "n_samples": "integer", "kl?": "number", "kl_low?": "number",
      "kl_high?": "number", "delta_factor?": "number", "tightened?": "flag"
    }],
    "prompt?": {
      "n_tokens": "integer", "n_samples": "integer", "kl?": "number", "kl_low?": "number",
      "kl_high?": "number"
    }
  }
})";

// needle.
constexpr std::string_view kNeedleShapes = R"({
  "needle": {
    "cases": [{
      "task?": "text", "n_tokens": "integer", "depth": "share", "dense": "find",
      "runs": ["find"]
    }],
    "summary": {"runs": [{"settings": "choice", "label?": "text"}]}
  },
  "find": {"found": "flag"}
})";

// tune.
constexpr std::string_view kTuneShapes = R"({
  "tune": {
    "contract": {"max_kl?": "number", "max_kl_p99?": "number", "max_kl_p999?": "number",
                 "max_ppl_ratio?": "number"},
    "objective": "text",
    "calibration": "metrics", "held_out": "metrics", "predicted_kl": "number",
    "generalisation_gap?": "number", "dense_because?": "text", "seconds?": "number",
    "candidates?": [{"budget": "number", "predicted_kl": "number", "loss": "metrics"}],
    "cost?": {"dense": "number", "plan": "number"},
    "time?": {
      "dense_ms?": "number", "plan_ms?": "number", "prefill?": ["timed"], "decode?": ["timed"]
    },
    "auto?": {"prefill_from?": "integer", "decode_from?": "integer"}
  },
  "timed": {"n_tokens": "integer", "*": "number"}
})";

// bench.
constexpr std::string_view kBenchShapes = R"({
  "bench": {
    "cases": [{
      "name": "text", "n_tokens?": "integer", "mode?": "text", "linear?": "text",
      "label?": "text", "settings?": {}, "samples_ms?": ["number"], "median_ms?": "number",
      "tokens_per_s?": "number", "spread?": "number", "disturbed?": "flag",
      "speedup_vs_dense?": "number", "speedup_low?": "number",
      "speedup_high?": "number", "n_reps_fraction?": "number",
      "fast_path_fraction?": "number", "weight_bytes_fraction?": "number",
      "parts_ms?": {"*": "number"}, "audit?": "audit"
    }]
  }
})";

constexpr std::array kAll = {kHeaderShapes, kAnalyzeShapes, kEvalShapes, kGenerateShapes,
                             kNeedleShapes, kTuneShapes,    kBenchShapes};

}  // namespace

std::span<const std::string_view> shape_texts() { return kAll; }

}  // namespace sluice::impl
