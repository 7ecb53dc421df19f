#include "server/media/base64.h"

#include <array>
#include <cstdint>

namespace kinora::server {
namespace {

constexpr int8_t skipped = -2, wrong = -1;

constexpr std::array<int8_t, 256> make_table() {
  std::array<int8_t, 256> table{};
  for (int8_t& value : table) value = wrong;
  for (int i = 0; i < 26; ++i) {
    table[static_cast<size_t>('A' + i)] = static_cast<int8_t>(i);
    table[static_cast<size_t>('a' + i)] = static_cast<int8_t>(26 + i);
  }
  for (int i = 0; i < 10; ++i) table[static_cast<size_t>('0' + i)] = static_cast<int8_t>(52 + i);
  table['+'] = table['-'] = 62;
  table['/'] = table['_'] = 63;
  table[' '] = table['\n'] = table['\r'] = table['\t'] = skipped;
  return table;
}
constexpr std::array<int8_t, 256> table = make_table();

}  // namespace

std::optional<std::string> decode_base64(std::string_view text) {
  std::string out;
  out.reserve(text.size() / 4 * 3);
  uint32_t bits = 0;
  int digits = 0;
  size_t i = 0;
  for (; i < text.size() && text[i] != '='; ++i) {
    const int8_t value = table[static_cast<uint8_t>(text[i])];
    if (value == skipped) continue;
    if (value == wrong) return std::nullopt;
    bits = bits << 6 | static_cast<uint32_t>(value);
    if (++digits < 4) continue;
    out += static_cast<char>(bits >> 16);
    out += static_cast<char>(bits >> 8);
    out += static_cast<char>(bits);
    bits = 0;
    digits = 0;
  }
  int padding = 0;
  for (; i < text.size(); ++i) {
    const int8_t value = table[static_cast<uint8_t>(text[i])];
    if (text[i] != '=' && value != skipped) return std::nullopt;
    padding += text[i] == '=';
  }
  if (digits == 1 || padding > 2 || (padding > 0 && digits + padding != 4)) return std::nullopt;
  if (digits == 2) out += static_cast<char>(bits >> 4);
  if (digits == 3) {
    out += static_cast<char>(bits >> 10);
    out += static_cast<char>(bits >> 2);
  }
  return out;
}

}  // namespace kinora::server
