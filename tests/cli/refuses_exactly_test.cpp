// Refusals word by word, from refusals.txt:
//
//   ~ config.json {"n_embd": 0}   changes a JSON file of the model's folder; null takes a key out
//   = plan.json {}                writes a file there
//   - config.json                 removes one
//   $ sluice inspect -m MODEL     runs the program; MODEL is the folder
//   1 sluice: ...                 what it must answer: the exit code and the line on stderr

#include <fstream>
#include <sstream>
#include <utility>

#include "cli/refusals.h"
#include "paths.h"

namespace sluice::impl {
namespace {

using namespace test;
using nlohmann::json;

struct ExactRefusal {
  std::vector<std::string> changes;  // lines above the command
  std::string command, answer;
};

std::vector<ExactRefusal> read_refusals() {
  std::ifstream file(test::tests_dir() / "cli/refusals.txt");
  std::vector<ExactRefusal> all;
  ExactRefusal next;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with('$')) {
      next.command = line;
    } else if (next.command.empty()) {
      next.changes.push_back(line);
    } else {
      next.answer = line;
      all.push_back(std::exchange(next, {}));
    }
  }
  return all;
}

// "~ config.json {…}" -> the file's name and what stands behind it.
std::pair<std::string, std::string> parted(const std::string& change) {
  const size_t space = std::min(change.find(' ', 2), change.size());
  return {change.substr(2, space - 2), change.substr(std::min(space + 1, change.size()))};
}

void apply(const std::string& change, const ModelFolder& folder) {
  const auto [name, content] = parted(change);
  if (change[0] == '-') return folder.remove(name);
  if (change[0] == '=') {
    folder.write(name, content);
    return;
  }
  folder.edit_json(name, [&](json& old) { old.merge_patch(json::parse(content)); });
}

std::string with(std::string text, const std::string& from, const std::string& to) {
  for (size_t at = 0; (at = text.find(from, at)) != text.npos; at += to.size())
    text.replace(at, from.size(), to);
  return text;
}

TEST(RefusesExactly, WithTheLinesOfTheTable) {
  const std::vector<ExactRefusal> all = read_refusals();
  ASSERT_GE(all.size(), 150u);
  for (const ExactRefusal& refusal : all) {
    SCOPED_TRACE(refusal.command);
    const ModelFolder folder;
    folder.write("text.txt", with(std::string(40, '.'), ".", "abc def ghij. klm\n"));
    folder.write("empty", "");
    for (const std::string& change : refusal.changes) apply(change, folder);
    Args args;
    std::istringstream words(refusal.command);
    for (std::string word; words >> word;) args.push_back(with(word, "MODEL", folder.path()));
    args.erase(args.begin(), args.begin() + 2);  // $ sluice
    const RunResult result = run_program(args);
    EXPECT_EQ(std::to_string(result.code) + " " + with(result.err, folder.path(), "MODEL"),
              refusal.answer + "\n");
    EXPECT_EQ(result.out, "") << result;
  }
}

}  // namespace
}  // namespace sluice::impl
