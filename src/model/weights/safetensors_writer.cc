#include "model/weights/safetensors_writer.h"

#include <cstdint>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace kinora {
namespace {

const char* dtype_word(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return "F32";
    case DType::bf16:
      return "BF16";
    case DType::f16:
      return "F16";
    case DType::i8:
      return "I8";
    case DType::i32:
      return "I32";
    case DType::u8:
      return "U8";
  }
  throw Error(ErrorKind::internal, "a tensor of unknown type cannot be written");
}

}  // namespace

std::string safetensors_bytes(const NamedTensors& tensors) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  int64_t offset = 0;
  for (const auto& [name, tensor] : tensors) {
    std::vector<int64_t> shape;
    for (int axis = 0; axis < tensor.rank(); ++axis) shape.push_back(tensor.size(axis));
    header[name] = {{"dtype", dtype_word(tensor.dtype())},
                    {"shape", shape},
                    {"data_offsets", {offset, offset + tensor.bytes()}}};
    offset += tensor.bytes();
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');

  std::string bytes;
  bytes.reserve(8 + text.size() + static_cast<size_t>(offset));
  for (int i = 0; i < 8; ++i) {
    bytes += static_cast<char>((static_cast<uint64_t>(text.size()) >> (8 * i)) & 0xff);
  }
  bytes += text;
  for (const auto& [name, tensor] : tensors) {
    bytes.append(reinterpret_cast<const char*>(tensor.view().raw()),
                 static_cast<size_t>(tensor.bytes()));
  }
  return bytes;
}

void write_safetensors(FileSystem& files, const std::string& path, const NamedTensors& tensors) {
  files.write(path, safetensors_bytes(tensors));
}

}  // namespace kinora
