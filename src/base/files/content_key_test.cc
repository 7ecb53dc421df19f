#include "base/files/content_key.h"

#include <gtest/gtest.h>

#include <string>

#include "support/random_data.h"

namespace kinora {
namespace {

std::string random_bytes(Random& random, size_t length) {
  std::string text(length, '\0');
  for (char& c : text) c = static_cast<char>(random.below(256));
  return text;
}

TEST(ContentKey, EveryByteAndEveryCutMatters) {
  KINORA_FRESH_RANDOM(random);
  for (const size_t length : {1u, 7u, 8u, 9u, 63u, 65u}) {
    const std::string text = random_bytes(random, length);
    const auto base = ContentKey(text).value();
    EXPECT_EQ(ContentKey(text).value(), base);
    for (size_t i = 0; i < length; ++i) {
      std::string other = text;
      other[i] = static_cast<char>(other[i] ^ (1 << random.below(8)));
      EXPECT_NE(ContentKey(other).value(), base) << length << " " << i;
      EXPECT_NE(content_checksum(other), content_checksum(text)) << length << " " << i;
    }
    EXPECT_NE(ContentKey(text + '\0').value(), base);
    // The same bytes in other pieces.
    ContentKey pieces(text.substr(0, length / 2));
    pieces.add(text.data() + length / 2, length - length / 2);
    EXPECT_NE(pieces.value(), base);
  }
}

TEST(ContentKey, CopiesGoOnByThemselves) {
  const ContentKey start("start");
  ContentKey one = start, other = start;
  one.add(1);
  other.add(2);
  EXPECT_NE(one.value(), other.value());
  ContentKey again = start;
  again.add(1);
  EXPECT_EQ(again.value(), one.value());
  other = one;
  EXPECT_EQ(other.text(), one.text());
  EXPECT_EQ(start.value(), ContentKey("start").value());
}

// What is kept on disk by one version of xxHash, or on one machine, must be found by another.
TEST(ContentKey, IsTheSameEverywhere) {
  EXPECT_EQ(ContentKey("kinora").text(), "dc5124861c892c2943dad1a1b93b6b69");
  EXPECT_EQ(content_checksum("kinora"), 0x754de22f3635c9e4u);
}

}  // namespace
}  // namespace kinora
