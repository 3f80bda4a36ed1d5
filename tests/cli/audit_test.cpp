// --audit in generate and bench: what is said and written, and what is refused.

#include "cli/refusals.h"

namespace sluice::impl {
namespace {

using nlohmann::json;
using namespace test;

// A model whose context has clusters.
class AuditOption : public testing::Test {
 protected:
  AuditOption() {
    folder.set_config("n_positions", 200);
    folder.repeat_rows("transformer.wpe.weight", 200);
  }
  Args generate(const Args& more) const {
    return joined(
        {"generate", "-m", folder.path(), "-p", letter_text(60), "-n", "60", "--ignore-eos"}, more);
  }
  ModelFolder folder;
  const Args refine_ = {"--attention", "refine",  "--segment", "16",      "--window",
                        "0",           "--delta", "0.1",       "--sinks", "0"};
};

TEST_F(AuditOption, SaysAndWritesTheMeasuredKl) {
  const RunResult plain = run_ok(generate(refine_));
  for (const std::string mode : {"replay", "step"}) {
    const std::string file = folder.file(mode + ".json");
    const RunResult result =
        run_ok(generate(joined(refine_, {"--audit", "10", "--audit-mode", mode, "--json", file})));
    EXPECT_EQ(result.out, plain.out);  // an audit changes nothing
    EXPECT_NE(result.err.find(mode == "step" ? " of single steps on 6 of 59 tokens\n"
                                             : " on 50 of 59 tokens\n"),
              std::string::npos)
        << result;
    const json audit = read_results(file).at("runs")[0].at("audit");
    EXPECT_EQ(audit.at("mode"), mode);
    EXPECT_EQ(audit.at("every"), 10);
    EXPECT_EQ(audit.at("max_kl"), nullptr);
    EXPECT_EQ(audit.at("n_steps"), 59);
    EXPECT_EQ(audit.at("delta_factor"), 1);
    EXPECT_EQ(audit.contains("prompt"), mode == "replay");
    if (mode == "replay") {
      EXPECT_EQ(audit.at("prompt").at("n_samples"),
                audit.at("prompt").at("n_tokens").get<int>() / 10);
      EXPECT_NE(result.err.find("prompt: measured KL "), std::string::npos) << result;
    }
    ASSERT_EQ(audit.at("samples").size(), mode == "step" ? 6u : 5u);
    const json& last = audit.at("samples").back();
    for (const char* key : {"kl", "kl_low", "kl_high"}) EXPECT_EQ(last.at(key), audit.at(key));
    EXPECT_EQ(audit.at("samples")[0].at("kl_high"), nullptr);  // one sample says nothing
  }
}

TEST_F(AuditOption, FewerTokensThanAPassMeasureNothing) {
  const RunResult result = run_ok(generate(joined(refine_, {"--audit", "100"})));
  EXPECT_NE(result.err.find("no KL measured: 59 decode steps, --audit 100\n"), std::string::npos)
      << result;
}

TEST_F(AuditOption, BenchTimesEveryChoiceAudited) {
  const std::string file = folder.file("bench.json");
  const RunResult result = run_ok(joined({"bench", "-m", folder.path(), "-c", "40", "-n", "16",
                                          "--repeat", "1", "--audit", "8", "--json", file},
                                         refine_));
  expect_all_in({"| refine, delta 0.1 ", "| refine, delta 0.1, audit replay 8 "}, result);
  const json audit = read_results(file).at("cases").back().at("audit");
  EXPECT_EQ(audit.at("every"), 8);
  ASSERT_EQ(audit.at("samples").size(), 2u);
  EXPECT_EQ(audit.at("samples")[1].at("position"), 56);
  for (const char* key : {"kl", "kl_low", "kl_high", "position"})
    EXPECT_EQ(audit.at("samples")[1].at(key), audit.at(key));
}

TEST_F(AuditOption, RefusesWhatIsNotCompared) {
  expect_refused({.name = "Exact",
                  .build =
                      [](ModelFolder& f) {
                        return generate_of(f, {"-p", "ab", "--audit", "8"});
                      },
                  .fragments = {"--audit compares a run with the exact model", "--help"},
                  .code = 2});
  expect_refused({.name = "Dropped",
                  .build =
                      [](ModelFolder& f) {
                        return generate_of(f, {"-p", "ab", "--attention", "keys", "--audit", "8",
                                               "--audit-mode", "step"});
                      },
                  .fragments = {"drops keys for good", "--audit-mode replay"}});
  expect_refused({.name = "TooFew",
                  .build =
                      [](ModelFolder& f) {
                        return Args{"bench",       "-m",     f.path(),  "-n", "4",
                                    "--attention", "refine", "--audit", "8"};
                      },
                  .fragments = {"compares nothing of 4 tokens", "-n 8"},
                  .code = 2});
}

}  // namespace
}  // namespace sluice::impl
