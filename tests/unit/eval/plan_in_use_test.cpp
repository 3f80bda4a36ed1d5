// Where the bases of a plan may be.

#include "eval/plan_in_use.h"

#include "unit/test_files.h"

namespace sluice::impl {
namespace {

using namespace test;
namespace fs = std::filesystem;

TEST(PlanInUse, BasesAreSeenFromThePlansFolderAndNotOutsideOfIt) {
  const TempDir dir;
  const fs::path plan = dir.path() / "plans/plan.json";
  fs::create_directory(dir.path() / "plans");
  EXPECT_EQ(bases_seen_from(dir.path() / "plans/b", plan), "b");
  EXPECT_EQ(bases_seen_from(dir.path() / "plans/c/b", plan), "c/b");
  expect_error([&] { bases_seen_from(dir.path() / "b", plan); },
               {"b: is not in the folder of the plan ", "plan.json"});
}

}  // namespace
}  // namespace sluice::impl
