#include "base/policy/policy.h"

#include <gtest/gtest.h>

namespace kinora {
namespace {

struct Drink {
  PolicyInfo info;
  int price = 0;
};

const std::vector<Drink> drinks{{{"tea", "warm"}, 2}, {{"coffee", "strong"}, 3}};

std::string problem(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage) << error.what();
    return error.what();
  }
  return "";
}

TEST(Policy, IsFoundByItsName) {
  EXPECT_EQ(find_policy("coffee", drinks).price, 3);
  EXPECT_EQ(problem([] { find_policy("cofee", drinks); }),
            "no policy has this name; did you mean coffee? There are tea and coffee");
  EXPECT_EQ(problem([] { find_policy("", drinks); }),
            "no policy has this name; there are tea and coffee");
  EXPECT_NE(problem([] { find_policy("Tea", drinks); }), "");
}

TEST(Policy, IsTakenApart) {
  const PolicyText plain = split_policy("tea");
  EXPECT_EQ(plain.name, "tea");
  EXPECT_TRUE(plain.settings.empty());
  const PolicyText more = split_policy("tea:sugar=2,milk=a:b,0.5");
  ASSERT_EQ(more.settings.size(), 3u);
  EXPECT_EQ(more.settings[0].key, "sugar");
  EXPECT_EQ(more.settings[1].value, "a:b");
  EXPECT_EQ(more.settings[2].key, "");
  EXPECT_EQ(more.settings[2].value, "0.5");
  EXPECT_EQ(split_policy(":x=1").name, "");
  EXPECT_NE(problem([] { split_policy("tea:"); }), "");
}

TEST(Policy, ErrorsNameThePointAndTheChoice) {
  try {
    in_words("drink", "tea:\n",
             [] { throw Error(ErrorKind::not_found, "there is none", ErrorHint::use_cpu); });
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "drink 'tea:?': there is none");
    EXPECT_EQ(error.kind(), ErrorKind::not_found);
    EXPECT_EQ(error.hint(), ErrorHint::use_cpu);
  }
  EXPECT_EQ(in_words("drink", "tea", [] { return 7; }), 7);
}

}  // namespace
}  // namespace kinora
