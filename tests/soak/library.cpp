// The library in one process: loads a model, uses it and frees it, over and over. Prints a line of
// what the process holds after every round; scripts/soak reads them.
//
//   sluice_soak SECONDS MODEL TEXT

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <string>

#include "sluice/sluice.h"

namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

long entries(const char* folder) {
  long n = 0;
  for (auto it = fs::directory_iterator(folder); it != fs::directory_iterator(); ++it) ++n;
  return n;
}

long resident_kib() {
  std::ifstream stat("/proc/self/statm");
  long all = 0, resident = 0;
  stat >> all >> resident;
  return resident * (::sysconf(_SC_PAGESIZE) / 1024);
}

// Returns the answer, which is the same in every round.
std::string use_once(const fs::path& path, const fs::path& text, int round) {
  const bool blocks = round % 2 == 1;
  sluice::Model model = sluice::Model::load(
      path,
      {.context = 256, .weights = blocks ? sluice::Weights::kQ8_0 : sluice::Weights::kAsStored});
  const sluice::Plan refine = sluice::Plan::uniform({.mode = sluice::AttentionMode::kRefine});
  sluice::evaluate(model, text, std::span(&refine, 1), {.max_windows = 1});
  const std::vector<std::string> prompts = {"The sea", "A", "Once upon a time"};
  std::string answers;
  for (const sluice::BatchResult& one :
       sluice::generate_batch(model, prompts, {.max_tokens = 8, .plan = refine, .always = true}))
    answers += one.result.text + "|";
  try {
    sluice::Model::load(path / "missing");
  } catch (const sluice::Error&) {
    answers += "refused";
  }
  return answers;
}

void run(const char* seconds, const fs::path& path, const fs::path& text) {
  const auto end = Clock::now() + std::chrono::seconds(std::atoi(seconds));
  const std::string first[2] = {use_once(path, text, 0), use_once(path, text, 1)};
  for (int round = 2; Clock::now() < end || round < 4; ++round) {
    const bool same = use_once(path, text, round) == first[round % 2];
    std::printf("round %d resident_kib %ld descriptors %ld threads %ld same %d\n", round,
                resident_kib(), entries("/proc/self/fd"), entries("/proc/self/task"), same);
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fputs("usage: sluice_soak SECONDS MODEL TEXT\n", stderr);
    return 2;
  }
  try {
    run(argv[1], argv[2], argv[3]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "sluice_soak: %s\n", error.what());
    return 1;
  }
  return 0;
}
