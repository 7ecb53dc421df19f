// A bounded memory of words and their tokens. Text repeats itself: most words of a page have been
// seen before, and finding one here costs a tenth of merging it again. A newer word takes the place
// of an older one in the same slot, so that the size never grows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <string_view>

namespace kinora::tokenizer {

// A hash of at least one byte, eight at a time.
inline uint64_t word_hash(std::string_view word) {
  const char* data = word.data();
  const size_t size = word.size();
  const auto load64 = [](const char* from) {
    uint64_t value;
    std::memcpy(&value, from, 8);
    return value;
  };
  const auto load32 = [](const char* from) {
    uint32_t value;
    std::memcpy(&value, from, 4);
    return static_cast<uint64_t>(value);
  };
  const auto mix = [](uint64_t value) {
    value *= 0x9e3779b97f4a7c15u;
    return value ^ (value >> 29);
  };
  uint64_t hash = size * 0xff51afd7ed558ccdu;
  if (size >= 8) {
    for (size_t i = 0; i + 8 < size; i += 8) hash = mix(hash ^ load64(data + i));
    hash = mix(hash ^ load64(data + size - 8));
  } else if (size >= 4) {
    hash = mix(hash ^ (load32(data) << 32 | load32(data + size - 4)));
  } else {
    const auto byte = [&](size_t i) {
      return static_cast<uint64_t>(static_cast<uint8_t>(data[i]));
    };
    hash = mix(hash ^ (byte(0) << 16 | byte(size / 2) << 8 | byte(size - 1)));
  }
  return hash ^ (hash >> 32);
}

// 2^log_slots words of at most max_bytes bytes and max_ids tokens.
template <size_t max_bytes, size_t max_ids, int log_slots>
class WordCache {
 public:
  static constexpr size_t kMaxBytes = max_bytes;

  // The tokens of `word`, or an empty span.
  std::span<const int32_t> find(std::string_view word, uint64_t hash) const {
    if (slots_ == nullptr) return {};
    const Slot& slot = slots_[hash >> (64 - log_slots)];
    if (slot.length != word.size() || slot.check != static_cast<uint32_t>(hash) ||
        std::memcmp(slot.bytes, word.data(), word.size()) != 0) {
      return {};
    }
    return {slot.ids, slot.count};
  }

  void insert(std::string_view word, uint64_t hash, std::span<const int32_t> ids) {
    if (word.size() > max_bytes || ids.size() > max_ids) return;
    if (slots_ == nullptr) allocate();
    Slot& slot = slots_[hash >> (64 - log_slots)];
    slot.check = static_cast<uint32_t>(hash);
    slot.length = static_cast<uint8_t>(word.size());
    slot.count = static_cast<uint8_t>(ids.size());
    std::memcpy(slot.bytes, word.data(), word.size());
    std::memcpy(slot.ids, ids.data(), ids.size_bytes());
  }

 private:
  static_assert(max_bytes < 256 && max_ids < 256);
  struct Slot {
    uint32_t check;
    uint8_t length;  // 0: free
    uint8_t count;
    char bytes[max_bytes];
    int32_t ids[max_ids];
  };
  struct Free {
    void operator()(Slot* slots) const { std::free(slots); }
  };

  // Zeros that nobody has written take no memory: a prompt uses few of the slots.
  void allocate() {
    slots_.reset(static_cast<Slot*>(std::calloc(size_t{1} << log_slots, sizeof(Slot))));
    if (slots_ == nullptr) throw std::bad_alloc();
  }

  std::unique_ptr<Slot[], Free> slots_;
};

}  // namespace kinora::tokenizer
