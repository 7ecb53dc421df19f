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

// Bytes that lie on any device, added to the section under way.
void append_from(ArchiveWriter& out, Device device, const std::byte* bytes, int64_t count);

// Bytes that one checksum of rows covers: small enough that scattered rows are read alone.
inline constexpr int64_t row_page = int64_t{1} << 14;

}  // namespace kinora
