// The commit that the program was built from. cmake/SluiceCommit.cmake finds it at every build.

#pragma once

#include <string_view>

namespace sluice::impl {

// 12 hex digits, with "-dirty" where files differed from the commit; empty for sources outside of a
// git checkout.
std::string_view source_commit();

}  // namespace sluice::impl
