// Where files of the tests lie. The paths are compiled into paths.cpp alone, so that a compiler
// cache serves every clone.

#pragma once

#include <filesystem>

namespace sluice::impl::test {

std::filesystem::path tests_dir();
std::filesystem::path golden_dir();
std::filesystem::path fuzz_corpus_dir();
std::filesystem::path docs_dir();
std::filesystem::path share_dir();  // what is installed to share/sluice
std::filesystem::path
shared_dir();  // beside the checkout: trained models and texts, where they are

}  // namespace sluice::impl::test
