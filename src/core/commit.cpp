#include "core/commit.h"

#include "core/commit_text.h"  // made by cmake/SluiceCommit.cmake

namespace sluice::impl {

std::string_view source_commit() { return SLUICE_SOURCE_COMMIT; }

}  // namespace sluice::impl
