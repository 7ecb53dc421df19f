#include "base/files/mapped_ranges.h"

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <mutex>

namespace kinora {
namespace {

// `size` is set last and cleared first: a handler that sees it sees the rest.
struct Slot {
  std::atomic<uintptr_t> begin = 0;
  std::atomic<size_t> size = 0;
  bool taken = false;
  char path[1024] = "";
};

std::array<Slot, 256> slots;
std::mutex mutex;

}  // namespace

MappedRange::MappedRange(const void* begin, size_t size, const std::string& path) {
  const std::lock_guard lock(mutex);
  for (size_t i = 0; i < slots.size(); ++i) {
    Slot& slot = slots[i];
    if (slot.taken) continue;
    slot.taken = true;
    std::strncpy(slot.path, path.c_str(), sizeof slot.path - 1);
    slot.begin = reinterpret_cast<uintptr_t>(begin);
    slot.size = size;
    slot_ = static_cast<int>(i);
    return;
  }
}

MappedRange::~MappedRange() {
  if (slot_ < 0) return;
  const std::lock_guard lock(mutex);
  Slot& slot = slots[static_cast<size_t>(slot_)];
  slot.size = 0;
  slot.taken = false;
}

const char* mapped_file_at(const void* address) {
  const auto wanted = reinterpret_cast<uintptr_t>(address);
  for (const Slot& slot : slots) {
    const size_t size = slot.size;
    const uintptr_t begin = slot.begin;
    if (size > 0 && wanted >= begin && wanted - begin < size) return slot.path;
  }
  return nullptr;
}

}  // namespace kinora
