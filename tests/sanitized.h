// Whether what is tested runs under a sanitizer.

#pragma once

extern "C" void __asan_init() __attribute__((weak));  // there when the sanitizer's runtime is

namespace sluice::test {

// A sanitizer's shadow memory counts as the program's, and everything takes a few times as long.
// Found at run time: tests are compiled the same for every build, and so but once.
inline const bool kSanitized = __asan_init != nullptr;

}  // namespace sluice::test
