// What every memory writes into a saved file in the same way: what it was made for, its tokens, and
// the rows of a layer. docs/memory-files.md lists the sections.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/files/archive.h"
#include "memory/memory.h"
#include "memory/saved_bytes.h"

namespace kinora {

// Name of a part of one layer.
std::string layer_section(int layer, const std::string& part);

void write_layout(ArchiveWriter& out, const RowLayout& layout);
// Throws bad_input if the file was written for other rows.
void check_layout(const Archive& in, const RowLayout& layout);

void write_tokens(ArchiveWriter& out, const Memory& memory, int64_t count);
std::vector<TokenInfo> read_tokens(const Archive& in);

// Tokens of a layer's rows. Those of a layer that kept them all take no room.
void write_ordinals(ArchiveWriter& out, int layer, std::span<const int32_t> ordinals,
                    int64_t tokens);
std::vector<int32_t> read_ordinals(const Archive& in, int layer, int64_t tokens);

// Rows in the order in which a file has them, where those of a group stand side by side: within
// every `window` rows, groups by their number, then what belongs to none, each in its own order.
//   ordinals: tokens of the rows; groups: by token, as in RowGroups
std::vector<int32_t> grouped_order(std::span<const int32_t> ordinals,
                                   std::span<const int32_t> groups, int64_t window);
void write_order(ArchiveWriter& out, int layer, std::span<const int32_t> order);
// Null where rows stand in their own order.
std::shared_ptr<const FileOrder> read_order(const Archive& in, int layer, int64_t rows,
                                            int64_t row_bytes);
// Bytes of a page of such rows: about row_page, whole rows.
int64_t page_of_rows(int64_t row_bytes);

// Takes rows as they come and writes each window of them in its order.
class GroupedRows {
 public:
  GroupedRows(ArchiveWriter& out, std::span<const int32_t> order, int64_t row_bytes,
              int64_t window);
  void append(Device device, const std::byte* rows, int64_t count);
  void flush();  // what is left in the end

 private:
  ArchiveWriter& out_;
  std::span<const int32_t> order_;
  int64_t row_bytes_;
  int64_t window_;
  int64_t first_ = 0;  // row of the window
  std::vector<std::byte> rows_;
};

// Bytes that lie on any device, added to the section under way.
void append_from(ArchiveWriter& out, Device device, const std::byte* bytes, int64_t count);

// Bytes that one checksum of rows covers: small enough that scattered rows are read alone.
inline constexpr int64_t row_page = int64_t{1} << 14;

}  // namespace kinora
