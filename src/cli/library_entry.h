// Enters a file in the list of saved memories. Used by `index`, `watch` and `serve`.
#pragma once

#include <kinora/memory_file.h>

namespace kinora::cli {

// A list that cannot be kept is only reported: the file is there. Does nothing in a program that
// was built without SQLite.
void enter_in_library(const MemoryFile& file);

}  // namespace kinora::cli
