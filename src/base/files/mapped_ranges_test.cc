#include "base/files/mapped_ranges.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace kinora {
namespace {

TEST(MappedRanges, KnowTheFileOfAnAddress) {
  std::vector<char> bytes(100);
  EXPECT_EQ(mapped_file_at(bytes.data()), nullptr);
  {
    const MappedRange range(bytes.data(), 60, "one");
    const MappedRange other(bytes.data() + 60, 40, "two");
    EXPECT_STREQ(mapped_file_at(bytes.data()), "one");
    EXPECT_STREQ(mapped_file_at(bytes.data() + 59), "one");
    EXPECT_STREQ(mapped_file_at(bytes.data() + 60), "two");
    EXPECT_EQ(mapped_file_at(bytes.data() + 100), nullptr);
  }
  EXPECT_EQ(mapped_file_at(bytes.data()), nullptr);
}

TEST(MappedRanges, GoWithoutANameWhenThereAreTooMany) {
  std::vector<char> bytes(1000);
  std::vector<std::unique_ptr<MappedRange>> ranges;
  for (char& byte : bytes) ranges.push_back(std::make_unique<MappedRange>(&byte, 1, "many"));
  EXPECT_STREQ(mapped_file_at(&bytes[0]), "many");
  EXPECT_EQ(mapped_file_at(&bytes[999]), nullptr);
  ranges.clear();
  const MappedRange range(&bytes[999], 1, "again");
  EXPECT_STREQ(mapped_file_at(&bytes[999]), "again");
}

}  // namespace
}  // namespace kinora
