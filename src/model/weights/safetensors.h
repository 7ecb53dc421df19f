// Reading safetensors files: weights as Hugging Face publishes them, one file or several with an
// index. Files are mapped, never copied; tensors share the mapping. A file may be damaged or
// malicious, so every number in a header is checked before any data is read.
// WeightsBinder finds the tensors of an architecture in them; tests read fixtures with it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/tensor.h"

namespace kinora {

class PackedMatrix;

// What a header says of one tensor.
struct TensorEntry {
  std::string dtype;           // as the file spells it: "BF16"
  std::optional<DType> known;  // absent when kinora has no such type
  Shape shape;
  int64_t begin = 0;  // bytes from the start of the data
  int64_t end = 0;
};

// One mapped file. Layout: u64 little-endian length of the header, the header (JSON), the data.
// The data is covered by the tensors without gap or overlap.
class SafetensorsFile {
 public:
  static SafetensorsFile open(const FileSystem& files, const std::string& path);

  const std::map<std::string, TensorEntry, std::less<>>& entries() const { return entries_; }
  const std::string& path() const { return path_; }

  // Shares the mapping. Copies only when the data is not aligned for its type. Throws not_found
  // for a name that is not there and unsupported for a type that kinora does not have.
  Tensor tensor(std::string_view name) const;
  // Its bytes, whatever their type: u8 [bytes].
  Tensor raw(std::string_view name) const;
  // From now on tensors lie in memory instead of the mapped file (base/system/host_range.h).
  void copy_to_memory();

 private:
  std::string path_;
  std::shared_ptr<MappedFile> mapping_;
  int64_t data_begin_ = 0;
  std::map<std::string, TensorEntry, std::less<>> entries_;
};

// A small model is read faster from memory of its own on a CPU; a larger one stays mapped, so that
// it starts at once and programs share it.
constexpr int64_t copied_weight_bytes = int64_t{256} << 20;

// All tensors of a model directory: `model.safetensors`, or the shards that
// `model.safetensors.index.json` names.
class TensorFiles {
 public:
  static TensorFiles open(const FileSystem& files, const std::string& directory);

  const TensorEntry* find(std::string_view name) const;  // null when it is not there
  Tensor tensor(std::string_view name) const;
  Tensor raw(std::string_view name) const;
  void copy_to_memory();  // as above, all of them
  // Puts a tensor that is made of others in their place, under a name of its own. It is made when
  // it is taken. `pack`, if given, makes the matrix that stays in 4 or 8 bits instead.
  using Pack = std::function<std::shared_ptr<const PackedMatrix>()>;
  void replace(const std::vector<std::string>& parts, const std::string& name, DType type,
               const Shape& shape, std::function<Tensor()> make, Pack pack = nullptr);
  bool has_packed(std::string_view name) const;
  // Null where the tensor has no such form.
  std::shared_ptr<const PackedMatrix> packed(std::string_view name) const;
  // Every name, sorted.
  std::vector<std::string> names() const;
  const std::string& directory() const { return directory_; }
  // Bytes of all tensors as they are stored.
  int64_t bytes() const { return bytes_; }

 private:
  static TensorFiles open_shards(const FileSystem& files, const std::string& directory);

  std::string directory_;
  std::vector<SafetensorsFile> shards_;
  std::map<std::string, size_t, std::less<>> shard_of_;
  struct Made {
    TensorEntry entry;
    std::function<Tensor()> make;
    Pack pack;
  };
  std::map<std::string, Made, std::less<>> made_;  // in place of what the shards hold
  int64_t bytes_ = 0;
};

}  // namespace kinora
