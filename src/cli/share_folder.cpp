#include "cli/share_folder.h"

#include "core/error.h"

namespace sluice::impl::cli {

namespace fs = std::filesystem;

fs::path program_path() {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  return error ? fs::path("sluice") : program;
}

fs::path demo_folder() {
  std::error_code error;
  const fs::path folder =
      (program_path().parent_path() / ".." / "share" / "sluice" / "demo").lexically_normal();
  if (!fs::is_directory(folder, error))
    throw Error("the demo's model is not installed: no folder " + folder.string(),
                "install the share folder too, or give a model with -m and a text with -f");
  return typed_path(folder);
}

fs::path typed_path(const fs::path& path) {
  std::error_code error;
  const fs::path here = fs::current_path(error);
  fs::path relative = path.lexically_relative(here);
  if (error || relative.empty() || *relative.begin() == "..") return path;
  return relative;
}

}  // namespace sluice::impl::cli
