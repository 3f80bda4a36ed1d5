#include "io/safetensors_writer.h"

#include <nlohmann/json.hpp>
#include <ostream>

#include "core/error.h"
#include "io/write_file.h"

namespace sluice::impl {
namespace {

const char* type_name(DType dtype) {
  SLUICE_CHECK(dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16);
  return dtype == DType::kF32 ? "F32" : dtype == DType::kF16 ? "F16" : "BF16";
}

int64_t bytes_of(const ConstTensor& tensor) {
  return tensor.shape().numel() * element_bytes(tensor.dtype());
}

std::string header_of(const SafetensorsMetadata& metadata,
                      const std::vector<TensorToWrite>& tensors) {
  nlohmann::ordered_json header;
  if (!metadata.empty()) header["__metadata__"] = metadata;
  int64_t offset = 0;
  for (const TensorToWrite& entry : tensors) {
    SLUICE_CHECK(entry.tensor.contiguous() && entry.tensor.device() == Device::kCpu &&
                 !header.contains(entry.name));
    std::vector<int64_t> shape;
    for (int axis = 0; axis < entry.tensor.shape().rank(); ++axis)
      shape.push_back(entry.tensor.shape()[axis]);
    const int64_t end = offset + bytes_of(entry.tensor);
    header[entry.name] = {{"dtype", type_name(entry.tensor.dtype())},
                          {"shape", shape},
                          {"data_offsets", {offset, end}}};
    offset = end;
  }
  // Paths among the metadata may hold bytes that are not UTF-8.
  std::string text = header.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  text.append((8 - text.size() % 8) % 8, ' ');  // tensors begin where a number may
  return text;
}

}  // namespace

void write_safetensors(const std::filesystem::path& path, const SafetensorsMetadata& metadata,
                       const std::vector<TensorToWrite>& tensors) {
  const std::string header = header_of(metadata, tensors);
  write_file(path, [&](std::ostream& file) {
    const auto write = [&](const void* data, int64_t size) {
      file.write(static_cast<const char*>(data), static_cast<std::streamsize>(size));
    };
    const uint64_t length = header.size();
    write(&length, sizeof(length));
    write(header.data(), static_cast<int64_t>(header.size()));
    for (const TensorToWrite& entry : tensors) write(entry.tensor.bytes(), bytes_of(entry.tensor));
  });
}

}  // namespace sluice::impl
