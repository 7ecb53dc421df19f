#include "base/json/json_depth.h"

#include <gtest/gtest.h>

#include <string>

namespace kinora {
namespace {

TEST(JsonDepth, CountsListsAndObjects) {
  const auto nested = [](int depth, char open, char close) {
    return std::string(static_cast<size_t>(depth), open) +
           std::string(static_cast<size_t>(depth), close);
  };
  for (const auto& [open, close] : {std::pair{'[', ']'}, std::pair{'{', '}'}}) {
    EXPECT_FALSE(json_nests_too_deeply(nested(kMaxJsonDepth, open, close)));
    EXPECT_TRUE(json_nests_too_deeply(nested(kMaxJsonDepth + 1, open, close)));
  }
  EXPECT_TRUE(json_nests_too_deeply(std::string(1'000'000, '[')));
  EXPECT_FALSE(json_nests_too_deeply(""));
}

TEST(JsonDepth, ClosedOnesDoNotAddUp) {
  std::string text = "[";
  for (int i = 0; i < 1000; ++i) text += "[1, {}], ";
  EXPECT_FALSE(json_nests_too_deeply(text + "0]"));
}

TEST(JsonDepth, BracketsInTextsAreText) {
  EXPECT_FALSE(json_nests_too_deeply("\"" + std::string(1000, '[') + "\""));
  EXPECT_FALSE(json_nests_too_deeply(R"(["\"", "\\", ")" + std::string(1000, '{') + "\"]"));
  EXPECT_TRUE(json_nests_too_deeply(R"(["\\")" + std::string(1000, '{')));
}

}  // namespace
}  // namespace kinora
