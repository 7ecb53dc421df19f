#include "memory/memory.h"

#include "base/error.h"

namespace kinora {

void Memory::save(const MemoryMark&, ArchiveWriter&, const RowGroups&) const {
  throw Error(ErrorKind::unsupported, "this memory cannot be saved; choose another one");
}

void Memory::load(const Context&, const std::shared_ptr<const Archive>&, Loading) {
  throw Error(ErrorKind::unsupported, "this memory cannot be loaded; choose another one");
}

}  // namespace kinora
