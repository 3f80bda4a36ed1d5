// What the program does on signals. The library leaves them alone.

#pragma once

#include <filesystem>

namespace sluice::impl::cli {

// While it lives, a signal that ends the program says where its work so far is kept, once that file
// exists. One at a time; past paths of 4095 bytes nothing is said.
class KeptWork {
 public:
  explicit KeptWork(const std::filesystem::path& path);
  ~KeptWork();
  KeptWork(const KeptWork&) = delete;
  KeptWork& operator=(const KeptWork&) = delete;
};

// SIGINT, SIGTERM and SIGHUP remove files that are not complete, wipe a bar of progress, and end
// the program as they would without us. SIGBUS in a mapped file, which became shorter, ends it with
// one line that names the file. SIGXFSZ is ignored: the write fails, and its error is reported.
void install_signal_handlers();

}  // namespace sluice::impl::cli
