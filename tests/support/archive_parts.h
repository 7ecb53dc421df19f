// A saved memory taken apart and put together again, with right checksums, for tests and fuzzing of
// files that kinora would not write.
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

#include "base/files/archive.h"

namespace kinora::testing {

struct ArchivePart {
  std::string name;
  std::string bytes;
};

inline std::vector<ArchivePart> parts_of(const std::string& path) {
  const auto archive = Archive::open(path);
  std::vector<ArchivePart> parts;
  for (const ArchiveSection& section : archive->sections()) {
    parts.push_back({section.name, archive->read(section.name)});
  }
  return parts;
}

inline std::string& part_called(const std::string& name, std::vector<ArchivePart>& parts) {
  for (ArchivePart& part : parts) {
    if (part.name == name) return part.bytes;
  }
  throw std::out_of_range(name);
}

inline void write_parts(const std::string& path, const std::vector<ArchivePart>& parts) {
  ArchiveWriter out(path);
  for (const ArchivePart& part : parts) out.add(part.name, part.bytes);
  out.commit();
}

}  // namespace kinora::testing
