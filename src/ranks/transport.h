// What carries bytes between the processes of a run: the seam between communicator.h and a module
// such as mpi/. Counts are of bytes and fit an int, as MPI's do; communicator.cpp cuts what is
// larger. Failures throw Error.

#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace sluice::impl {

class Transport {
 public:
  virtual ~Transport() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string host() const = 0;  // name of this machine

  // Returns when data may be changed.
  virtual void send(std::span<const std::byte> data, int to) = 0;
  // The same without waiting for the other rank: keeps a copy. Arrives in order with send().
  virtual void post(std::span<const std::byte> data, int to) = 0;
  // Exactly that many bytes.
  virtual void receive(std::span<std::byte> data, int from) = 0;

  // Collective: every rank calls them in the same order.
  virtual void broadcast(std::span<std::byte> data, int from) = 0;
  // all: (size, own.size())
  virtual void gather_all(std::span<const std::byte> own, std::span<std::byte> all) = 0;
  // Part i of `own` goes to rank i; part i of `all` comes from rank i. Both: (size, n)
  virtual void exchange(std::span<const std::byte> own, std::span<std::byte> all) = 0;

  // Every rank's word, on every rank. Never mixed up with the collectives above. False where not
  // all ranks have come before the limit; the transport may then only abort.
  virtual bool agree(int64_t own, std::span<int64_t> all, std::chrono::milliseconds limit) = 0;

  // Ends every rank.
  [[noreturn]] virtual void abort(int code) = 0;
};

}  // namespace sluice::impl
