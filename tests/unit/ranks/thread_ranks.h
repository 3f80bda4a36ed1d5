// Ranks that are threads of one process, for tests of what goes between ranks.

#pragma once

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "ranks/communicator.h"

namespace sluice::impl {

// Thrown by abort, which in a process would end it.
class ThreadAborted : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// What all ranks of a run share: a queue of messages for each pair of ranks.
struct ThreadMail {
  explicit ThreadMail(int n) : n_ranks(n) {}

  const int n_ranks;
  std::vector<std::string> hosts;  // of the ranks; by default each has its own
  std::mutex mutex;
  std::condition_variable changed;
  // {channel, from, to}; channel 0 for data, 1 for words
  struct Queue {
    std::deque<std::vector<std::byte>> messages;
    int64_t n_put = 0, n_taken = 0;
  };
  std::map<std::vector<int>, Queue> queues;
};

class ThreadTransport final : public Transport {
 public:
  ThreadTransport(std::shared_ptr<ThreadMail> mail, int rank)
      : mail_(std::move(mail)), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return mail_->n_ranks; }
  std::string host() const override {
    return mail_->hosts.empty() ? "host" + std::to_string(rank_)
                                : mail_->hosts[static_cast<size_t>(rank_)];
  }

  // Waits until it is taken, as MPI may: whoever relies on less is found.
  void send(std::span<const std::byte> data, int to) override {
    const int64_t mine = put(0, data, to);
    std::unique_lock lock(mail_->mutex);
    const ThreadMail::Queue& queue = mail_->queues[{0, rank_, to}];
    if (!mail_->changed.wait_for(lock, std::chrono::minutes(5),
                                 [&] { return queue.n_taken >= mine; }))
      throw std::logic_error("nobody takes a message");
  }
  void post(std::span<const std::byte> data, int to) override { put(0, data, to); }
  void receive(std::span<std::byte> data, int from) override {
    take(0, data, from, std::chrono::hours(1));
  }
  void broadcast(std::span<std::byte> data, int from) override {
    if (rank_ != from) return receive(data, from);
    for (int to = 0; to < size(); ++to)
      if (to != rank_) post(data, to);
  }
  void gather_all(std::span<const std::byte> own, std::span<std::byte> all) override {
    for (int to = 0; to < size(); ++to) post(own, to);
    for (int from = 0; from < size(); ++from)
      receive(all.subspan(static_cast<size_t>(from) * own.size(), own.size()), from);
  }
  void exchange(std::span<const std::byte> own, std::span<std::byte> all) override {
    const size_t n = own.size() / static_cast<size_t>(size());
    for (int to = 0; to < size(); ++to) post(own.subspan(static_cast<size_t>(to) * n, n), to);
    for (int from = 0; from < size(); ++from)
      receive(all.subspan(static_cast<size_t>(from) * n, n), from);
  }
  bool agree(int64_t own, std::span<int64_t> all, std::chrono::milliseconds limit) override {
    for (int to = 0; to < size(); ++to) put(1, std::as_bytes(std::span(&own, 1)), to);
    for (int from = 0; from < size(); ++from)
      if (!take(1, std::as_writable_bytes(all.subspan(static_cast<size_t>(from), 1)), from,
                std::min<std::chrono::milliseconds>(limit, std::chrono::hours(1))))
        return false;
    return true;
  }
  [[noreturn]] void abort(int code) override {
    throw ThreadAborted("rank " + std::to_string(rank_) + " aborts with " + std::to_string(code));
  }

 private:
  // The number of the message.
  int64_t put(int channel, std::span<const std::byte> data, int to) {
    const std::scoped_lock lock(mail_->mutex);
    ThreadMail::Queue& queue = mail_->queues[{channel, rank_, to}];
    queue.messages.emplace_back(data.begin(), data.end());
    mail_->changed.notify_all();
    return ++queue.n_put;
  }
  bool take(int channel, std::span<std::byte> data, int from, std::chrono::milliseconds limit) {
    std::unique_lock lock(mail_->mutex);
    auto& queue = mail_->queues[{channel, from, rank_}];
    if (!mail_->changed.wait_for(lock, limit, [&] { return !queue.messages.empty(); }))
      return false;
    const std::vector<std::byte>& first = queue.messages.front();
    if (first.size() != data.size()) throw std::logic_error("a message of another size");
    std::copy(first.begin(), first.end(), data.begin());
    queue.messages.pop_front();
    ++queue.n_taken;
    mail_->changed.notify_all();
    return true;
  }

  std::shared_ptr<ThreadMail> mail_;
  int rank_;
};

// Calls f once for each rank, in threads; returns when all have ended. Rethrows the exception of
// the lowest rank that has one; a rank that throws must not leave others waiting.
inline void on_ranks(int n_ranks, const std::function<void(Communicator&)>& f,
                     size_t part = size_t{1} << 20, const std::vector<std::string>& hosts = {}) {
  const auto mail = std::make_shared<ThreadMail>(n_ranks);
  mail->hosts = hosts;
  std::vector<std::exception_ptr> errors(static_cast<size_t>(n_ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < n_ranks; ++rank)
    threads.emplace_back([&, rank] {
      try {
        Communicator ranks(std::make_unique<ThreadTransport>(mail, rank), part);
        f(ranks);
      } catch (...) {
        errors[static_cast<size_t>(rank)] = std::current_exception();
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
}

}  // namespace sluice::impl
