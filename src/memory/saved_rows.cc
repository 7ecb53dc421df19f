#include "memory/saved_rows.h"

#include <algorithm>
#include <limits>
#include <numeric>
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

std::vector<int32_t> grouped_order(std::span<const int32_t> ordinals,
                                   std::span<const int32_t> groups, int64_t window) {
  const auto group_of = [&](int32_t row) {
    const auto token = static_cast<size_t>(ordinals[static_cast<size_t>(row)]);
    const bool known = token < groups.size() && groups[token] >= 0;
    return known ? groups[token] : std::numeric_limits<int32_t>::max();
  };
  std::vector<int32_t> order(ordinals.size());
  std::iota(order.begin(), order.end(), 0);
  for (int64_t first = 0; first < std::ssize(order); first += window) {
    const auto begin = order.begin() + first;
    std::stable_sort(begin, begin + std::min(window, std::ssize(order) - first),
                     [&](int32_t a, int32_t b) { return group_of(a) < group_of(b); });
  }
  return order;
}

void write_order(ArchiveWriter& out, int layer, std::span<const int32_t> order) {
  ByteWriter bytes;
  bytes.put_all(order);
  out.add(layer_section(layer, "order"), bytes.bytes());
}

std::shared_ptr<const FileOrder> read_order(const Archive& in, int layer, int64_t rows,
                                            int64_t row_bytes) {
  const std::string name = layer_section(layer, "order");
  if (!in.has(name)) return nullptr;
  const std::string bytes = in.read(name);
  ByteReader from(bytes, in.path());
  auto order = std::make_shared<FileOrder>();
  order->unit = row_bytes;
  order->piece_at = from.all<int32_t>();
  from.end();
  if (std::ssize(order->piece_at) != rows) from.refuse("orders another number of rows");
  order->place_of.assign(static_cast<size_t>(rows), -1);
  for (int32_t place = 0; place < rows; ++place) {
    const int32_t row = order->piece_at[static_cast<size_t>(place)];
    if (row < 0 || row >= rows || order->place_of[static_cast<size_t>(row)] >= 0) {
      from.refuse("has a row twice, or none");
    }
    order->place_of[static_cast<size_t>(row)] = place;
  }
  for (const char* part : {"keys", "values"}) {
    const ArchiveSection& section = in.section(layer_section(layer, part));
    if (section.page % row_bytes != 0 || section.bytes != rows * row_bytes) {
      from.refuse("cuts rows in two, or has another number of them");
    }
  }
  return order;
}

int64_t page_of_rows(int64_t row_bytes) {
  return std::max<int64_t>(1, row_page / row_bytes) * row_bytes;
}

GroupedRows::GroupedRows(ArchiveWriter& out, std::span<const int32_t> order, int64_t row_bytes,
                         int64_t window)
    : out_(out), order_(order), row_bytes_(row_bytes), window_(window) {}

void GroupedRows::append(Device device, const std::byte* rows, int64_t count) {
  while (count > 0) {
    const int64_t held = std::ssize(rows_) / row_bytes_;
    const int64_t more = std::min(count, window_ - held);
    rows_.resize(static_cast<size_t>((held + more) * row_bytes_));
    copy_bytes(rows_.data() + held * row_bytes_, Device::cpu(), rows, device,
               static_cast<size_t>(more * row_bytes_));
    if (held + more == window_) flush();
    rows += more * row_bytes_;
    count -= more;
  }
}

void GroupedRows::flush() {
  const int64_t count = std::ssize(rows_) / row_bytes_;
  for (int64_t i = first_; i < first_ + count; ++i) {
    const int64_t row = order_[static_cast<size_t>(i)] - first_;
    out_.append(rows_.data() + row * row_bytes_, static_cast<size_t>(row_bytes_));
  }
  first_ += count;
  rows_.clear();
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
