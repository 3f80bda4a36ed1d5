// NCCL: sums from GPU to GPU, over NVLink where there is. Loaded when a model is divided by width
// over ranks with GPUs. Many machines do not have it.

#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/capabilities.h"
#include "backend/cuda/runtime/device.h"

namespace sluice::impl::cuda {

// Its functions, under their names without the prefix. Declared here, since CUDA comes without
// NCCL's header: these have not changed since version 2.0.
struct Nccl {
  struct Communicator;
  struct UniqueId {
    std::array<std::byte, 128> bytes;
  };
  using Result = int;  // 0: success
  Result (*get_unique_id)(UniqueId* id);
  Result (*comm_init_rank)(Communicator** communicator, int n_ranks, UniqueId id, int rank);
  Result (*comm_destroy)(Communicator* communicator);
  Result (*all_reduce)(const void* from, void* to, size_t n, int type, int operation,
                       Communicator* communicator, cudaStream_t stream);
  const char* (*get_error_string)(Result result);
};

// nullptr where it is not installed.
const Nccl* nccl();

// Where the context's device is on the machine's bus: "0000:41:00.0".
std::string device_id(const Context& context);

// What DeviceRanks has of a backend. NCCL must be installed.
std::vector<std::byte> make_nccl_group();
std::unique_ptr<RankSums> join_nccl(std::shared_ptr<Context> context,
                                    std::span<const std::byte> group, int rank, int size);

}  // namespace sluice::impl::cuda
