// The index of a mosaic memory in a saved file: a section for frames and one for every layer, and
// which rows stand side by side there.
#include <algorithm>
#include <string>

#include "base/files/byte_stream.h"
#include "memory/mosaic/mosaic_rows.h"
#include "memory/saved_rows.h"

namespace kinora {

void MosaicRows::write(const std::shared_ptr<const void>& saved, int64_t,
                       ArchiveWriter& out) const {
  const auto& index = *static_cast<const MosaicIndex*>(saved.get());
  out.add("mosaic", index.pack_frames());
  for (int i = 0; i < layout_.layers; ++i) {
    out.add(layer_section(i, "clusters"), index.pack_layer(i));
  }
}

void MosaicRows::read(const Context& context, const Archive& in, const FrameTable& frames) {
  MosaicIndex& index = own();
  const auto all = frames.frames();
  const int64_t tokens = all.empty() ? 0 : all.back().end;
  const auto width = static_cast<size_t>(layout_.kv_heads * layout_.head_size);
  const auto read_section = [&](const std::string& name, const auto& unpack) {
    const std::string bytes = in.read(name);
    ByteReader from(bytes, in.path());
    unpack(from);
    from.end();
  };
  read_section("mosaic", [&](ByteReader& from) {
    index.unpack_frames(from);
    if (index.frames() > std::ssize(all)) from.refuse("holds clusters of other frames");
  });
  context.threads->parallel_for(layout_.layers, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const auto layer = static_cast<int>(i);
      read_section(layer_section(layer, "clusters"),
                   [&](ByteReader& from) { index.unpack_layer(layer, from, tokens, width); });
    }
  });
}

RowGroups MosaicRows::groups(const std::shared_ptr<const void>& saved) const {
  // Every question reads the newest rows, which therefore stay together.
  return [index = std::static_pointer_cast<const MosaicIndex>(saved),
          newest = newest_read()](int layer) {
    std::vector<int32_t> numbers = index->cluster_numbers(layer);
    numbers.resize(static_cast<size_t>(std::max<int64_t>(0, std::ssize(numbers) - newest)));
    return numbers;
  };
}

}  // namespace kinora
