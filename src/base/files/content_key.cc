#include "base/files/content_key.h"

#include <xxhash.h>

#include <cstdio>
#include <new>

namespace kinora {
namespace {

XXH3_state_t* new_state() {
  XXH3_state_t* state = XXH3_createState();
  if (state == nullptr) throw std::bad_alloc();
  return state;
}

}  // namespace

void ContentKey::Free::operator()(XXH3_state_s* state) const { XXH3_freeState(state); }

ContentKey::ContentKey(std::string_view first) : state_(new_state()) {
  XXH3_128bits_reset(state_.get());
  add(first.data(), first.size());
}

ContentKey::ContentKey(const ContentKey& other) : state_(new_state()) {
  XXH3_copyState(state_.get(), other.state_.get());
}

ContentKey& ContentKey::operator=(const ContentKey& other) {
  if (this != &other) *this = ContentKey(other);
  return *this;
}

void ContentKey::add(const void* bytes, size_t count) {
  const uint64_t length = count;
  XXH3_128bits_update(state_.get(), &length, sizeof length);
  if (count > 0) XXH3_128bits_update(state_.get(), bytes, count);
}

std::array<uint64_t, 2> ContentKey::value() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(state_.get());
  return {hash.high64, hash.low64};
}

std::string ContentKey::text() const {
  const auto [high, low] = value();
  char digits[33];
  std::snprintf(digits, sizeof digits, "%016llx%016llx", static_cast<unsigned long long>(high),
                static_cast<unsigned long long>(low));
  return digits;
}

uint64_t content_checksum(std::string_view bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

}  // namespace kinora
