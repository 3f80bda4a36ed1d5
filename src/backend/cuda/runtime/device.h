// What every part of the CUDA backend stands on: checked calls, the one stream of work, and memory
// in the order of that stream. The stream is the backend's own, or that of another library of the
// process.
//
// The host waits for the device in Context::synchronize, for downloads and results that it must
// have, and where it needs pinned memory again that a pending copy still reads.

#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "backend/cuda/runtime/cublas.h"
#include "core/error.h"

namespace sluice::impl::cuda {

// Throws Error in one line that names `what`.
void check(cudaError_t status, const char* what);
void check(cublasStatus_t status, const char* what);
// The same of the kernel just launched.
inline void check_launch(const char* kernel) { check(cudaGetLastError(), kernel); }

// Whether a kernel was compiled for a GPU with programmatic dependent launch
// (runtime/dependent_launch.cuh). Code for older GPUs, which newer ones may run too, has none.
bool has_dependent_launch(const void* kernel);

// How many devices there are; 0 without a driver too.
int device_count();

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

// Bytes of pinned host memory. Does not grow.
class PinnedBytes {
 public:
  PinnedBytes() = default;
  explicit PinnedBytes(int64_t bytes);
  std::byte* data() const { return static_cast<std::byte*>(memory_.get()); }

 private:
  struct Free {
    void operator()(void* data) const { cudaFreeHost(data); }
  };
  std::unique_ptr<void, Free> memory_;
};

// A handle of CUDA's or cuBLAS's, destroyed with what holds it.
template <typename T, auto kDestroy>
class Handle {
 public:
  Handle() = default;
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() {
    if (value_ != nullptr) kDestroy(value_);
  }
  T get() const { return value_; }
  T* to_set() { return &value_; }

 private:
  T value_ = nullptr;
};
using Event = Handle<cudaEvent_t, cudaEventDestroy>;

// Gives this thread its current device back when it goes; with a device, that one is current until
// then. Throws nothing: a device that cannot be current fails in the calls that need it.
class CurrentDevice {
 public:
  CurrentDevice() noexcept;
  explicit CurrentDevice(int device) noexcept;
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;
  ~CurrentDevice();

 private:
  int before_ = 0;
};

// Thrown by what cannot be recorded, and caught by whoever records.
struct CannotRecord {};

class Context {
 public:
  // On a stream of its own, or on that of another library, which gets back the memory that is not
  // in use here but for an eighth of the device's. The device becomes the current one of this
  // thread. Throws Error where there is no such device, or it or its driver is too old.
  explicit Context(int device, std::optional<cudaStream_t> stream = {});
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  int device() const { return device_; }
  cudaStream_t stream() const { return stream_; }
  // From now on work goes to this stream, after all that was asked for before.
  void use_stream(cudaStream_t stream);
  // cuBLASLt, loaded when it is first asked for.
  cublasLtHandle_t blas();
  void* blas_workspace();
  static constexpr size_t kBlasWorkspaceBytes = size_t{32} << 20;  // what cuBLAS asks on Hopper

  int multiprocessors() const { return multiprocessors_; }
  int multiprocessor_shared_bytes() const { return multiprocessor_shared_bytes_; }
  int compute_capability() const { return compute_capability_; }  // 90 for 9.0
  // Whether kernels can be launched whose blocks wait for each other.
  bool has_cooperative_launch() const { return has_cooperative_launch_; }
  const std::string& description() const { return description_; }

  // Device memory in the order of the stream, from a pool that keeps what is freed. At least one
  // byte, aligned to 256. Throws Error when there is not enough.
  void* allocate(int64_t bytes);
  void free(void* data) noexcept;

  // Memory for what one operation leaves to its next kernel; the next operation may overwrite it.
  void* scratch(int64_t bytes);

  // At least n words that are zero: every kernel that uses them leaves them so.
  int32_t* zeros(int64_t n);

  // Whether the stream is recorded rather than run. Nothing may be allocated, sent or waited for
  // then.
  bool recording() const { return recorded_positions_ != nullptr; }
  // Where on the device the positions will be that operations are at; null where nothing is
  // recorded. Throws CannotRecord where the recording has another number of them.
  const int32_t* recorded_positions(int64_t n) const {
    if (recording() && n != n_recorded_) throw CannotRecord();
    return recorded_positions_;
  }
  const int32_t* recorded_position() const { return recorded_positions(1); }
  void record_at(const int32_t* positions, int64_t n) {
    recorded_positions_ = positions;
    n_recorded_ = n;
  }
  // How often memory that operations share was moved to a larger place.
  int64_t moves() const { return moves_; }
  void count_move() { ++moves_; }

  // Whether this context may run kernels whose blocks wait for each other: n_places contexts of a
  // process can at a time. Once true it stays so.
  bool take_gate_place(int n_places);

  // What objects of several layers share while any of them lives; whoever needs it first makes it.
  std::weak_ptr<void>& shared_by_layers() { return shared_by_layers_; }

  // Copies host memory to the device in the order of the stream; it may change once this returns.
  void send(const void* host, void* device, int64_t bytes);
  // Copies device memory to the host; waits.
  void fetch(const void* device, void* host, int64_t bytes);
  void synchronize();

 private:
  // Pinned memory that pending copies read. A ring: the host waits only when it is a whole round
  // ahead of the device.
  struct Slot {
    PinnedBytes memory;
    Event sent;
  };
  static constexpr int64_t kSlotBytes = int64_t{1} << 20;
  Slot& next_slot();
  void refuse_to_record() const {
    if (recording()) throw CannotRecord();
  }

  void make_own_pool();

  int device_;
  int multiprocessors_ = 0, multiprocessor_shared_bytes_ = 0, compute_capability_ = 0;
  bool has_cooperative_launch_ = false;
  std::string description_;
  Handle<cudaMemPool_t, cudaMemPoolDestroy> own_pool_;
  cudaMemPool_t pool_ = nullptr;  // that one, or the device's
  Handle<cudaStream_t, cudaStreamDestroy> own_stream_;
  cudaStream_t stream_ = nullptr;  // that one, or the caller's
  Event streams_changed_;
  Handle<cublasLtHandle_t, destroy_handle> blas_;
  void* blas_workspace_ = nullptr;
  void* scratch_ = nullptr;
  int64_t scratch_bytes_ = 0;
  int32_t* zeros_ = nullptr;
  int64_t n_zeros_ = 0;
  const int32_t* recorded_positions_ = nullptr;
  int64_t n_recorded_ = 0;
  int64_t moves_ = 0;
  bool has_gate_place_ = false;
  std::weak_ptr<void> shared_by_layers_;
  std::array<Slot, 16> slots_;
  size_t next_slot_ = 0;
};

// An array on the device. Freed in the order of the stream: it may go as soon as the last kernel
// that reads it is launched.
template <typename T>
class DeviceArray {
 public:
  DeviceArray() = default;
  DeviceArray(std::shared_ptr<Context> context, int64_t size)
      : context_(std::move(context)), size_(size) {
    SLUICE_CHECK(size >= 0 && size <= INT64_MAX / static_cast<int64_t>(sizeof(T)));
    data_ = static_cast<T*>(context_->allocate(size * static_cast<int64_t>(sizeof(T))));
  }
  // With a copy of host memory.
  DeviceArray(std::shared_ptr<Context> context, std::span<const T> values)
      : DeviceArray(std::move(context), static_cast<int64_t>(values.size())) {
    context_->send(values.data(), data_, static_cast<int64_t>(values.size_bytes()));
  }
  DeviceArray(DeviceArray&& other) noexcept { swap(other); }
  DeviceArray& operator=(DeviceArray&& other) noexcept {
    DeviceArray moved(std::move(other));
    swap(moved);
    return *this;
  }
  ~DeviceArray() {
    if (data_ != nullptr) context_->free(data_);
  }

  T* data() const { return data_; }
  int64_t size() const { return size_; }
  // At least `size` elements; what was there is lost when it grows.
  void reserve(const std::shared_ptr<Context>& context, int64_t size) {
    if (data_ != nullptr && size_ >= size) return;
    context->count_move();
    *this = DeviceArray(context, size);
  }

 private:
  void swap(DeviceArray& other) noexcept {
    std::swap(context_, other.context_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
  }

  std::shared_ptr<Context> context_;
  T* data_ = nullptr;
  int64_t size_ = 0;
};

}  // namespace sluice::impl::cuda
