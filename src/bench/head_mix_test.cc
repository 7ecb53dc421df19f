#include "bench/head_mix.h"

#include <gtest/gtest.h>

#include "attention/policies/pattern.h"
#include "base/error.h"

namespace kinora::cli {
namespace {

TEST(HeadMix, HeadsOfEveryLayerTakeItemsInTurn) {
  const std::vector<std::string> items = {"none/a-shape:sink=128,local=512", "both/grid:lines=v",
                                          "query/vertical-slash"};
  const auto table = mixed_table({"", 2, 5, 1, 64}, items, 49);
  ASSERT_EQ(table->heads.size(), 10u);
  EXPECT_TRUE(table->complete());
  for (int layer = 0; layer < 2; ++layer) {
    for (int head = 0; head < 5; ++head) {
      const auto& choice = table->heads[static_cast<size_t>(layer * 5 + head)];
      ASSERT_TRUE(choice.has_value());
      const std::string& item = items[static_cast<size_t>(head % 3)];
      const size_t slash = item.find('/');
      ASSERT_EQ(choice->patterns.size(), 1u);
      EXPECT_EQ(choice->patterns[0].spec, parse_pattern(item.substr(slash + 1), 49));
      EXPECT_EQ(choice->boundary, parse_mixed_head(item, 49).boundary);
    }
  }
  EXPECT_NE(parse_mixed_head(items[1], 49).boundary, parse_mixed_head(items[0], 49).boundary);
}

TEST(HeadMix, EveryCandidateIsOne) {
  for (const std::string& item : mix_candidates(usual_frame_tokens)) {
    EXPECT_NO_THROW(parse_mixed_head(item, usual_frame_tokens)) << item;
  }
}

TEST(HeadMix, RefusesWhatIsNone) {
  for (const char* item : {"", "a-shape", "sideways/a-shape", "none/zigzag", "none/", "/a-shape"}) {
    EXPECT_THROW(parse_mixed_head(item, 64), Error) << item;
  }
  EXPECT_THROW(mixed_table({"", 1, 4, 2, 64}, {}, 64), Error);
}

}  // namespace
}  // namespace kinora::cli
