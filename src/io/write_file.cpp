#include "io/write_file.h"

#include <fstream>
#include <string>

#include "core/error.h"
#include "io/quote.h"

namespace sluice {

void write_file(const std::filesystem::path& path, std::string_view content) {
  namespace fs = std::filesystem;
  const fs::path temporary = path.string() + ".part";
  std::error_code error;
  const auto fail = [&](const std::string& reason) {
    std::error_code ignored;
    fs::remove(temporary, ignored);
    throw Error(path_label(path) + ": cannot be written" + reason,
                "is the folder there, writable and not full?");
  };
  {
    std::ofstream file(temporary, std::ios::binary);
    file.write(content.data(), static_cast<std::streamsize>(content.size()));
    file.flush();
    if (!file) fail("");
  }
  fs::rename(temporary, path, error);
  if (error) fail(": " + error.message());
}

}  // namespace sluice
