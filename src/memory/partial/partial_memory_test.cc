// What the memories that choose among rows choose, compared with the plainest computation of it,
// and where they place what they read.
#include "memory/partial/partial_memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "base/error.h"
#include "memory/partial/partial_test_support.h"
#include "support/random_data.h"

namespace kinora {
namespace {

using testing::group_of;
using testing::next_position;
using testing::plain_queries_of;
using testing::plain_row;
using testing::play;
using testing::ReadRows;
using testing::ScriptGroup;
using testing::text_tokens;
using testing::turned;
using testing::turning_layout;
using testing::turning_width;
using testing::video_tokens;

// Text, then pictures of 2 × 2 tokens in groups of four.
class Session {
 public:
  Session(Random& random, const std::string& policy, int pictures)
      : random_(random), memory_(make_memory(policy, {turning_layout(), Device::cpu(), {}})) {
    add(text_tokens(0, 3));
    for (int first = 0; first < pictures; first += 4) {
      add(video_tokens(3, std::min(4, pictures - first), 2, 2, 2, first));
    }
  }

  std::vector<ReadRows> add(std::vector<TokenInfo> tokens) {
    group = group_of(random_, std::move(tokens));
    stamps.insert(stamps.end(), group.stamps.begin(), group.stamps.end());
    return play(context_, *memory_, group);
  }
  std::vector<ReadRows> ask(int64_t tokens) {
    return add(text_tokens(next_position(*memory_), tokens));
  }
  Memory& memory() { return *memory_; }
  const Context& context() const { return context_; }

  // That rows have the values of their tokens and keys that stand at these positions.
  void expect_rows(const ReadRows& read, int layer, std::span<const Position> positions) const {
    for (size_t i = 0; i < read.ordinals.size(); ++i) {
      const uint64_t stamp = stamps[static_cast<size_t>(read.ordinals[i])];
      const auto key = turned(plain_row(stamp, layer, false), {&positions[i], 1}, turning_layout());
      const auto value = plain_row(stamp, layer, true);
      for (size_t k = 0; k < turning_width; ++k) {
        ASSERT_NEAR(read.keys[i * turning_width + k], key[k], 2e-5) << "row " << i;
        ASSERT_EQ(read.values[i * turning_width + k], value[k]);
      }
    }
  }
  std::vector<Position> original(const ReadRows& read) const {
    std::vector<Position> out;
    for (const int32_t ordinal : read.ordinals) out.push_back(memory_->token(ordinal).position);
    return out;
  }

  ScriptGroup group;  // the newest
  std::vector<uint64_t> stamps;

 private:
  Random& random_;
  const ThreadPool threads_{1};
  const Context context_{threads_};
  std::unique_ptr<Memory> memory_;
};

// Ordinals of the text in front, of some pictures, and of what follows all pictures.
std::vector<int32_t> tokens_of(const std::vector<int32_t>& pictures, int all, int64_t behind) {
  std::vector<int32_t> tokens{0, 1, 2};
  for (const int32_t picture : pictures) {
    for (int32_t i = 0; i < 4; ++i) tokens.push_back(3 + 4 * picture + i);
  }
  for (int32_t i = 0; i < behind; ++i) tokens.push_back(3 + 4 * all + i);
  return tokens;
}

TEST(PartialMemory, SlidesOverTheNewestFrames) {
  KINORA_FRESH_RANDOM(random);
  Session session(random, "sliding:rows=13,sinks=0,positions=original", 20);
  const auto read = session.ask(5);
  for (int layer = 0; layer < 2; ++layer) {
    const ReadRows& rows = read[static_cast<size_t>(layer)];
    EXPECT_EQ(rows.ordinals, tokens_of({17, 18, 19}, 20, 5));
    session.expect_rows(rows, layer, session.original(rows));
  }
}

TEST(PartialMemory, KeepsSinksOfFrames) {
  KINORA_FRESH_RANDOM(random);
  Session session(random, "sliding:rows=13,sinks=5", 20);
  const auto read = session.ask(2);
  std::vector<int32_t> expected = tokens_of({18, 19}, 20, 2);
  expected.insert(expected.begin() + 3, {3, 4});  // two of five rows are of frames
  EXPECT_EQ(read[0].ordinals, expected);
}

TEST(PartialMemory, ReadsEvenlyChosenFrames) {
  KINORA_FRESH_RANDOM(random);
  Session session(random, "uniform:rows=16", 20);
  EXPECT_EQ(session.ask(5)[1].ordinals, tokens_of({2, 7, 12, 17}, 20, 5));
  Session small(random, "uniform:rows=2", 20);  // less than a frame
  std::vector<int32_t> expected = tokens_of({10}, 20, 1);
  expected.erase(expected.begin() + 5, expected.begin() + 7);
  EXPECT_EQ(small.ask(1)[1].ordinals, expected);
}

// The frames with the largest products of the question's queries and their mean keys.
std::vector<int32_t> best_frames(const Session& session, int layer, int pictures, size_t count) {
  std::vector<double> question(turning_width);
  const std::vector<float> queries = plain_queries_of(session.group, layer);
  for (size_t i = 0; i < queries.size(); ++i) {
    const size_t head = i % 24 / 6;  // of four; two share a kv head
    question[head / 2 * 6 + i % 6] += double{queries[i]};
  }
  std::vector<std::pair<double, int32_t>> scores;
  for (int32_t picture = 0; picture < pictures; ++picture) {
    double score = 0;
    for (size_t i = 0; i < 4; ++i) {
      const auto stamp = session.stamps[3 + 4 * static_cast<size_t>(picture) + i];
      const auto key = plain_row(stamp, layer, false);
      for (size_t k = 0; k < turning_width; ++k) score += question[k] * double{key[k]} / 4;
    }
    scores.emplace_back(-score, picture);
  }
  std::sort(scores.begin(), scores.end());
  std::vector<int32_t> best;
  for (size_t i = 0; i < count; ++i) best.push_back(scores[i].second);
  std::sort(best.begin(), best.end());
  return best;
}

TEST(PartialMemory, FindsFramesByTheirMeanKeys) {
  KINORA_FRESH_RANDOM(random);
  for (int trial = 0; trial < 5; ++trial) {
    Session session(random, "frame-retrieval:rows=23,positions=original", 30);
    for (int question = 0; question < 3; ++question) {
      const MemoryMark before = session.memory().mark();
      const auto read = session.ask(1 + random.below(6));
      for (int layer = 0; layer < 2; ++layer) {
        const auto best = best_frames(session, layer, 30, 5);
        const ReadRows& rows = read[static_cast<size_t>(layer)];
        EXPECT_EQ(rows.ordinals,
                  tokens_of(best, 30, static_cast<int64_t>(session.group.tokens.size())));
        session.expect_rows(rows, layer, session.original(rows));
      }
      session.memory().rewind(before);
      session.stamps.resize(session.stamps.size() - session.group.tokens.size());
    }
  }
}

TEST(PartialMemory, PlacesWhatItReadsRightBeforeTheReader) {
  KINORA_FRESH_RANDOM(random);
  Session session(random, "uniform:rows=8,positions=consecutive", 20);
  const auto read = session.ask(2);
  EXPECT_EQ(read[0].ordinals, tokens_of({5, 15}, 20, 2));
  // Pictures stand at 3 + 2 t, the question at 42: the last one takes the place of the last of all.
  std::vector<Position> positions = session.original(read[0]);
  for (size_t i = 0; i < 3; ++i)
    positions[i] = text_tokens(36 + static_cast<int32_t>(i), 1)[0].position;
  for (size_t i = 3; i < 11; ++i) {
    const int32_t time = i < 7 ? 39 : 41;
    positions[i] = {time, positions[i][1] + 36, positions[i][2] + 36};
  }
  session.expect_rows(read[0], 0, positions);
  EXPECT_FALSE(session.memory().reads_near());
}

TEST(PartialMemory, FramesReadAWindowOfEarlierOnes) {
  KINORA_FRESH_RANDOM(random);
  Session session(random, "frame-retrieval:rows=8,window=9", 10);
  EXPECT_TRUE(session.memory().reads_near());
  const auto read = session.add(video_tokens(3, 2, 2, 2, 2, 10));
  std::vector<int32_t> expected = tokens_of({8, 9}, 10, 8);
  EXPECT_EQ(read[0].ordinals, expected);
  // Nothing between them is left out, and the pictures stay; the text follows them.
  std::vector<Position> positions = session.original(read[0]);
  for (size_t i = 0; i < 3; ++i)
    positions[i] = text_tokens(16 + static_cast<int32_t>(i), 1)[0].position;
  session.expect_rows(read[0], 0, positions);
}

// Tokens of an answer read what the question found, whatever their own queries look for.
TEST(PartialMemory, AnswersReadWhatTheQuestionFound) {
  KINORA_FRESH_RANDOM(random);
  Session session(random, "frame-retrieval:rows=8", 30);
  Memory& memory = session.memory();
  const auto asked = session.ask(4);
  EXPECT_FALSE(memory.known_ahead());
  const std::unique_ptr<Memory> fork = memory.fork(memory.mark());
  const int64_t bytes = memory.bytes().total();
  for (int32_t token = 1; token <= 3; ++token) {
    const auto read = session.ask(1);
    EXPECT_TRUE(memory.known_ahead());
    for (size_t layer = 0; layer < 2; ++layer) {
      std::vector<int32_t> expected = asked[layer].ordinals;
      for (int32_t i = 0; i < token; ++i) expected.push_back(expected.back() + 1);
      EXPECT_EQ(read[layer].ordinals, expected);
      const auto prefix = std::span(read[layer].keys).first(asked[layer].keys.size());
      EXPECT_TRUE(std::equal(prefix.begin(), prefix.end(), asked[layer].keys.begin()));
    }
  }
  EXPECT_GT(memory.bytes().total(), bytes);
  // So do those of a fork, which has the question's rows in a block of others.
  const auto forked = play(session.context(), *fork, group_of(random, text_tokens(300, 1)));
  std::vector<int32_t> expected = asked[0].ordinals;
  expected.push_back(expected.back() + 1);
  EXPECT_EQ(forked[0].ordinals, expected);
}

TEST(PartialMemory, RefusesWhatItCannotDo) {
  const auto problem = [](const std::string& text) {
    try {
      memory_point().check(text);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::usage);
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(problem("uniform:rows=5"), "");
  EXPECT_EQ(problem("uniform:5,window=all"), "");
  EXPECT_NE(problem("uniform:rows=0").find("1 or more"), std::string::npos);
  EXPECT_NE(problem("frame-retrieval:positions=near").find("original or consecutive"),
            std::string::npos);
  EXPECT_NE(problem("frame-retreival").find("frame-retrieval"), std::string::npos);
  // A model whose way of turning keys is not known.
  const ThreadPool threads(1);
  const Context context(threads);
  const auto memory = make_memory("frame-retrieval", {RowLayout{1, 1, 4}, Device::cpu(), {}});
  const auto tokens = video_tokens(0, 1, 1, 2, 1);
  memory->begin(context, {tokens});
  memory->append(0);
  try {
    memory->after(context, 0, memory->queries());
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::unsupported);
  }
}

}  // namespace
}  // namespace kinora
