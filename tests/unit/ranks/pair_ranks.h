// Two ranks that are processes: a test starts itself twice. Each says that it runs on a machine of
// its own.

#pragma once

#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <string>
#include <system_error>
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
  template <typename T>
  static std::span<T> part(std::span<T> both, int rank) {
    return both.subspan(static_cast<size_t>(rank) * (both.size() / 2), both.size() / 2);
  }
  static void put(int socket, std::span<const std::byte> data) {
    while (!data.empty()) data = data.subspan(done(::write(socket, data.data(), data.size())));
  }
  static void take(int socket, std::span<std::byte> data) {
    while (!data.empty()) data = data.subspan(done(::read(socket, data.data(), data.size())));
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

// Runs one test of this program as two ranks, with NAME=VALUE lines more in the environment, of
// which "{rank}" is the rank's number. Their exit statuses.
inline std::array<int, 2> run_as_pair(const std::string& test,
                                      const std::vector<std::string>& more) {
  std::array<int, 2> data{}, words{};
  for (auto* pair : {&data, &words})
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair->data()) != 0)
      throw std::system_error(errno, std::generic_category(), "socketpair");
  constexpr int kData = 10, kWords = 11;  // in the processes
  std::array<pid_t, 2> children{};
  for (size_t rank = 0; rank < 2; ++rank) {
    std::vector<std::string> lines = {"SLUICE_TEST_RANK=" + std::to_string(rank),
                                      "SLUICE_TEST_DATA=" + std::to_string(kData),
                                      "SLUICE_TEST_WORDS=" + std::to_string(kWords)};
    for (std::string line : more) {
      if (const size_t at = line.find("{rank}"); at != line.npos)
        line.replace(at, 6, std::to_string(rank));
      lines.push_back(std::move(line));
    }
    for (char** line = environ; *line != nullptr; ++line) lines.emplace_back(*line);
    std::vector<char*> environment;
    for (std::string& line : lines) environment.push_back(line.data());
    environment.push_back(nullptr);
    std::string program = "/proc/self/exe", filter = "--gtest_filter=" + test;
    std::array<char*, 3> args{program.data(), filter.data(), nullptr};
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, data[rank], kData);
    posix_spawn_file_actions_adddup2(&actions, words[rank], kWords);
    const int error = ::posix_spawn(&children[rank], program.c_str(), &actions, nullptr,
                                    args.data(), environment.data());
    posix_spawn_file_actions_destroy(&actions);
    if (error != 0) throw std::system_error(error, std::generic_category(), program);
  }
  for (const int socket : {data[0], data[1], words[0], words[1]}) ::close(socket);
  std::array<int, 2> codes{};
  for (size_t rank = 0; rank < 2; ++rank) {
    int status = 0;
    while (::waitpid(children[rank], &status, 0) < 0)
      if (errno != EINTR) throw std::system_error(errno, std::generic_category(), "waitpid");
    codes[rank] = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  return codes;
}

}  // namespace sluice::impl
