#include "memory/saved_rows.h"

#include <algorithm>
#include <utility>

#include "base/buffer.h"
#include "base/error.h"
#include "base/files/byte_stream.h"

namespace kinora {
namespace {

constexpr int64_t staging_bytes = int64_t{4} << 20;

std::string pack(const RowLayout& layout) {
  ByteWriter out;
  out.put(static_cast<int32_t>(layout.layers));
  out.put(static_cast<int32_t>(layout.kv_heads));
  out.put(static_cast<int32_t>(layout.head_size));
  out.put(row_type_name(layout.dtype));
  out.put_all(layout.state_bytes);
  return out.bytes();
}

}  // namespace

std::string layer_section(int layer, const std::string& part) {
  return "layer/" + std::to_string(layer) + "/" + part;
}

void write_layout(ArchiveWriter& out, const RowLayout& layout) { out.add("layout", pack(layout)); }

void check_layout(const Archive& in, const RowLayout& layout) {
  if (in.read("layout") == pack(layout)) return;
  in.refuse(
      "holds rows of another shape or type than this model's: use the model and the row type that "
      "it was made with");
}

void write_tokens(ArchiveWriter& out, const Memory& memory, int64_t count) {
  std::vector<Position> positions;
  std::vector<double> times;
  std::vector<Modality> modalities;
  for (int64_t i = 0; i < count; ++i) {
    const TokenInfo& token = memory.token(i);
    positions.push_back(token.position);
    times.push_back(token.time);
    modalities.push_back(token.modality);
  }
  ByteWriter bytes;
  bytes.put_all(positions);
  bytes.put_all(times);
  bytes.put_all(modalities);
  out.add("tokens", bytes.bytes());
}

std::vector<TokenInfo> read_tokens(const Archive& in) {
  const std::string bytes = in.read("tokens");
  ByteReader from(bytes, in.path());
  const auto positions = from.all<Position>();
  const auto times = from.all<double>();
  const auto modalities = from.all<uint8_t>();
  from.end();
  if (times.size() != positions.size() || modalities.size() != positions.size()) {
    from.refuse("has tokens that do not fit together");
  }
  std::vector<TokenInfo> tokens(positions.size());
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (modalities[i] > static_cast<uint8_t>(Modality::audio)) {
      from.refuse("has a token of an unknown kind");
    }
    tokens[i] = {positions[i], times[i], static_cast<Modality>(modalities[i])};
  }
  return tokens;
}

void write_ordinals(ArchiveWriter& out, int layer, std::span<const int32_t> ordinals,
                    int64_t tokens) {
  if (static_cast<int64_t>(ordinals.size()) == tokens) return;
  ByteWriter bytes;
  bytes.put_all(ordinals);
  out.add(layer_section(layer, "ordinals"), bytes.bytes());
}

std::vector<int32_t> read_ordinals(const Archive& in, int layer, int64_t tokens) {
  const std::string name = layer_section(layer, "ordinals");
  std::vector<int32_t> ordinals;
  if (!in.has(name)) {
    for (int32_t i = 0; i < tokens; ++i) ordinals.push_back(i);
    return ordinals;
  }
  const std::string bytes = in.read(name);
  ByteReader from(bytes, in.path());
  ordinals = from.all<int32_t>();
  from.end();
  int64_t before = -1;
  for (const int32_t ordinal : ordinals) {
    if (ordinal <= before || ordinal >= tokens) from.refuse("has rows of no token");
    before = ordinal;
  }
  return ordinals;
}

void append_from(ArchiveWriter& out, Device device, const std::byte* bytes, int64_t count) {
  if (device.is_cpu()) {
    out.append(bytes, static_cast<size_t>(count));
    return;
  }
  std::vector<std::byte> staging(static_cast<size_t>(std::min(count, staging_bytes)));
  for (int64_t at = 0; at < count; at += staging_bytes) {
    const auto size = static_cast<size_t>(std::min(staging_bytes, count - at));
    copy_bytes(staging.data(), Device::cpu(), bytes + at, device, size);
    out.append(staging.data(), size);
  }
}

}  // namespace kinora
