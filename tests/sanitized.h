// Whether what is tested runs under a sanitizer. The tests themselves are not instrumented, so the
// build says it.

#pragma once

namespace sluice::test {

// A sanitizer's shadow memory counts as the program's, and everything takes a few times as long.
#ifdef SLUICE_TEST_SANITIZED
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace sluice::test
