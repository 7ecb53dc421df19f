// Tokens left out before the decoder, as a session does it: what is prefilled and where it stands,
// what the forecast says, and what stays the same, in every family.
#include <gtest/gtest.h>
#include <kinora/session.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "attention/policies/dense.h"
#include "base/error.h"
#include "engine/engine_state.h"
#include "engine/ingest/unit_stream.h"
#include "engine/tokens/policies.h"
#include "engine/tokens/slow_tokens.h"
#include "memory/flat_memory.h"
#include "memory/policies.h"
#include "model/decoder/input_rows.h"
#include "support/film.h"
#include "support/random_data.h"
#include "support/temp_dir.h"

namespace kinora {
namespace {

using namespace testing;

AnswerOptions greedy(int64_t tokens = 6) {
  AnswerOptions options;
  options.temperature = 0;
  options.repetition_penalty = 1;
  options.max_tokens = tokens;
  options.ignore_stop_tokens = true;
  return options;
}

InputOptions every_frame() {
  InputOptions options;
  options.frames = FrameChoice::all();
  return options;
}

SessionOptions choosing(const std::string& tokens, int64_t frames_per_group = 4) {
  SessionOptions options;
  options.tokens = tokens;
  options.row_type = "f32";
  options.frames_per_group = frames_per_group;
  return options;
}

class TokenSession : public ::testing::TestWithParam<const char*> {
 protected:
  std::string film(Random& random, int frames, const char* name = "film") const {
    return write_film(directory_.file(name), random, frames);
  }
  const std::shared_ptr<const EngineState>& state() const { return EngineAccess::state(engine_); }

  const TempDir directory_;
  const Engine engine_{
      {.model = std::string(KINORA_FIXTURES) + "/models/" + GetParam(), .device = "cpu"}};
};

// The prompt read by hand: all frames encoded at once, tokens chosen one by one in double
// precision, positions given to all of them, and those that stay prefilled in one group.
std::vector<int32_t> read_by_hand(const EngineState& engine, const std::string& film,
                                  const std::string& question, double ratio,
                                  int64_t frames_per_group, int64_t answer) {
  const Model& model = *engine.model;
  const Context& context = engine.context;
  VisualRequest request;
  request.source = film;
  request.frames = FrameChoice::all();
  VisualInput input = open_visual(model, request, {});
  input.plan_among(model, 0);
  const VisualPlan& plan = input.plan;
  UnitStream stream(input, {}, int64_t{1} << 20);
  const auto units = stream.next();
  const Tensor seen = model.encode(context, plan, units->frames, true);
  const int64_t hidden = model.decoder().hidden_size(), unit = plan.tokens_per_unit;
  SlowVideo video{unit, hidden, {}};
  for (int64_t i = 0; i < plan.units * unit; ++i) {
    const float* row = seen.view().row<float>(i);
    video.values.insert(video.values.end(), row, row + hidden);
  }
  const std::vector<double> changes = slow_changes(video);
  const int64_t group = whole_units(frames_per_group, plan.frames_per_unit) / plan.frames_per_unit;
  std::vector<int32_t> kept;
  for (int64_t first = 0; first < plan.units; first += group) {
    const int64_t count = std::min(group, plan.units - first) * unit;
    std::vector<int32_t> order(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) {
      order[static_cast<size_t>(i)] = static_cast<int32_t>(first * unit + i);
    }
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return changes[static_cast<size_t>(a)] > changes[static_cast<size_t>(b)];
    });
    const auto share = static_cast<int64_t>(std::round(ratio * static_cast<double>(count)));
    order.resize(static_cast<size_t>(std::max(share, first == 0 ? unit : int64_t{1})));
    kept.insert(kept.end(), order.begin(), order.end());
  }
  std::sort(kept.begin(), kept.end());
  for (int64_t i = plan.units * unit; i < seen.size(0); ++i) {
    kept.push_back(static_cast<int32_t>(i));
  }

  Conversation conversation;
  conversation.turns.push_back({"user", {}});
  std::vector<ContentPart>& parts = conversation.turns.back().parts;
  const int64_t segments = plan.units_apart ? plan.units : 1;
  for (int64_t i = 0; i < segments; ++i) {
    parts.push_back({Modality::video, ""});
    if (!plan.units_apart) continue;
    const auto frame = static_cast<size_t>(i * plan.frames_per_unit);
    const size_t last =
        std::min(frame + static_cast<size_t>(plan.frames_per_unit) - 1, input.samples.size() - 1);
    parts.back().time = (input.samples[frame].time + input.samples[last].time) / 2;
    parts.back().continues = i > 0;
  }
  parts.push_back({Modality::text, question});
  const auto positions = model.positions();
  Sequence prompt;
  std::vector<Tensor> pieces;
  for (const PromptRun& run : model.render(conversation)) {
    if (run.visual < 0) {
      positions->text(std::ssize(run.ids), prompt.tokens);
      pieces.push_back(model.decoder().embed(context, run.ids));
      continue;
    }
    const int64_t first = plan.units_apart ? run.visual : 0;
    const int64_t count = plan.units_apart ? 1 : plan.units;
    const std::vector<double> times(units->times.begin() + first,
                                    units->times.begin() + first + count);
    std::vector<TokenInfo> all;
    positions->visual(plan, first, count, times, first + count == plan.units, all);
    for (const int32_t token : kept) {
      const int64_t place = token - first * unit;
      if (place < 0 || place >= std::ssize(all)) continue;
      prompt.tokens.push_back(all[static_cast<size_t>(place)]);
      Tensor row(DType::f32, {1, seen.size(1)});
      std::copy_n(seen.view().row<float>(token), seen.size(1), row.data<float>());
      pieces.push_back(std::move(row));
    }
  }
  set_input_rows(context, pieces, hidden, prompt);
  RowLayout layout = model.info().rows;
  layout.dtype = DType::f32;
  FlatMemory memory(layout, context.device, {});
  DenseAttention attention;
  const auto runner = model.decoder().runner(context);
  prompt.memory = &memory;
  prompt.attention = &attention;
  Tensor last = runner->forward(prompt).hidden;
  std::vector<int32_t> ids;
  while (std::ssize(ids) < answer) {
    const Tensor logits = model.decoder().logits(context, last);
    const auto* begin = logits.data<float>();
    ids.push_back(static_cast<int32_t>(std::max_element(begin, begin + logits.size(1)) - begin));
    Sequence next;
    next.ids = {ids.back()};
    positions->text(1, next.tokens);
    next.memory = &memory;
    next.attention = &attention;
    last = runner->forward(next).hidden;
  }
  return ids;
}

TEST_P(TokenSession, WhatStaysIsReadWhereItStoodAmongAll) {
  KINORA_FRESH_RANDOM(random);
  for (int round = 0; round < 3; ++round) {
    const int frames = 1 + static_cast<int>(random.below(10));
    const std::string path = film(random, frames, std::to_string(round).c_str());
    const int64_t group = 1 + random.below(6);
    const std::string ratio = std::to_string(random.uniform(0.1, 0.9)).substr(0, 5);
    SessionOptions options = choosing("evs:" + ratio, group);
    options.max_group_tokens = 1 + random.below(100);
    Session session(engine_, options);
    const InputInfo input = session.add(path, every_frame());
    const Forecast forecast = session.forecast("What is it?");
    const Answer answer = session.ask("What is it?", greedy());
    EXPECT_EQ(answer.ids, read_by_hand(*state(), path, "What is it?", std::stod(ratio), group, 6))
        << frames << " frames, groups of " << group << ", " << ratio;
    EXPECT_EQ(answer.visual_tokens, input.tokens);
    EXPECT_EQ(answer.visual_tokens, forecast.visual_tokens);
    EXPECT_EQ(answer.prompt_tokens, forecast.tokens);
    EXPECT_EQ(std::ssize(answer.prompt_ids), answer.prompt_tokens);
    EXPECT_EQ(answer.frames, frames);
  }
}

TEST_P(TokenSession, TheForecastIsExactUnderEveryRuleAndPruning) {
  KINORA_FRESH_RANDOM(random);
  const int frames = 5 + static_cast<int>(random.below(9));
  const std::string path = film(random, frames);
  for (const TokenPolicy& policy : token_policies()) {
    for (const std::string retain : {"all", "key-norm:0.4"}) {
      const std::string ratio = ":" + std::to_string(random.uniform(0.05, 0.95)).substr(0, 5);
      SessionOptions options = choosing(policy.info.name, 1 + random.below(7));
      if (policy.info.name != "all") options.tokens += ratio;
      options.retain = retain;
      SCOPED_TRACE(options.tokens + " " + retain);
      Session session(engine_, options);
      session.add(path, every_frame());
      const Forecast forecast = session.forecast("What is it?");
      const Answer answer = session.ask("What is it?", greedy(1));  // its token is not read back
      EXPECT_EQ(answer.visual_tokens, forecast.visual_tokens);
      EXPECT_EQ(answer.prompt_tokens, forecast.tokens);
      EXPECT_EQ(answer.row_bytes, forecast.row_bytes);
      if (!answer.evidence.empty()) {
        EXPECT_GE(answer.evidence[0].start, 0);
        EXPECT_GT(answer.evidence[0].share, 0);
      }
    }
  }
}

TEST_P(TokenSession, RatioOneChangesNothing) {
  KINORA_FRESH_RANDOM(random);
  const std::string path = film(random, 9);
  Session plain(engine_, choosing("all"));
  plain.add(path, every_frame());
  const Answer expected = plain.ask("What is it?", greedy());
  for (const TokenPolicy& policy : token_policies()) {
    Session session(engine_, choosing(policy.info.name + ":1"));
    session.add(path, every_frame());
    const Answer answer = session.ask("What is it?", greedy());
    EXPECT_EQ(answer.ids, expected.ids) << policy.info.name;
    EXPECT_EQ(answer.prompt_ids, expected.prompt_ids);
    EXPECT_EQ(answer.row_bytes, expected.row_bytes);
  }
}

TEST_P(TokenSession, OneStepAndPicturesAreLeftWhole) {
  KINORA_FRESH_RANDOM(random);
  const std::string path = film(random, 1);
  for (const std::string& source : {path, path + "/1000.ppm"}) {
    Session plain(engine_, choosing("all")), pruned(engine_, choosing("evs:0.01"));
    plain.add(source);
    EXPECT_EQ(pruned.add(source).tokens, plain.inputs()[0].tokens);
    const Answer expected = plain.ask("What is it?", greedy());
    const Answer answer = pruned.ask("What is it?", greedy());
    EXPECT_EQ(answer.ids, expected.ids);
    EXPECT_EQ(answer.visual_tokens, expected.visual_tokens);
  }
}

TEST_P(TokenSession, SeveralVideosAndQuestionsAreReadOnce) {
  KINORA_FRESH_RANDOM(random);
  const std::string one = film(random, 7, "one"), two = film(random, 4, "two");
  const auto fresh = [&](const std::string& question) {
    Session session(engine_, choosing("evs:0.3"));
    session.add(one, every_frame());
    session.add(one + "/1000.ppm");
    session.add(two, every_frame());
    return session.ask(question, greedy());
  };
  Session session(engine_, choosing("evs:0.3"));
  session.add(one, every_frame());
  session.add(one + "/1000.ppm");
  session.add(two, every_frame());
  const Answer prepared = session.prepare();
  int64_t expected = 0;
  for (const InputInfo& input : session.inputs()) expected += input.tokens;
  EXPECT_EQ(prepared.visual_tokens, expected);
  const Answer first = session.ask("What is first?", greedy());
  EXPECT_EQ(first.visual_tokens, 0);
  EXPECT_EQ(first.ids, fresh("What is first?").ids);
  EXPECT_EQ(first.prompt_ids, fresh("What is first?").prompt_ids);
  session.clear();
  const Answer second = session.ask("And what then?", greedy());
  EXPECT_EQ(second.visual_tokens, 0);
  EXPECT_EQ(second.ids, fresh("And what then?").ids);
  EXPECT_EQ(second.prompt_ids, fresh("And what then?").prompt_ids);
}

TEST_P(TokenSession, SubtitlesCutItAnywhere) {
  KINORA_FRESH_RANDOM(random);
  const std::string path = film(random, 8);
  const std::string lines = directory_.file("lines.srt");
  real_files().write(lines,
                     "1\n00:00:01,000 --> 00:00:02,000\nHello\n\n"
                     "2\n00:00:03,000 --> 00:00:04,000\nthere\n\n"
                     "3\n00:00:06,500 --> 00:00:07,000\nyou\n");
  InputOptions options = every_frame();
  options.subtitles = lines;
  std::vector<int32_t> ids;
  for (const int64_t group : {1000, 7}) {
    SessionOptions reading = choosing("evs:0.4", 16);
    reading.max_group_tokens = group;
    Session session(engine_, reading);
    session.add(path, options);
    const Forecast forecast = session.forecast("What is it?");
    const Answer answer = session.ask("What is it?", greedy());
    EXPECT_EQ(answer.prompt_tokens, forecast.tokens);
    EXPECT_EQ(std::ssize(answer.prompt_ids), answer.prompt_tokens);
    if (ids.empty()) ids = answer.ids;
    EXPECT_EQ(answer.ids, ids);
  }
}

TEST_P(TokenSession, EveryMemoryAnswers) {
  KINORA_FRESH_RANDOM(random);
  const std::string path = film(random, 9);
  for (const MemoryPolicy& policy : memory_policies()) {
    SCOPED_TRACE(policy.info.name);
    SessionOptions options = choosing("evs:0.25");
    options.memory = policy.info.name;
    Session session(engine_, options);
    const InputInfo input = session.add(path, every_frame());
    const Answer answer = session.ask("What is it?", greedy());
    EXPECT_EQ(answer.ids.size(), 6u);
    EXPECT_EQ(answer.visual_tokens, input.tokens);
  }
}

TEST_P(TokenSession, ABudgetCountsWhatIsLeft) {
  KINORA_FRESH_RANDOM(random);
  const std::string path = film(random, 10);
  const auto frames = [&](const std::string& tokens) {
    SessionOptions options = choosing(tokens, 2);
    options.max_context = 110;
    Session session(engine_, options);
    session.add(path, every_frame());
    const Forecast forecast = session.forecast("?");
    const Answer answer = session.ask("?", greedy(1));
    EXPECT_EQ(answer.frames, forecast.frames);
    EXPECT_EQ(answer.prompt_tokens, forecast.tokens);
    return answer.frames;
  };
  EXPECT_GE(frames("evs:0.2"), frames("all"));
}

INSTANTIATE_TEST_SUITE_P(Families, TokenSession,
                         ::testing::Values("qwen2_5_vl_tied_new", "qwen3_vl_tied",
                                           "qwen3_vl_tied_v5", "llava_onevision_new",
                                           "llava_video_grid"));

class TokenStream : public ::testing::TestWithParam<const char*> {};

TEST_P(TokenStream, WhatComesWithoutAnEndIsChosenLikeAFile) {
  KINORA_FRESH_RANDOM(random);
  const TempDir directory;
  const Engine engine{{.model = std::string(KINORA_FIXTURES) + "/models/" + GetParam()}};
  const std::string path = write_film(directory.file("film"), random, 12);
  InputOptions input;
  input.frames = FrameChoice::rate(1);
  Session watching(engine, choosing("evs:0.3", 2)), plain(engine, choosing("evs:0.3", 2));
  watching.open(path, input);
  int64_t taken = 0;
  while (true) {
    const TakenIn more = watching.take_in(2);
    taken += more.frames;
    if (more.ended) break;
    watching.ask("And now?", greedy(2));
    watching.clear();
  }
  const InputInfo whole = plain.add(path, input);
  EXPECT_EQ(taken, 12);
  EXPECT_EQ(watching.inputs()[0].tokens, whole.tokens);
  const Answer answer = watching.ask("What is it?", greedy());
  const Answer expected = plain.ask("What is it?", greedy());
  EXPECT_EQ(answer.ids, expected.ids);
  EXPECT_EQ(answer.prompt_ids, expected.prompt_ids);
  EXPECT_EQ(answer.row_bytes, expected.row_bytes);
}

INSTANTIATE_TEST_SUITE_P(Families, TokenStream,
                         ::testing::Values("qwen2_5_vl_tied_new", "llava_onevision_new"));

TEST(TokenChoiceInASession, AWrongNameIsRefusedAtOnce) {
  const Engine engine{{.model = std::string(KINORA_FIXTURES) + "/models/qwen2_5_vl_tied_new"}};
  EXPECT_THROW(Session(engine, choosing("evs:7")), Error);
  EXPECT_THROW(Session(engine, choosing("evs")), Error);
  EXPECT_THROW(Session(engine, choosing("none:0.5")), Error);
}

}  // namespace
}  // namespace kinora
