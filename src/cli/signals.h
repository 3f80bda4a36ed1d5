// What the program does on signals. The library leaves them alone.

#pragma once

namespace sluice::impl::cli {

// SIGINT, SIGTERM and SIGHUP remove files that are not complete, and end the program as they would
// without us. SIGBUS in a mapped file, which became shorter, ends it with one line that names the
// file. SIGXFSZ is ignored: the write fails, and its error is reported.
void install_signal_handlers();

}  // namespace sluice::impl::cli
