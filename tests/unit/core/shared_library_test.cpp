#include "core/shared_library.h"

#include <gtest/gtest.h>

#include "unit/test_files.h"

namespace sluice::impl {
namespace {

TEST(SharedLibrary, TheFirstFileThatCanBeLoadedIsTaken) {
  const std::string files[] = {"libsluice-is-not-there.so.7", "libm.so.6"};
  const SharedLibrary library("mathematics", files, "install it");
  double (*cosine)(double) = nullptr;
  library.find("cos", cosine);
  ASSERT_NE(cosine, nullptr);
  EXPECT_EQ(cosine(0), 1);
  test::expect_error([&] { library.find("sluice_has_none", cosine); },
                     {"libm.so.6 has no sluice_has_none"});
}

TEST(SharedLibrary, TheReasonIsThatOfTheFirst) {
  const std::string files[] = {"libsluice-is-not-there.so.7", "libneither.so"};
  test::expect_error([&] { SharedLibrary("mathematics", files, "install it"); },
                     {"mathematics cannot be loaded", "libsluice-is-not-there.so.7"});
}

}  // namespace
}  // namespace sluice::impl
