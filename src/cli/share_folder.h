// Files that are installed with the program.

#pragma once

#include <filesystem>

namespace sluice::impl::cli {

// Where the running program is.
std::filesystem::path program_path();

// The folder of the demo's model and text, found relative to the program, so that an installation
// can be moved: ../share/sluice/demo, seen from the folder of the program. Throws Error where it is
// missing.
std::filesystem::path demo_folder();

// As one would type it here: relative to the working directory where it lies inside it.
std::filesystem::path typed_path(const std::filesystem::path& path);

}  // namespace sluice::impl::cli
