#include "engine/transcript.h"

#include <gtest/gtest.h>

#include "support/random_data.h"

namespace kinora {
namespace {

TEST(Transcript, FollowsRandomAddsAndReturns) {
  KINORA_FRESH_RANDOM(random);
  Transcript transcript;
  std::vector<int64_t> items;
  std::vector<int32_t> text;
  struct Saved {
    Transcript::Point point;
    std::vector<int64_t> items;
    std::vector<int32_t> text;
  };
  std::vector<Saved> saved;
  int visual = 0;
  for (int step = 0; step < 500; ++step) {
    const double choice = random.uniform();
    if (choice < 0.2) {
      saved.push_back({transcript.here(), items, text});
    } else if (choice < 0.35 && !saved.empty()) {
      saved.resize(1 + static_cast<size_t>(random.below(static_cast<int64_t>(saved.size()))));
      if (random.uniform() < 0.5) transcript.text().push_back(7);  // an answer that is given up
      transcript.go_back(saved.back().point);
      items = saved.back().items;
      text = saved.back().text;
    } else if (choice < 0.5) {
      transcript.add({{}, visual});
      items.push_back(-1 - visual++);
    } else {
      PromptRun run;
      for (int64_t i = random.below(9); i >= 0; --i) {
        run.ids.push_back(static_cast<int32_t>(random.below(50)));
      }
      items.insert(items.end(), run.ids.begin(), run.ids.end());
      text.insert(text.end(), run.ids.begin(), run.ids.end());
      if (choice < 0.75) {
        transcript.add(run);
      } else {
        transcript.text().insert(transcript.text().end(), run.ids.begin(), run.ids.end());
        transcript.end_answer();
      }
    }
    ASSERT_EQ(transcript.here().items, items.size());
    ASSERT_EQ(transcript.text(), text);
    ASSERT_EQ(transcript.common(items), items.size());
    std::vector<int64_t> other = items;
    other.push_back(3);
    EXPECT_EQ(transcript.common(other), items.size());
    if (items.empty()) continue;
    const auto place = static_cast<size_t>(random.below(static_cast<int64_t>(items.size())));
    other[place] += 1000;
    EXPECT_EQ(transcript.common(other), place);
  }
}

TEST(Transcript, TellsTextFromPictures) {
  Transcript transcript;
  EXPECT_FALSE(transcript.has_seen());
  transcript.add({{1, 2}, -1});
  const Transcript::Point before = transcript.here();
  transcript.add({{}, 0});
  EXPECT_TRUE(transcript.has_seen());
  EXPECT_EQ(transcript.common(flatten(std::vector<PromptRun>{{{1, 2}, -1}, {{}, 0}})), 3u);
  EXPECT_EQ(transcript.common(std::vector<int64_t>{1, 2, 0}), 2u);  // id 0 is not item 0
  transcript.go_back(before);
  EXPECT_FALSE(transcript.has_seen());
}

}  // namespace
}  // namespace kinora
