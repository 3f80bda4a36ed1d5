#include "backend/cuda/runtime/nccl.h"

#include <algorithm>
#include <exception>
#include <optional>

#include "core/shared_library.h"

namespace sluice::impl::cuda {
namespace {

// Values of ncclDataType_t and ncclRedOp_t.
constexpr int kFloat32 = 7, kSum = 0;

Nccl load() {
  const std::string files[] = {"libnccl.so.2"};
  const SharedLibrary library("NCCL", files, "install libnccl2");
  Nccl found{};
  library.find("ncclGetUniqueId", found.get_unique_id);
  library.find("ncclCommInitRank", found.comm_init_rank);
  library.find("ncclCommDestroy", found.comm_destroy);
  library.find("ncclAllReduce", found.all_reduce);
  library.find("ncclGetErrorString", found.get_error_string);
  return found;
}

std::optional<Nccl> load_if_there() {
  try {
    return load();
  } catch (const Error&) {
    return std::nullopt;
  }
}

void check_nccl(Nccl::Result result, const char* what) {
  if (result != 0)
    throw Error(std::string("NCCL, ") + what + ": " + nccl()->get_error_string(result),
                "NCCL_DEBUG=WARN NCCL_DEBUG_FILE=nccl.%h.%p in the environment has it say more; "
                "--split pipeline goes without it");
}

class NcclSums final : public RankSums {
 public:
  NcclSums(std::shared_ptr<Context> context, const Nccl::UniqueId& group, int rank, int size)
      : context_(std::move(context)) {
    check_nccl(nccl()->comm_init_rank(&communicator_, size, group, rank), "joining ranks");
  }
  NcclSums(const NcclSums&) = delete;
  NcclSums& operator=(const NcclSums&) = delete;
  ~NcclSums() override {
    // NCCL's waits for the other ranks, which may not come where this one has failed: the end of
    // the process frees it then.
    if (std::uncaught_exceptions() == 0) nccl()->comm_destroy(communicator_);
  }

  void add_all(const Tensor& rows) override {
    SLUICE_CHECK(rows.device() == Device::kCuda && rows.contiguous() &&
                 rows.dtype() == DType::kF32);
    check_nccl(
        nccl()->all_reduce(rows.bytes(), rows.bytes(), static_cast<size_t>(rows.shape().numel()),
                           kFloat32, kSum, communicator_, context_->stream()),
        "a sum over ranks");
  }

 private:
  std::shared_ptr<Context> context_;
  Nccl::Communicator* communicator_ = nullptr;
};

}  // namespace

const Nccl* nccl() {
  static const std::optional<Nccl> loaded = load_if_there();
  return loaded ? &*loaded : nullptr;
}

std::string device_id(const Context& context) {
  std::array<char, 32> id{};
  check(cudaDeviceGetPCIBusId(id.data(), static_cast<int>(id.size()), context.device()),
        "the device's place on the bus");
  return id.data();
}

std::vector<std::byte> make_nccl_group() {
  Nccl::UniqueId id{};
  check_nccl(nccl()->get_unique_id(&id), "a name for a group of ranks");
  return {id.bytes.begin(), id.bytes.end()};
}

std::unique_ptr<RankSums> join_nccl(std::shared_ptr<Context> context,
                                    std::span<const std::byte> group, int rank, int size) {
  Nccl::UniqueId id{};
  SLUICE_CHECK(group.size() == id.bytes.size());
  std::copy(group.begin(), group.end(), id.bytes.begin());
  return std::make_unique<NcclSums>(std::move(context), id, rank, size);
}

}  // namespace sluice::impl::cuda
