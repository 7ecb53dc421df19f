// Hostile saved memories, for files_fuzz.cc.
#pragma once

#include <string_view>

// Opens a saved memory with edits that the bytes choose, and asks about it. Throws what that
// throws.
void read_memory(std::string_view chosen);
