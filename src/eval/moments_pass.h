// One pass of calibration over a text: the second moments of some groups, summed up while windows
// run through a model. docs/scale.md, "calibrate", says what goes between ranks.

#pragma once

#include <map>
#include <span>
#include <vector>

#include "backend/exact.h"
#include "model/model.h"
#include "ranks/communicator.h"
#include "subspace/moments.h"

namespace sluice::impl {

// One layer's input, and the rank that sums up its moments and makes its basis.
struct MomentsGroup {
  int64_t layer;
  BasisInput input;
  int owner = 0;
};

// Whom selection exempts.
struct ExemptOptions {
  int64_t sinks = 0;
  double outlier_ratio = 0;
};

// Windows are divided over ranks. What a linear layer reads in a window goes from the rank that
// runs the window to the owner of the group, which adds it in the order of windows: to the bit as
// one process does, where a window is one pass through the layers (eval/text/windows.h,
// kPassTokens).
class MomentsPass {
 public:
  MomentsPass(Model& model, Communicator& ranks, const std::vector<MomentsGroup>& groups,
              const ExemptOptions& exempt);
  ~MomentsPass();
  MomentsPass(const MomentsPass&) = delete;
  MomentsPass& operator=(const MomentsPass&) = delete;

  // The next windows of the text, one for each rank, or fewer at its end.
  void run(std::span<const std::vector<int32_t>> windows, KvCache& cache);

  // Of a group that this rank owns.
  Moments& of(const MomentsGroup& group) { return moments_.at({group.layer, group.input}); }

 private:
  using Key = std::pair<int64_t, BasisInput>;
  // Rows of a group that some tokens made; skip: (n_rows), or empty.
  struct Rows {
    ConstTensor rows;  // (n_rows, d) in host memory
    const std::vector<bool>* skip = nullptr;
  };

  bool wants(int64_t layer, BasisInput input) const { return owners_.contains({layer, input}); }
  void see(const LinearSeen& seen);
  void see(const AttentionSeen& seen);
  void deliver(const Key& group, const Rows& own);
  void add(const Key& group, const Rows& rows);
  void send(const Rows& own, int to);
  void receive(const Key& group, const Rows& like, int from);
  int64_t n_rows_of(int rank) const;  // in this pass through the layers

  Model& model_;
  Communicator& ranks_;
  ExemptOptions options_;
  std::map<Key, int> owners_;
  std::map<Key, Moments> moments_;          // of the groups that this rank owns
  std::map<int64_t, ExemptTokens> exempt_;  // per layer, of this rank's window
  std::span<const std::vector<int32_t>> windows_;
  int64_t begin_ = 0, step_ = 0;  // tokens of each window that go through the layers now
};

}  // namespace sluice::impl
