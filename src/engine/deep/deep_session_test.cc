// Qwen3-VL in a session: units with text between them, visual tokens with deep rows beside them,
// under every policy that there is.
#include <gtest/gtest.h>
#include <kinora/session.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "attention/policies/all.h"
#include "attention/policies/head_table.h"
#include "base/error.h"
#include "base/file.h"
#include "engine/engine_state.h"
#include "generate/policies.h"
#include "memory/policies.h"
#include "memory/retention/policies.h"
#include "support/film.h"
#include "support/random_data.h"
#include "support/temp_dir.h"

namespace kinora {
namespace {

const std::string fixture = std::string(KINORA_FIXTURES) + "/models/qwen3_vl_tied";

class DeepSession : public ::testing::Test {
 protected:
  const testing::TempDir directory_;

  // Up to ten frames come to units of 2 × 2 tokens, which the budget of a video still allows.
  std::string film(Random& random, int frames) const {
    return testing::write_film(directory_.file("film"), random, frames, 60, 80);
  }
  static AnswerOptions greedy() {
    AnswerOptions options;
    options.temperature = 0;
    options.max_tokens = 12;
    options.ignore_stop_tokens = true;
    return options;
  }
  static SessionOptions plain() {
    SessionOptions options;
    options.row_type = "f32";
    options.frames_per_group = 6;
    options.max_group_tokens = 1;
    options.dense_below = 0;
    return options;
  }
  static Answer ask(const Engine& engine, const std::string& film, const SessionOptions& options) {
    Session session(engine, options);
    InputOptions every;
    every.frames = FrameChoice::all();
    session.add(film, every);
    return session.ask("What is it?", greedy());
  }
  // A copy of the model with a table that gives every head the same pattern.
  std::string with_table(const std::string& pattern) const {
    const std::string model = directory_.file("model");
    std::filesystem::copy(fixture, model);
    HeadTable table;
    const ModelDescription known = Engine({.model = fixture, .device = "cpu"}).describe();
    constexpr int heads = 3;
    table.shape = {known.family + " " + std::to_string(known.parameters), known.layers, heads,
                   known.kv_heads, known.head_size};
    HeadChoice choice;
    choice.patterns.push_back({{}, {}, parse_pattern(pattern)});
    table.heads.assign(static_cast<size_t>(known.layers * heads), choice);
    real_files().write(head_table_places(model).front(), to_json(table));
    return model;
  }
};

TEST_F(DeepSession, EveryAttentionPolicyAnswers) {
  KINORA_FRESH_RANDOM(random);
  const std::string path = film(random, 10);
  const Engine engine({.model = with_table("a-shape:sink=16,local=64"), .device = "cpu"});
  const Answer dense = ask(engine, path, plain());
  ASSERT_EQ(dense.visual_tokens, 5 * 2 * 2);
  for (const AttentionPolicy& policy : attention_policies()) {
    SCOPED_TRACE(policy.info.name);
    SessionOptions options = plain();
    options.attention = policy.info.name;
    const Answer answer = ask(engine, path, options);
    EXPECT_EQ(answer.ids.size(), dense.ids.size());
    EXPECT_EQ(answer.prompt_tokens, dense.prompt_tokens);
    EXPECT_EQ(answer.row_bytes, dense.row_bytes);
  }
  // Those that read everything are dense attention.
  for (const char* attention :
       {"a-shape:sink=128,local=100000", "tri-shape:sink=128,local=100000", "grid:stride=1",
        "sf-fixed:stride=1", "vertical-slash:verticals=100000,slashes=100000", "momo:keys=100000",
        "oracle:keys=100000"}) {
    SessionOptions options = plain();
    options.attention = attention;
    EXPECT_EQ(ask(engine, path, options).ids, dense.ids) << attention;
  }
}

TEST_F(DeepSession, EveryRetentionPolicyKeepsItsShareAndAllText) {
  KINORA_FRESH_RANDOM(random);
  const std::string path = film(random, 10);
  const Engine engine({.model = fixture, .device = "cpu"});
  const ModelDescription model = engine.describe();
  const int64_t token_bytes = 2 * 4 * int64_t{model.layers} * model.kv_heads * model.head_size;
  const Answer all = ask(engine, path, plain());
  const int64_t text =
      all.prompt_tokens - all.visual_tokens + static_cast<int64_t>(all.ids.size()) - 1;
  EXPECT_EQ(all.row_bytes, (all.visual_tokens + text) * token_bytes);
  for (const RetentionPolicy& policy : retention_policies()) {
    if (policy.info.name == "all") continue;
    SCOPED_TRACE(policy.info.name);
    SessionOptions options = plain();
    options.retain = policy.info.name + ":1";
    EXPECT_EQ(ask(engine, path, options).ids, all.ids);
    options.retain = policy.info.name + ":0.5";
    const Answer half = ask(engine, path, options);
    // Groups of three and two units.
    EXPECT_EQ(half.row_bytes, (all.visual_tokens / 2 + text) * token_bytes);
  }
}

TEST_F(DeepSession, EveryMemoryAndDraftPolicyAnswers) {
  KINORA_FRESH_RANDOM(random);
  const std::string path = film(random, 10);
  const Engine engine({.model = fixture, .device = "cpu"});
  const Answer expected = ask(engine, path, plain());
  for (const MemoryPolicy& policy : memory_policies()) {
    SCOPED_TRACE(policy.info.name);
    SessionOptions options = plain();
    options.memory = policy.info.name;
    const Answer answer = ask(engine, path, options);
    EXPECT_EQ(answer.ids.size(), expected.ids.size());
    EXPECT_EQ(answer.prompt_tokens, expected.prompt_tokens);
  }
  for (const DraftPolicy& policy : draft_policies()) {
    SCOPED_TRACE(policy.info.name);
    SessionOptions options = plain();
    options.draft = policy.info.name;
    if (policy.info.name == "sparrow") {  // no draft came with this model
      EXPECT_THROW(ask(engine, path, options), Error);
      continue;
    }
    EXPECT_EQ(ask(engine, path, options).ids, expected.ids);
  }
}

// The answers of a source that is taken in as it comes are those of a file that ends there, also
// where only some rows are read or kept.
TEST_F(DeepSession, EveryMemoryAndRetentionPolicyFollowsAStream) {
  KINORA_FRESH_RANDOM(random);
  const std::string path = film(random, 10);
  const Engine engine({.model = fixture, .device = "cpu"});
  InputOptions input;
  input.frames = FrameChoice::all();
  input.max_pixels = 32 * 32;  // one that may become long has frames as small as that
  std::vector<SessionOptions> all;
  for (const MemoryPolicy& policy : memory_policies()) {
    all.push_back(plain());
    all.back().memory = policy.info.name;
    if (policy.info.name == "flat" || policy.info.name == "compact") continue;
    all.push_back(all.back());
    all.back().memory += ":rows=2";
  }
  all.push_back(plain());
  all.back().memory = "mosaic:rows=2,window=2,cluster=2";
  for (const RetentionPolicy& policy : retention_policies()) {
    SessionOptions options = plain();
    options.retain = policy.info.name;
    if (policy.info.name != "all") options.retain += ":0.5";
    if (!parse_retention(options.retain).needs_question()) all.push_back(options);
  }
  for (SessionOptions& options : all) {
    SCOPED_TRACE(options.memory + " " + options.retain);
    options.frames_per_group = 4;
    options.max_group_tokens = 1 << 20;
    // New frames that see only some of the earlier ones see others where groups end elsewhere.
    const bool same_rows =
        options.memory != "sliding:rows=2" && options.memory.find("window") == std::string::npos;
    Session file(engine, options), stream(engine, options);
    const InputInfo whole = file.add(path, input);
    const InputInfo opened = stream.open(path, input);
    ASSERT_EQ(opened.width, whole.width);
    ASSERT_EQ(opened.height, whole.height);
    stream.take_in(4, {}, 4);
    const Answer early = stream.ask("What is it?", greedy());
    EXPECT_EQ(early.ids.size(), 12u);
    while (!stream.take_in(1).ended) continue;
    stream.clear();
    const Answer expected = file.ask("What is it?", greedy());
    const Answer answer = stream.ask("What is it?", greedy());
    if (same_rows) {
      EXPECT_EQ(answer.ids, expected.ids);
      EXPECT_EQ(answer.row_bytes, expected.row_bytes);
    }
    EXPECT_EQ(answer.ids.size(), 12u);
    EXPECT_EQ(answer.prompt_ids, expected.prompt_ids);
    EXPECT_EQ(answer.visual_tokens, 0);
    EXPECT_EQ(stream.inputs()[0].tokens, whole.tokens);
  }
}

// What was asked while less of it had come speaks of all of it: the conversation goes on as if the
// video had been that long from the beginning.
TEST_F(DeepSession, AConversationAboutAStreamGoesOnAndIsSaved) {
  KINORA_FRESH_RANDOM(random);
  const std::string path = film(random, 8);
  const Engine engine({.model = fixture, .device = "cpu"});
  InputOptions input;
  input.frames = FrameChoice::all();
  input.max_pixels = 32 * 32;
  SessionOptions options = plain();
  options.frames_per_group = 2;
  Session stream(engine, options);
  stream.open(path, input);
  stream.take_in(2, {}, 2);
  const Answer first = stream.ask("What is it?", greedy());
  while (!stream.take_in(1).ended) continue;
  const Answer second = stream.ask("And now?", greedy());
  EXPECT_EQ(second.visual_tokens, 0);
  // Three more units, each with its time, its markers and its token.
  EXPECT_GT(second.prompt_ids.size(), first.prompt_ids.size() + 3 * 4);
  const int64_t tokens = std::count(second.prompt_ids.begin(), second.prompt_ids.end(),
                                    EngineAccess::state(engine)->model->info().video_token);
  EXPECT_EQ(tokens, 4);
  // Saved and opened again, it is the same video.
  const std::string saved = directory_.file("saved");
  stream.save(saved);
  stream.clear();
  const Answer again = stream.ask("What is it?", greedy());
  EXPECT_EQ(Session::reopen(engine, saved).ask("What is it?", greedy()).ids, again.ids);
}

// Another question about the same video reads none of it again.
TEST_F(DeepSession, TheVideoIsReadOnce) {
  KINORA_FRESH_RANDOM(random);
  const std::string path = film(random, 9);
  const Engine engine({.model = fixture, .device = "cpu"});
  Session session(engine, plain());
  session.add(path);
  const Answer prepared = session.prepare();
  EXPECT_EQ(prepared.visual_tokens, 5 * 2 * 2);
  const Answer first = session.ask("What is it?", greedy());
  EXPECT_EQ(first.visual_tokens, 0);
  Session fresh(engine, plain());
  fresh.add(path);
  EXPECT_EQ(first.ids, fresh.ask("What is it?", greedy()).ids);
  session.clear();
  const Answer other = session.ask("What else?", greedy());
  EXPECT_EQ(other.visual_tokens, 0);
  Session again(engine, plain());
  again.add(path);
  EXPECT_EQ(other.ids, again.ask("What else?", greedy()).ids);
}

// The later form has one more marker before and one after the video.
TEST_F(DeepSession, ThePromptFormCanBeChosen) {
  KINORA_FRESH_RANDOM(random);
  const std::string path = film(random, 6);
  const auto tokens = [&](const std::string& model, const std::string& form) {
    const Engine engine({.model = model, .device = "cpu", .video_prompt = form});
    return ask(engine, path, plain()).prompt_tokens;
  };
  const int64_t old = tokens(fixture, "auto");
  EXPECT_EQ(tokens(fixture, "4.57"), old);
  EXPECT_EQ(tokens(fixture, "5.10"), old + 2);
  EXPECT_EQ(tokens(fixture + "_v5", "auto"), old + 2);
  EXPECT_EQ(tokens(fixture + "_v5", "4.57"), old);
  try {
    tokens(fixture, "6");
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    EXPECT_NE(std::string(error.what()).find("4.57"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace kinora
