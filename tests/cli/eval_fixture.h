// sluice eval of a golden checkpoint on a short text.

#pragma once

#include "cli/refusals.h"

namespace sluice::impl::test {

class EvalFixture : public testing::Test {
 protected:
  RunResult eval(const Args& more) const {
    return run_ok(joined({"eval", "-m", folder_.path(), "-f", text_, "--json", results_}, more));
  }

  const ModelFolder folder_;
  const std::string text_ = folder_.write("text.txt", letter_text(300));
  const std::string results_ = folder_.file("results.json");
};

}  // namespace sluice::impl::test
