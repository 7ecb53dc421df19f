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
          reference(text, options, std::min({options.tokens, most, deepest}));
      const Draft draft = drafter.propose(text, most, deepest);
      ASSERT_EQ(draft.ids, expected) << "round " << round << ", turn " << turn;
      ASSERT_EQ(draft.parents, chain_parents(draft.ids.size()));
      const auto proposed = static_cast<int64_t>(draft.ids.size());
      guessed += proposed > 0;
      past_the_end += alphabet == 1 && proposed > 1;
      drafter.learn({places(random.below(proposed + 1)), {}});
    }
  }
  EXPECT_GT(guessed, 1000);
  EXPECT_GT(past_the_end, 100);
}

TEST(Ngram, ARunThatReachesTheEndGoesOnWithItself) {
  NgramOptions options;
  options.tokens = 8;
  NgramDrafter drafter(options);
  const std::vector<int32_t> text{9, 1, 2, 3, 1, 2, 3, 1, 2, 3};
  EXPECT_EQ(drafter.propose(text, 63, 63).ids, (std::vector<int32_t>{1, 2, 3, 1, 2, 3, 1, 2}));
}

// A slow way to count the same: every guess that was made, against the text that came in its place.
TEST(Ngram, KnowsHowOftenGuessesComeTrueCheckedOrNot) {
  KINORA_FRESH_RANDOM(random);
  for (int round = 0; round < 20; ++round) {
    NgramOptions options;
    options.tokens = 1 + random.below(9);
    options.least = 1 + random.below(3);
    options.match = options.least + random.below(3);
    NgramDrafter drafter(options);
    std::vector<std::vector<bool>> first(static_cast<size_t>(options.match + 1));
    std::vector<bool> further;
    std::vector<int32_t> text{0};
    std::vector<int32_t> guess;
    int64_t match = 0;
    for (int turn = 0; turn < 60; ++turn) {
      const auto begin = text.size();
      for (int64_t more = 1 + random.below(4); more > 0; --more) {
        text.push_back(static_cast<int32_t>(random.below(3)));
      }
      for (size_t i = 0; i < guess.size() && begin + i < text.size(); ++i) {
        const bool right = guess[i] == text[begin + i];
        (i == 0 ? first[static_cast<size_t>(match)] : further).push_back(right);
        if (!right) break;
      }
      guess = reference(text, options, options.tokens);
      match = options.match;
      while (match >= options.least) {  // the longest run that stood there before
        NgramOptions one = options;
        one.match = one.least = match;
        if (!reference(text, one, 1).empty()) break;
        --match;
      }
      drafter.propose(text, random.below(4), 63);
    }
    const auto rate = [](const std::vector<bool>& cases) {
      double hits = 0.5, all = 2;
      for (const bool hit : cases) {
        hits = 0.95 * hits + (hit ? 1 : 0);
        all = 0.95 * all + 1;
      }
      return hits / all;
    };
    for (int64_t match_size = options.least; match_size <= options.match; ++match_size) {
      double expected = rate(first[static_cast<size_t>(match_size)]);
      for (const double actual : drafter.confidences(match_size, 5)) {
        EXPECT_NEAR(actual, expected, 1e-12);
        expected *= rate(further);
      }
    }
  }
}

// What was known of a text that was taken back teaches nothing, and does no harm.
TEST(Ngram, ATextThatIsCutIsNoProof) {
  NgramDrafter drafter;
  std::vector<int32_t> text(10, 7);
  drafter.propose(text, 63, 63);
  const std::vector<double> before = drafter.confidences(3, 3);
  text.back() = 8;
  text.push_back(9);
  drafter.propose(text, 63, 63);
  EXPECT_EQ(drafter.confidences(3, 3), before);
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
  EXPECT_EQ(make_drafter("ngram")->propose(text, 63, 63).ids.size(), 8u);
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
