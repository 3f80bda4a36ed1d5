// Ranks that send nothing: what is received is zeros, or this rank's own data. A model on such
// ranks computes what it computes on others, and waits for none.

#pragma once

#include <algorithm>
#include <cstdlib>

#include "ranks/transport.h"

namespace sluice::impl::bench {

class SilentTransport final : public Transport {
 public:
  SilentTransport(int rank, int size) : rank_(rank), size_(size) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string host() const override { return ""; }

  void send(std::span<const std::byte>, int) override {}
  void post(std::span<const std::byte>, int) override {}
  void receive(std::span<std::byte> data, int) override {
    std::fill(data.begin(), data.end(), std::byte{0});
  }

  void broadcast(std::span<std::byte>, int) override {}
  void gather_all(std::span<const std::byte> own, std::span<std::byte> all) override {
    for (size_t begin = 0; begin < all.size(); begin += own.size())
      std::copy(own.begin(), own.end(), all.begin() + static_cast<std::ptrdiff_t>(begin));
  }
  void exchange(std::span<const std::byte> own, std::span<std::byte> all) override {
    std::copy(own.begin(), own.end(), all.begin());
  }
  bool agree(int64_t own, std::span<int64_t> all, std::chrono::milliseconds) override {
    std::fill(all.begin(), all.end(), own);
    return true;
  }
  [[noreturn]] void abort(int) override { std::abort(); }

 private:
  int rank_, size_;
};

}  // namespace sluice::impl::bench
