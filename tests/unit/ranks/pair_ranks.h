// Two ranks that are processes: a test starts itself twice. Each says that it runs on a machine of
// its own.

#pragma once

#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "ranks/transport.h"

namespace sluice::impl {

// Over two sockets, for messages that their buffers hold: both ranks may send before they receive.
class PairTransport final : public Transport {
 public:
  PairTransport(int rank, int data, int words) : rank_(rank), data_(data), words_(words) {}

  int rank() const override { return rank_; }
  int size() const override { return 2; }
  std::string host() const override { return "host" + std::to_string(rank_); }

  void send(std::span<const std::byte> data, int) override { put(data_, data); }
  void post(std::span<const std::byte> data, int) override { put(data_, data); }
  void receive(std::span<std::byte> data, int) override { take(data_, data); }
  void broadcast(std::span<std::byte> data, int from) override {
    if (rank_ == from)
      put(data_, data);
    else
      take(data_, data);
  }
  void gather_all(std::span<const std::byte> own, std::span<std::byte> all) override {
    put(data_, own);
    std::ranges::copy(own, part(all, rank_).begin());
    take(data_, part(all, 1 - rank_));
  }
  void exchange(std::span<const std::byte> own, std::span<std::byte> all) override {
    put(data_, part(own, 1 - rank_));
    std::ranges::copy(part(own, rank_), part(all, rank_).begin());
    take(data_, part(all, 1 - rank_));
  }
  bool agree(int64_t own, std::span<int64_t> all, std::chrono::milliseconds limit) override {
    put(words_, std::as_bytes(std::span(&own, 1)));
    all[static_cast<size_t>(rank_)] = own;
    pollfd waiting{words_, POLLIN, 0};
    const auto most = std::min<std::chrono::milliseconds>(limit, std::chrono::minutes(1));
    if (::poll(&waiting, 1, static_cast<int>(most.count())) != 1) return false;
    take(words_, std::as_writable_bytes(all.subspan(static_cast<size_t>(1 - rank_), 1)));
    return true;
  }
  [[noreturn]] void abort(int code) override { ::_exit(code); }

 private:
  static constexpr size_t kBuffered = size_t{64} << 10;  // Linux's sockets hold more

  template <typename T>
  static std::span<T> part(std::span<T> both, int rank) {
    return both.subspan(static_cast<size_t>(rank) * (both.size() / 2), both.size() / 2);
  }
  static void put(int socket, std::span<const std::byte> data) {
    if (data.size() > kBuffered) throw std::logic_error("more than the other rank's socket holds");
    while (!data.empty())
      data = data.subspan(done(::send(socket, data.data(), data.size(), MSG_NOSIGNAL)));
  }
  static void take(int socket, std::span<std::byte> data) {
    while (!data.empty()) data = data.subspan(done(::recv(socket, data.data(), data.size(), 0)));
  }
  static size_t done(ssize_t n) {
    if (n > 0) return static_cast<size_t>(n);
    throw std::system_error(n < 0 ? errno : EPIPE, std::generic_category(), "the other rank");
  }

  int rank_, data_, words_;
};

// The transport of a process that run_as_pair started, nullptr in another.
inline std::unique_ptr<Transport> pair_transport() {
  const char* rank = std::getenv("SLUICE_TEST_RANK");
  if (rank == nullptr) return nullptr;
  return std::make_unique<PairTransport>(std::atoi(rank),
                                         std::atoi(std::getenv("SLUICE_TEST_DATA")),
                                         std::atoi(std::getenv("SLUICE_TEST_WORDS")));
}

namespace detail {

class Sockets {
 public:
  Sockets() {
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends_.data()) != 0)
      throw std::system_error(errno, std::generic_category(), "socketpair");
  }
  ~Sockets() { close(); }
  Sockets(const Sockets&) = delete;
  Sockets& operator=(const Sockets&) = delete;
  int of(size_t rank) const { return ends_[rank]; }
  int highest() const { return std::max(ends_[0], ends_[1]); }
  void close() {
    for (int& end : ends_)
      if (end >= 0) ::close(std::exchange(end, -1));
  }

 private:
  std::array<int, 2> ends_{-1, -1};
};

// A process that does not outlive this.
class Child {
 public:
  explicit Child(pid_t pid) : pid_(pid) {}
  ~Child() {
    if (pid_ > 0 && !ended()) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  // Whether it has; then code() is its exit status, or 128 and the signal's number.
  bool ended() {
    int status = 0;
    if (code_ < 0 && ::waitpid(pid_, &status, WNOHANG) == pid_)
      code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return code_ >= 0;
  }
  int code() const { return code_; }

 private:
  pid_t pid_;
  int code_ = -1;
};

inline pid_t start_rank(const std::string& test, std::vector<std::string> lines, int from_data,
                        int data, int from_words, int words) {
  // All of a test program's own settings concern its other tests.
  for (char** line = environ; *line != nullptr; ++line)
    if (!std::string_view(*line).starts_with("GTEST_")) lines.emplace_back(*line);
  std::vector<char*> environment;
  for (std::string& line : lines) environment.push_back(line.data());
  environment.push_back(nullptr);
  std::string program = "/proc/self/exe", filter = "--gtest_filter=" + test;
  std::array<char*, 3> args{program.data(), filter.data(), nullptr};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, from_data, data);
  posix_spawn_file_actions_adddup2(&actions, from_words, words);
  pid_t child = -1;
  const int error =
      ::posix_spawn(&child, program.c_str(), &actions, nullptr, args.data(), environment.data());
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) throw std::system_error(error, std::generic_category(), program);
  return child;
}

}  // namespace detail

// Runs one test of this program as two ranks, with NAME=VALUE lines more in the environment, of
// which "{rank}" is the rank's number. Their exit statuses; -1 of a rank that was still busy a
// minute after the other had failed, or after ten.
inline std::array<int, 2> run_as_pair(const std::string& test,
                                      const std::vector<std::string>& more) {
  detail::Sockets data, words;
  const int data_there = std::max(data.highest(), words.highest()) + 1;
  const auto start = [&](size_t rank) {
    std::vector<std::string> lines = {"SLUICE_TEST_RANK=" + std::to_string(rank),
                                      "SLUICE_TEST_DATA=" + std::to_string(data_there),
                                      "SLUICE_TEST_WORDS=" + std::to_string(data_there + 1)};
    for (std::string line : more) {
      if (const size_t at = line.find("{rank}"); at != line.npos)
        line.replace(at, 6, std::to_string(rank));
      lines.push_back(std::move(line));
    }
    return detail::start_rank(test, std::move(lines), data.of(rank), data_there, words.of(rank),
                              data_there + 1);
  };
  detail::Child first(start(0)), second(start(1));
  data.close();
  words.close();
  using Clock = std::chrono::steady_clock;
  auto end = Clock::now() + std::chrono::minutes(10);
  while (!(first.ended() && second.ended()) && Clock::now() < end) {
    if (first.code() > 0 || second.code() > 0)
      end = std::min(end, Clock::now() + std::chrono::minutes(1));
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return {first.code(), second.code()};
}

}  // namespace sluice::impl
