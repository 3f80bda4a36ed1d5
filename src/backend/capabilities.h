// What only some devices can do, or gain from. A backend that does not answers a null pointer, and
// its callers go without.

#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/bypass.h"
#include "backend/core_ops.h"
#include "backend/scores.h"
#include "backend/subspace.h"

namespace sluice::impl {

// Operations that were recorded once, to be done again at other positions.
class Recording {
 public:
  virtual ~Recording() = default;
  virtual bool valid() const = 0;  // memory of the backend's own that it works on has not moved
  // As many positions as it was recorded for.
  virtual void replay(std::span<const int32_t> positions) = 0;
  void replay(int64_t first_position) {
    const auto position = static_cast<int32_t>(first_position);
    replay(std::span(&position, 1));
  }
};

// Records operations of one token to a sequence, so that a step is one request to the device.
class StepRecorder {
 public:
  virtual ~StepRecorder() = default;
  // Records what `work` asks for, which is not done: operations of one token to a sequence, on
  // tensors that stay where they are, which were done so before. With one position, every
  // first_position among them is that of the replay. With several, they are those of the rows of a
  // ragged batch. nullptr where this work cannot be recorded.
  virtual std::unique_ptr<Recording> record(const std::function<void()>& work,
                                            int64_t n_positions = 1) = 0;
  virtual bool active() const = 0;  // whether record() is running
};

// What a gate that decides on a device wrote down of a row.
struct RowDecision {
  float residual;  // gsi: the share that the coordinates miss; -1 for a row that passed by
  int32_t kept;    // gsi: 1 by the image, 0 by the whole matrix; graded: how many elements
};

// Rows go by the image of a basis where that misses no more than epsilon of them, and pass by the
// gate for a while after many that did not; or, where columns are given, by those of the elements
// that grade() keeps.
struct GateSpec {
  const LinearWeights* dense = nullptr;
  double epsilon = 0;
  const SubspaceBasis* basis = nullptr;  // gsi
  const LinearWeights* image = nullptr;  // in that basis
  BypassLimits limits = {};
  int64_t n_sequences = 1;
  const ColumnWeights* columns = nullptr;  // graded
  double most_kept = 1;                    // share from which on a row is multiplied as it is
};

// A gate that decides where its rows are, so that the host need not wait for any decision. It is
// for one or a few rows at a time: each is a product of its own. Decisions are those of project()
// and grade(), give or take 1e-5 of a residual. The residuals of rows that are further from epsilon
// serve statistics: their squares are right to 1e-4 of ||x||^2.
class RowGate {
 public:
  virtual ~RowGate() = default;
  static constexpr int64_t kRoom = 512;  // decisions that are kept until they are taken
  // Where a sequence stands.
  virtual void set(int64_t sequence, const Bypass& bypass) = 0;
  // The next tokens of a sequence; args.weights is not used.
  virtual void run(const LinearArgs& args, int64_t sequence) = 0;
  // Before n rows that a recording of run() goes through.
  virtual void expect(int64_t n_rows) = 0;
  // All since the last call, in the order of run(); waits for them.
  virtual std::vector<RowDecision> take() = 0;
  virtual void forget() = 0;  // the same without a look at them
};

// Gates that decide on the device.
class DeviceGates {
 public:
  virtual ~DeviceGates() = default;
  // nullptr where the host decides as fast, or the sizes are not served.
  virtual std::unique_ptr<RowGate> make_gate(const GateSpec& spec) = 0;
};

// Compares scores where they are, in float64, and waits. Without it they are compared by the caller
// on the host.
class ScoreComparer {
 public:
  virtual ~ScoreComparer() = default;
  virtual void compare_scores(const CompareScoresArgs& args) = 0;
};

// Work among that of another library of this process: on one of several devices, and on a stream
// of the library's.
class SharedDevice {
 public:
  virtual ~SharedDevice() = default;
  // The device is the current one of this thread as long as the answer lives.
  virtual std::shared_ptr<void> enter() = 0;
  // From now on work goes to this stream, after all that was asked for before.
  virtual void use_stream(void* stream) = 0;
};

// Sums over several processes of which each has a device of its own, from device to device.
class RankSums {
 public:
  virtual ~RankSums() = default;
  // Replaces rows, contiguous f32 on the device, by the sum of those of all ranks, which has the
  // same bits on every one. In the order of the backend's other work; every rank calls it alike.
  virtual void add_all(const Tensor& rows) = 0;
};

// Devices that can be joined so.
class DeviceRanks {
 public:
  virtual ~DeviceRanks() = default;
  // Of devices of a machine that have the same, one at most can be joined.
  virtual std::string device_id() const = 0;
  // Names a new group of devices: one rank makes it, all of them join with it.
  virtual std::vector<std::byte> make_group() = 0;
  // Collective: returns when all ranks have come. Devices must be different ones.
  virtual std::unique_ptr<RankSums> join(std::span<const std::byte> group, int rank, int size) = 0;
};

}  // namespace sluice::impl
