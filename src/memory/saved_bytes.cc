#include "memory/saved_bytes.h"

#include <sys/mman.h>

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace kinora {

SavedBytes::SavedBytes(std::shared_ptr<const Archive> archive, const std::string& name)
    : archive_(std::move(archive)),
      section_(archive_->section(name)),
      checks_(archive_->checks(section_)),
      here_(checks_.size(), false) {
  if (section_.bytes == 0) return;
  void* room = ::mmap(nullptr, static_cast<size_t>(section_.bytes), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) {
    throw Error(ErrorKind::resource, "out of memory: " + archive_->path() +
                                         " needs addresses for " + std::to_string(section_.bytes) +
                                         " bytes");
  }
  data_ = static_cast<std::byte*>(room);
}

SavedBytes::~SavedBytes() {
  if (data_ != nullptr) ::munmap(data_, static_cast<size_t>(section_.bytes));
}

void SavedBytes::need(int64_t begin, int64_t end) {
  if (begin >= end) return;
  if (begin < 0 || end > section_.bytes) {
    throw Error(ErrorKind::internal, "a saved section has no such bytes");
  }
  const auto first = static_cast<size_t>(begin / section_.page);
  const auto past = static_cast<size_t>((end - 1) / section_.page) + 1;
  const std::lock_guard lock(mutex_);
  for (size_t page = first; page < past;) {
    if (here_[page]) {
      ++page;
      continue;
    }
    size_t run = page;
    while (run < past && !here_[run]) ++run;
    const int64_t at = static_cast<int64_t>(page) * section_.page;
    archive_->read_pages(section_, checks_, static_cast<int64_t>(page),
                         static_cast<int64_t>(run - page), data_ + at);
    resident_ += std::min(section_.bytes, static_cast<int64_t>(run) * section_.page) - at;
    for (; page < run; ++page) here_[page] = true;
  }
}

int64_t SavedBytes::resident() const {
  const std::lock_guard lock(mutex_);
  return resident_;
}

}  // namespace kinora
