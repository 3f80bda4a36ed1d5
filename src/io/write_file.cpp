#include "io/write_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>

#include "core/error.h"
#include "core/quote.h"

namespace sluice::impl {
namespace {

namespace fs = std::filesystem;

struct Target {
  fs::path path;   // behind links
  bool exists;     // as a file
  bool in_place;   // what cannot be renamed to: a pipe, a device, a link to nothing
  fs::path aside;  // what is renamed: a name that no other run takes
};

Target target_of(const fs::path& path) {
  std::error_code ignored;
  const fs::file_status status = fs::status(path, ignored);
  Target target{path, fs::is_regular_file(status), false, {}};
  target.in_place = !target.exists && (fs::exists(status) || fs::is_symlink(path, ignored));
  if (target.exists)
    if (fs::path real = fs::canonical(path, ignored); !real.empty()) target.path = std::move(real);
  target.aside = target.path.string() + "." + std::to_string(getpid()) + ".part";
  return target;
}

[[noreturn]] void fail(const fs::path& path, const std::string& reason = "") {
  throw Error(path_label(path) + ": cannot be written" + reason,
              "is the folder there, writable and not full?");
}

// The N of /dev/fd/N.
std::optional<int> descriptor_of(const fs::path& path) {
  constexpr std::string_view kPrefix = "/dev/fd/";
  const std::string& name = path.native();
  if (!name.starts_with(kPrefix)) return std::nullopt;
  int number = 0;
  const char* end = name.data() + name.size();
  const auto [rest, error] = std::from_chars(name.data() + kPrefix.size(), end, number);
  if (error != std::errc() || rest != end || number < 0) return std::nullopt;
  return number;
}

bool is_writable(int descriptor) {
  const int flags = fcntl(descriptor, F_GETFL);
  return flags >= 0 && (flags & O_ACCMODE) != O_RDONLY;
}

void write_descriptor(int descriptor, std::string_view bytes, const fs::path& path) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(descriptor, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail(path);
    bytes.remove_prefix(static_cast<size_t>(n));
  }
}

}  // namespace

void write_file(const fs::path& path, const std::function<void(std::ostream&)>& content) {
  if (const auto descriptor = descriptor_of(path)) {
    std::ostringstream text;
    content(text);
    return write_descriptor(*descriptor, text.view(), path);
  }
  const Target target = target_of(path);
  const fs::path& written = target.in_place ? target.path : target.aside;
  std::error_code error;
  bool ok = false;
  {
    std::ofstream file(written, std::ios::binary);
    content(file);
    file.flush();
    ok = file.good();
  }
  if (target.in_place) return ok ? void() : fail(path);
  if (ok && target.exists)
    fs::permissions(written, fs::status(target.path, error).permissions(), error);
  if (ok) fs::rename(written, target.path, error);
  if (ok && !error) return;
  std::error_code ignored;
  fs::remove(written, ignored);
  fail(path, ok ? ": " + error.message() : "");
}

void write_file(const fs::path& path, std::string_view content) {
  write_file(path, [&](std::ostream& file) {
    file.write(content.data(), static_cast<std::streamsize>(content.size()));
  });
}

void check_writable(const fs::path& path) {
  if (const auto descriptor = descriptor_of(path))
    return is_writable(*descriptor) ? void() : fail(path);
  const Target target = target_of(path);
  std::error_code ignored;
  if (target.in_place) {
    // A pipe would wait for its reader to be opened, and the end of a link may not be there yet.
    const bool writable = !fs::is_directory(path, ignored) &&
                          (!fs::exists(path, ignored) || access(path.c_str(), W_OK) == 0);
    return writable ? void() : fail(path);
  }
  const bool writable = std::ofstream(target.aside).good();
  fs::remove(target.aside, ignored);
  if (!writable) fail(path);
}

}  // namespace sluice::impl
