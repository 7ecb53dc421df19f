// Published annotation files, as their authors distribute them, turned into our own items.
#pragma once

#include <string>
#include <vector>

#include "base/file.h"
#include "eval/dataset.h"

namespace kinora {

struct ImportOptions {
  std::string format;     // one of import_formats()
  std::string videos;     // directory of the videos; file names are looked up in it as they stand
  std::string questions;  // EgoSchema only: the file with the questions
};

// Names of the formats, for help and error messages.
const std::vector<std::string>& import_formats();

// Throws a usage error for an unknown format and bad_input, with the entry's number, for a file
// that does not have it.
std::vector<EvalItem> import_annotations(const FileSystem& files, const std::string& path,
                                         const ImportOptions& options);

}  // namespace kinora
