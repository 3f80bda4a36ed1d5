// Named tensors as they lie in a file's memory map, and their expansion to float32.

#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"
#include "core/shape.h"

namespace sluice::impl {

class MappedFile;

struct StoredTensor {
  std::string name;
  DType dtype = DType::kF32;         // may be a block type
  Shape shape;                       // slowest axis first, also for GGUF
  std::span<const std::byte> bytes;  // inside a map that the store keeps alive
};

// The tensors of a checkpoint: one file or many shards.
class WeightStore {
 public:
  // Throws Error when the name is there already.
  void add(StoredTensor tensor);
  // A tensor that is in the file but cannot be read: require() then says so, find() does not see
  // it.
  void add_unreadable(std::string name, std::string type);
  void keep_alive(std::shared_ptr<const MappedFile> file);

  const StoredTensor* find(std::string_view name) const;     // nullptr when absent
  const StoredTensor& require(std::string_view name) const;  // Error when absent, names neighbours
  const std::map<std::string, StoredTensor, std::less<>>& tensors() const { return tensors_; }
  int64_t total_bytes() const;
  // "PATH: NAME", of the file that the tensor lies in; the name alone where it lies in none.
  std::string label_of(const StoredTensor& tensor) const;

  // Gives back the memory behind a tensor that lies in a file's map; reading it again fetches it
  // again. Does nothing for a tensor that lies elsewhere.
  void release(const StoredTensor& tensor) const;

 private:
  std::map<std::string, StoredTensor, std::less<>> tensors_;
  std::map<std::string, std::string, std::less<>> unreadable_;  // name -> type in the file's words
  std::vector<std::shared_ptr<const MappedFile>> files_;
};

// Expands elements [begin, begin + out.size()) to float32. For block types both ends must lie on
// block borders (rows always do: a file whose rows do not is refused when it is opened). The bytes
// may have any alignment; several threads may expand at once.
void expand(const StoredTensor& tensor, int64_t begin, std::span<float> out);

}  // namespace sluice::impl
