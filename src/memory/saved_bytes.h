// A section of a saved memory as memory: all of it has addresses, and what is needed is read from
// the file, checked, when it is first needed. Shared by the forks of a memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/archive.h"

namespace kinora {

class SavedBytes {
 public:
  SavedBytes(std::shared_ptr<const Archive> archive, const std::string& name);
  ~SavedBytes();
  SavedBytes(const SavedBytes&) = delete;
  SavedBytes& operator=(const SavedBytes&) = delete;

  int64_t bytes() const { return section_.bytes; }
  // Only what was needed before may be read.
  const std::byte* data() const { return data_; }
  // Bytes [begin, end) can be read from now on. Throws bad_input where the file is damaged; the
  // next call tries again.
  void need(int64_t begin, int64_t end);
  int64_t resident() const;  // bytes that were read so far

 private:
  std::shared_ptr<const Archive> archive_;
  const ArchiveSection section_;
  std::byte* data_ = nullptr;
  mutable std::mutex mutex_;
  std::vector<uint64_t> checks_;
  std::vector<bool> here_;  // by page
  int64_t resident_ = 0;
};

}  // namespace kinora
