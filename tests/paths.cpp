#include "paths.h"

namespace sluice::impl::test {
namespace {
std::filesystem::path source(const char* name) {
  return std::filesystem::path(SLUICE_SOURCE_DIR) / name;
}
}  // namespace

std::filesystem::path tests_dir() { return source("tests"); }
std::filesystem::path golden_dir() { return source("tests/golden"); }
std::filesystem::path fuzz_corpus_dir() { return source("tests/fuzz/corpus"); }
std::filesystem::path docs_dir() { return source("docs"); }
std::filesystem::path share_dir() { return source("share"); }
std::filesystem::path shared_dir() { return source("../shared"); }

}  // namespace sluice::impl::test
