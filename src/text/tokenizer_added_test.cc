// Added tokens: which wins, what they swallow, and where they are sought.
#include "text/tokenizer_added.h"

#include <gtest/gtest.h>

#include "text/tokenizer_test_file.h"

namespace kinora::tokenizer {
namespace {

using nlohmann::json;

// The pieces of a text, tokens as [id].
std::vector<std::string> pieces(const AddedTokenFinder& finder, std::string_view text,
                                bool parse_special = true) {
  std::vector<std::string> found;
  finder.for_each_piece(
      text, parse_special, [&](std::string_view piece) { found.emplace_back(piece); },
      [&](int32_t id) { found.push_back("[" + std::to_string(id) + "]"); });
  return found;
}

using Pieces = std::vector<std::string>;

AddedToken token(int32_t id, std::string content) {
  AddedToken made;
  made.id = id;
  made.content = std::move(content);
  return made;
}

TEST(AddedTokens, TheLongestAtTheEarliestPlaceWins) {
  const AddedTokenFinder finder(
      {token(1, "<a>"), token(2, "<a>b"), token(3, "a>bc"), token(4, "x")});
  EXPECT_EQ(pieces(finder, "<a>bc"), (Pieces{"[2]", "c"}));
  EXPECT_EQ(pieces(finder, "-<a>-a>bc-"), (Pieces{"-", "[1]", "-", "[3]", "-"}));
  EXPECT_EQ(pieces(finder, "<<a>"), (Pieces{"<", "[1]"}));
  EXPECT_EQ(pieces(finder, "xx"), (Pieces{"[4]", "[4]"}));
  EXPECT_EQ(pieces(finder, "<a"), (Pieces{"<a"}));
  EXPECT_EQ(pieces(finder, ""), Pieces{});
}

TEST(AddedTokens, ASkippedSpecialTokenHidesWhatIsInsideIt) {
  AddedToken special = token(1, "<a>");
  special.special = true;
  const AddedTokenFinder finder({special, token(2, "a")});
  EXPECT_EQ(pieces(finder, "<a>a"), (Pieces{"[1]", "[2]"}));
  EXPECT_EQ(pieces(finder, "<a>a", false), (Pieces{"<a>", "[2]"}));
}

TEST(AddedTokens, SwallowSpaces) {
  AddedToken left = token(1, "<l>");
  left.strip_left = true;
  AddedToken right = token(2, "<r>");
  right.strip_right = true;
  const AddedTokenFinder finder({left, right});
  EXPECT_EQ(pieces(finder, "a \xe3\x80\x80<l> b"), (Pieces{"a", "[1]", " b"}));
  EXPECT_EQ(pieces(finder, "a <r>\n b"), (Pieces{"a ", "[2]", "b"}));
  EXPECT_EQ(pieces(finder, "<r>  <l>"), (Pieces{"[2]", "[1]"}));
  EXPECT_EQ(pieces(finder, "  <l>"), (Pieces{"[1]"}));
}

TEST(AddedTokens, MayStandAloneOnly) {
  AddedToken alone = token(1, "cat");
  alone.single_word = true;
  const AddedTokenFinder finder({alone});
  EXPECT_EQ(pieces(finder, "cat"), (Pieces{"[1]"}));
  EXPECT_EQ(pieces(finder, "a cat!"), (Pieces{"a ", "[1]", "!"}));
  EXPECT_EQ(pieces(finder, "cats"), (Pieces{"cats"}));
  EXPECT_EQ(pieces(finder,
                   "\xc3\xa9"
                   "cat"),
            (Pieces{"\xc3\xa9"
                    "cat"}));
  EXPECT_EQ(pieces(finder, "cat_"), (Pieces{"cat_"}));
}

TEST(AddedTokens, NormalizedOnesAreSoughtInNormalizedText) {
  json root = testing::small_tokenizer();
  root["normalizer"] = {{"type", "NFC"}};
  root["added_tokens"] = {
      {{"id", 300}, {"content", "\xc3\xa9!"}, {"normalized", true}, {"special", false}},
      {{"id", 301}, {"content", "\xc3\xa8!"}, {"normalized", false}, {"special", false}}};
  const Tokenizer tokenizer = testing::load_json(root);
  EXPECT_EQ(tokenizer.encode("\xc3\xa9!"), std::vector<int32_t>{300});
  EXPECT_EQ(tokenizer.encode("e\xcc\x81!"), std::vector<int32_t>{300});
  EXPECT_EQ(tokenizer.encode("\xc3\xa8!"), std::vector<int32_t>{301});
  EXPECT_EQ(tokenizer.encode("e\xcc\x80!"), (std::vector<int32_t>{0xc3, 0xa8, '!'}));
}

}  // namespace
}  // namespace kinora::tokenizer
