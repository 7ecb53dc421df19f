// Merging: heap, short scan and caches against the slow and obvious way.
#include "text/byte_pair.h"

#include <gtest/gtest.h>

#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "support/random_data.h"

namespace kinora::tokenizer {
namespace {

// A random vocabulary over a few bytes: merges of tokens that exist already, in random order.
struct Vocabulary {
  std::array<int32_t, 256> bytes{};
  std::vector<std::string> tokens;
  std::vector<BytePair::Merge> merges;
};

Vocabulary random_vocabulary(Random& random, int letters, int merges) {
  Vocabulary made;
  std::map<std::string, int32_t> ids;
  for (int b = 0; b < 256; ++b) {
    made.bytes[static_cast<size_t>(b)] = b;
    made.tokens.push_back(std::string(1, static_cast<char>(b)));
  }
  std::vector<int32_t> usable;
  for (int i = 0; i < letters; ++i) usable.push_back('a' + i);
  for (int i = 0; i < merges; ++i) {
    const int32_t left = usable[static_cast<size_t>(random.below(std::ssize(usable)))];
    const int32_t right = usable[static_cast<size_t>(random.below(std::ssize(usable)))];
    const std::string whole =
        made.tokens[static_cast<size_t>(left)] + made.tokens[static_cast<size_t>(right)];
    const auto [place, is_new] = ids.try_emplace(whole, static_cast<int32_t>(made.tokens.size()));
    if (is_new) {
      made.tokens.push_back(whole);
      usable.push_back(place->second);
    }
    made.merges.push_back({left, right, place->second});
  }
  // Real files are in the order of learning; equality must not depend on it.
  for (size_t i = made.merges.size(); i > 1; --i) {
    std::swap(made.merges[i - 1],
              made.merges[static_cast<size_t>(random.below(static_cast<int64_t>(i)))]);
  }
  return made;
}

// The slow and obvious way: as long as neighbours were ever merged, those that were merged first.
std::vector<int32_t> encode_slowly(const Vocabulary& vocabulary, std::string_view word) {
  std::map<std::pair<int32_t, int32_t>, size_t> ranks;
  for (size_t i = 0; i < vocabulary.merges.size(); ++i) {
    ranks[{vocabulary.merges[i].left, vocabulary.merges[i].right}] = i;  // the last counts
  }
  std::vector<int32_t> ids;
  for (const char c : word) ids.push_back(vocabulary.bytes[static_cast<unsigned char>(c)]);
  while (true) {
    size_t best = vocabulary.merges.size(), place = 0;
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      const auto found = ranks.find({ids[i], ids[i + 1]});
      if (found == ranks.end() || found->second >= best) continue;
      best = found->second;
      place = i;
    }
    if (best == vocabulary.merges.size()) return ids;
    ids[place] = vocabulary.merges[best].result;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(place) + 1);
  }
}

TEST(BytePair, EqualsTheObviousWay) {
  KINORA_FRESH_RANDOM(random);
  for (const int letters : {1, 2, 4, 9}) {
    const Vocabulary vocabulary = random_vocabulary(random, letters, 300);
    const BytePair byte_pair(vocabulary.bytes, vocabulary.merges);
    BytePair::Scratch scratch;
    for (const int64_t size : {1, 2, 3, 25, 26, 27, 39, 40, 41, 63, 65, 89, 90, 91, 127, 700}) {
      for (int i = 0; i < 40; ++i) {
        std::string word;
        while (std::ssize(word) < size) word += static_cast<char>('a' + random.below(letters));
        const std::vector<int32_t> expected = encode_slowly(vocabulary, word);
        for (int again = 0; again < 2; ++again) {  // the second time from the cache
          std::vector<int32_t> out = {-7};
          byte_pair.encode(word, scratch, out);
          EXPECT_EQ(out.front(), -7);
          out.erase(out.begin());
          ASSERT_EQ(out, expected) << word;
        }
        std::string joined;
        for (const int32_t id : expected) joined += vocabulary.tokens[static_cast<size_t>(id)];
        ASSERT_EQ(joined, word);
      }
    }
  }
}

TEST(BytePair, OfEqualMergesTheLastCounts) {
  std::array<int32_t, 256> bytes{};
  for (int b = 0; b < 256; ++b) bytes[static_cast<size_t>(b)] = b;
  // (a b) is learnt first and again last: bc goes before it.
  const std::vector<BytePair::Merge> merges = {{'a', 'b', 300}, {'b', 'c', 301}, {'a', 'b', 300}};
  const BytePair byte_pair(bytes, merges);
  BytePair::Scratch scratch;
  std::vector<int32_t> out;
  byte_pair.encode("abc", scratch, out);
  EXPECT_EQ(out, (std::vector<int32_t>{'a', 301}));
}

TEST(BytePair, WholeWordsGoBeforeMerges) {
  std::array<int32_t, 256> bytes{};
  for (int b = 0; b < 256; ++b) bytes[static_cast<size_t>(b)] = b;
  const std::vector<BytePair::Merge> merges = {{'a', 'b', 300}};
  BytePair byte_pair(bytes, merges);
  byte_pair.set_whole_words({{"abc", 400}, {"x", 401}});
  BytePair::Scratch scratch;
  std::vector<int32_t> out;
  for (const char* word : {"abc", "abcd", "x", "y"}) byte_pair.encode(word, scratch, out);
  EXPECT_EQ(out, (std::vector<int32_t>{400, 300, 'c', 'd', 401, 'y'}));
}

TEST(BytePair, AWordOfMillionsOfBytesIsNoTrouble) {
  std::array<int32_t, 256> bytes{};
  for (int b = 0; b < 256; ++b) bytes[static_cast<size_t>(b)] = b;
  std::vector<BytePair::Merge> merges = {{'a', 'a', 256}};
  for (int32_t id = 256; id < 266; ++id) merges.push_back({id, id, id + 1});
  const BytePair byte_pair(bytes, merges);
  BytePair::Scratch scratch;
  std::vector<int32_t> out;
  byte_pair.encode(std::string(2048 * 1000 + 3, 'a'), scratch, out);
  std::vector<int32_t> expected(1000, 266);
  expected.push_back(256);
  expected.push_back('a');
  EXPECT_EQ(out, expected);
}

}  // namespace
}  // namespace kinora::tokenizer
