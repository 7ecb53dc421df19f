// Sessions that keep keys and values in 8 bits: how much they hold, that a saved one answers as
// before, with every memory, and what is refused.
#include <gtest/gtest.h>
#include <kinora/session.h>

#include <memory>
#include <string>

#include "base/device.h"
#include "base/error.h"
#include "memory/memory.h"
#include "support/film.h"
#include "support/random_data.h"
#include "support/temp_dir.h"

namespace kinora {
namespace {

AnswerOptions greedy() {
  AnswerOptions options;
  options.temperature = 0;
  options.max_tokens = 6;
  options.ignore_stop_tokens = true;
  return options;
}

InputOptions every_frame() {
  InputOptions options;
  options.frames = FrameChoice::all();
  return options;
}

class PackedRowsSession : public ::testing::TestWithParam<const char*> {
 protected:
  Session with_film(Random& random, const SessionOptions& options) {
    if (film_.empty()) film_ = testing::write_film(directory_.file("film"), random, 10, 60, 80);
    Session session(engine_, options);
    session.add(film_, every_frame());
    return session;
  }

  const testing::TempDir directory_;
  std::string film_;
  const Engine engine_{
      {.model = std::string(KINORA_FIXTURES) + "/models/" + GetParam(), .device = "cpu"}};
};

TEST_P(PackedRowsSession, HoldWhatTheirTypeTakes) {
  KINORA_FRESH_RANDOM(random);
  SessionOptions wide;
  wide.row_type = "f32";
  Session exact = with_film(random, wide);
  const Forecast expected = exact.forecast("What is it?");
  const ModelDescription model = engine_.describe();
  for (const auto& [name, type] : {std::pair{"int8", DType::i8}, std::pair{"fp8", DType::u8}}) {
    SessionOptions options;
    options.row_type = name;
    Session session = with_film(random, options);
    const Forecast cost = session.forecast("What is it?");
    EXPECT_EQ(cost.tokens, expected.tokens);
    const RowLayout layout{static_cast<int>(model.layers), static_cast<int>(model.kv_heads),
                           static_cast<int>(model.head_size), type};
    EXPECT_EQ(cost.row_bytes, cost.tokens * layout.bytes_per_token());
    EXPECT_LT(cost.row_bytes * 3, expected.row_bytes);
    EXPECT_LT(cost.memory_bytes, expected.memory_bytes);
    const Answer answer = session.ask("What is it?", greedy());
    // The last token of an answer leaves no row.
    EXPECT_EQ(answer.row_bytes, (answer.prompt_tokens + 5) * layout.bytes_per_token());
    EXPECT_EQ(answer.ids.size(), 6u);
  }
}

TEST_P(PackedRowsSession, AnswerAsBeforeWhenTheyWereSaved) {
  KINORA_FRESH_RANDOM(random);
  for (const std::string memory :
       {"flat", "sliding:rows=20", "uniform:rows=24", "frame-retrieval:rows=24", "compact:rows=24",
        "mosaic:rows=24,cluster=4"}) {
    SCOPED_TRACE(memory);
    SessionOptions options;
    options.memory = memory;
    options.row_type = random.below(2) == 0 ? "int8" : "fp8";
    options.retain = random.below(2) == 0 ? "all" : "key-norm:0.5";
    options.frames_per_group = 4;
    Session session = with_film(random, options);
    const MemoryFile saved = session.save(directory_.file("talk.kinora"));
    EXPECT_EQ(saved.row_type, options.row_type);
    const Answer first = session.ask("What is it?", greedy());
    const Answer second = session.ask("Why?", greedy());
    Session again = Session::reopen(engine_, directory_.file("talk.kinora"));
    const Answer answer = again.ask("What is it?", greedy());
    EXPECT_EQ(answer.frames, 0);
    EXPECT_EQ(answer.ids, first.ids);
    EXPECT_EQ(again.ask("Why?", greedy()).ids, second.ids);
  }
}

INSTANTIATE_TEST_SUITE_P(Families, PackedRowsSession,
                         ::testing::Values("qwen2_5_vl_tied_new", "llava_onevision_new",
                                           "qwen3_vl_tied"));

// The bundled model on a GPU. Questions whose answer depends on how rows are rounded are close to a
// tie, and do not count.
TEST(PackedRowsOnGpu, GiveTheTokensOfTheCpu) {
  if (cuda_devices().empty()) GTEST_SKIP() << "no GPU on this machine";
  const std::string models = std::string(KINORA_FIXTURES) + "/../../models/";
  const Engine cpu({.model = models + "kinora-tiny", .device = "cpu"});
  const Engine gpu({.model = models + "kinora-tiny", .device = "cuda:0"});
  const auto ask = [&](const Engine& engine, const std::string& rows, const std::string& question) {
    SessionOptions options;
    options.row_type = rows;
    Session session(engine, options);
    session.add(models + "demo.mp4");
    AnswerOptions how;
    how.temperature = 0;
    how.max_tokens = 32;
    return session.ask(question, how);
  };
  int counted = 0;
  for (const std::string question :
       {"There is a red card. What is on it?", "What moves after the bear?",
        "Which thing moves over the green stripes?", "How many cards are there?"}) {
    SCOPED_TRACE(question);
    const Answer exact = ask(cpu, "f32", question), narrow = ask(cpu, "bf16", question);
    for (const char* type : {"int8", "fp8"}) {
      SCOPED_TRACE(type);
      const Answer expected = ask(cpu, type, question), answer = ask(gpu, type, question);
      if (expected.ids != exact.ids || narrow.ids != exact.ids) continue;
      ++counted;
      EXPECT_EQ(answer.ids, expected.ids);
      EXPECT_EQ(answer.row_bytes, expected.row_bytes);
    }
  }
  EXPECT_GT(counted, 0);
}

TEST(RowTypes, OthersAreRefusedByName) {
  const Engine engine(
      {.model = std::string(KINORA_FIXTURES) + "/models/qwen2_5_vl_tied_new", .device = "cpu"});
  SessionOptions options;
  options.row_type = "int4";
  try {
    Session session(engine, options);
    FAIL() << "int4 was taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    EXPECT_NE(std::string(error.what()).find("int8"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace kinora
