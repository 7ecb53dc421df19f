#include "memory/token_list.h"

#include <gtest/gtest.h>

#include "support/random_data.h"

namespace kinora {
namespace {

std::vector<TokenInfo> tokens_from(int32_t first, int64_t count) {
  std::vector<TokenInfo> tokens(static_cast<size_t>(count));
  for (auto& token : tokens) token.position = {first, first + 1, first++ * 2};
  return tokens;
}

// Lists that share, grow, change and forget at random equal plain ones.
TEST(TokenList, EqualsPlainLists) {
  KINORA_FRESH_RANDOM(random);
  std::vector<TokenList> lists(1);
  std::vector<std::vector<TokenInfo>> plain(1);
  int32_t stamp = 0;
  for (int step = 0; step < 400; ++step) {
    const auto at = static_cast<size_t>(random.below(std::ssize(lists)));
    TokenList& list = lists[at];
    std::vector<TokenInfo>& tokens = plain[at];
    switch (random.below(5)) {
      case 0:
      case 1: {
        const auto more = tokens_from(stamp, random.below(step % 7 == 0 ? 9000 : 40));
        stamp += static_cast<int32_t>(more.size());
        list.append(more);
        tokens.insert(tokens.end(), more.begin(), more.end());
        break;
      }
      case 2: {
        const auto left =
            static_cast<size_t>(random.below(static_cast<int64_t>(tokens.size()) + 1));
        list.truncate(left);
        tokens.resize(left);
        break;
      }
      case 3: {
        if (tokens.empty()) break;
        const auto place = static_cast<size_t>(random.below(std::ssize(tokens)));
        list.replace(place, tokens_from(++stamp, 1)[0]);
        tokens[place] = tokens_from(stamp, 1)[0];
        break;
      }
      default: {
        TokenList other = list.share();
        const std::vector<TokenInfo> same = tokens;
        if (lists.size() < 6) {
          lists.push_back(std::move(other));
          plain.push_back(same);
        } else {
          const auto place = static_cast<size_t>(random.below(std::ssize(lists)));
          lists[place] = std::move(other);
          plain[place] = same;
        }
      }
    }
    for (size_t i = 0; i < lists.size(); ++i) {
      ASSERT_EQ(lists[i].size(), plain[i].size());
      for (size_t k = 0; k < plain[i].size(); k += 1 + plain[i].size() / 50) {
        ASSERT_EQ(lists[i][k].position, plain[i][k].position) << i << ' ' << k;
      }
    }
  }
}

}  // namespace
}  // namespace kinora
