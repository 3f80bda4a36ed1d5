// What read_results takes, and the one line it has for everything else.

#include <gtest/gtest.h>

#include "report/report.h"
#include "unit/report/sample_results.h"
#include "unit/test_files.h"

namespace sluice::impl {
namespace {

using Json = nlohmann::json;
using test::expect_error;

std::string refusal_of(const std::string& text, const std::vector<std::string>& fragments) {
  const test::TempDir folder;
  const auto path = folder.write("results.json", text);
  std::vector<std::string> all = fragments;
  all.push_back("results.json: ");
  return expect_error([&] { read_results(path); }, all);
}

// The text of results with one value replaced.
std::string with(Json json, const std::string& pointer, Json value) {
  json[Json::json_pointer(pointer)] = std::move(value);
  return json.dump();
}

TEST(ReadResults, GivesWhatEveryCommandWrote) {
  const test::TempDir folder;
  for (const Json& json :
       {test::sample_analyze(), test::sample_eval(), test::sample_generate(), test::sample_bench(),
        test::sample_calibrate(), test::sample_tune(), test::sample_needle(), test::sample_demo(),
        test::sample_header("inspect"), test::sample_analyze_1(), test::sample_generate_1()})
    EXPECT_EQ(read_results(folder.write("results.json", json.dump())), json);
}

TEST(ReadResults, RefusesWhatNoCommandOfOursWrites) {
  for (const char* command : {"new", "set", "header", ""})
    refusal_of(test::sample_header(command).dump(), {"command: `", "has nothing to show"});
  for (const auto& [command, key] : {std::pair{"demo", "parts"},
                                     {"eval", "runs"},
                                     {"analyze", "runs"},
                                     {"generate", "runs"},
                                     {"bench", "cases"},
                                     {"needle", "cases"},
                                     {"tune", "contract"}})
    refusal_of(test::sample_header(command).dump(), {std::string("has no `") + key + "`"});
}

TEST(ReadResults, LeavesKeysAloneThatItDoesNotKnow) {
  Json json = test::sample_analyze();
  json["runs"][0]["new_key"] = {1, "a"};
  json["another"] = {{"deep", {1, 2}}};
  EXPECT_NO_THROW(check_results(json, "x"));
}

TEST(ReadResults, EveryTruncationIsRefused) {
  const std::string whole = test::sample_demo().dump();
  for (size_t size = 0; size < whole.size(); size += 97)
    refusal_of(whole.substr(0, size), {size == 0 ? "is empty" : "not valid JSON"});
  refusal_of(whole.substr(0, whole.size() - 1), {"not valid JSON"});
}

TEST(ReadResults, ForeignFilesAreRefused) {
  refusal_of("<!doctype html>", {"not valid JSON"});
  refusal_of("[1, 2]", {"expected results of sluice, found an array"});
  refusal_of("null", {"expected results of sluice, found null"});
  refusal_of("{}", {"no `schema`"});
  refusal_of(R"({"model_type": "gpt2"})", {"no `schema`"});
  refusal_of(R"({"schema": 1})", {"has no `command`"});
  refusal_of(R"({"schema": "1", "command": "eval"})", {"schema: expected", "found \"1\""});
  refusal_of(R"({"schema": 0, "command": "eval"})", {"schema: expected", "found 0"});
  refusal_of(R"({"schema": 1.5, "command": "eval"})", {"schema: expected", "found 1.5"});
  refusal_of("{\"schema\": 1, \"command\": \"\xff\"}", {"not valid JSON", "UTF-8"});
  refusal_of(std::string(100, '[') + std::string(100, ']'), {"nests deeper"});
  refusal_of(R"({"schema": 1, "command": "eval", "metrics": {"ppl": 1e999}})", {"not valid JSON"});
}

TEST(ReadResults, NewerSchemasAreNamedAsSuch) {
  refusal_of(with(test::sample_eval(), "/schema", 3),
             {"schema: 3 was written by a newer sluice", "schema 2"});
  refusal_of(with(test::sample_eval(), "/schema", UINT64_MAX), {"newer sluice"});
  refusal_of(with(test::sample_demo(), "/parts/1/schema", 7),
             {"parts[1].schema: 7 was written by a newer sluice"});
}

TEST(ReadResults, WrongTypesAreRefusedWithTheirPath) {
  const Json analyze = test::sample_analyze(), eval = test::sample_eval();
  refusal_of(with(analyze, "/model", "gpt2"), {"model: expected an object, found \"gpt2\""});
  refusal_of(with(analyze, "/model/path", 3), {"model.path: expected a string, found 3"});
  refusal_of(with(analyze, "/command", 3), {"command: expected a string, found 3"});
  refusal_of(with(analyze, "/runs", {{"tau", 1}}), {"runs: expected an array, found an object"});
  refusal_of(with(analyze, "/runs/0/tau", "0.3"),
             {"runs[0].tau: expected a finite number, found \"0.3\""});
  refusal_of(with(analyze, "/runs/0/rows", nullptr), {"runs[0].rows: expected", "found null"});
  refusal_of(with(analyze, "/runs/0/rows/1/layer", 1.5),
             {"runs[0].rows[1].layer: expected", "found 1.5"});
  refusal_of(with(analyze, "/runs/0/rows/1/rule", 5),
             {"runs[0].rows[1].rule: expected", "found 5"});
  refusal_of(with(analyze, "/runs/0/rows/1/n_reps", true),
             {"runs[0].rows[1].n_reps: expected a finite number, found true"});
  refusal_of(with(analyze, "/runs/0/rows/1/a\nb", "x"),
             {"rows[1].`a\\x0ab`: expected", "found \"x\""});
  refusal_of(with(analyze, "/paper/counts/0/n_reps", "many"), {"paper.counts[0].n_reps"});
  refusal_of(with(eval, "/runs/0/metrics/kl_mean", Json::array()),
             {"runs[0].metrics.kl_mean: expected", "found an array"});
  refusal_of(with(eval, "/runs/0/plan/layers/0/heads/0", 5),
             {"runs[0].plan.layers[0].heads[0]: expected an object, found 5"});
  refusal_of(with(test::sample_generate(), "/runs/0/text", 5),
             {"runs[0].text: expected a string, found 5"});
  refusal_of(with(eval, "/runs/0/token_kl/1", "x"),
             {"runs[0].token_kl[1]: expected a finite number, found \"x\""});
  refusal_of(with(eval, "/window/tokens/1", 5), {"window.tokens[1]: expected a string, found 5"});
  refusal_of(with(test::sample_bench(), "/cases/0/samples_ms/1", "x"),
             {"cases[0].samples_ms[1]: expected a finite number, found \"x\""});
  refusal_of(with(analyze, "/subspace/groups/0/input", 3),
             {"subspace.groups[0].input: expected", "found 3"});
  refusal_of(with(analyze, "/joint/layers/0/ranks/0/pairs", "6"),
             {"joint.layers[0].ranks[0].pairs: expected a finite number, found \"6\""});
  refusal_of(with(eval, "/runs/0/linear/0/layer", "0"),
             {"runs[0].linear[0].layer: expected", "found \"0\""});
  refusal_of(with(test::sample_calibrate(), "/groups/0/spectrum/1", nullptr),
             {"groups[0].spectrum[1]: expected a finite number, found null"});
  const Json tune = test::sample_tune();
  refusal_of(with(tune, "/contract/max_kl", "0.02"),
             {"contract.max_kl: expected", "found \"0.02\""});
  refusal_of(with(tune, "/held_out", nullptr), {"held_out: expected an object, found null"});
  refusal_of(with(tune, "/held_out/kl_mean", true), {"held_out.kl_mean: expected", "found true"});
  refusal_of(with(tune, "/time/decode/0/n_tokens", 1.5),
             {"time.decode[0].n_tokens: expected", "found 1.5"});
  refusal_of(with(tune, "/time/prefill/0/speedup", "fast"),
             {"time.prefill[0].speedup: expected", "found \"fast\""});
  refusal_of(with(tune, "/auto/decode_from", "256"),
             {"auto.decode_from: expected", "found \"256\""});
  refusal_of(with(tune, "/dense_because", 5), {"dense_because: expected a string, found 5"});
  refusal_of(with(test::sample_demo(), "/parts/3/cases", 1),
             {"parts[3].cases: expected an array, found 1"});
}

TEST(ReadResults, OfSchema1AreCheckedByItsOwnLayout) {
  const Json analyze = test::sample_analyze_1(), generate = test::sample_generate_1();
  refusal_of(with(analyze, "/runs/0/tau", nullptr), {"runs[0].tau: expected", "found null"});
  refusal_of(with(analyze, "/runs/0/layers/1/layer", 1.5),
             {"runs[0].layers[1].layer: expected", "found 1.5"});
  refusal_of(with(analyze, "/runs/0/layers/1/cascade/n_reps", true),
             {"runs[0].layers[1].cascade.n_reps: expected a finite number, found true"});
  refusal_of(with(analyze, "/plan_runs/0/layers/0/sets/0/n_reps", "2"),
             {"plan_runs[0].layers[0].sets[0].n_reps: expected a finite number, found \"2\""});
  refusal_of(with(generate, "/generation/text", nullptr),
             {"generation.text: expected a string, found null"});
  // Each layout under the other's number.
  refusal_of(with(analyze, "/schema", 2),
             {"runs[0].layers[0].cascade: expected a finite number, found an object"});
  refusal_of(with(test::sample_analyze(), "/schema", 1), {"runs[0]: has no `layers`"});
  refusal_of(with(generate, "/schema", 2), {"has no `runs`"});
  refusal_of(with(test::sample_generate(), "/schema", 1), {"has no `generation`"});
}

TEST(ReadResults, WhatRefinedLayersReadIsSharesOrNull) {
  const Json eval = test::sample_eval();
  const std::string reads = "/runs/1/refine_reads";
  EXPECT_NO_THROW(check_results(Json::parse(with(eval, reads, Json::array())), "x"));
  EXPECT_NO_THROW(check_results(Json::parse(with(eval, reads + "/1", nullptr)), "x"));
  EXPECT_NO_THROW(check_results(Json::parse(with(eval, "/runs/1/settings/delta", nullptr)), "x"));
  refusal_of(with(eval, reads, "0.1"), {"runs[1].refine_reads: expected an array, found \"0.1\""});
  refusal_of(with(eval, reads + "/0", 5), {"refine_reads[0]: expected an object, found 5"});
  refusal_of(with(eval, reads + "/0", Json::object()), {"refine_reads[0]: has no `clusters`"});
  for (const Json& odd : {Json(1.5), Json(-0.01), Json(1e308), Json("0.1"), Json(nullptr)}) {
    refusal_of(with(eval, reads + "/1/near", odd),
               {"refine_reads[1].near: expected a number from 0 to 1, found "});
    refusal_of(with(eval, reads + "/1/opened_by_head/1", odd),
               {"refine_reads[1].opened_by_head[1]: expected a number from 0 to 1, found "});
    refusal_of(with(eval, reads + "/1/positions/1/opened", odd),
               {"refine_reads[1].positions[1].opened: expected a number from 0 to 1, found "});
  }
  refusal_of(with(eval, reads + "/1/opened_by_head", 0.1),
             {"opened_by_head: expected", "found 0.1"});
  refusal_of(with(eval, reads + "/1/positions/0/begin", 0.5),
             {"positions[0].begin: expected", "found 0.5"});
  refusal_of(with(eval, reads + "/1/positions/0", nullptr),
             {"positions[0]: expected", "found null"});
  refusal_of(with(eval, "/runs/1/settings/delta", "inf"),
             {"runs[1].settings.delta: expected", "found \"inf\""});
  refusal_of(with(eval, "/runs/1/settings/tile", 1.5),
             {"runs[1].settings.tile: expected", "found 1.5"});
  refusal_of(with(eval, "/runs/1/settings/plan", 5),
             {"runs[1].settings.plan: expected", "found 5"});
  refusal_of(with(eval, "/runs/1/settings/cache", true),
             {"runs[1].settings.cache: expected", "found true"});
  refusal_of(with(eval, "/runs/1/plan/layers/0/heads/0/delta", "0.1"),
             {"plan.layers[0].heads[0].delta: expected a finite number, found \"0.1\""});
  refusal_of(with(eval, "/runs/1/plan/layers/0/segment", "256"),
             {"layers[0].segment: expected", "found \"256\""});
}

TEST(ReadResults, AuditsAreNumbersAndFlags) {
  const Json generated = test::sample_generate();
  const std::string audit = "/runs/0/audit", samples = audit + "/samples";
  EXPECT_NO_THROW(check_results(Json::parse(with(generated, audit, nullptr)), "x"));
  EXPECT_NO_THROW(check_results(Json::parse(with(generated, audit + "/max_kl", nullptr)), "x"));
  EXPECT_NO_THROW(check_results(Json::parse(with(generated, samples, Json::array())), "x"));
  refusal_of(with(generated, audit, 5), {"audit: expected an object, found 5"});
  refusal_of(with(generated, audit + "/max_kl", "0.1"),
             {"audit.max_kl: expected", "found \"0.1\""});
  refusal_of(with(generated, samples, 0.1), {"audit.samples: expected an array, found 0.1"});
  refusal_of(with(generated, samples + "/1", nullptr),
             {"audit.samples[1]: expected", "found null"});
  refusal_of(with(generated, samples + "/1/kl", "a"),
             {"audit.samples[1].kl: expected", "found \"a\""});
  refusal_of(with(generated, samples + "/0/position", 0.5),
             {"samples[0].position: expected", "found 0.5"});
  refusal_of(with(generated, samples + "/0/tightened", 1),
             {"samples[0].tightened: expected true or false, found 1"});
  refusal_of(with(test::sample_bench(), "/cases/0/audit/samples/0/kl_high", true),
             {"cases[0].audit.samples[0].kl_high: expected a finite number, found true"});
}

TEST(ReadResults, NeedlesAreFoundOrNot) {
  const Json needle = test::sample_needle();
  EXPECT_NO_THROW(check_results(Json::parse(with(needle, "/cases", Json::array())), "x"));
  EXPECT_NO_THROW(check_results(Json::parse(with(needle, "/cases/0/task", nullptr)), "x"));
  refusal_of(with(needle, "/cases", 5), {"cases: expected an array, found 5"});
  refusal_of(with(needle, "/cases/1/depth", 1.5),
             {"cases[1].depth: expected a number from 0 to 1, found 1.5"});
  refusal_of(with(needle, "/cases/1/n_tokens", "8"),
             {"cases[1].n_tokens: expected", "found \"8\""});
  refusal_of(with(needle, "/cases/1/dense", nullptr), {"cases[1].dense: expected", "found null"});
  refusal_of(with(needle, "/cases/1/dense/found", 1),
             {"cases[1].dense.found: expected true or false, found 1"});
  refusal_of(with(needle, "/cases/1/runs/0/found", "no"),
             {"cases[1].runs[0].found: expected", "found \"no\""});
  refusal_of(with(needle, "/cases/2/runs", Json::array()),
             {"cases[2].runs: has 0 elements, the length of summary.runs is 2"});
  refusal_of(with(needle, "/summary", nullptr), {"summary: expected", "found null"});
  refusal_of(with(needle, "/summary/runs/0/label", 5),
             {"summary.runs[0].label: expected", "found 5"});
  refusal_of(with(needle, "/summary/runs/0/settings", Json::object()),
             {"summary.runs[0].settings: has no `attention`"});
}

TEST(ReadResults, PartsAreResultsAndHaveNoParts) {
  refusal_of(with(test::sample_demo(), "/parts", Json::array()), {"parts: is not an array of"});
  refusal_of(with(test::sample_demo(), "/parts", 5), {"parts: is not an array of"});
  refusal_of(with(test::sample_demo(), "/parts/1", 5),
             {"parts[1]: expected results of sluice, found 5"});
  refusal_of(with(test::sample_demo(), "/parts/1", test::sample_demo()),
             {"parts[1]: has parts of its own"});
}

TEST(ReadResults, LongTextIsNotRepeatedWhole) {
  const std::string message = refusal_of(
      with(test::sample_eval(), "/runs", std::string(100000, 'x')), {"expected an array"});
  EXPECT_LT(message.size(), 400u);
}

TEST(ReadResults, FilesThatAreNotThereAreRefused) {
  const test::TempDir folder;
  expect_error([&] { read_results(folder.path() / "none.json"); }, {"none.json"});
  expect_error([&] { read_results(folder.path()); }, {folder.path().string()});
}

}  // namespace
}  // namespace sluice::impl
