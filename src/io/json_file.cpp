#include "io/json_file.h"

#include <nlohmann/json.hpp>

#include "core/quote.h"
#include "io/mapped_file.h"

namespace sluice::impl {

nlohmann::json read_json_file(const std::filesystem::path& path, const JsonLimits& limits,
                              JsonStream* stream) {
  return parse_json(read_text_file(path, limits.bytes), path_label(path), limits, stream);
}

}  // namespace sluice::impl
