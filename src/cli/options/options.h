// Flags that mean the same in every command, and what is made from them.

#pragma once

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "model/model.h"

namespace sluice::impl::cli {

struct CommonOptions {
  std::string model;
  std::string device = "cpu";
  std::string dtype = "f32";
  std::string weights;  // empty: as they are stored
  int threads = 0;
  int64_t context = 0;
  bool quiet = false;
  std::string json, html;    // where results go; empty: nowhere
  std::string command_line;  // all of it, for the results

  bool wants_results() const { return !json.empty() || !html.empty(); }
};

inline constexpr int64_t kMostCount = int64_t{1} << 30;  // of tokens that a flag may ask for

// -m, --device, --dtype, --weights, -t, -c and --quiet.
void add_model_options(CLI::App& command, CommonOptions& options);
// The same, --json and --html.
void add_common_options(CLI::App& command, CommonOptions& options);

// A number from min to max; CLI::Range lets nan pass. `expected` says it in words.
CLI::Validator number_between(double min, double max, const char* expected);

// A number that a 64-bit seed may be.
CLI::Validator whole_number();

// Every value once, in the order given.
template <typename T>
std::vector<T> distinct(const std::vector<T>& values) {
  std::vector<T> out;
  for (const T& value : values)
    if (std::find(out.begin(), out.end(), value) == out.end()) out.push_back(value);
  return out;
}

// Sets the threads and makes the backend that the flags ask for.
std::unique_ptr<Backend> make_backend(const CommonOptions& options);

// Loads the model with a progress bar; part: what of it.
Model load_model(const std::shared_ptr<const Checkpoint>& checkpoint, const CommonOptions& options,
                 RankPart part = {});

// By whatever names, there already or not.
bool same_file(const std::filesystem::path& a, const std::filesystem::path& b);
bool lies_in(const std::filesystem::path& file, const std::filesystem::path& folder);

// Of several processes the first writes; in the others check_output and write_outputs do nothing.
// Throws where a file cannot be written. A run that writes one outlives a broken pipe.
void check_output(const std::string& file);
// Throws now what writing results would throw after hours of work, and where a file for them is one
// of `inputs`, of the model's, or another of them. `output` is a file that the command writes
// besides.
void check_outputs(const CommonOptions& options, const std::vector<std::string>& inputs = {},
                   const std::string& output = "");
// Throws where a text cannot be read a second time.
void check_read_again(const std::string& text);

// Writes results to the files asked for.
void write_outputs(const nlohmann::json& results, const CommonOptions& options);

// The contents of a file given as a prompt, at most 64 MiB.
std::string read_prompt_file(const std::string& path);

}  // namespace sluice::impl::cli
