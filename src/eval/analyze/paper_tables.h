// The figures of the paper (Thomas, "Cascade Token Selection for Transformer Attention
// Acceleration"), as printed there, to compare ours with for the models it measured. All at
// tau = 0.3 and 512 tokens in the residual stream.

#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "model/spec.h"

namespace sluice::impl {

inline constexpr double kPaperTau = 0.3;
inline constexpr int64_t kPaperTokens = 512;

struct PaperModel {
  struct Coherence {  // Table 1: this layer's and the next one's independent sets
    int layer, n_reps, n_reps_next;
    double jaccard;
    int intersection;
  };
  struct Count {  // Table 4
    int layer, n_reps;
  };
  // Table 2: from the layer before to this one. What it calls r_inherit is n_reps_cascade.
  struct Turnover {
    int layer, n_reps_cascade, n_reps_independent, additions, removals;
    double turnover;
  };
  struct Layer {  // Table 5
    struct Change {
      double jaccard_prev;
      int additions, removals;
      double turnover;  // whole percents
    };
    int layer, n_reps_independent, n_reps_cascade;
    std::optional<Change> change;  // the first layer has none
  };
  struct Gram {  // Table 6
    double independent_products, cascade_products, savings, jaccard;
  };
  struct Deep {  // Tables 7 and 9, up to the last layer
    int first_layer;
    int n_reps_independent, n_reps_cascade;
    double ratio, least_turnover, largest_turnover;
  };
  struct Scaling {  // Table 8: the paper's estimates, not measured
    int n_tokens, n_reps;
    double savings, speedup;
  };

  std::string_view name, family;
  int n_layers, d_model;
  std::span<const Coherence> coherence;
  std::span<const Count> counts;
  std::span<const Turnover> turnovers;  // GPT-J only
  std::span<const Layer> layers;        // GPT-J only
  Gram gram;
  Deep deep;
  std::span<const Scaling> scaling;  // GPT-J only
  int mean_n_reps;                   // Table 9
};

std::span<const PaperModel> paper_models();
// The one that a model is, by family, depth and width; else nullptr.
const PaperModel* paper_model_of(const ModelSpec& spec);

}  // namespace sluice::impl
