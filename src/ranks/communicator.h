// The processes of a run that works on several at once (`mpirun -n N sluice ...`): who they are,
// what goes between them, and how they end together. A run of one process has a communicator too,
// of size 1. Used in one thread at a time.

#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/error.h"
#include "ranks/transport.h"

namespace sluice::impl {

// Another rank failed, or this one and others in the same step. Every rank has the same text, which
// names the rank that failed; all that is left is to end.
class RankError : public Error {
 public:
  RankError(const std::string& message, std::string hint, int code)
      : Error(message, std::move(hint)), code_(code) {}
  int code() const { return code_; }  // exit status of all ranks

 private:
  int code_;
};

class Communicator {
 public:
  Communicator() = default;  // of one process
  // Larger messages go in parts of `part` bytes.
  explicit Communicator(std::unique_ptr<Transport> transport,
                        size_t part = std::numeric_limits<int>::max() / 2);
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  std::string host() const { return transport_ ? transport_->host() : ""; }  // of this rank

  // Between two ranks. send returns when data may be changed; receive takes exactly that many
  // bytes.
  void send(std::span<const std::byte> data, int to);
  // The same without waiting until the other rank takes them, which send may do: for ranks of which
  // each may be sending to the other. Keeps a copy, so for small messages.
  void post(std::span<const std::byte> data, int to);
  void receive(std::span<std::byte> data, int from);

  // Collective: every rank calls these in the same order.
  void broadcast(std::span<std::byte> data, int from);  // of one size on all ranks
  // Every rank's data, in the order of ranks, on every rank. Sizes may differ. Throws RankError
  // where a rank is in fail() instead.
  std::vector<std::vector<std::byte>> gather_all(std::span<const std::byte> data);
  // Replaces data by that of rank 0. Throws as gather_all does.
  void share(std::vector<std::byte>& data);
  // Sums in the order of ranks, so every rank has the same bits. Of one size on all ranks.
  void add_all(std::span<float> data);
  // Returns when all ranks have come. Throws RankError where a rank is in fail() instead.
  void barrier();

  // Tells the other ranks that this one cannot go on, and throws RankError, as they do in their
  // next gather_all or barrier. Where ranks have failed alike (a file that none can read), the text
  // names none. Calls abort where the others are still busy after ten seconds.
  [[noreturn]] void fail(const Error& error, int code);
  // Ends all ranks now. One line on stderr names this rank.
  [[noreturn]] void abort(const std::string& message, int code = 1);

  // By this rank so far. A collective counts as one message to each other rank, which is what
  // travels where ranks send to each other directly.
  int64_t bytes_sent() const { return bytes_sent_; }
  int64_t messages_sent() const { return messages_sent_; }

 private:
  void count(size_t n_bytes, int n_messages);
  std::vector<int64_t> agreed(int64_t own);
  [[noreturn]] void end_together(const std::vector<int64_t>& words, const std::string& own);
  void add_gathered(std::span<float> data);
  void add_exchanged(std::span<float> data);

  std::unique_ptr<Transport> transport_;  // none: one process
  size_t part_ = 0;
  int rank_ = 0, size_ = 1;
  int64_t bytes_sent_ = 0, messages_sent_ = 0;
};

// The communicator of one process, for functions that were given none.
Communicator& alone();

}  // namespace sluice::impl
