// What a model keeps of sequences that grow together: keys and values of dense layers, and the
// representatives and compressed keys and values of accelerated ones.

#pragma once

#include <vector>

#include "backend/backend.h"
#include "layer/layer_attention.h"
#include "layer/layer_times.h"
#include "layer/linear_gate.h"
#include "model/range.h"
#include "model/spec.h"

namespace sluice::impl {

// What the tokens of a cache weigh.
struct CacheMemory {
  int64_t n_tokens = 0;  // of each sequence
  LayerCacheBytes bytes;
  int64_t dense_bytes = 0;  // were all layers dense

  double share_of_dense() const {  // 1 when empty
    return dense_bytes == 0 ? 1
                            : static_cast<double>(bytes.total()) / static_cast<double>(dense_bytes);
  }
};

// What layers do with the sequences of a cache.
struct CacheLayers {
  LayerRange range;                     // that the cache is of
  AttentionPlan plan = {};              // of all layers of the model; without layers, all are dense
  std::vector<LinearGates> gates = {};  // (n_layers) of linear layers, or empty
  // (n_layers) of the rows that each layer selects from, or empty
  std::vector<std::shared_ptr<const SelectionBasis>> bases = {};
  int64_t first_kv_head = 0;  // of the plan's heads, that of the spec's first
};

class KvCache {
 public:
  // spec: with the heads that the cache is of.
  KvCache(const ModelSpec& spec, Backend& backend, int64_t n_batch, int64_t capacity,
          CacheLayers layers);

  uint64_t id() const { return id_; }  // no other cache has it
  int64_t n_batch() const { return n_batch_; }
  int64_t capacity() const { return capacity_; }
  int64_t length() const { return length_; }  // positions filled, the same in every sequence
  void advance(int64_t n_tokens);
  // Forgets positions from `length` on. Compressed layers and gates can only forget everything.
  void truncate(int64_t length);
  const AttentionPlan& plan() const { return plan_; }
  // RefineAttention::set_delta_factor of every refined layer. 0 needs an audited plan.
  void set_delta_factor(double factor);
  bool all_dense() const { return plan_.all_dense() && gates_.empty(); }
  // Whether the next token of every sequence can be recorded; then expect_token() goes before every
  // replay.
  bool can_record() const;
  void expect_token();
  // Layers before the range may hand sets down to it, and the range to layers behind it: what goes
  // from process to process with the residual stream, after every pass.
  bool inherits_sets() const { return inherited_ != nullptr; }
  bool hands_down_sets() const { return handed_ != nullptr; }
  std::vector<std::byte> hand_down();
  void take_over(std::span<const std::byte> sets);

  // Whether the plan has a mode that must see a sequence whole, in one pass.
  bool needs_whole_sequence() const;

  const LayerRange& range() const { return range_; }
  KvView layer(int64_t index) const;                 // of a dense layer
  LayerAttention* accelerated(int64_t index) const;  // nullptr for a dense layer
  // nullptr for a layer that selects nothing, and for one that has too few tokens to choose its tau
  // from.
  const Selector* selector(int64_t layer, int64_t batch = 0) const;
  LinearGates* gates(int64_t layer);  // nullptr: all linear layers are dense
  const LinearGate* gate(int64_t layer, BasisInput input) const;  // nullptr: that one is

  // What the parts of a layer took so far, in all passes over this cache.
  LayerTimes& times(int64_t layer) { return times_[static_cast<size_t>(layer)]; }
  LayerTimes all_times() const;  // of all layers together
  void reset_times();
  // Whether passes wait for the device after each part of a layer: then the times of parts are true
  // on a device that works while others go on, and the whole takes longer.
  void wait_to_time(bool wait) { waits_to_time_ = wait; }
  bool waits_to_time() const { return waits_to_time_; }

  // Without room for tokens that may follow.
  CacheMemory memory() const;
  // What a dense cache takes, filled or not. dtype: of an exact one.
  static int64_t bytes_needed(const ModelSpec& spec, DType dtype, int64_t n_batch, int64_t capacity,
                              CacheKind kind = CacheKind::kExact);

 private:
  struct Layer {
    Buffer keys, values;              // (n_batch, n_kv_heads, capacity, head_dim), of a dense layer
    Buffer key_scales, value_scales;  // (n_batch, n_kv_heads, capacity), where these are int8
    std::unique_ptr<LayerAttention> accelerated;
  };

  // Layers before the range: what the first selected one in it has above. Returns that.
  LayerAttention* make_inherited(Backend& backend);

  uint64_t id_;
  LayerRange range_;
  AttentionPlan plan_;
  int64_t n_batch_, capacity_, length_ = 0;
  // Of one position in one dense layer, all sequences.
  int64_t exact_token_bytes_, int8_token_bytes_;
  std::unique_ptr<LayerAttention> inherited_;  // of another process, or none
  std::vector<Layer> layers_;                  // (n_layers), empty outside of range_
  LayerAttention* handed_ = nullptr;           // whose sets layers behind range_ need
  std::vector<LinearGates> gates_;             // (n_layers), or empty
  std::vector<LayerTimes> times_;              // (n_layers)
  bool waits_to_time_ = false;
};

}  // namespace sluice::impl
