// MPI as a transport: the module libsluice_mpi.so, which world.cpp loads where a launcher started
// several processes. It alone is linked with MPI.

#include <mpi.h>

#include <cstdlib>
#include <deque>
#include <thread>
#include <vector>

#include "core/error.h"
#include "ranks/transport.h"
#include "sluice/version.h"

namespace sluice::impl {
namespace {

void check(int code, const char* what) {
  if (code == MPI_SUCCESS) return;
  std::vector<char> text(MPI_MAX_ERROR_STRING + 1);
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  throw Error(std::string(what) + ": " + text.data());
}

int count_of(size_t n) { return static_cast<int>(n); }  // communicator.cpp cuts what is larger

class MpiTransport final : public Transport {
 public:
  MpiTransport() {
    int provided = 0;
    // OpenMP's threads never call MPI.
    check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided), "MPI_Init_thread");
    check(MPI_Comm_dup(MPI_COMM_WORLD, &data_), "MPI_Comm_dup");
    check(MPI_Comm_dup(MPI_COMM_WORLD, &words_), "MPI_Comm_dup");
    for (const MPI_Comm one : {data_, words_}) MPI_Comm_set_errhandler(one, MPI_ERRORS_RETURN);
    MPI_Comm_rank(data_, &rank_);
    MPI_Comm_size(data_, &size_);
    std::vector<char> name(MPI_MAX_PROCESSOR_NAME + 1);
    int length = 0;
    MPI_Get_processor_name(name.data(), &length);
    host_ = name.data();
  }
  ~MpiTransport() override {
    for (Posted& message : posted_) MPI_Wait(&message.request, MPI_STATUS_IGNORE);
    MPI_Finalize();
  }
  MpiTransport(const MpiTransport&) = delete;
  MpiTransport& operator=(const MpiTransport&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string host() const override { return host_; }

  void send(std::span<const std::byte> data, int to) override {
    check(MPI_Send(data.data(), count_of(data.size()), MPI_BYTE, to, 0, data_), "MPI_Send");
  }

  void post(std::span<const std::byte> data, int to) override {
    int done = 1;
    while (done != 0 && !posted_.empty()) {
      check(MPI_Test(&posted_.front().request, &done, MPI_STATUS_IGNORE), "MPI_Test");
      if (done != 0) posted_.pop_front();
    }
    Posted& message = posted_.emplace_back();
    message.data.assign(data.begin(), data.end());
    check(MPI_Isend(message.data.data(), count_of(data.size()), MPI_BYTE, to, 0, data_,
                    &message.request),
          "MPI_Isend");
  }

  void receive(std::span<std::byte> data, int from) override {
    MPI_Status status;
    check(MPI_Recv(data.data(), count_of(data.size()), MPI_BYTE, from, 0, data_, &status),
          "MPI_Recv");
    int n = 0;
    MPI_Get_count(&status, MPI_BYTE, &n);
    if (n != count_of(data.size()))
      throw Error("rank " + std::to_string(from) + " sent " + std::to_string(n) +
                  " bytes, expected " + std::to_string(data.size()));
  }

  void broadcast(std::span<std::byte> data, int from) override {
    check(MPI_Bcast(data.data(), count_of(data.size()), MPI_BYTE, from, data_), "MPI_Bcast");
  }

  void gather_all(std::span<const std::byte> own, std::span<std::byte> all) override {
    const int n = count_of(own.size());
    check(MPI_Allgather(own.data(), n, MPI_BYTE, all.data(), n, MPI_BYTE, data_), "MPI_Allgather");
  }

  void exchange(std::span<const std::byte> own, std::span<std::byte> all) override {
    const int n = count_of(own.size()) / size_;
    check(MPI_Alltoall(own.data(), n, MPI_BYTE, all.data(), n, MPI_BYTE, data_), "MPI_Alltoall");
  }

  bool agree(int64_t own, std::span<int64_t> all, std::chrono::milliseconds limit) override {
    const auto begin = std::chrono::steady_clock::now();
    MPI_Request request = MPI_REQUEST_NULL;
    check(MPI_Iallgather(&own, 1, MPI_INT64_T, all.data(), 1, MPI_INT64_T, words_, &request),
          "MPI_Iallgather");
    // Ranks wait here for the slowest: they look often at first, then leave the core to others.
    for (int64_t looks = 0;; ++looks) {
      int done = 0;
      check(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
      if (done != 0) return true;
      if (std::chrono::steady_clock::now() - begin > limit) return false;
      if (looks > 1000) std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  }

  [[noreturn]] void abort(int code) override {
    MPI_Abort(MPI_COMM_WORLD, code);
    std::abort();  // MPI_Abort does not return
  }

 private:
  struct Posted {
    std::vector<std::byte> data;
    MPI_Request request = MPI_REQUEST_NULL;
  };

  std::deque<Posted> posted_;  // that may not have left
  MPI_Comm data_ = MPI_COMM_NULL, words_ = MPI_COMM_NULL;
  int rank_ = 0, size_ = 1;
  std::string host_;
};

}  // namespace
}  // namespace sluice::impl

extern "C" {

__attribute__((visibility("default"))) const char* sluice_transport_version() {
  return SLUICE_VERSION;
}

// Owned by the caller. Throws Error.
__attribute__((visibility("default"))) sluice::impl::Transport* sluice_transport_open() {
  return new sluice::impl::MpiTransport();
}

}  // extern "C"
