#include "generate/ngram.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "base/error.h"
#include "generate/policies.h"
#include "support/random_data.h"

namespace kinora {
namespace {

// The latest earlier place of the longest run at the end of the text, and what followed it there;
// a guess that reaches the end of the text goes on in the guess itself.
std::vector<int32_t> reference(const std::vector<int32_t>& text, const NgramOptions& options,
                               int64_t wanted) {
  const auto end = static_cast<int64_t>(text.size());
  for (int64_t match = options.match; match >= options.least; --match) {
    for (int64_t at = end - 1; at >= match; --at) {
      if (!std::equal(text.end() - match, text.end(), text.begin() + (at - match))) continue;
      std::vector<int32_t> joined = text;
      for (int64_t i = 0; i < wanted; ++i) joined.push_back(joined[static_cast<size_t>(at + i)]);
      return {joined.begin() + end, joined.end()};
    }
  }
  return {};
}

std::vector<int32_t> chain_parents(size_t count) {
  std::vector<int32_t> parents;
  for (size_t i = 0; i < count; ++i) parents.push_back(static_cast<int32_t>(i) - 1);
  return parents;
}

std::vector<int32_t> places(int64_t count) {
  std::vector<int32_t> right;
  for (int64_t i = 0; i < count; ++i) right.push_back(static_cast<int32_t>(i));
  return right;
}

TEST(Ngram, GuessesWhatFollowedTheLongestRunTheLastTime) {
  KINORA_FRESH_RANDOM(random);
  int64_t guessed = 0, past_the_end = 0;
  for (int round = 0; round < 200; ++round) {
    NgramOptions options;
    options.tokens = 1 + random.below(20);
    options.least = 1 + random.below(3);
    options.match = options.least + random.below(4);
    NgramDrafter drafter(options);
    const int64_t alphabet = 1 + random.below(5);
    int64_t length = std::min<int64_t>(2, options.tokens);
    std::vector<int32_t> text;
    for (int turn = 0; turn < 40; ++turn) {
      // The text is cut, changed, repeats itself, or stays as it was.
      if (random.uniform() < 0.15) {
        text.resize(static_cast<size_t>(random.below(static_cast<int64_t>(text.size()) + 1)));
      }
      if (!text.empty() && random.uniform() < 0.1) {
        text[static_cast<size_t>(random.below(static_cast<int64_t>(text.size())))] =
            static_cast<int32_t>(random.below(alphabet));
      }
      const int64_t more = random.below(6);
      for (int64_t i = 0; i < more; ++i) {
        text.push_back(static_cast<int32_t>(random.below(alphabet)));
      }
      const int64_t most = random.below(12), deepest = random.below(12);
      const std::vector<int32_t> expected =
          reference(text, options, std::min({length, most, deepest}));
      const Draft draft = drafter.propose(text, most, deepest);
      ASSERT_EQ(draft.ids, expected) << "round " << round << ", turn " << turn;
      ASSERT_EQ(draft.parents, chain_parents(draft.ids.size()));
      const auto proposed = static_cast<int64_t>(draft.ids.size());
      guessed += proposed > 0;
      past_the_end += alphabet == 1 && proposed > 1;
      // All right: twice as long; less than half of them: half as long.
      const int64_t right = random.below(proposed + 1);
      drafter.learn(places(right), {});
      if (proposed > 0 && right == proposed) {
        length = std::min(options.tokens, 2 * length);
      } else if (2 * right < proposed) {
        length = std::max<int64_t>(1, length / 2);
      }
    }
  }
  EXPECT_GT(guessed, 1000);
  EXPECT_GT(past_the_end, 100);
}

TEST(Ngram, ARunThatReachesTheEndGoesOnWithItself) {
  NgramOptions options;
  options.tokens = 8;
  NgramDrafter drafter(options);
  std::vector<int32_t> text{9, 1, 2, 3, 1, 2, 3, 1, 2, 3};
  drafter.propose(text, 63, 63);
  for (int i = 0; i < 2; ++i) {  // 2, 4, 8
    drafter.learn(places(2 << i), {});
    drafter.propose(text, 63, 63);
  }
  EXPECT_EQ(drafter.propose(text, 63, 63).ids, (std::vector<int32_t>{1, 2, 3, 1, 2, 3, 1, 2}));
}

TEST(Ngram, TheLengthFollowsWhatGuessesAreWorth) {
  NgramOptions options;
  options.tokens = 6;
  NgramDrafter drafter(options);
  const std::vector<int32_t> text(20, 7), unknown{1, 2, 3, 4};
  const auto length = [&] { return drafter.propose(text, 63, 63).ids.size(); };
  EXPECT_EQ(length(), 2u);
  drafter.learn(places(2), {});
  EXPECT_EQ(length(), 4u);
  drafter.learn(places(4), {});
  EXPECT_EQ(length(), 6u);  // never above what was chosen
  drafter.learn(places(6), {});
  EXPECT_EQ(length(), 6u);
  drafter.learn(places(3), {});  // half of them: as it was
  EXPECT_EQ(length(), 6u);
  drafter.learn(places(2), {});
  EXPECT_EQ(length(), 3u);
  for (int i = 0; i < 4; ++i) {  // never below one
    drafter.learn({}, {});
    length();
  }
  EXPECT_EQ(length(), 1u);
  drafter.learn(places(1), {});
  EXPECT_EQ(length(), 2u);
  // Where nothing was guessed, nothing is learned.
  EXPECT_TRUE(drafter.propose(unknown, 63, 63).ids.empty());
  drafter.learn({}, {});
  EXPECT_EQ(length(), 2u);
}

TEST(Ngram, ImpossibleSettingsAreRefused) {
  const auto refuses = [](const NgramOptions& options) {
    try {
      NgramDrafter drafter(options);
      ADD_FAILURE() << options.tokens << " " << options.match << " " << options.least;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::usage) << error.what();
    }
  };
  refuses({0, 3, 2});
  refuses({8, 1, 2});
  refuses({8, 3, 0});
  refuses({-1, 3, 2});
}

TEST(DraftPolicies, AreMadeByName) {
  const std::vector<int32_t> text(20, 7);
  EXPECT_TRUE(make_drafter("none")->propose(text, 63, 63).ids.empty());
  EXPECT_EQ(make_drafter("ngram")->propose(text, 63, 63).ids.size(), 2u);
  EXPECT_EQ(make_drafter("ngram:tokens=1,match=5,least=1")->propose(text, 63, 63).ids.size(), 1u);
  for (const PolicyInfo& policy : draft_point().policies) {
    EXPECT_NO_THROW(draft_point().check(policy.name)) << policy.name;
  }
}

TEST(DraftPolicies, WrongOnesAreRefusedWithWhatThereIs) {
  const auto problem = [](const std::string& text) -> std::string {
    EXPECT_THROW(draft_point().check(text), Error) << text;
    try {
      make_drafter(text);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::usage) << text;
      return error.what();
    }
    return "";
  };
  const std::string unknown = problem("nonsense");
  EXPECT_NE(unknown.find("draft 'nonsense'"), std::string::npos) << unknown;
  for (const std::string& name : draft_point().names()) {
    EXPECT_NE(unknown.find(name), std::string::npos) << unknown;
  }
  EXPECT_NE(problem("ngrm").find("did you mean ngram?"), std::string::npos);
  EXPECT_NE(problem("ngram:tokens=0").find("tokens"), std::string::npos);
  EXPECT_NE(problem("ngram:tokens=64").find("tokens"), std::string::npos);
  EXPECT_NE(problem("ngram:match=1,least=2"), "");
  EXPECT_NE(problem("ngram:colour=3").find("colour"), std::string::npos);
  EXPECT_NE(problem("none:tokens=3"), "");
  EXPECT_NE(problem(""), "");
}

}  // namespace
}  // namespace kinora
