// Whether the tests run under a sanitizer.

#pragma once

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SLUICE_TEST_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || \
    __has_feature(memory_sanitizer)
#define SLUICE_TEST_SANITIZED 1
#endif
#endif

namespace sluice::test {

// A sanitizer's shadow memory counts as the program's, and everything takes a few times as long.
#ifdef SLUICE_TEST_SANITIZED
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace sluice::test
