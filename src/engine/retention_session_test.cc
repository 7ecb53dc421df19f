// Pruned memory as a session keeps it: how many rows stay, what stays the same, what is refused.
#include <gtest/gtest.h>
#include <kinora/session.h>

#include <cmath>

#include "base/error.h"
#include "support/film.h"
#include "support/random_data.h"
#include "support/temp_dir.h"

namespace kinora {
namespace {

class RetentionSession : public ::testing::Test {
 protected:
  const testing::TempDir directory_;
  const Engine engine_{{.model = std::string(KINORA_FIXTURES) + "/models/qwen2_5_vl_tied_new"}};

  static AnswerOptions greedy() {
    AnswerOptions options;
    options.temperature = 0;
    options.max_tokens = 8;
    options.ignore_stop_tokens = true;
    return options;
  }
  static SessionOptions retaining(const std::string& retain, int64_t frames_per_group = 16) {
    SessionOptions options;
    options.retain = retain;
    options.row_type = "f32";
    options.frames_per_group = frames_per_group;
    return options;
  }
};

TEST_F(RetentionSession, KeepsTheShareOfEveryGroupAndAllText) {
  KINORA_FRESH_RANDOM(random);
  const int frames = 8 + static_cast<int>(random.below(8));
  const std::string film = testing::write_film(directory_.file("film"), random, frames);
  const ModelDescription model = engine_.describe();
  const int64_t token_bytes = 2 * 4 * int64_t{model.layers} * model.kv_heads * model.head_size;
  InputOptions every;
  every.frames = FrameChoice::all();
  for (const char* rule : {"key-norm", "value-norm", "attention-score"}) {
    const int64_t group = 2 * (1 + random.below(3));
    const double ratio = random.uniform(0.1, 0.9);
    Session session(engine_, retaining(rule + (":" + std::to_string(ratio)), group));
    const InputInfo input = session.add(film, every);
    const Answer answer = session.ask("What is it?", greedy());
    const int64_t unit = input.tokens / ((frames + 1) / 2);
    int64_t kept = 0;
    for (int64_t first = 0; first < frames; first += group) {
      const int64_t units = (std::min<int64_t>(group, frames - first) + 1) / 2;
      kept += std::max<int64_t>(
          1, std::llround(std::stod(std::to_string(ratio)) * static_cast<double>(units * unit)));
    }
    // The last token of an answer is shown and not read back.
    const int64_t text =
        answer.prompt_tokens - answer.visual_tokens + static_cast<int64_t>(answer.ids.size()) - 1;
    EXPECT_EQ(answer.visual_tokens, input.tokens);
    EXPECT_EQ(answer.row_bytes, (kept + text) * token_bytes)
        << rule << " " << ratio << " " << group;
  }
}

TEST_F(RetentionSession, KeepingEverythingChangesNothing) {
  KINORA_FRESH_RANDOM(random);
  const std::string film = testing::write_film(directory_.file("film"), random, 9);
  Session plain(engine_, retaining("all", 1 + random.below(8)));
  plain.add(film);
  const Answer expected = plain.ask("What is it?", greedy());
  for (const char* retain : {"key-norm:1", "value-norm:1", "attention-score:1"}) {
    Session session(engine_, retaining(retain, 1 + random.below(8)));
    session.add(film);
    const Answer answer = session.ask("What is it?", greedy());
    EXPECT_EQ(answer.ids, expected.ids) << retain;
    EXPECT_EQ(answer.row_bytes, expected.row_bytes) << retain;
  }
}

TEST_F(RetentionSession, AttentionScoreServesOneQuestion) {
  KINORA_FRESH_RANDOM(random);
  const std::string film = testing::write_film(directory_.file("film"), random, 8);
  const auto fresh = [&](const std::string& question) {
    Session session(engine_, retaining("attention-score:0.3", 4));
    session.add(film);
    return session.ask(question, greedy());
  };
  Session session(engine_, retaining("attention-score:0.3", 4));
  const InputInfo input = session.add(film);
  EXPECT_EQ(session.ask("What is first?", greedy()).ids, fresh("What is first?").ids);
  try {
    session.ask("And then?", greedy());
    FAIL() << "a second question was answered from the rows of the first";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::unsupported) << error.what();
    EXPECT_NE(std::string(error.what()).find("attention-score"), std::string::npos);
  }
  session.clear();
  const Answer again = session.ask("Which one is the last of them?", greedy());
  EXPECT_EQ(again.ids, fresh("Which one is the last of them?").ids);
  EXPECT_EQ(again.visual_tokens, input.tokens);
}

TEST_F(RetentionSession, AWrongNameIsRefusedAtOnce) {
  EXPECT_THROW(Session(engine_, retaining("key-norm:7")), Error);
}

}  // namespace
}  // namespace kinora
