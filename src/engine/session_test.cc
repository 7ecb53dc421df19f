// The whole road on the reference fixtures: picture files in, Hugging Face's tokens out.
#include <gtest/gtest.h>
#include <kinora/session.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "model/weights/safetensors.h"
#include "support/film.h"
#include "support/procedural_pixels.h"
#include "support/random_data.h"
#include "support/temp_dir.h"

namespace kinora {
namespace {

const std::string fixtures = KINORA_FIXTURES;

struct Case {
  std::string model;
  std::string name;
};

void PrintTo(const Case& value, std::ostream* out) { *out << value.model << "/" << value.name; }

// Every case that one question can ask: an optional system turn and one user turn.
std::vector<Case> single_turn_cases() {
  std::vector<Case> cases;
  for (const auto& file : std::filesystem::recursive_directory_iterator(fixtures + "/cases")) {
    if (file.path().extension() != ".json") continue;
    const auto json = nlohmann::json::parse(std::ifstream(file.path()));
    size_t turns = 0;
    for (const auto& message : json.at("messages")) turns += message.at("role") != "system";
    if (turns == 1) cases.push_back({json.at("model"), json.at("case")});
  }
  std::sort(cases.begin(), cases.end(),
            [](const Case& a, const Case& b) { return a.model + a.name < b.model + b.name; });
  return cases;
}

class SessionOnFixtures : public ::testing::TestWithParam<Case> {
 protected:
  SessionOnFixtures()
      : json_(nlohmann::json::parse(std::ifstream(path() + ".json"))),
        tensors_(SafetensorsFile::open(real_files(), path() + ".safetensors")) {}

  std::string path() const {
    return fixtures + "/cases/" + GetParam().model + "/" + GetParam().name;
  }
  std::string model() const { return fixtures + "/models/" + GetParam().model; }

  static std::string text_of(const nlohmann::json& content) {
    return content.is_string() ? content.get<std::string>()
                               : content.at(0).at("text").get<std::string>();
  }

  // Writes the pictures of the user's turn to files, adds them, and returns the question.
  std::vector<QuestionPart> prepare(Session& session) {
    std::vector<QuestionPart> parts;
    for (const auto& message : json_.at("messages")) {
      if (message.at("role") != "user") continue;
      const auto& content = message.at("content");
      if (content.is_string()) return {{content.get<std::string>()}};
      for (const auto& part : content) {
        if (part.at("type") == "text") {
          parts.push_back({part.at("text").get<std::string>()});
          continue;
        }
        parts.push_back({});
        add(session, part.at("type"), part.at("index"));
      }
    }
    return parts;
  }

  void add(Session& session, const std::string& kind, int index) {
    const auto& picture = json_.at(kind + "s").at(static_cast<size_t>(index));
    const int64_t frames = kind == "image" ? 1 : picture.at("frames").get<int64_t>();
    const Tensor source = testing::procedural_clip(picture.at("seed"), frames, picture.at("height"),
                                                   picture.at("width"));
    const std::string name = directory_.file(kind + std::to_string(index));
    InputOptions options;
    options.frames = FrameChoice::all();
    if (kind == "image") {
      testing::write_picture(name + ".ppm", ConstTensorView(source)[0]);
      session.add(name + ".ppm", options);
      return;
    }
    std::filesystem::create_directory(name);
    for (int64_t i = 0; i < source.size(0); ++i) {
      testing::write_picture(name + "/" + std::to_string(1000 + i) + ".ppm",
                             ConstTensorView(source)[i]);
    }
    options.folder_fps = picture.at("fps");
    session.add(name, options);
  }

  std::string system() const {
    const auto& first = json_.at("messages").at(0);
    return first.at("role") == "system" ? text_of(first.at("content")) : "";
  }

  testing::TempDir directory_;
  nlohmann::json json_;
  SafetensorsFile tensors_;
};

TEST_P(SessionOnFixtures, AnswersTokenForToken) {
  KINORA_FRESH_RANDOM(random);
  const Engine engine({.model = model(), .gpu_exact = true});
  SessionOptions options;
  options.system = system();
  options.row_type = "f32";
  // Any way of cutting the prompt into groups gives the same tokens.
  options.frames_per_group = 1 + random.below(6);
  options.max_group_tokens = 1 + random.below(200);
  Session session(engine, options);
  const auto parts = prepare(session);
  AnswerOptions greedy;
  greedy.temperature = 0;
  greedy.repetition_penalty = 1;
  greedy.ignore_stop_tokens = true;
  greedy.max_tokens = 64;
  std::string streamed;
  const Answer answer =
      session.ask(parts, greedy, [&](std::string_view piece) { streamed += piece; });
  EXPECT_EQ(answer.ids, json_.at("greedy").get<std::vector<int32_t>>());
  EXPECT_EQ(answer.prompt_tokens, tensors_.tensor("input_ids").size(0));
  const ConstTensorView ids = tensors_.tensor("input_ids");
  EXPECT_EQ(answer.prompt_ids,
            std::vector<int32_t>(ids.data<int32_t>(), ids.data<int32_t>() + ids.size(0)));
  EXPECT_EQ(streamed, answer.text);
  EXPECT_EQ(answer.stop, "max-tokens");
}

TEST_P(SessionOnFixtures, EveryGroupSizeGivesTheSameTokens) {
  const Engine engine({.model = model(), .gpu_exact = true});
  AnswerOptions greedy;
  greedy.temperature = 0;
  greedy.repetition_penalty = 1;
  greedy.ignore_stop_tokens = true;
  greedy.max_tokens = 8;
  std::vector<int32_t> expected = json_.at("greedy").get<std::vector<int32_t>>();
  expected.resize(8);
  const auto ask = [&](int64_t frames, int64_t tokens) {
    SessionOptions options;
    options.system = system();
    options.row_type = "f32";
    options.frames_per_group = frames;
    options.max_group_tokens = tokens;
    Session session(engine, options);
    const auto parts = prepare(session);
    const Answer answer = session.ask(parts, greedy);
    EXPECT_EQ(answer.ids, expected) << "groups of " << frames << " frames, " << tokens << " tokens";
    return std::make_pair(answer.frames, answer.prompt_tokens);
  };
  const auto [frames, tokens] = ask(1 << 20, 1 << 20);  // in one shot
  for (int64_t size = 1; size <= frames; ++size) ask(size, 1);
  for (int64_t size = 1; size < tokens; size += 1 + size / 4) ask(1, size);
}

INSTANTIATE_TEST_SUITE_P(Cases, SessionOnFixtures, ::testing::ValuesIn(single_turn_cases()),
                         [](const auto& test) { return test.param.model + "_" + test.param.name; });

TEST(Session, ClearKeepsWhatWasPrefilledOfAVideo) {
  const testing::TempDir directory;
  KINORA_FRESH_RANDOM(random);
  const std::string path = testing::write_film(directory.file("film"), random, 6);
  const Engine engine({.model = fixtures + "/models/qwen2_5_vl_tied_new"});
  AnswerOptions greedy;
  greedy.temperature = 0;
  greedy.max_tokens = 12;
  greedy.ignore_stop_tokens = true;
  const auto fresh = [&](const std::string& question) {
    Session session(engine);
    session.add(path);
    return session.ask(question, greedy);
  };
  Session session(engine);
  int64_t unread = session.add(path).tokens;
  for (const char* question : {"What is first?", "What is last, and why?", "What is first?"}) {
    const Answer expected = fresh(question);
    const Answer actual = session.ask(question, greedy);
    EXPECT_EQ(actual.ids, expected.ids) << question;
    EXPECT_EQ(actual.row_bytes, expected.row_bytes) << question;
    EXPECT_EQ(actual.visual_tokens, std::exchange(unread, 0)) << question;
    session.clear();
  }
}

TEST(Session, LooksAtTheFramesThatWereChosen) {
  const testing::TempDir directory;
  KINORA_FRESH_RANDOM(random);
  const std::string film = testing::write_film(directory.file("film"), random, 12);  // 1 fps
  const Engine qwen({.model = fixtures + "/models/qwen2_5_vl_tied_new"});
  const Engine llava({.model = fixtures + "/models/llava_onevision_new"});
  using Times = std::vector<double>;
  const auto times = [&](const Engine& engine, const FrameChoice& choice) {
    return Session(engine).add(film, {.frames = choice}).times;
  };
  // A rate and a number are placed as the family was trained.
  EXPECT_EQ(times(qwen, {}).size(), 12u);
  EXPECT_EQ(times(qwen, FrameChoice::rate(0.5)), (Times{0, 2, 4, 7, 9, 11}));
  EXPECT_EQ(times(qwen, FrameChoice::evenly(4)), (Times{0, 4, 7, 11}));
  EXPECT_EQ(times(qwen, {.start = 8}), (Times{8, 9, 10, 11}));
  EXPECT_EQ(times(llava, FrameChoice::rate(0.5)), (Times{0, 2, 4, 6, 8, 10}));
  EXPECT_EQ(times(llava, FrameChoice::evenly(4)), (Times{0, 3, 7, 11}));
  for (const Engine* engine : {&qwen, &llava}) {
    EXPECT_EQ(times(*engine, FrameChoice::at_times({5.5, 2, 7})), (Times{2, 5, 7}));
    EXPECT_EQ(times(*engine, FrameChoice::at_indices({9, 3})), (Times{3, 9}));
    EXPECT_EQ(times(*engine, FrameChoice::all().within(3, 6)), (Times{3, 4, 5, 6}));
    for (const FrameChoice& wrong :
         {FrameChoice::rate(0), FrameChoice::evenly(0), FrameChoice::at_indices({}),
          FrameChoice::at_indices({12}), FrameChoice::all().within(6, 3)}) {
      try {
        times(*engine, wrong);
        ADD_FAILURE() << "accepted";
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::usage) << error.what();
      }
    }
    EXPECT_THROW(times(*engine, FrameChoice::all().within(20, 30)), Error);
  }
  Session session(qwen);
  session.add(film, {.frames = FrameChoice::at_times({2, 5, 7})});
  AnswerOptions brief;
  brief.max_tokens = 2;
  EXPECT_EQ(session.ask("What is it?", brief).frames, 3);
}

class TextSession : public ::testing::Test {
 protected:
  const Engine engine_{{.model = fixtures + "/models/qwen2_tied", .gpu_exact = true}};

  static AnswerOptions options(int64_t tokens) {
    AnswerOptions options;
    options.temperature = 0;
    options.repetition_penalty = 1;
    options.max_tokens = tokens;
    options.ignore_stop_tokens = true;
    return options;
  }
};

TEST_F(TextSession, ASecondQuestionPrefillsOnlyWhatIsNew) {
  Session session(engine_);
  const Answer first = session.ask("One two three four five six seven?", options(5));
  const Answer second = session.ask("And then?", options(5));
  EXPECT_LT(second.prompt_tokens, first.prompt_tokens + 5);
  EXPECT_GT(second.prompt_tokens, 0);
  // The same conversation in another session gives the same answers.
  Session again(engine_);
  EXPECT_EQ(again.ask("One two three four five six seven?", options(5)).ids, first.ids);
  EXPECT_EQ(again.ask("And then?", options(5)).ids, second.ids);
}

TEST_F(TextSession, ALongTextIsReadOnceForSeveralQuestions) {
  std::string text;
  for (int i = 0; i < 20; ++i) text += "The house number " + std::to_string(i) + " is old. ";
  const auto ask = [&](Session& session, const std::string& question) {
    return session.ask(std::vector<QuestionPart>{{text}, {question}}, options(6));
  };
  SessionOptions pieces;
  pieces.max_group_tokens = 32;
  Session session(engine_, pieces);
  const Answer first = ask(session, "Which one?");
  session.clear();
  const Answer second = ask(session, "Where is it?");
  EXPECT_GT(first.prompt_tokens, 100);
  EXPECT_LE(second.prompt_tokens, 2 * 32);
  Session fresh(engine_, pieces);
  EXPECT_EQ(second.ids, ask(fresh, "Where is it?").ids);
}

TEST_F(TextSession, AFailedQuestionLeavesTheSessionAsItWas) {
  Session session(engine_);
  Session untouched(engine_);
  EXPECT_EQ(session.ask("One", options(4)).ids, untouched.ask("One", options(4)).ids);
  EXPECT_THROW(session.ask("  ", options(4)), Error);
  AnswerOptions cancelled = options(4);
  cancelled.cancel.cancel();
  EXPECT_THROW(session.ask("Two", cancelled), Error);
  EXPECT_THROW(session.ask("Two", options(50),
                           [](std::string_view) { throw Error(ErrorKind::cancelled, "enough"); }),
               Error);
  const Answer expected = untouched.ask("Three", options(6));
  const Answer actual = session.ask("Three", options(6));
  EXPECT_EQ(actual.ids, expected.ids);
  EXPECT_EQ(actual.row_bytes, expected.row_bytes);
}

TEST_F(TextSession, StopStringsEndTheAnswer) {
  Session session(engine_);
  const Answer whole = session.ask("One", options(40));
  ASSERT_GT(whole.text.size(), 8u);
  AnswerOptions stopping = options(40);
  stopping.stop = {whole.text.substr(5, 3)};
  Session other(engine_);
  const Answer cut = other.ask("One", stopping);
  EXPECT_EQ(cut.stop, "stop-string");
  EXPECT_EQ(cut.text, whole.text.substr(0, whole.text.find(stopping.stop[0])));
}

TEST_F(TextSession, ATextModelRefusesPictures) {
  const testing::TempDir directory;
  const std::string path = directory.file("dot.ppm");
  std::ofstream(path, std::ios::binary) << "P6\n1 1\n255\nabc";
  Session session(engine_);
  try {
    session.add(path);
    FAIL() << "a text model took a picture";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::unsupported) << error.what();
  }
}

}  // namespace
}  // namespace kinora
