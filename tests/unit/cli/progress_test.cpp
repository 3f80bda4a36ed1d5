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

TEST(Progress, IsNoLongerThanItsTerminal) {
  const ProgressLine line{.label = "tune", .text = " 25%, 3:00 left", .note = "a", .done = 0.25};
  EXPECT_EQ(progress_line(line, 80), "tune [######..................]  25%, 3:00 left  a");
  EXPECT_EQ(progress_line(line, 48), "tune [######..................]  25%, 3:00 left");
  EXPECT_EQ(progress_line(line, 46), "tune  25%, 3:00 left");
  EXPECT_EQ(progress_line(line, 19), " 25%, 3:00 left");
  EXPECT_EQ(progress_line(line, 4), " 25%");
  EXPECT_EQ(progress_line(line, 0), "");
}

}  // namespace
}  // namespace sluice::impl::cli
