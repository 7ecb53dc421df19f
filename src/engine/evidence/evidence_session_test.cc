// Evidence as a session gives it: spans of the video that was looked at, and the same answer as
// without.
#include <gtest/gtest.h>
#include <kinora/session.h>

#include <algorithm>

#include "base/error.h"
#include "engine/session_state.h"
#include "support/film.h"
#include "support/random_data.h"
#include "support/temp_dir.h"

namespace kinora {
namespace {

class EvidenceSession : public ::testing::Test {
 protected:
  static AnswerOptions greedy(bool evidence) {
    AnswerOptions options;
    options.temperature = 0;
    options.max_tokens = 6;
    options.ignore_stop_tokens = true;
    options.evidence = evidence;
    return options;
  }
  static InputOptions every_frame() {
    InputOptions options;
    options.frames = FrameChoice::all();
    return options;
  }
  static void expect_spans(const Answer& answer, size_t input, const InputInfo& info) {
    ASSERT_FALSE(answer.evidence.empty());
    const double step = info.times[1] - info.times[0];
    const double end = info.times.back() + step;
    double shares = 0;
    for (const EvidenceSpan& span : answer.evidence) {
      EXPECT_EQ(span.input, input);
      EXPECT_GE(span.start, info.times.front());
      EXPECT_LE(span.end, end + 1e-9);
      EXPECT_GT(span.end, span.start);
      EXPECT_LE(span.end - span.start, std::max(0.05 * end, 2 * step) + 1e-9);
      shares += span.share;
    }
    EXPECT_GT(shares, 0);
    EXPECT_LE(shares, 1 + 1e-6);
  }

  const testing::TempDir directory_;
  const Engine engine_{{.model = std::string(KINORA_FIXTURES) + "/models/qwen2_5_vl_tied_new"}};
};

TEST_F(EvidenceSession, NamesPartsOfTheVideoAndChangesNoAnswer) {
  KINORA_FRESH_RANDOM(random);
  const std::string film = testing::write_film(directory_.file("film"), random, 21);
  for (const char* retain : {"all", "key-norm:0.4"}) {
    for (const char* draft : {"none", "ngram:adapt=0"}) {
      SessionOptions options;
      options.retain = retain;
      options.draft = draft;
      options.frames_per_group = 4;
      Session watched(engine_, options), plain(engine_, options);
      const InputInfo info = watched.add(film, every_frame());
      plain.add(film, every_frame());
      for (const char* question : {"What is it?", "And what came before?"}) {
        const Answer answer = watched.ask(question, greedy(true));
        const Answer without = plain.ask(question, greedy(false));
        EXPECT_EQ(answer.ids, without.ids);
        EXPECT_TRUE(without.evidence.empty());
        expect_spans(answer, 0, info);
      }
    }
  }
}

TEST_F(EvidenceSession, TellsInputsApartAndKnowsWhatIsNoVideo) {
  KINORA_FRESH_RANDOM(random);
  const std::string film = testing::write_film(directory_.file("film"), random, 9);
  const std::string picture = film + "/" + [&] {
    std::vector<std::string> names = real_files().list(film);
    std::sort(names.begin(), names.end());
    return names.front();
  }();
  Session session(engine_);
  session.add(picture);
  const InputInfo info = session.add(film, every_frame());
  expect_spans(session.ask("What is it?", greedy(true)), 1, info);

  Session still(engine_);
  still.add(picture);
  EXPECT_TRUE(still.ask("What is it?", greedy(true)).evidence.empty());
  Session talk(engine_);
  EXPECT_TRUE(talk.ask("Who are you?", greedy(true)).evidence.empty());
}

// A question that starts over, and one that fails, leave no frames of the past behind.
TEST_F(EvidenceSession, HoldsAfterTheConversationIsForgotten) {
  KINORA_FRESH_RANDOM(random);
  const std::string film = testing::write_film(directory_.file("film"), random, 12);
  Session session(engine_), fresh(engine_);
  session.add(film, every_frame());
  fresh.add(film, every_frame());
  session.ask("Something else?", greedy(true));
  session.clear();
  AnswerOptions cancelled = greedy(true);
  cancelled.cancel.cancel();
  EXPECT_THROW(session.ask("What is it?", cancelled), Error);
  const Answer again = session.ask("What is it?", greedy(true));
  const Answer first = fresh.ask("What is it?", greedy(true));
  ASSERT_EQ(again.evidence.size(), first.evidence.size());
  for (size_t i = 0; i < first.evidence.size(); ++i) {
    EXPECT_DOUBLE_EQ(again.evidence[i].start, first.evidence[i].start);
    EXPECT_DOUBLE_EQ(again.evidence[i].end, first.evidence[i].end);
    EXPECT_NEAR(again.evidence[i].share, first.evidence[i].share, 1e-4);
  }
}

// Every head by itself: together they give what all of them give.
TEST_F(EvidenceSession, ShowsWhatEveryHeadLookedAt) {
  KINORA_FRESH_RANDOM(random);
  const std::string film = testing::write_film(directory_.file("film"), random, 10);
  SessionState session(EngineAccess::state(engine_), {});
  VisualRequest request;
  request.source = film;
  request.frames = FrameChoice::all();
  session.add(request, {});
  GenerateOptions options;
  options.sampling.temperature = 0;
  options.max_tokens = 3;
  options.ignore_stop_tokens = true;
  HeadEvidence heads;
  session.ask({{Modality::video, ""}, {Modality::text, "What is it?"}}, options,
              [](std::string_view) {}, {false, &heads});
  const ModelInfo& info = session.model().info();
  ASSERT_EQ(heads.units.size(), 5u);
  ASSERT_EQ(heads.mass.size(), static_cast<size_t>(info.rows.layers * info.heads) * 5);
  for (size_t head = 0; head < heads.mass.size() / 5; ++head) {
    double sum = 0;
    for (size_t unit = 0; unit < 5; ++unit) sum += double{heads.mass[head * 5 + unit]};
    EXPECT_GT(sum, 0) << head;
    EXPECT_LT(sum, 3.001) << head;  // the question's last row and two tokens
  }
}

}  // namespace
}  // namespace kinora
