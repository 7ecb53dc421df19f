// Hashes against values that sha256sum and git hash-object print.
#include "pull/hash.h"

#include <gtest/gtest.h>

namespace kinora {
namespace {

std::string hash_of(const std::string& name, const std::string& content) {
  auto hash = ContentHash::for_name(name, static_cast<int64_t>(content.size()));
  EXPECT_TRUE(hash);
  const size_t half = content.size() / 2;
  hash->add(std::string_view(content).substr(0, half));
  hash->add(std::string_view(content).substr(half));
  return hash->hex();
}

TEST(ContentHash, FollowsTheFormOfTheName) {
  const std::string sha256 = "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03";
  const std::string git = "ce013625030ba8dba906f756967f9e9ca394464a";
  EXPECT_EQ(hash_of(sha256, "hello\n"), sha256);
  EXPECT_EQ(hash_of(git, "hello\n"), git);
  EXPECT_NE(hash_of(git, "hello!"), git);
  EXPECT_EQ(hash_of(git, ""), "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391");
  EXPECT_FALSE(ContentHash::for_name("an-etag-of-another-kind", 6));
  EXPECT_FALSE(ContentHash::for_name("CE013625030BA8DBA906F756967F9E9CA394464A", 6));
}

}  // namespace
}  // namespace kinora
