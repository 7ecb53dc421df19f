#include "model/weights/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/system/host_range.h"

namespace kinora {
namespace {

using Json = nlohmann::json;

// As large as the format's own library accepts.
constexpr uint64_t max_header_bytes = 100'000'000;
// A model of a few hundred billion parameters has some thousands of tensors.
constexpr size_t max_tensors = 1'000'000;

[[noreturn]] void damaged(const std::string& path, const std::string& what) {
  throw Error(ErrorKind::bad_input,
              fmt::format("{} is damaged: {}; download it again", path, what));
}

struct DTypeName {
  std::string_view name;
  int64_t bytes;
  std::optional<DType> known;
};

constexpr std::array dtype_names = {
    DTypeName{"F32", 4, DType::f32},      DTypeName{"BF16", 2, DType::bf16},
    DTypeName{"F16", 2, DType::f16},      DTypeName{"I8", 1, DType::i8},
    DTypeName{"I32", 4, DType::i32},      DTypeName{"U8", 1, DType::u8},
    DTypeName{"F64", 8, std::nullopt},    DTypeName{"I64", 8, std::nullopt},
    DTypeName{"U64", 8, std::nullopt},    DTypeName{"U32", 4, std::nullopt},
    DTypeName{"I16", 2, std::nullopt},    DTypeName{"U16", 2, std::nullopt},
    DTypeName{"BOOL", 1, std::nullopt},   DTypeName{"F8_E4M3", 1, std::nullopt},
    DTypeName{"F8_E5M2", 1, std::nullopt}};

const DTypeName* find_dtype(std::string_view name) {
  for (const DTypeName& entry : dtype_names) {
    if (entry.name == name) return &entry;
  }
  return nullptr;
}

// Error messages must stay one readable line whatever the file holds.
std::string printable(std::string_view text) {
  std::string shown;
  for (const char c : text.substr(0, 120)) {
    shown += (c >= 0x20 && c < 0x7f) ? c : '?';
  }
  return text.size() > 120 ? shown + "…" : shown;
}

// Parses JSON and refuses what the format forbids and a parser would let pass: names that occur
// twice, deep nesting, long arrays. Refusing while parsing keeps memory small.
Json parse_header(std::string_view text, const std::string& path, size_t max_array) {
  std::vector<std::set<std::string>> keys;
  size_t array_length = 0;
  bool in_array = false;
  const Json::parser_callback_t check = [&](int depth, Json::parse_event_t event, Json& value) {
    switch (event) {
      case Json::parse_event_t::object_start:
        if (depth > 1) damaged(path, "its header is nested too deeply");
        keys.emplace_back();
        break;
      case Json::parse_event_t::object_end:
        keys.pop_back();
        break;
      case Json::parse_event_t::array_start:
        if (depth > 2 || in_array) damaged(path, "its header is nested too deeply");
        in_array = true;
        array_length = 0;
        break;
      case Json::parse_event_t::array_end:
        in_array = false;
        break;
      case Json::parse_event_t::key: {
        const auto& key = value.get_ref<const std::string&>();
        if (keys.back().size() >= max_tensors) damaged(path, "its header names too many tensors");
        if (!keys.back().insert(key).second) {
          damaged(path, fmt::format("its header has '{}' twice", printable(key)));
        }
        break;
      }
      case Json::parse_event_t::value:
        if (in_array && ++array_length > max_array) {
          damaged(path, fmt::format("its header has a list of more than {} numbers", max_array));
        }
        break;
    }
    return true;
  };
  try {
    return Json::parse(text, check);
  } catch (const Json::exception&) {
    damaged(path, "its header is not valid JSON");
  }
}

int64_t read_number(const Json& value, const std::string& path, const std::string& name) {
  // Every number is a size or an offset within a file.
  if (!value.is_number_unsigned() || value.get<uint64_t>() > uint64_t{1} << 62) {
    damaged(path, fmt::format("tensor '{}' has a size or offset that is no whole number in range",
                              printable(name)));
  }
  return value.get<int64_t>();
}

TensorEntry read_entry(const Json& value, const std::string& name, const std::string& path,
                       int64_t data_bytes) {
  const auto fail = [&](std::string_view what) {
    damaged(path, fmt::format("tensor '{}' {}", printable(name), what));
  };
  if (!value.is_object()) fail("is not described by an object");
  const auto dtype = value.find("dtype");
  const auto shape = value.find("shape");
  const auto offsets = value.find("data_offsets");
  if (dtype == value.end() || !dtype->is_string()) fail("has no dtype");
  if (shape == value.end() || !shape->is_array()) fail("has no shape");
  if (offsets == value.end() || !offsets->is_array() || offsets->size() != 2) {
    fail("has no pair of data_offsets");
  }

  TensorEntry entry;
  entry.dtype = dtype->get<std::string>();
  for (const Json& size : *shape) entry.shape.append(read_number(size, path, name));
  entry.begin = read_number((*offsets)[0], path, name);
  entry.end = read_number((*offsets)[1], path, name);
  if (entry.begin > entry.end) fail("ends before it begins");
  if (entry.end > data_bytes) fail("reaches past the end of the file");

  // Zero sizes must not hide an overflow: strides are products of the other sizes.
  int64_t limit = 8;
  for (int axis = 0; axis < entry.shape.rank(); ++axis) {
    const int64_t size = std::max<int64_t>(entry.shape[axis], 1);
    if (__builtin_mul_overflow(limit, size, &limit)) fail("is impossibly large");
  }

  const DTypeName* known = find_dtype(entry.dtype);
  if (known == nullptr) return entry;  // an error only when the tensor is needed
  entry.known = known->known;
  const int64_t bytes = entry.shape.elements() * known->bytes;
  if (bytes != entry.end - entry.begin) {
    fail(fmt::format("has {} bytes where its shape {} and type {} need {}", entry.end - entry.begin,
                     to_string(entry.shape), printable(entry.dtype), bytes));
  }
  return entry;
}

void check_coverage(const std::map<std::string, TensorEntry, std::less<>>& entries,
                    int64_t data_bytes, const std::string& path) {
  std::vector<std::pair<std::pair<int64_t, int64_t>, std::string_view>> ranges;
  ranges.reserve(entries.size());
  for (const auto& [name, entry] : entries) ranges.push_back({{entry.begin, entry.end}, name});
  std::sort(ranges.begin(), ranges.end());
  int64_t covered = 0;
  for (const auto& [range, name] : ranges) {
    if (range.first < covered) {
      damaged(path, fmt::format("tensor '{}' overlaps another", printable(name)));
    }
    if (range.first > covered) {
      damaged(path, fmt::format("{} bytes before tensor '{}' belong to no tensor",
                                range.first - covered, printable(name)));
    }
    covered = range.second;
  }
  if (covered != data_bytes) {
    damaged(path, fmt::format("its last {} bytes belong to no tensor", data_bytes - covered));
  }
}

class CopiedFile final : public MappedFile {
 public:
  explicit CopiedFile(std::span<const std::byte> bytes) : size_(bytes.size()), copy_(bytes) {}
  std::span<const std::byte> bytes() const override { return {copy_.data(), size_}; }

 private:
  size_t size_;
  HostRange copy_;
};

}  // namespace

SafetensorsFile SafetensorsFile::open(const FileSystem& files, const std::string& path) {
  SafetensorsFile result;
  result.path_ = path;
  result.mapping_ = files.map(path);
  const std::span<const std::byte> bytes = result.mapping_->bytes();
  if (bytes.size() < 8) damaged(path, "it is too short to be a safetensors file");
  uint64_t header_bytes = 0;
  for (size_t i = 0; i < 8; ++i) header_bytes |= std::to_integer<uint64_t>(bytes[i]) << (8 * i);
  if (header_bytes > max_header_bytes || header_bytes > bytes.size() - 8) {
    damaged(path, fmt::format("it claims a header of {} bytes in a file of {} bytes", header_bytes,
                              bytes.size()));
  }
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + 8,
                              static_cast<size_t>(header_bytes));
  const Json header = parse_header(text, path, Shape::max_rank);
  if (!header.is_object()) damaged(path, "its header is not an object");
  result.data_begin_ = static_cast<int64_t>(8 + header_bytes);
  const int64_t data_bytes = static_cast<int64_t>(bytes.size()) - result.data_begin_;
  for (const auto& [name, value] : header.items()) {
    if (name == "__metadata__") continue;
    result.entries_.emplace(name, read_entry(value, name, path, data_bytes));
  }
  check_coverage(result.entries_, data_bytes, path);
  return result;
}

void SafetensorsFile::copy_to_memory() {
  mapping_ = std::make_shared<CopiedFile>(mapping_->bytes());
}

Tensor SafetensorsFile::tensor(std::string_view name) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) {
    throw Error(ErrorKind::not_found, fmt::format("{} has no tensor '{}'", path_, printable(name)));
  }
  const TensorEntry& entry = found->second;
  if (!entry.known) {
    throw Error(
        ErrorKind::unsupported,
        fmt::format("{}: tensor '{}' has type {}; kinora reads F32, BF16, F16, I32, I8 and U8",
                    path_, printable(name), printable(entry.dtype)));
  }
  const std::byte* data = mapping_->bytes().data() + data_begin_ + entry.begin;
  const auto bytes = static_cast<size_t>(entry.end - entry.begin);
  if (reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(dtype_size(*entry.known)) != 0) {
    Tensor copy(*entry.known, entry.shape);
    std::memcpy(copy.view().raw(), data, bytes);
    return copy;
  }
  return Tensor(Buffer::borrow(data, bytes, mapping_), 0, *entry.known, entry.shape);
}

Tensor SafetensorsFile::raw(std::string_view name) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) {
    throw Error(ErrorKind::not_found, fmt::format("{} has no tensor '{}'", path_, printable(name)));
  }
  const int64_t bytes = found->second.end - found->second.begin;
  const std::byte* data = mapping_->bytes().data() + data_begin_ + found->second.begin;
  return Tensor(Buffer::borrow(data, static_cast<size_t>(bytes), mapping_), 0, DType::u8, {bytes});
}

void TensorFiles::copy_to_memory() {
  for (SafetensorsFile& shard : shards_) shard.copy_to_memory();
}

TensorFiles TensorFiles::open(const FileSystem& files, const std::string& directory) {
  TensorFiles result = open_shards(files, directory);
  for (const auto& [name, shard] : result.shard_of_) {
    const TensorEntry& entry = result.shards_[shard].entries().find(name)->second;
    result.bytes_ += entry.end - entry.begin;
  }
  return result;
}

TensorFiles TensorFiles::open_shards(const FileSystem& files, const std::string& directory) {
  TensorFiles result;
  result.directory_ = directory;
  const std::string single = join_path(directory, "model.safetensors");
  const std::string index = join_path(directory, "model.safetensors.index.json");
  if (files.is_file(single)) {
    result.shards_.push_back(SafetensorsFile::open(files, single));
    for (const auto& [name, entry] : result.shards_[0].entries()) result.shard_of_.emplace(name, 0);
    return result;
  }
  if (!files.is_file(index)) {
    throw Error(ErrorKind::not_found,
                fmt::format("{} has neither model.safetensors nor model.safetensors.index.json; "
                            "kinora reads safetensors weights only",
                            directory));
  }

  const Json content = parse_header(files.read(index, max_header_bytes), index, Shape::max_rank);
  const auto map = content.find("weight_map");
  if (!content.is_object() || map == content.end() || !map->is_object()) {
    damaged(index, "it has no weight_map");
  }
  std::map<std::string, size_t> shard_numbers;
  std::vector<std::string> absent;
  for (const auto& [name, value] : map->items()) {
    if (!value.is_string()) damaged(index, "its weight_map does not name files");
    const auto shard = value.get<std::string>();
    // A name that could leave the directory, or that no file can have.
    if (shard.empty() || shard == "." || shard == ".." || shard.size() > 255 ||
        shard.find_first_of(std::string_view("/\\\0", 3)) != std::string::npos) {
      damaged(index,
              fmt::format("'{}' is not the name of a file in its directory", printable(shard)));
    }
    const auto [position, fresh] = shard_numbers.emplace(shard, result.shards_.size());
    if (fresh) {
      const std::string path = join_path(directory, shard);
      if (!files.is_file(path)) {
        absent.push_back(shard);
        result.shards_.emplace_back();
      } else {
        result.shards_.push_back(SafetensorsFile::open(files, path));
      }
    }
    result.shard_of_.emplace(name, position->second);
  }
  if (!absent.empty()) {
    throw Error(ErrorKind::not_found,
                fmt::format("{} names {} file(s) that are not there, first {}; download them",
                            index, absent.size(), printable(absent[0])));
  }
  for (const auto& [name, shard] : result.shard_of_) {
    if (!result.shards_[shard].entries().contains(name)) {
      damaged(index, fmt::format("it says that tensor '{}' is in {}, which does not have it",
                                 printable(name), result.shards_[shard].path()));
    }
  }
  return result;
}

void TensorFiles::replace(const std::vector<std::string>& parts, const std::string& name,
                          DType type, const Shape& shape, std::function<Tensor()> make, Pack pack) {
  for (const std::string& part : parts) shard_of_.erase(part);
  TensorEntry entry;
  entry.dtype = type == DType::bf16 ? "BF16" : type == DType::f16 ? "F16" : "F32";
  entry.known = type;
  entry.shape = shape;
  made_[name] = {std::move(entry), std::move(make), std::move(pack)};
}

bool TensorFiles::has_packed(std::string_view name) const {
  const auto made = made_.find(name);
  return made != made_.end() && made->second.pack != nullptr;
}

std::shared_ptr<const PackedMatrix> TensorFiles::packed(std::string_view name) const {
  return has_packed(name) ? made_.find(name)->second.pack() : nullptr;
}

const TensorEntry* TensorFiles::find(std::string_view name) const {
  if (const auto made = made_.find(name); made != made_.end()) return &made->second.entry;
  const auto found = shard_of_.find(name);
  if (found == shard_of_.end()) return nullptr;
  return &shards_[found->second].entries().find(name)->second;
}

Tensor TensorFiles::tensor(std::string_view name) const {
  if (const auto made = made_.find(name); made != made_.end()) return made->second.make();
  const auto found = shard_of_.find(name);
  if (found == shard_of_.end()) {
    throw Error(ErrorKind::not_found,
                fmt::format("{} has no tensor '{}'", directory_, printable(name)));
  }
  return shards_[found->second].tensor(name);
}

std::vector<std::string> TensorFiles::names() const {
  std::vector<std::string> names;
  names.reserve(shard_of_.size());
  for (const auto& [name, shard] : shard_of_) names.push_back(name);
  for (const auto& [name, made] : made_) names.push_back(name);
  std::sort(names.begin(), names.end());
  return names;
}

Tensor TensorFiles::raw(std::string_view name) const {
  const auto found = shard_of_.find(name);
  if (found == shard_of_.end()) {
    throw Error(ErrorKind::not_found,
                fmt::format("{} has no tensor '{}'", directory_, printable(name)));
  }
  return shards_[found->second].raw(name);
}

}  // namespace kinora
