// Whether what is tested runs under a sanitizer, and how much of it there is then time for.

#pragma once

#include <cstdlib>
#include <initializer_list>
#include <iterator>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

// There when the sanitizer's runtime is.
extern "C" void __asan_init() __attribute__((weak));
extern "C" void __tsan_init() __attribute__((weak));

namespace sluice::impl::test {

// A sanitizer's shadow memory counts as the program's, and everything takes a few times as long.
// Found at run time: tests are compiled the same for every build, and so but once.
inline const bool kSanitized = __asan_init != nullptr || __tsan_init != nullptr;

// A tool that looks into every launch of a kernel takes most of its time for launching. Where
// scripts/cuda-sanitize runs one, it asks for few cases: fewer numbers, but every kernel and every
// path through it.
inline const bool kFewCases = std::getenv("SLUICE_FEW_CASES") != nullptr;

// `make nightly` asks for what CI has no time for.
inline const bool kLongTests = std::getenv("SLUICE_LONG_TESTS") != nullptr;

// All of the cases; where few are asked for, every n-th from the first on, and the last.
template <typename Cases>
auto thinned(const Cases& cases, size_t n) {
  std::vector<std::decay_t<decltype(*std::begin(cases))>> kept;
  size_t left = std::size(cases), index = 0;
  for (const auto& one : cases)
    if (--left == 0 || index++ % n == 0 || !kFewCases) kept.push_back(one);
  return kept;
}
template <typename Case>
std::vector<Case> thinned(std::initializer_list<Case> cases, size_t n) {
  return thinned(std::vector<Case>(cases), n);
}

// All of the cases in long runs, and where few are asked for, which are thinned already; else every
// n-th from the first on. With an n that is prime to the lengths of the lists of `combinations`,
// every element of each is met, and with several of the others.
template <typename Cases>
auto sampled(const Cases& cases, size_t n) {
  std::vector<std::decay_t<decltype(*std::begin(cases))>> kept;
  size_t index = 0;
  for (const auto& one : cases)
    if (index++ % n == 0 || kLongTests || kFewCases) kept.push_back(one);
  return kept;
}

// What nested loops over these lists meet, in their order. Thinned by a number that is prime to the
// lengths of the lists, they go on to meet every element of each.
inline std::vector<std::tuple<>> combinations() { return std::vector<std::tuple<>>(1); }
template <typename List, typename... Lists>
auto combinations(const List& list, const Lists&... lists) {
  using Element = std::decay_t<decltype(*std::begin(list))>;
  const auto rest = combinations(lists...);
  std::vector<decltype(std::tuple_cat(std::declval<std::tuple<Element>>(), rest.front()))> all;
  for (const auto& one : list)
    for (const auto& others : rest) all.push_back(std::tuple_cat(std::tuple<Element>(one), others));
  return all;
}

}  // namespace sluice::impl::test
