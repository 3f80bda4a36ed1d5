// A loaded model: token ids in, hidden states and logits out.

#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>

#include "model/checkpoint.h"
#include "model/kv_cache.h"
#include "model/load.h"
#include "model/rotary.h"
#include "model/stage.h"
#include "model/tensor_share.h"

namespace sluice::impl {

// What this rank has of a model that is divided over several, by layers or by width; without
// either, it has all.
struct RankPart {
  std::shared_ptr<Stage> stage = nullptr;
  std::shared_ptr<TensorShare> share = nullptr;
};

struct LoadOptions {
  int64_t context = 0;  // positions in use, 0 for the model's own limit
  std::function<void(double)> progress;
  // The type of the matrices in memory: blocks, or the compute dtype; nothing: as they are stored,
  // plain types in the compute dtype.
  std::optional<DType> weights = {};
  // The values of blocks, in the compute dtype: to compare blocks with.
  bool expand_blocks = false;
  RankPart part = {};
};

// The next tokens of one sequence of a ragged batch.
struct SequenceTokens {
  std::span<const int32_t> tokens;
  KvCache* cache = nullptr;  // of one sequence, no other's
};

// Throws Error for a checkpoint without an output head, of which no tokens can be predicted.
void check_head(bool has_head);

class Model {
 public:
  // Throws Error when the weights do not fit the description or context exceeds the model's.
  Model(std::shared_ptr<const Checkpoint> checkpoint, std::unique_ptr<Backend> backend,
        const LoadOptions& options);

  const ModelSpec& spec() const { return spec_; }
  // The same with the heads and inner columns that this rank has.
  const ModelSpec& own_spec() const { return own_->spec; }
  Backend& backend() const { return *backend_; }
  int64_t context() const { return context_; }
  int64_t weight_bytes() const { return weights_.bytes; }
  // How many matrices have not the type that was asked for, since it does not fit their width.
  int64_t n_other_weights() const { return weights_.n_other_type; }
  int64_t n_weights() const { return weights_.n_matrices; }
  bool has_head() const { return weights_.head != nullptr; }

  // nullptr: the model is whole. Of one that is divided over ranks, all of them call forward(),
  // forward_ragged(), logits() and share() alike. Logits are the last one's, and so are hidden
  // states in a pipeline; the others leave theirs as they are.
  Communicator* ranks() const {
    return stage_ != nullptr ? &stage_->ranks() : share_ != nullptr ? &share_->ranks() : nullptr;
  }
  const Stage* stage() const { return stage_.get(); }               // of a pipeline, or nullptr
  const TensorShare* tensor_share() const { return share_.get(); }  // or nullptr
  bool has_last_layer() const { return stage_ == nullptr || stage_->last(); }
  // Whether this rank has the scores of the whole vocabulary, and so chooses tokens.
  bool chooses() const { return has_last_layer() && (share_ == nullptr || share_->last()); }
  // Makes tokens those that the last rank chose.
  void share(std::span<int32_t> tokens) {
    if (ranks() != nullptr) share_chosen(*ranks(), tokens);
  }

  // What a plan for this model must fit.
  PlanShape plan_shape() const;
  LinearShape linear_shape() const;
  // Makes what a plan's linear layers need in addition to the dense matrices, unless it is there:
  // images in bases, matrices by columns. Throws Error for a plan that the model cannot follow or
  // that needs bases which are not there, or other ones than before. Before the first cache with
  // that plan.
  void prepare_linear(const LinearPlan& plan, const Bases* bases);
  int64_t prepared_bytes() const;
  // What joint layers of plans need: the selection bases among these.
  void prepare_selection(const Bases& bases);
  // A cache for `n_batch` sequences of up to `capacity` positions, 0 for the whole context, and
  // what attention and linear layers do with them; without plans they are dense, and those stay
  // dense that PlanShape::stays_dense() names. Throws Error for
  // a plan of attention that the model cannot follow, or a joint one without bases. The model must
  // outlive the cache.
  KvCache make_cache(int64_t n_batch = 1, int64_t capacity = 0, const AttentionPlan& plan = {},
                     const LinearPlan& linear = {}) const;
  // Called from now on after the attention of every dense layer; an empty function ends it.
  void observe(AttentionObserver observer) { observer_ = std::move(observer); }
  // The same before every linear layer of the blocks, but for accelerated attention's own.
  void observe_linear(LinearObserver observer) { linear_observer_ = std::move(observer); }

  // Whether the last step that could be recorded was a recording's.
  bool replays() const { return replays_; }

  // Runs tokens (n_batch, n_tokens) through every layer after what the cache holds, and appends
  // them to it. Returns the hidden states after the final norm, (n_batch * n_tokens, d_model),
  // valid until the next call. An encoder sees whole sequences: its cache must be empty.
  ConstTensor forward(std::span<const int32_t> tokens, KvCache& cache);

  // The same of a ragged batch: sequences with caches, lengths and plans of their own. Hidden
  // states are those of the sequences one after the other. Products go over all rows together, so
  // they may round otherwise than those of each sequence alone. Observers see nothing of it. Where
  // it throws, nothing was appended, or the caches have to be truncated to 0.
  ConstTensor forward_ragged(std::span<const SequenceTokens> sequences);

  // The same of one token to a sequence with exact attention and dense linear layers, given what
  // the cache holds, which stays as it is. Needs an audited plan that keeps every key.
  ConstTensor forward_exact(std::span<const int32_t> tokens, KvCache& cache);

  // The same from the residual stream before a layer on, (n_batch * n_tokens, d_model) f32: what
  // lies before it is shared by changes behind it. Earlier layers of the cache stay empty.
  ConstTensor forward_from(int64_t first_layer, ConstTensor residual, KvCache& cache);

  // Scores over the vocabulary for rows of hidden states; out is (n_rows, vocab) f32, on the host
  // or the backend's device.
  void logits(ConstTensor hidden, Tensor out);

 private:
  // Layers from first_layer on over workspace_.residual(), and the final norm.
  ConstTensor run_layers(int64_t first_layer, int64_t n_rows, KvCache& cache);
  struct Pass {
    int64_t first_layer = 0, n_tokens = 1;
    bool exact = false;  // forward_exact()
  };
  void run_blocks(const Pass& pass, const Tensor& hidden, KvCache& cache);
  // Throws Error for tokens that do not fit, or are none.
  void check_tokens(std::span<const int32_t> tokens, const KvCache& cache) const;
  // The same of the whole model for one token to a sequence, recorded where the backend can.
  void run_step(bool exact, const Tensor& hidden, KvCache& cache);
  // The layers of a ragged batch, whose rows are at these positions.
  void run_ragged_blocks(std::span<const SequenceTokens> sequences,
                         std::span<const int32_t> positions, const Tensor& hidden);
  bool can_record(const KvCache& cache) const;
  // Whether this rank has some columns of the matrix that reads an input.
  bool has_columns_of(BasisInput input) const {
    return share_ != nullptr &&
           (input == BasisInput::kAttentionOutput || input == BasisInput::kMlpInner);
  }
  // The weights in use of a matrix that is gated: images and columns are made of them. A gate
  // decides by whole inputs, so a rank has rows of such a matrix in place of columns.
  MatrixSource gated_source(int64_t layer, BasisInput input) const;
  void prepare_groups(int64_t layer, const LayerLinearPlan& plan, const Bases* bases);
  // Makes the rotary tables long enough: a model may allow far more positions than a text has.
  void reach(int64_t n_positions);
  const RotaryTables& rotary_of(int64_t layer) const {
    return spec_.local_rotary && spec_.window(layer) > 0 ? local_rotary_ : rotary_;
  }
  // Rows of tokens, of which n_tokens in `lengths` after each other are of one sequence, at these
  // positions.
  void embed(std::span<const int32_t> tokens, std::span<const int64_t> lengths,
             std::span<const int32_t> positions);
  // The same of sequences of one length.
  void embed(std::span<const int32_t> tokens, int64_t n_batch, int64_t first_position);
  void final_norm(const Tensor& hidden);
  BlockShape own_block_shape() const;
  // The residual stream of a pass, from the stage before and to the next one.
  bool receives() const { return stage_ != nullptr && !stage_->first(); }
  void send_on(std::span<KvCache* const> caches) {
    if (!has_last_layer()) stage_->send(*backend_, workspace_.residual(), caches);
  }

  std::shared_ptr<const Checkpoint> checkpoint_;
  const ModelSpec& spec_;
  std::unique_ptr<Backend> backend_;
  int64_t context_;
  std::shared_ptr<Stage> stage_;
  std::shared_ptr<TensorShare> share_;
  std::shared_ptr<const ModelDescription> own_;  // the checkpoint's, or what the share has of it
  LayerRange layers_;                            // all, or those of the stage
  WeightType weight_type_;
  ModelWeights weights_;
  std::optional<std::string> bases_text_;  // sha256 of the text whose bases the images are in
  std::map<std::pair<int64_t, SelectSpace>, std::shared_ptr<const SelectionBasis>> selection_bases_;
  RotaryTables rotary_, local_rotary_;  // of spec_.rotary and spec_.local_rotary
  Workspace workspace_;
  Buffer embedded_;   // (n_rows, d_embed) f32 and
  Buffer projected_;  // the same in the compute dtype, when the token table is narrow
  Buffer hidden_;     // (n_rows, d_model)
  Buffer transformed_, scores_;
  AttentionObserver observer_;
  LinearObserver linear_observer_;
  // What a step works on. Memory of the model's own moves where it grows, and never shrinks: its
  // sizes tell.
  struct StepMemory {
    std::vector<uint64_t> caches;
    int64_t n_rows = 0, n_hidden = 0, n_positions = 0;
    bool operator==(const StepMemory&) const = default;
  };
  struct RecordedStep {
    StepMemory memory;  // of the last step
    std::unique_ptr<Recording> recording;
    bool tried = false;  // to record it
  };
  struct StepWork {
    std::function<void()> run;
    std::span<const int32_t> positions;
    std::function<void()> before_replay = {};
  };
  // The first step on some memory runs, the second is recorded, and the others ask for the
  // recording.
  void run_recorded(RecordedStep& step, std::vector<uint64_t> caches, const StepWork& work);
  // Of forward(), of forward_exact(), of forward_ragged().
  RecordedStep step_, exact_step_, ragged_step_;
  bool replays_ = false;
};

}  // namespace sluice::impl
