// Answers of the bundled model, many at once and each alone. In f32 they are the same. In bf16 a
// product over more rows adds up in another order, so that a token may differ where two are equally
// likely within rounding, and nowhere else: what differs is counted, and every difference is looked
// at.
#include <gtest/gtest.h>
#include <kinora/session.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <latch>
#include <string>
#include <thread>
#include <vector>

#include "base/gpu.h"
#include "engine/scheduler/scheduler.h"
#include "engine/session_state.h"

namespace kinora {
namespace {

struct Crowd {
  size_t sessions = 8;
  bool gpu = false;
  std::string draft = "none";
};
void PrintTo(const Crowd& crowd, std::ostream* out) {
  *out << crowd.sessions << " sessions, draft " << crowd.draft;
}

constexpr const char* questions[] = {"What happens in the video?", "How many things move?",
                                     "What is seen first?", "Which thing moves last?",
                                     "What is behind the first thing?"};
constexpr const char* films[] = {"skills-32-0.mp4", "skills-32-1.mp4", "mixed-32-0-2.mp4"};

struct Said {
  std::vector<int32_t> ids;
  std::vector<std::vector<TokenScore>> best;  // of each token's place, likeliest first
};

class BatchedAnswers : public ::testing::TestWithParam<Crowd> {
 protected:
  void SetUp() override {
    std::string why;
    if (GetParam().gpu && cuda_devices(&why).empty()) GTEST_SKIP() << why;
    engine_ = std::make_unique<Engine>(EngineOptions{.model = KINORA_SOURCE "/models/kinora-tiny",
                                                     .device = GetParam().gpu ? "cuda" : "cpu",
                                                     .threads = 2});
  }

  Said answer(size_t who, const std::string& draft) const {
    SessionOptions options;
    options.draft = draft;
    if (!GetParam().gpu) options.row_type = "f32";
    SessionState session(EngineAccess::state(*engine_), options);
    session.add({std::string(KINORA_FIXTURES "/eval/") + films[who % std::size(films)],
                 FrameChoice::all(),
                 1,
                 {},
                 "",
                 false,
                 {}},
                {});
    Said said;
    GenerateOptions how;
    how.max_tokens = GetParam().gpu ? 96 : 32;
    how.ignore_stop_tokens = true;  // the model is less sure of itself after the end
    how.best_scores = 4;
    how.on_scores = [&](const TokenScores& scores) { said.best.push_back(scores.best); };
    said.ids =
        session
            .ask({{Modality::video, ""}, {Modality::text, questions[who % std::size(questions)]}},
                 how, nullptr, {})
            .ids;
    return said;
  }

  std::unique_ptr<Engine> engine_;
};

// How far the log probabilities of the two likeliest tokens have moved.
double moved(const std::vector<TokenScore>& alone, const std::vector<TokenScore>& together) {
  double most = 0;
  for (size_t i = 0; i < 2; ++i) {
    const auto same = std::find_if(together.begin(), together.end(), [&](const TokenScore& score) {
      return score.token == alone[i].token;
    });
    if (same == together.end()) continue;
    most = std::max(most, std::abs(same->log_probability - alone[i].log_probability));
  }
  return most;
}

TEST_P(BatchedAnswers, DifferFromThoseAloneOnlyWhereTwoTokensTie) {
  const Crowd& crowd = GetParam();
  std::vector<Said> alone, together(crowd.sessions);
  for (size_t i = 0; i < crowd.sessions; ++i) alone.push_back(answer(i, "none"));
  std::latch start(static_cast<std::ptrdiff_t>(crowd.sessions));
  std::vector<std::thread> threads;
  for (size_t i = 0; i < crowd.sessions; ++i) {
    threads.emplace_back([&, i] {
      start.arrive_and_wait();
      together[i] = answer(i, crowd.draft);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(EngineAccess::state(*engine_)->scheduler->report().largest, 1);

  struct Difference {
    size_t session, token;
  };
  std::vector<Difference> differences;
  double rounding = 0;
  int64_t compared = 0;
  for (size_t i = 0; i < crowd.sessions; ++i) {
    ASSERT_EQ(alone[i].best.size(), alone[i].ids.size());
    ASSERT_EQ(together[i].ids.size(), alone[i].ids.size());
    const auto differ =
        std::mismatch(alone[i].ids.begin(), alone[i].ids.end(), together[i].ids.begin());
    const auto same = static_cast<size_t>(differ.first - alone[i].ids.begin());
    for (size_t token = 0; token < same; ++token) {
      rounding = std::max(rounding, moved(alone[i].best[token], together[i].best[token]));
    }
    compared += static_cast<int64_t>(same);
    if (same < alone[i].ids.size()) differences.push_back({i, same});
  }
  double widest = 0;  // lead that was lost
  for (const Difference& difference : differences) {
    SCOPED_TRACE("session " + std::to_string(difference.session) + ", token " +
                 std::to_string(difference.token));
    const Said& one = alone[difference.session];
    const std::vector<TokenScore>& best = one.best[difference.token];
    EXPECT_EQ(together[difference.session].ids[difference.token], best[1].token);
    const double lead = best[0].log_probability - best[1].log_probability;
    EXPECT_LE(lead, 2 * rounding) << "by what rounding moved elsewhere, these two do not tie";
    widest = std::max(widest, lead);
  }
  std::cout << crowd.sessions << " sessions, draft " << crowd.draft << ": " << compared
            << " tokens are the same, " << differences.size()
            << " answers differ from a tie on (leads up to " << widest
            << "); rounding moved log probabilities by up to " << rounding << "\n";
  if (!crowd.gpu) {
    EXPECT_TRUE(differences.empty());
    EXPECT_LT(rounding, 1e-3);
  } else {
    EXPECT_LT(rounding, 0.5);
  }
}

INSTANTIATE_TEST_SUITE_P(Crowds, BatchedAnswers,
                         ::testing::Values(Crowd{8}, Crowd{8, false, "sparrow:adapt=0"},
                                           Crowd{8, true}, Crowd{32, true},
                                           Crowd{8, true, "sparrow:adapt=0"},
                                           Crowd{32, true, "sparrow:adapt=0,total=6,width=1"}));

}  // namespace
}  // namespace kinora
