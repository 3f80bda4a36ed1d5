// Results small enough to damage, with every key that the page reads.

#pragma once

#include <nlohmann/json.hpp>

namespace sluice::impl::test {

inline nlohmann::json sample_header(const std::string& command) {
  return {{"schema", 2},
          {"command", command},
          {"command_line", "sluice " + command + " -m model"},
          {"timestamp", "2026-01-31T12:00:00Z"},
          {"sluice_version", "0.1.0"},
          {"commit", nullptr},
          {"machine", {{"cpu", "a cpu"}, {"isa", "scalar"}, {"threads", 2}, {"gpu", nullptr}}},
          {"model", {{"path", "model"}, {"family", "gpt2"}, {"n_layers", 2}, {"dtype", "f32"}}},
          {"text", {{"path", "text.txt"}, {"sha256", "00"}, {"n_tokens", 4}}},
          {"settings", {{"windows", 1}}}};
}

inline nlohmann::json sample_analyze() {
  nlohmann::json json = sample_header("analyze");
  const auto row = [](int layer, const char* rule) {
    return nlohmann::json{
        {"layer", layer}, {"rule", rule}, {"tau", 0.3}, {"n_reps", 2.0}, {"turnover", nullptr}};
  };
  json["runs"] = {{{"tau", 0.3},
                   {"n_tokens", 4},
                   {"space", "normed"},
                   {"n_windows", 1},
                   {"rows",
                    {row(0, "independent"), row(0, "cascade-cover"), row(1, "independent"),
                     row(1, "cascade-cover"), row(1, "cascade-paper"), row(1, "random")}},
                   {"heads", {{{"layer", 0}, {"head", 0}, {"n_reps_cascade", 2.0}}}},
                   {"summary", {{"rule", "cascade-cover"}, {"mean_n_reps_cascade", 2.0}}}},
                  {{"tau", nullptr},
                   {"space", nullptr},
                   {"n_tokens", 4},
                   {"n_windows", 1},
                   {"rows", {row(0, "reused")}},
                   {"layers", {{{"layer", 0}, {"keys_read_fraction", 0.5}}}},
                   {"summary", {{"keys_read_fraction", 0.5}}}}};
  json["map"] = {{"tau", 0.3},
                 {"n_tokens", 4},
                 {"space", "normed"},
                 {"rule", "cascade-cover"},
                 {"tokens", {"The", " gate", " <b>", "\n"}},
                 {"layers",
                  {{{"layer", 0},
                    {"status", "ER.U"},
                    {"owner", {0, 1, 1, 3}},
                    {"cosine", {1, 1, 0.9312, -0.25}}},
                   {{"layer", 1},
                    {"status", "ER.."},
                    {"owner", {0, 1, 1, 1}},
                    {"cosine", {1, 1.0004, 0.97, 0.91}}}}}};
  json["subspace"] = {{"rank", 2},
                      {"n_tokens", 4},
                      {"groups",
                       {{{"layer", 1},
                         {"input", "mlp_inner"},
                         {"d", 8},
                         {"energy", 0.9},
                         {"effective_rank_90", 2},
                         {"coherence_prev", 0.5},
                         {"smallest_cosine_prev", nullptr}}}}};
  json["joint"] = {
      {"rule", "cascade-cover"},
      {"tau", 0.3},
      {"space", "normed"},
      {"n_tokens", 4},
      {"n_windows", 1},
      {"bases", {{"path", nullptr}, {"text", {{"path", "text.txt"}, {"n_tokens", 4}}}}},
      {"layers",
       {{{"layer", 0},
         {"products", 6.0},
         {"seconds", 0.001},
         {"ranks",
          {{{"rank", 2},
            {"energy", 0.9},
            {"pairs", 6.0},
            {"products", 2.0},
            {"dropped_fraction", 0.6},
            {"seconds", 0.002},
            {"seconds_where_pays", 0.001}}}}}}}};
  json["paper"] = {{"name", "GPT-2"},
                   {"counts", {{{"layer", 0}, {"n_reps", 30}}}},
                   {"layers",
                    {{{"layer", 0},
                      {"n_reps_independent", 30},
                      {"n_reps_cascade", 31},
                      {"jaccard_prev", nullptr},
                      {"turnover", nullptr}}}}};
  return json;
}

inline nlohmann::json sample_calibrate() {
  nlohmann::json json = sample_header("calibrate");
  json["groups"] = {{{"layer", 0},
                     {"input", "attention_input"},
                     {"d", 4},
                     {"rank", 2},
                     {"energy", 0.9},
                     {"energies", {{{"rank", 2}, {"energy", 0.9}}}},
                     {"effective_rank_90", 2},
                     {"effective_rank_99", nullptr},
                     {"spectrum", {0.6, 0.3, 0.05}},
                     {"inherited", false},
                     {"seconds", 0.01}}};
  return json;
}

// A run of refined attention: the first layer is dense.
inline nlohmann::json sample_refined_run() {
  const nlohmann::json refine = {{"window", 128},  {"segment", 256},   {"page", 16},
                                 {"tile", 64},     {"tile_factor", 1}, {"clusters", "pages"},
                                 {"rule", "error"}};
  nlohmann::json settings = refine, layer = refine;
  settings.update({{"attention", "refine"}, {"delta", 0.03}, {"sinks", 16}, {"from_layer", 1}});
  layer.update(
      {{"layer", 1},
       {"mode", "refine"},
       {"block", nullptr},
       {"heads",
        {{{"kind", "clusters"}, {"delta", 0.03}}, {{"kind", "clusters"}, {"delta", nullptr}}}}});
  const nlohmann::json reads = {
      {"near", 0.25},
      {"clusters", 0.0625},
      {"opened", 0.125},
      {"opened_by_head", {0.25, 0}},
      {"positions",
       {{{"begin", 0}, {"near", 1}, {"clusters", 0}, {"opened", 0}},
        {{"begin", 256}, {"near", 0.1}, {"clusters", 0.075}, {"opened", 0.15}}}}};
  return {{"settings", settings},
          {"metrics", {{"kl_mean", 0.01}, {"keys_read_fraction", 0.4375}}},
          {"plan", {{"layers", {layer}}}},
          {"refine_reads", {nullptr, reads}}};
}

inline nlohmann::json sample_eval() {
  nlohmann::json json = sample_header("eval");
  json["window"] = {{"tokens", {"The", " gate"}}};
  json["runs"] = {
      {{"settings", {{"attention", "keys"}, {"tau", 0.3}}},
       {"metrics", {{"kl_mean", 0.01}, {"fast_path_fraction", nullptr}}},
       {"linear",
        {{{"layer", 0},
          {"input", "mlp_inner"},
          {"kind", "gsi"},
          {"rank", 2},
          {"epsilon", 0.1},
          {"fast_path_fraction", 0.5},
          {"bytes_fraction", 0.6},
          {"kept_fraction", nullptr}}}},
       {"cache", {{"n_tokens", 4}, {"dense_bytes", 1024}}},
       {"token_kl", {nullptr, 0.01}},
       {"plan",
        {{"layers",
          {{{"layer", 0},
            {"mode", "keys"},
            {"reuse", false},
            {"window", 128},
            {"block", 128},
            {"heads", {{{"kind", "clusters"}, {"tau", 0.3}, {"far", "centroid"}}}}}}}}}}};
  json["runs"].push_back(sample_refined_run());
  return json;
}

inline nlohmann::json sample_generate() {
  nlohmann::json json = sample_header("generate");
  json["runs"] = {{{"prompt", "The"},
                   {"text", " gate"},
                   {"tokens", {1, 2}},
                   {"end", "length"},
                   {"n_prompt_tokens", 1},
                   {"prefill_tokens_per_s", 10.0},
                   {"decode_tokens_per_s", 5.0}},
                  {{"prompt", "A"}, {"error", "the prompt is too long"}}};
  json["runs"][0]["audit"] = {{"mode", "replay"},
                              {"every", 8},
                              {"seed", 0},
                              {"max_kl", 0.01},
                              {"n_steps", 16},
                              {"n_compared", 16},
                              {"samples",
                               {{{"position", 9},
                                 {"n_samples", 1},
                                 {"kl", 0.004},
                                 {"kl_low", 0},
                                 {"kl_high", nullptr},
                                 {"delta_factor", 1},
                                 {"tightened", false}},
                                {{"position", 17},
                                 {"n_samples", 2},
                                 {"kl", 0.02},
                                 {"kl_low", 0.01},
                                 {"kl_high", 0.04},
                                 {"delta_factor", 0.5},
                                 {"tightened", true}}}}};
  return json;
}

// Two choices; two cases of one cell, and one of another.
inline nlohmann::json sample_needle() {
  nlohmann::json json = sample_header("needle");
  json["settings"] = {{"tasks", {"needle"}}, {"context", {200, 400}}, {"depths", 1}, {"cases", 2}};
  const auto find = [](bool found) { return nlohmann::json{{"found", found}, {"logp", -1.5}}; };
  const auto one = [&](int n_tokens, bool dense, bool first, bool second) {
    return nlohmann::json{{"task", "needle"},
                          {"n_tokens", n_tokens},
                          {"depth", 0.5},
                          {"seed", UINT64_MAX},
                          {"answer", "12345"},
                          {"dense", find(dense)},
                          {"runs", {find(first), find(second)}}};
  };
  json["cases"] = {one(200, true, true, false), one(200, false, false, true),
                   one(400, true, false, false)};
  json["summary"] = {
      {"n_cases", 3},
      {"dense_found", 2},
      {"runs",
       {{{"label", "refine, delta 0.1"},
         {"settings", {{"attention", "refine"}, {"delta", 0.1}}},
         {"found", 1},
         {"lost", 1}},
        {{"settings", {{"attention", "keys"}, {"tau", 0.5}}}, {"found", 1}, {"lost", 2}}}}};
  return json;
}

inline nlohmann::json sample_bench() {
  nlohmann::json json = sample_header("bench");
  json["cases"] = {{{"name", "pp1024"},
                    {"n_tokens", 1024},
                    {"mode", "keys"},
                    {"label", "keys, tau 0.3"},
                    {"settings", {{"attention", "keys"}}},
                    {"samples_ms", {10.0, 11.0}},
                    {"median_ms", 10.5},
                    {"tokens_per_s", 97523.8},
                    {"speedup_vs_dense", 1.2},
                    {"speedup_low", 1.1},
                    {"speedup_high", 1.3},
                    {"parts_ms", {{"select", 1.0}, {"attend", 2.0}, {"rest", 7.5}}},
                    {"audit", sample_generate()["runs"][0]["audit"]},
                    {"n_reps_fraction", 0.4}}};
  return json;
}

inline nlohmann::json sample_tune() {
  nlohmann::json json = sample_header("tune");
  const nlohmann::json loss = {{"kl_mean", 0.013},  {"kl_stderr", 0.002},
                               {"ppl_ratio", 1.01}, {"ppl_ratio_stderr", 0.003},
                               {"n_tokens", 512},   {"n_documents", 2}};
  const nlohmann::json timed = {{"n_tokens", 256}, {"dense_ms", 9.0},    {"plan_ms", 8.0},
                                {"speedup", 1.1},  {"speedup_low", 1.0}, {"speedup_high", 1.2}};
  json["contract"] = {{"max_kl", 0.02}, {"max_ppl_ratio", nullptr}};
  json["objective"] = "memory";
  json["calibration"] = json["held_out"] = loss;
  json["predicted_kl"] = 0.011;
  json["generalisation_gap"] = -0.001;
  json["candidates"] = {
      {{"budget", 0.02}, {"predicted_kl", 0.02}, {"held_out", false}, {"loss", loss}}};
  json["cost"] = {{"dense", 4096}, {"plan", 1024}};
  json["time"] = {{"dense_ms", 9.0}, {"plan_ms", 8.0}, {"prefill", {timed}}, {"decode", {timed}}};
  json["auto"] = {{"prefill_from", nullptr}, {"decode_from", 256}};
  json["dense_because"] = nullptr;
  json["plan"] = sample_eval()["runs"][0]["plan"];
  json["seconds"] = 3.5;
  return json;
}

// The two commands whose layout was another in schema 1.
inline nlohmann::json sample_analyze_1() {
  nlohmann::json json = sample_analyze();
  json["schema"] = 1;
  const nlohmann::json set = {{"rule", "cascade-cover"}, {"n_reps", 2.0}, {"turnover", nullptr}};
  json["runs"] = {{{"tau", 0.3},
                   {"n_tokens", 4},
                   {"space", "normed"},
                   {"layers",
                    {{{"layer", 0}, {"independent", set}, {"cascade", set}},
                     {{"layer", 1}, {"independent", set}, {"cascade", set}}}},
                   {"summary", {{"rule", "cascade-cover"}, {"mean_n_reps_cascade", 2.0}}}}};
  json["plan_runs"] = {{{"n_tokens", 4},
                        {"layers",
                         {{{"layer", 0},
                           {"keys_read_fraction", 0.5},
                           {"sets", {{{"tau", 0.85}, {"rule", "reused"}, {"n_reps", 2.0}}}}}}}}};
  return json;
}
inline nlohmann::json sample_generate_1() {
  nlohmann::json json = sample_generate();
  json["schema"] = 1;
  json["audit"] = json["runs"][0]["audit"];
  json["runs"][0].erase("audit");
  json["generation"] = json["runs"][0];
  json.erase("runs");
  return json;
}

inline nlohmann::json sample_demo() {
  nlohmann::json json = sample_header("demo");
  json["parts"] = {sample_analyze(), sample_eval(), sample_generate(), sample_bench(),
                   sample_tune()};
  return json;
}

}  // namespace sluice::impl::test
