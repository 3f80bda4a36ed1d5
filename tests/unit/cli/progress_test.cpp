// Progress in words.

#include "cli/terminal/progress.h"

#include <gtest/gtest.h>

namespace sluice::impl::cli {
namespace {

TEST(Progress, TimeLeftFollowsFromTheRate) {
  EXPECT_EQ(progress_text(0.25, 0, 60), " 25%, 3:00 left");
  EXPECT_EQ(progress_text(0.5, 0, 7200), " 50%, 2:00:00 left");
}

TEST(Progress, WorkOfAnEarlierRunIsNotInTheRate) {
  EXPECT_EQ(progress_text(0.6, 0.5, 60), " 60%, 4:00 left");
  EXPECT_EQ(progress_text(0.5, 0.5, 1), " 50%, ? left");
}

TEST(Progress, IsNotWholeBeforeTheEnd) {
  EXPECT_EQ(progress_text(0.999, 0, 999), " 99%, 0:01 left");
  EXPECT_EQ(progress_text(1, 0, 10), "100%, 0:00 left");
}

}  // namespace
}  // namespace sluice::impl::cli
