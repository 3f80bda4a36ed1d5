// What ranks say of themselves, with the machine that each runs on.

#pragma once

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "ranks/archive.h"
#include "ranks/communicator.h"

namespace sluice::impl {

template <typename T>
struct OnHost {
  std::string host;
  T value{};

  template <typename Archive>
  void transfer(Archive& archive) {
    archive(host, value);
  }
};

// Of every rank, in their order. Collective.
template <typename T>
std::vector<OnHost<T>> gather_with_hosts(Communicator& ranks, const T& own) {
  OnHost<T> mine{ranks.host(), own};
  std::vector<OnHost<T>> all;
  for (const auto& bytes : ranks.gather_all(packed(mine)))
    all.push_back(unpacked<OnHost<T>>(bytes));
  return all;
}

// How many of `ranks` run on a machine.
template <typename T>
int count_on(std::span<const OnHost<T>> ranks, const std::string& host) {
  return static_cast<int>(std::ranges::count(ranks, host, &OnHost<T>::host));
}

}  // namespace sluice::impl
