#include "backend/cuda/runtime/device.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <unordered_map>

#include "core/shape.h"

namespace sluice::impl::cuda {
namespace {

// Of A100 and Hopper; the gaming and workstation GPUs of their time have 99 KiB.
constexpr size_t kLeastSharedBytes = size_t{160} << 10;
constexpr int kOldestCapability = 80;  // Ampere: bf16 matrix instructions, asynchronous copies

std::string mebibytes(size_t bytes) {
  return std::to_string((bytes >> 20) + (bytes % (1 << 20) > 0 ? 1 : 0)) + " MiB";
}

std::atomic<int> n_gate_places = 0;  // that are taken

// Of a device's memory, what is kept without being in use among another library's allocations: its
// own allocator cannot ask for it. Enough for the cache of the next text.
constexpr uint64_t kKeptShare = 8;

constexpr const char* kNeedsLess = "a smaller --context or --dtype bf16 needs less memory";

}  // namespace

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  throw Error(std::string("CUDA: ") + what + ": " + cudaGetErrorString(status),
              status == cudaErrorMemoryAllocation ? kNeedsLess : "");
}

void check(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw Error(std::string("cuBLAS: ") + what + ": " + cublas_lt().status_string(status),
              status == CUBLAS_STATUS_ALLOC_FAILED ? kNeedsLess : "");
}

int device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();  // clears it
    return 0;
  }
  return count;
}

PinnedBytes::PinnedBytes(int64_t bytes) {
  void* data = nullptr;
  check(cudaMallocHost(&data, static_cast<size_t>(bytes)), "pinned memory");
  memory_.reset(data);
}

CurrentDevice::CurrentDevice() noexcept {
  if (cudaGetDevice(&before_) != cudaSuccess) cudaGetLastError();  // clears it
}

CurrentDevice::CurrentDevice(int device) noexcept : CurrentDevice() {
  if (device != before_) cudaSetDevice(device);
}

CurrentDevice::~CurrentDevice() {
  int now = before_;
  if (cudaGetDevice(&now) == cudaSuccess && now != before_) cudaSetDevice(before_);
}

Context::Context(int device, std::optional<cudaStream_t> stream) : device_(device) {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaErrorInsufficientDriver) {
    int driver = 0, runtime = 0;
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    const auto version = [](int v) {
      return std::to_string(v / 1000) + "." + std::to_string(v % 1000 / 10);
    };
    if (driver == 0)
      throw Error("no CUDA device: this machine has no NVIDIA driver", "use --device cpu");
    throw Error("the NVIDIA driver knows CUDA " + version(driver) + ", this build needs " +
                    version(runtime),
                "update the driver, or use --device cpu");
  }
  if (status == cudaErrorNoDevice || (status == cudaSuccess && count == 0))
    throw Error("no CUDA device on this machine", "use --device cpu");
  check(status, "looking for devices");
  if (device < 0 || device >= count)
    throw Error("no CUDA device " + std::to_string(device) + " on this machine",
                "devices count from 0 to " + std::to_string(count - 1));

  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, device), "device properties");
  compute_capability_ = 10 * properties.major + properties.minor;
  multiprocessors_ = properties.multiProcessorCount;
  multiprocessor_shared_bytes_ = static_cast<int>(properties.sharedMemPerMultiprocessor);
  has_cooperative_launch_ = properties.cooperativeLaunch != 0;
  const std::string capability =
      std::to_string(properties.major) + "." + std::to_string(properties.minor);
  description_ = std::string(properties.name) + ", compute capability " + capability + ", " +
                 mebibytes(properties.totalGlobalMem);
#ifdef SLUICE_CUDA_QUICK
  description_ += ", kernels not optimised (make build optimises them)";
#endif
  if (compute_capability_ < kOldestCapability)
    throw Error(std::string(properties.name) + " has compute capability " + capability +
                    ", 8.0 or more is needed",
                "use --device cpu");
  if (properties.sharedMemPerBlockOptin < kLeastSharedBytes)
    throw Error(std::string(properties.name) + " has " +
                    std::to_string(properties.sharedMemPerBlockOptin >> 10) +
                    " KiB of shared memory for a block, attention needs " +
                    std::to_string(kLeastSharedBytes >> 10),
                "use --device cpu");
  check(cudaSetDevice(device), "choosing the device");
  if (!stream)
    check(cudaStreamCreateWithFlags(own_stream_.to_set(), cudaStreamNonBlocking), "stream");
  stream_ = stream.value_or(own_stream_.get());
  if (stream)
    make_own_pool();
  else
    check(cudaDeviceGetDefaultMemPool(&pool_, device), "memory pool");
  uint64_t keep = stream ? properties.totalGlobalMem / kKeptShare : UINT64_MAX;
  check(cudaMemPoolSetAttribute(pool_, cudaMemPoolAttrReleaseThreshold, &keep), "memory pool");
}

void Context::make_own_pool() {
  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location.type = cudaMemLocationTypeDevice;
  properties.location.id = device_;
  check(cudaMemPoolCreate(own_pool_.to_set(), &properties), "memory pool");
  pool_ = own_pool_.get();
}

void Context::use_stream(cudaStream_t stream) {
  if (stream == stream_) return;
  refuse_to_record();
  if (streams_changed_.get() == nullptr)
    check(cudaEventCreateWithFlags(streams_changed_.to_set(), cudaEventDisableTiming), "event");
  check(cudaEventRecord(streams_changed_.get(), stream_), "event");
  check(cudaStreamWaitEvent(stream, streams_changed_.get(), 0), "event");
  stream_ = stream;
}

cublasLtHandle_t Context::blas() {
  if (blas_.get() == nullptr) check(cublas_lt().create(blas_.to_set()), "start");
  return blas_.get();
}

void* Context::blas_workspace() {
  if (blas_workspace_ == nullptr) blas_workspace_ = allocate(kBlasWorkspaceBytes);
  return blas_workspace_;
}

Context::~Context() {
  const CurrentDevice current(device_);
  if (blas_workspace_ != nullptr) free(blas_workspace_);
  if (scratch_ != nullptr) free(scratch_);
  if (zeros_ != nullptr) free(zeros_);
  cudaStreamSynchronize(stream());  // copies from the slots may be pending
  if (has_gate_place_) --n_gate_places;
}

bool Context::take_gate_place(int n_places) {
  if (has_gate_place_) return true;
  has_gate_place_ = ++n_gate_places <= n_places;
  if (!has_gate_place_) --n_gate_places;
  return has_gate_place_;
}

void* Context::allocate(int64_t bytes) {
  SLUICE_CHECK(bytes >= 0);
  refuse_to_record();
  void* data = nullptr;
  const auto size = static_cast<size_t>(std::max<int64_t>(bytes, 1));
  cudaError_t status = cudaMallocFromPoolAsync(&data, size, pool_, stream());
  if (status == cudaErrorMemoryAllocation) {
    // What was freed in pieces may do as a whole.
    cudaGetLastError();
    synchronize();
    check(cudaMemPoolTrimTo(pool_, 0), "memory pool");
    status = cudaMallocFromPoolAsync(&data, size, pool_, stream());
  }
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    size_t available = 0, total = 0;
    cudaMemGetInfo(&available, &total);
    throw Error("cannot allocate " + mebibytes(size) + " on the device, " + mebibytes(available) +
                    " of " + mebibytes(total) + " are free",
                kNeedsLess);
  }
  check(status, "device memory");
  return data;
}

// The default stream is that of the current device.
void Context::free(void* data) noexcept {
  const CurrentDevice current(device_);
  cudaFreeAsync(data, stream());
}

void* Context::scratch(int64_t bytes) {
  if (scratch_ == nullptr || bytes > scratch_bytes_) {
    refuse_to_record();
    count_move();
    if (scratch_ != nullptr) free(std::exchange(scratch_, nullptr));
    scratch_ = allocate(bytes);
    scratch_bytes_ = bytes;
  }
  return scratch_;
}

int32_t* Context::zeros(int64_t n) {
  if (zeros_ == nullptr || n > n_zeros_) {
    refuse_to_record();
    count_move();
    if (zeros_ != nullptr) free(std::exchange(zeros_, nullptr));
    n_zeros_ = std::max<int64_t>(n, 1024);
    const int64_t bytes = checked_mul(n_zeros_, int64_t{sizeof(int32_t)});
    zeros_ = static_cast<int32_t*>(allocate(bytes));
    check(cudaMemsetAsync(zeros_, 0, static_cast<size_t>(bytes), stream()), "clearing memory");
  }
  return zeros_;
}

Context::Slot& Context::next_slot() {
  refuse_to_record();
  Slot& slot = slots_[next_slot_];
  next_slot_ = (next_slot_ + 1) % slots_.size();
  if (slot.sent.get() == nullptr) {
    slot.memory = PinnedBytes(kSlotBytes);
    check(cudaEventCreateWithFlags(slot.sent.to_set(), cudaEventDisableTiming), "event");
  } else {
    check(cudaEventSynchronize(slot.sent.get()), "copy to the device");
  }
  return slot;
}

void Context::send(const void* host, void* device, int64_t bytes) {
  const auto* from = static_cast<const std::byte*>(host);
  auto* to = static_cast<std::byte*>(device);
  for (int64_t done = 0; done < bytes; done += kSlotBytes) {
    const auto n = static_cast<size_t>(std::min(kSlotBytes, bytes - done));
    Slot& slot = next_slot();
    std::memcpy(slot.memory.data(), from + done, n);
    check(cudaMemcpyAsync(to + done, slot.memory.data(), n, cudaMemcpyHostToDevice, stream()),
          "copy to the device");
    check(cudaEventRecord(slot.sent.get(), stream()), "copy to the device");
  }
}

bool has_dependent_launch(const void* kernel) {
  static std::mutex mutex;
  static std::unordered_map<const void*, bool> known;
  const std::lock_guard lock(mutex);
  if (const auto found = known.find(kernel); found != known.end()) return found->second;
  cudaFuncAttributes attributes{};
  check(cudaFuncGetAttributes(&attributes, kernel), "a kernel's attributes");
  return known[kernel] = attributes.ptxVersion >= 90;
}

void Context::fetch(const void* device, void* host, int64_t bytes) {
  refuse_to_record();
  if (bytes == 0) return synchronize();
  const auto* from = static_cast<const std::byte*>(device);
  auto* to = static_cast<std::byte*>(host);
  // Up to a few MiB, such as the scores of a batch, are copied to pinned memory first, since the
  // driver's own staging takes longer. One piece is copied on while the next ones arrive.
  constexpr int64_t kMostSlots = 8;
  if (bytes > kMostSlots * kSlotBytes) {
    check(
        cudaMemcpyAsync(host, device, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost, stream()),
        "copy from the device");
    return synchronize();
  }
  std::array<Slot*, kMostSlots> slots{};
  const auto n_slots = static_cast<size_t>((bytes + kSlotBytes - 1) / kSlotBytes);
  const auto size_of = [&](size_t i) {
    return static_cast<size_t>(std::min(kSlotBytes, bytes - static_cast<int64_t>(i) * kSlotBytes));
  };
  for (size_t i = 0; i < n_slots; ++i) {
    slots[i] = &next_slot();
    check(cudaMemcpyAsync(slots[i]->memory.data(), from + i * kSlotBytes, size_of(i),
                          cudaMemcpyDeviceToHost, stream()),
          "copy from the device");
    if (i + 1 < n_slots) check(cudaEventRecord(slots[i]->sent.get(), stream()), "event");
  }
  for (size_t i = 0; i < n_slots; ++i) {
    if (i + 1 < n_slots)
      check(cudaEventSynchronize(slots[i]->sent.get()), "copy from the device");
    else
      synchronize();
    std::memcpy(to + i * kSlotBytes, slots[i]->memory.data(), size_of(i));
  }
}

void Context::synchronize() {
  refuse_to_record();
  check(cudaStreamSynchronize(stream()), "work on the device");
}

}  // namespace sluice::impl::cuda
