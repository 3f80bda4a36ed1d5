#include "io/safetensors.h"

#include <map>
#include <set>

#include "core/error.h"
#include "core/quote.h"
#include "io/json/value.h"
#include "io/json_file.h"
#include "io/mapped_file.h"
#include "io/safetensors_header.h"

namespace sluice::impl {
namespace {

namespace fs = std::filesystem;

constexpr const char* kIndexName = "model.safetensors.index.json";
// Real ones stay below one MiB.
constexpr JsonLimits kIndexLimits = {
    .bytes = size_t{16} << 20, .values = size_t{1} << 22, .repeated = RepeatedKeys::kLastCounts};

using Names = std::set<std::string, std::less<>>;

// `names`, where asked for, receives the names of all tensors in the file, readable or not.
void add_entries(std::span<const std::byte> bytes, const std::string& label, WeightStore& store,
                 Names* names = nullptr) {
  for (SafetensorsEntry& entry : read_safetensors_header(bytes, label)) {
    if (names != nullptr) names->insert(entry.name);
    try {
      if (entry.dtype)
        store.add({std::move(entry.name), *entry.dtype, entry.shape, entry.bytes});
      else
        store.add_unreadable(std::move(entry.name), std::move(entry.type));
    } catch (const Error& error) {
      throw Error(label + ": " + error.what(), error.hint());
    }
  }
}

void add_file(const fs::path& path, WeightStore& store, Names* names = nullptr) {
  auto file = MappedFile::open(path);
  add_entries(file->bytes(), path_label(path), store, names);
  store.keep_alive(std::move(file));
}

bool is_plain_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\\\0", 3)) == name.npos;
}

// shard file -> the tensors that the index promises in it
std::map<std::string, Names> read_index(const fs::path& path) {
  const nlohmann::json index = read_json_file(path, kIndexLimits);
  const JsonSource source{index, path_label(path), "is the download complete?"};
  const JsonValue weight_map = JsonValue(source).at("weight_map");
  if (weight_map.object().empty()) weight_map.refuse("names no tensors");
  std::map<std::string, Names> shards;
  for (const auto& [tensor, file] : weight_map.object()) {
    const JsonValue shard(file, source);
    const std::string& name = shard.string();
    if (!is_plain_name(name))
      shard.expected("a file name without a folder", "shards lie in the checkpoint's own folder");
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
    Names present;
    add_file(path, store, &present);
    for (const std::string& name : promised)
      if (!present.contains(name))
        throw Error(path_label(path) + ": no tensor " + quote(name) + ", which " + kIndexName +
                        " places there",
                    "are the shards and the index from one checkpoint?");
  }
  return store;
}

}  // namespace sluice::impl
