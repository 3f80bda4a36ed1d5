#include "cli/options/streams.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "cli/options/options.h"
#include "core/error.h"
#include "ranks/world.h"

namespace sluice::impl::cli {
namespace {

constexpr size_t kMostInputBytes = size_t{1} << 30;

[[noreturn]] void fail(const char* what) {
  throw Error(fmt::format("{}: {}", what, std::strerror(errno)), "give a file by its name");
}

void write_all(int to, const char* bytes, size_t n) {
  while (n > 0) {
    const ssize_t written = write(to, bytes, n);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) fail("standard input cannot be copied");
    bytes += written;
    n -= static_cast<size_t>(written);
  }
}

// The path of a copy of standard input in memory; of a file, its own. Once: what is read is gone.
const std::string& standard_input() {
  if (world().size() > 1)
    throw Error("standard input reaches one of the processes alone",
                "give a file by its name, which all of them can read");
  static const std::string path = [] {
    struct stat info {};
    if (fstat(STDIN_FILENO, &info) == 0 && S_ISREG(info.st_mode)) return std::string("/dev/stdin");
    const int copy = memfd_create("standard input", MFD_CLOEXEC);
    if (copy < 0) fail("standard input cannot be copied");
    std::array<char, 65536> block{};
    for (size_t total = 0;;) {
      const ssize_t n = read(STDIN_FILENO, block.data(), block.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) fail("standard input cannot be read");
      if (n == 0) break;
      total += static_cast<size_t>(n);
      if (total > kMostInputBytes)
        throw Error("standard input is longer than 1 GiB", "write it to a file first");
      write_all(copy, block.data(), static_cast<size_t>(n));
    }
    return fmt::format("/dev/fd/{}", copy);
  }();
  return path;
}

std::string output_path;  // of standard output, once it was asked for

// "" or what is wrong, as a CLI11 validator says it.
std::string take_standard_output(std::string& path) {
  if (!output_path.empty()) return "one output alone can go to standard output";
  std::fflush(stdout);
  const int output = dup(STDOUT_FILENO);
  if (output < 0 || dup2(STDERR_FILENO, STDOUT_FILENO) < 0) fail("standard output");
  output_path = path = fmt::format("/dev/fd/{}", output);
  return "";
}

}  // namespace

void accept_streams(CLI::App& program) {
  const CLI::Validator input(
      [](std::string& path) {
        if (path == "-") path = standard_input();
        return std::string();
      },
      "");
  const CLI::Validator output(
      [](std::string& path) { return path == "-" ? take_standard_output(path) : std::string(); },
      "");
  for (CLI::App* command : program.get_subcommands({}))
    for (CLI::Option* option : command->get_options()) {
      if (option->check_lname("file") || option->check_name("files")) option->transform(input);
      for (const char* name : {"json", "html", "output"})
        if (option->check_lname(name)) option->transform(output);
    }
}

bool is_standard_output(const std::string& path) {
  return !output_path.empty() && path == output_path;
}

std::string piped_text(const std::string& what) {
  const std::string none =
      fmt::format("no {}: give one with -p, a file with -f, or text by a pipe", what);
  if (isatty(STDIN_FILENO) == 1) throw CLI::ValidationError(none);
  std::string text = read_prompt_file(standard_input());
  if (text.empty()) throw CLI::ValidationError(none);
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

}  // namespace sluice::impl::cli
