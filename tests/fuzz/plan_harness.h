// What a fuzzer does with one plan.json, shared by fuzz_plan and its mutation test.

#pragma once

#include <string>

#include "fuzz/harness.h"
#include "plan/plan_file.h"

namespace sluice::impl::fuzz {

// What is accepted must come back from its own file as it is.
inline void feed_plan(std::string_view text) {
  expect_only_errors([&] {
    const PlanFile file = parse_plan_file(text, "plan.json");
    const std::string written = plan_file_json(file).dump();
    if (parse_plan_file(written, "again") != file)
      throw std::logic_error("a plan changes when it is written and read: " + written);
  });
}

}  // namespace sluice::impl::fuzz
