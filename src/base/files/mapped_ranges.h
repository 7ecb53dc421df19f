// Which file a mapped address belongs to, for a handler of SIGBUS: a file that becomes shorter
// while it is mapped leaves addresses without bytes behind. RealFiles enters its mappings here; the
// program tells the file's name and ends.
#pragma once

#include <cstddef>
#include <string>

namespace kinora {

// Enters a mapping until the object goes. Of more than 256 at once the rest go without a name.
class MappedRange {
 public:
  MappedRange(const void* begin, size_t size, const std::string& path);
  ~MappedRange();
  MappedRange(const MappedRange&) = delete;
  MappedRange& operator=(const MappedRange&) = delete;

 private:
  int slot_ = -1;
};

// The file that is mapped at this address, or null. May be called from a signal handler.
const char* mapped_file_at(const void* address);

}  // namespace kinora
