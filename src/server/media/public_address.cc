#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "server/media/fetch.h"

namespace kinora::server {
namespace {

struct Block {
  uint32_t first;
  int bits;
};

constexpr uint32_t v4(uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  return a << 24 | b << 16 | c << 8 | d;
}

// Of IANA's registry of special addresses.
constexpr Block special[] = {
    {v4(0, 0, 0, 0), 8},      {v4(10, 0, 0, 0), 8},     {v4(100, 64, 0, 0), 10},
    {v4(127, 0, 0, 0), 8},    {v4(169, 254, 0, 0), 16}, {v4(172, 16, 0, 0), 12},
    {v4(192, 0, 0, 0), 24},   {v4(192, 0, 2, 0), 24},   {v4(192, 88, 99, 0), 24},
    {v4(192, 168, 0, 0), 16}, {v4(198, 18, 0, 0), 15},  {v4(198, 51, 100, 0), 24},
    {v4(203, 0, 113, 0), 24}, {v4(224, 0, 0, 0), 4},    {v4(240, 0, 0, 0), 4},
};

bool is_public_v4(uint32_t address) {
  return std::none_of(std::begin(special), std::end(special), [&](const Block& block) {
    return address >> (32 - block.bits) == block.first >> (32 - block.bits);
  });
}

bool is_public_v6(const std::array<uint8_t, 16>& a) {
  const auto v4_at = [&](size_t i) { return v4(a[i], a[i + 1], a[i + 2], a[i + 3]); };
  // Only global unicast is reached at all; within it, what carries an IPv4 address counts as that.
  if (a[0] >> 5 != 1) {
    const bool mapped = std::all_of(a.begin(), a.begin() + 10, [](uint8_t b) { return b == 0; }) &&
                        a[10] == 0xff && a[11] == 0xff;
    constexpr std::array<uint8_t, 12> nat64 = {0, 0x64, 0xff, 0x9b};
    const bool translated = std::equal(nat64.begin(), nat64.end(), a.begin());
    return (mapped || translated) && is_public_v4(v4_at(12));
  }
  if (a[0] == 0x20 && a[1] == 0x02) return is_public_v4(v4_at(2));                 // 6to4
  if (a[0] == 0x20 && a[1] == 0x01 && a[2] < 0x02) return false;                   // Teredo …
  if (a[0] == 0x20 && a[1] == 0x01 && a[2] == 0x0d && a[3] == 0xb8) return false;  // examples
  return true;
}

}  // namespace

bool is_public_address(const sockaddr& address) {
  if (address.sa_family == AF_INET) {
    sockaddr_in in{};
    std::memcpy(&in, &address, sizeof in);
    return is_public_v4(ntohl(in.sin_addr.s_addr));
  }
  if (address.sa_family == AF_INET6) {
    sockaddr_in6 in{};
    std::memcpy(&in, &address, sizeof in);
    std::array<uint8_t, 16> bytes{};
    std::memcpy(bytes.data(), &in.sin6_addr, bytes.size());
    return is_public_v6(bytes);
  }
  return false;
}

}  // namespace kinora::server
