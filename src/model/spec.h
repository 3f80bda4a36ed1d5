// What a model is, as data: sizes and wiring (ModelSpec) and where each weight lies in the
// checkpoint (WeightNames). A family's file makes both from config.json or GGUF metadata;
// everything after that is the same for every family.

#pragma once

#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "layer/block.h"

namespace sluice::impl {

enum class PositionKind : uint8_t { kLearned, kRotary };
struct RotaryScaling {
  enum class Kind : uint8_t { kNone, kLinear, kDynamic, kLlama3, kYarn, kLongRope };
  Kind kind = Kind::kNone;
  double factor = 1;
  double low_frequency_factor = 1;
  double high_frequency_factor = 4;
  int64_t original_positions = 0;
  // YaRN: frequencies of more rotations than beta_fast in original_positions are kept, those of
  // fewer than beta_slow divided by the factor; the band between is blended.
  double beta_fast = 32, beta_slow = 1;
  bool truncate = true;  // the band's ends are whole indices
  // Long-rope: (dim / 2) divisors of the frequencies, for contexts up to original_positions and
  // for longer ones.
  std::vector<double> short_factors = {}, long_factors = {};
  double attention_factor = 1;  // of cosine and sine
};

struct RotarySpec {
  int64_t dim = 0;  // how many of head_dim are rotated, even
  double base = 10000;
  RotaryStyle style = RotaryStyle::kHalves;
  RotaryScaling scaling;
  // (dim / 2), when the checkpoint states them; they override base and scaling.
  std::vector<float> frequencies;
};

struct ModelSpec {
  std::string family;  // "gpt2", "llama", …, as config.json spells it
  int64_t n_layers = 0;
  int64_t d_model = 0;
  int64_t d_embed = 0;  // width of the token table; differs from d_model in OPT-350m
  int64_t n_heads = 0;
  int64_t n_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t d_inner = 0;
  int64_t vocab = 0;
  int64_t max_positions = 0;    // the longest context that makes sense
  int64_t default_context = 0;  // in use when the user names none; 0 means max_positions

  bool causal = true;
  BlockKind block = BlockKind::kPreNorm;
  NormKind norm = NormKind::kLayer;
  float norm_epsilon = 1e-5f;
  Activation activation = Activation::kNone;
  bool gated = false;
  // Sliding window of each layer, 0 for none; empty means none anywhere.
  std::vector<int64_t> windows;
  bool scale_attention = true;   // scores are divided by sqrt(head_dim)
  bool scale_by_layer = false;   // and by layer + 1 (both are options of GPT-2)
  double attention_factor = 0;   // above 0: scores are multiplied by this in place of either
  float attention_cap = 0;       // above 0: a score s becomes cap * tanh(s / cap)
  float logit_cap = 0;           // the same of the logits
  bool scale_embedding = false;  // rows of the token table are multiplied by sqrt(d_model)

  PositionKind position = PositionKind::kLearned;
  int64_t position_offset = 0;  // row of the position table that serves position 0
  RotarySpec rotary;
  // Of each layer, whether it rotates queries and keys; empty means that all do.
  std::vector<bool> rotary_layers;
  std::optional<RotarySpec> local_rotary;  // of layers with a sliding window, where it is another

  // ESM-2: masked tokens are zero and the rest is scaled by what training saw.
  bool token_dropout = false;
  int32_t mask_id = -1;

  Activation head_activation = Activation::kNone;  // of the head's transform, where it has one
  std::vector<int32_t> eos_ids;

  int64_t query_width() const { return n_heads * head_dim; }
  int64_t kv_width() const { return n_kv_heads * head_dim; }
  RowWidths row_widths() const {  // of what linear layers read
    return {.d_model = d_model, .attention = query_width(), .inner = d_inner};
  }
  float attention_scale(int64_t layer) const {
    if (attention_factor > 0) return static_cast<float>(attention_factor);
    const double base = scale_attention ? 1 / std::sqrt(static_cast<double>(head_dim)) : 1.0;
    return static_cast<float>(scale_by_layer ? base / static_cast<double>(layer + 1) : base);
  }
  bool rotates(int64_t layer) const {
    return rotary_layers.empty() || rotary_layers[static_cast<size_t>(layer)];
  }
  int64_t window(int64_t layer) const {
    return windows.empty() ? 0 : windows[static_cast<size_t>(layer)];
  }
};

// A weight matrix is one stored tensor or several stacked along the output axis.
struct MatrixPart {
  std::string weight;
  std::string bias;  // empty: none
  int64_t n_out = 0;
  bool transposed = false;  // stored (n_in, n_out), as GPT-2's Conv1D does
  // Where the part is rows [first_row, first_row + n_out) of a stored matrix of n_stored rows;
  // 0: all of it.
  int64_t first_row = 0, n_stored = 0;
  // The same of columns: from first_column on, of n_stored_columns.
  int64_t first_column = 0, n_stored_columns = 0;
  int64_t stored_rows() const { return n_stored > 0 ? n_stored : n_out; }
  int64_t stored_columns(int64_t n_in) const {
    return n_stored_columns > 0 ? n_stored_columns : n_in;
  }
};
using MatrixNames = std::vector<MatrixPart>;  // empty: the matrix does not exist

struct NormNames {
  std::string weight;  // empty: ones
  std::string bias;    // empty: zeros
  bool exists = false;
  bool plus_one = false;  // the weight is one more than what is stored
};

struct LayerNames {
  NormNames attention_norm;
  NormNames mlp_norm;  // absent in parallel blocks of one norm
  MatrixNames qkv;     // queries, keys, values
  MatrixNames attention_out;
  MatrixNames mlp_in;  // gate and up when gated
  MatrixNames mlp_out;
  // Of each head; a model has both or none.
  NormNames query_norm = {}, key_norm = {};
  NormNames attention_post_norm = {}, mlp_post_norm = {};  // of blocks of kind kPrePostNorm
};

struct WeightNames {
  std::string token_table;
  std::string position_table;  // empty: none
  std::string type_table;      // empty: none; BERT's token types, of which row 0 is used
  NormNames embed_norm;
  MatrixNames project_in;  // from d_embed to d_model
  std::vector<LayerNames> layers;
  NormNames final_norm;
  MatrixNames head_transform;  // before the output matrix: OPT's project_out, the encoders' dense
  NormNames head_norm;
  MatrixNames head;  // to the vocabulary; empty when the checkpoint has none
};

struct ModelDescription {
  ModelSpec spec;
  WeightNames names;
};

}  // namespace sluice::impl
