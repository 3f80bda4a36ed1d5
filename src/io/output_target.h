// Where a path leads when a file is written there: decided once, before anything is changed.

#pragma once

#include <filesystem>

namespace sluice::impl {

struct OutputTarget {
  enum class Kind {
    kDescriptor,  // an open descriptor of this process: /dev/stdout, /dev/fd/N
    kInPlace,     // opened and written: a pipe, a device, a file that a rename would change
    kReplace,     // a new file takes its place in one step
  };
  Kind kind = Kind::kReplace;
  int descriptor = -1;         // of kDescriptor
  std::filesystem::path path;  // behind links
  bool exists = false;
};

// A rename gives a file a new inode. So a file is written in place where it has several names, or
// lies in /proc or /dev. Throws Error where the path leads nowhere, to a folder or to a file
// without permission to write.
OutputTarget output_target(const std::filesystem::path& path);

// "PATH: cannot be written: REASON", with a hint that fits the reason. `error` is an errno.
[[noreturn]] void fail_writing(const std::filesystem::path& path, int error);

}  // namespace sluice::impl
