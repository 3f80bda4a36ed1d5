#include "io/safetensors.h"

#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "core/error.h"
#include "core/quote.h"
#include "io/json_text.h"
#include "io/mapped_file.h"
#include "io/safetensors_header.h"

namespace sluice::impl {
namespace {

namespace fs = std::filesystem;

constexpr const char* kIndexName = "model.safetensors.index.json";
constexpr size_t kMaxIndexBytes = size_t{16} << 20;  // real ones stay below one MiB

using Names = std::set<std::string, std::less<>>;

// Returns the names of all tensors in the file, readable or not.
Names add_entries(std::span<const std::byte> bytes, const std::string& label, WeightStore& store) {
  Names names;
  for (SafetensorsEntry& entry : read_safetensors_header(bytes, label)) {
    names.insert(entry.name);
    try {
      if (entry.dtype)
        store.add({std::move(entry.name), *entry.dtype, entry.shape, entry.bytes});
      else
        store.add_unreadable(std::move(entry.name), std::move(entry.type));
    } catch (const Error& error) {
      throw Error(label + ": " + error.what(), error.hint());
    }
  }
  return names;
}

Names add_file(const fs::path& path, WeightStore& store) {
  auto file = MappedFile::open(path);
  Names names = add_entries(file->bytes(), path_label(path), store);
  store.keep_alive(std::move(file));
  return names;
}

bool is_plain_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\\\0", 3)) == name.npos;
}

// shard file -> the tensors that the index promises in it
std::map<std::string, Names> read_index(const fs::path& path) {
  const std::string label = path_label(path);
  const nlohmann::json index = parse_json(read_text_file(path, kMaxIndexBytes), label);
  const auto weight_map = index.is_object() ? index.find("weight_map") : index.end();
  if (weight_map == index.end() || !weight_map->is_object() || weight_map->empty())
    throw Error(label + ": no `weight_map` object with tensors in it",
                "is this the index of a safetensors checkpoint?");
  std::map<std::string, Names> shards;
  for (const auto& [tensor, file] : weight_map->items()) {
    if (!file.is_string())
      throw Error(label + ": weight_map: " + quote(tensor) + " is " + describe_json(file) +
                      ", expected a file name",
                  "is the download complete?");
    const auto& name = file.get_ref<const std::string&>();
    if (!is_plain_name(name))
      throw Error(label + ": weight_map: " + quote(tensor) + " is in " + quote(name) +
                      ", expected the name of a file beside the index",
                  "shards lie in the checkpoint's own folder");
    shards[name].insert(tensor);
  }
  return shards;
}

}  // namespace

void add_safetensors(const fs::path& path, WeightStore& store) { add_file(path, store); }

void parse_safetensors(std::span<const std::byte> bytes, const std::string& label,
                       WeightStore& store) {
  add_entries(bytes, label, store);
}

WeightStore open_safetensors_folder(const fs::path& folder) {
  WeightStore store;
  std::error_code error;
  const fs::path single = folder / "model.safetensors";
  if (fs::exists(single, error)) {
    add_safetensors(single, store);
    return store;
  }
  const fs::path index = folder / kIndexName;
  if (!fs::exists(index, error)) {
    if (!fs::is_directory(folder, error))
      throw Error(path_label(folder) + ": is not a directory",
                  "name the folder that holds config.json and model.safetensors");
    const bool has_pickle = fs::exists(folder / "pytorch_model.bin", error) ||
                            fs::exists(folder / "pytorch_model.bin.index.json", error);
    throw Error(path_label(folder) + ": holds neither model.safetensors nor " + kIndexName,
                has_pickle ? "convert pytorch_model.bin to safetensors first"
                           : "is the download complete?");
  }
  for (const auto& [shard, promised] : read_index(index)) {
    const fs::path path = folder / shard;
    if (!fs::exists(path, error))
      throw Error(path_label(index) + ": shard " + quote(shard) + " is missing",
                  "is the download complete?");
    const Names present = add_file(path, store);
    for (const std::string& name : promised)
      if (!present.contains(name))
        throw Error(path_label(path) + ": no tensor " + quote(name) + ", which " + kIndexName +
                        " places there",
                    "are the shards and the index from one checkpoint?");
  }
  return store;
}

}  // namespace sluice::impl
