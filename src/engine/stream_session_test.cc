// A source that is taken in as it comes: questions in between, positions that go on counting, and
// what goes wrong with pipes and people.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <kinora/session.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "support/film.h"
#include "support/random_data.h"
#include "support/temp_dir.h"

namespace kinora {
namespace {

AnswerOptions greedy(int64_t tokens = 6) {
  AnswerOptions options;
  options.temperature = 0;
  options.max_tokens = tokens;
  options.ignore_stop_tokens = true;
  return options;
}

InputOptions once_a_second() {
  InputOptions options;
  options.frames = FrameChoice::rate(1);
  return options;
}

template <typename Action>
std::string error_of(ErrorKind kind, const Action& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

class StreamSession : public ::testing::TestWithParam<const char*> {
 protected:
  // The first `frames` pictures of a film.
  std::string part_of(const std::string& film, int frames) {
    const std::string path = directory_.file("part" + std::to_string(frames));
    std::filesystem::create_directory(path);
    for (int i = 0; i < frames; ++i) {
      const std::string picture = "/" + std::to_string(1000 + i) + ".ppm";
      std::filesystem::copy_file(film + picture, path + picture);
    }
    return path;
  }

  // Where all of a video shares its pixels, one that may become long has smaller frames: room for
  // all makes those of a short file as large.
  static std::string model(const testing::TempDir& directory) {
    const std::string fixture = std::string(KINORA_FIXTURES) + "/models/" + GetParam();
    if (!std::string(GetParam()).starts_with("qwen3_vl")) return fixture;
    std::string copy = directory.file("model");
    std::filesystem::copy(fixture, copy);
    std::string path = copy + "/video_preprocessor_config.json";
    const bool joined = !std::filesystem::exists(path);
    if (joined) path = copy + "/processor_config.json";
    nlohmann::json settings = nlohmann::json::parse(std::ifstream(path));
    nlohmann::json& video = joined ? settings["video_processor"] : settings;
    video["size"]["longest_edge"] = 1 << 30;
    std::ofstream(path) << settings;
    return copy;
  }

  const testing::TempDir directory_;
  const Engine engine_{{.model = model(directory_)}};
};

TEST_P(StreamSession, AnswersInBetweenAreThoseOfAFileThatEndsThere) {
  KINORA_FRESH_RANDOM(random);
  const std::string film = testing::write_film(directory_.file("film"), random, 14);
  for (const std::string retain : {"all", "key-norm:0.5"}) {
    // A token that closes the video is pruned with the last group of a file, and alone here.
    if (retain != "all" && std::string(GetParam()) == "llava_onevision_new") continue;
    SessionOptions options;
    options.retain = retain;
    options.frames_per_group = 2;
    options.max_group_tokens = 1;  // so that pieces are taken in one by one
    Session watching(engine_, options);
    const InputInfo opened = watching.open(film, once_a_second());
    EXPECT_EQ(opened.kind, "video");
    EXPECT_TRUE(opened.times.empty());
    int seen = 0;
    for (const int wanted : {2, 4, 2, 6}) {
      const TakenIn taken = watching.take_in(wanted);
      seen += static_cast<int>(taken.frames);
      ASSERT_EQ(seen % 2, 0);
      const InputInfo now = watching.inputs().at(0);
      ASSERT_EQ(now.times.size(), static_cast<size_t>(seen));
      EXPECT_EQ(taken.until, now.times.back());
      Session plain(engine_, options);
      std::filesystem::remove_all(directory_.file("part" + std::to_string(seen)));
      const InputInfo whole = plain.add(part_of(film, seen), once_a_second());
      ASSERT_EQ(whole.width, now.width);  // else the pictures differ, not the road
      const Answer expected = plain.ask("What is it?", greedy());
      const Forecast cost = watching.forecast("What is it?");
      const Answer answer = watching.ask("What is it?", greedy());
      EXPECT_EQ(answer.ids, expected.ids) << retain << " " << seen;
      EXPECT_EQ(answer.row_bytes, expected.row_bytes);
      EXPECT_EQ(answer.frames, 0);
      EXPECT_EQ(answer.prompt_tokens, cost.tokens);
      // A second question goes on from the first.
      EXPECT_EQ(watching.ask("Why?", greedy()).ids, plain.ask("Why?", greedy()).ids);
      watching.clear();
    }
    while (!watching.take_in(1).ended) continue;
    Session plain(engine_, options);
    plain.add(film, once_a_second());
    EXPECT_EQ(watching.ask("What is it?", greedy()).ids, plain.ask("What is it?", greedy()).ids);
    EXPECT_EQ(watching.inputs()[0].tokens, plain.inputs()[0].tokens);
    EXPECT_TRUE(watching.take_in(100).ended);
    EXPECT_EQ(watching.take_in().frames, 0);
  }
}

TEST_P(StreamSession, AConversationGoesOnWhileTheVideoGrows) {
  KINORA_FRESH_RANDOM(random);
  const std::string film = testing::write_film(directory_.file("film"), random, 8);
  SessionOptions options;
  options.frames_per_group = 4;
  Session watching(engine_, options);
  watching.open(film, once_a_second());
  watching.take_in(4);
  const Answer first = watching.ask("What is it?", greedy());
  while (!watching.take_in(1).ended) continue;
  const Answer second = watching.ask("And now?", greedy());
  EXPECT_EQ(second.frames, 0);
  // Read again were the first question and its answer, and nothing of the video.
  EXPECT_GT(second.prompt_tokens, first.prompt_tokens);
  EXPECT_LT(second.prompt_tokens, 2 * first.prompt_tokens + 40);
  EXPECT_EQ(second.visual_tokens, 0);
  EXPECT_GT(second.row_bytes, first.row_bytes);
}

INSTANTIATE_TEST_SUITE_P(Families, StreamSession,
                         ::testing::Values("qwen2_5_vl_tied_new", "llava_onevision_new",
                                           "qwen3_vl_tied", "qwen3_vl_tied_v5"));

class OpenSession : public ::testing::Test {
 protected:
  const testing::TempDir directory_;
  const Engine engine_{{.model = std::string(KINORA_FIXTURES) + "/models/qwen2_5_vl_tied_new"}};
};

// Uncompressed video that needs no encoder: 4:2:0, one picture a second.
class Pipe {
 public:
  explicit Pipe(std::string path) : path_(std::move(path)) {
    EXPECT_EQ(mkfifo(path_.c_str(), 0600), 0);
    // Open at both ends from the start, so that nobody waits for the other.
    reader_ = open(path_.c_str(), O_RDONLY | O_NONBLOCK);
    writer_ = open(path_.c_str(), O_WRONLY);
    write_all("YUV4MPEG2 W80 H60 F1:1 Ip A1:1 C420jpeg\n");
  }
  ~Pipe() {
    hang_up();
    close(reader_);
  }
  void picture(Random& random) {
    std::string bytes = "FRAME\n";
    for (int i = 0; i < 80 * 60 * 3 / 2; ++i) bytes += static_cast<char>(random.next());
    write_all(bytes);
  }
  void hang_up() {
    if (const int writer = std::exchange(writer_, -1); writer >= 0) close(writer);
  }
  const std::string& path() const { return path_; }

 private:
  void write_all(const std::string& bytes) {
    for (size_t at = 0; at < bytes.size();) {
      const ssize_t done = write(writer_, bytes.data() + at, bytes.size() - at);
      ASSERT_GT(done, 0);
      at += static_cast<size_t>(done);
    }
  }

  std::string path_;
  int reader_ = -1, writer_ = -1;
};

TEST_F(OpenSession, APipeIsAskedAboutWhileItRuns) {
  KINORA_FRESH_RANDOM(random);
  Pipe pipe(directory_.file("pipe"));
  std::thread camera([&] {
    for (int i = 0; i < 30; ++i) pipe.picture(random);
    pipe.hang_up();
  });
  SessionOptions options;
  options.frames_per_group = 2;
  Session watching(engine_, options);
  watching.open(pipe.path(), once_a_second());
  EXPECT_GE(watching.take_in(6).frames, 6);
  const Answer early = watching.ask("What is it?", greedy());
  EXPECT_EQ(early.ids.size(), 6u);
  while (!watching.take_in(1).ended) continue;
  camera.join();
  EXPECT_EQ(watching.inputs()[0].times.size(), 30u);
  EXPECT_EQ(watching.inputs()[0].times.back(), 29);
  EXPECT_GT(watching.ask("And now?", greedy()).row_bytes, early.row_bytes);
}

TEST_F(OpenSession, WaitingForASilentPipeCanBeGivenUpAndTakenUpAgain) {
  KINORA_FRESH_RANDOM(random);
  Pipe pipe(directory_.file("pipe"));
  std::thread camera([&] {
    for (int i = 0; i < 12; ++i) pipe.picture(random);
  });
  SessionOptions options;
  options.frames_per_group = 2;
  Session watching(engine_, options);
  watching.open(pipe.path(), once_a_second());
  camera.join();
  const int64_t first = watching.take_in(2).frames;
  CancelToken impatient;
  std::thread person([&] { impatient.cancel(); });
  error_of(ErrorKind::cancelled, [&] { watching.take_in(1000, impatient); });
  person.join();
  const Answer answer = watching.ask("What is it?", greedy());
  EXPECT_EQ(answer.ids.size(), 6u);
  std::thread more([&] {
    for (int i = 0; i < 8; ++i) pipe.picture(random);
    pipe.hang_up();
  });
  while (!watching.take_in(1).ended) continue;
  more.join();
  EXPECT_GE(first, 2);
  EXPECT_EQ(watching.inputs()[0].times.size(), 20u);
}

TEST_F(OpenSession, ABudgetThatIsFullLeavesWhatCame) {
  KINORA_FRESH_RANDOM(random);
  const std::string film = testing::write_film(directory_.file("film"), random, 60);
  SessionOptions options;
  options.frames_per_group = 2;
  options.max_group_tokens = 1;
  Session plain(engine_, options);
  plain.add(film, once_a_second());
  const Forecast cost = plain.forecast("What is it?");
  SessionOptions little_memory = options, little_context = options;
  const int64_t question = 256 * engine_.describe().row_bytes_per_token;  // is always kept free
  little_memory.memory_budget = cost.memory_bytes - cost.row_bytes / 3 + question;
  little_context.max_context = cost.tokens * 2 / 3;
  for (const SessionOptions& limited : {little_memory, little_context}) {
    Session watching(engine_, limited);
    watching.open(film, once_a_second());
    const std::string said = error_of(ErrorKind::resource, [&] { watching.take_in(60); });
    EXPECT_NE(said.find("used up"), std::string::npos) << said;
    const size_t frames = watching.inputs()[0].times.size();
    EXPECT_GT(frames, 4u);
    EXPECT_LT(frames, 60u);
    error_of(ErrorKind::resource, [&] { watching.take_in(2); });
    EXPECT_EQ(watching.inputs()[0].times.size(), frames);
    // There is room left to ask about it.
    EXPECT_EQ(watching.ask("What is it?", greedy()).ids.size(), 6u);
  }
}

// Opened again, a source goes on where it was: the same video, later times, whole units.
TEST_F(OpenSession, ASourceThatBrokeOffGoesOn) {
  KINORA_FRESH_RANDOM(random);
  const std::string film = testing::write_film(directory_.file("film"), random, 7);
  SessionOptions options;
  options.frames_per_group = 2;
  InputOptions input = once_a_second();
  input.resumes = true;
  Session watching(engine_, options);
  watching.open(film, input);
  error_of(ErrorKind::usage, [&] { watching.resume(); });  // it has not ended
  while (!watching.take_in(1).ended) continue;
  // The last frame stands for the one that its unit lacks.
  std::vector<double> times = watching.inputs()[0].times;
  ASSERT_EQ(times.size(), 8u);
  EXPECT_EQ(times[7], times[6]);
  const Answer before = watching.ask("What is it?", greedy());
  const std::string moved = directory_.file("moved");
  std::filesystem::rename(film, moved);
  error_of(ErrorKind::not_found, [&] { watching.resume(); });
  EXPECT_EQ(watching.ask("And?", greedy()).ids.size(), 6u);  // nothing was lost
  // It comes back with pictures of another size.
  testing::write_film(film, random, 6, 90, 50);
  watching.resume();
  TakenIn taken;
  while (!(taken = watching.take_in(1)).ended) continue;
  times = watching.inputs()[0].times;
  ASSERT_EQ(times.size(), 14u);
  EXPECT_TRUE(std::is_sorted(times.begin(), times.end()));
  EXPECT_GE(times[8], times[7] + 1);
  EXPECT_NEAR(times[13] - times[8], 5, 1e-9);
  EXPECT_EQ(taken.until, times[13]);
  watching.clear();
  const Answer after = watching.ask("What is it?", greedy());
  EXPECT_GT(after.row_bytes, before.row_bytes);
  EXPECT_EQ(after.prompt_ids.size() - before.prompt_ids.size(),
            static_cast<size_t>(watching.inputs()[0].tokens * 6 / 14));
  // What was seen before and after the break is one memory.
  watching.save(directory_.file("saved"));
  EXPECT_EQ(Session::reopen(engine_, directory_.file("saved")).ask("What is it?", greedy()).ids,
            after.ids);
  Session ends(engine_, options);
  ends.open(film, once_a_second());
  while (!ends.take_in(1).ended) continue;
  error_of(ErrorKind::usage, [&] { ends.resume(); });
}

// Frames that nobody takes in are left out, the oldest first, and counted.
TEST_F(OpenSession, WhatWaitsLongestIsDropped) {
  KINORA_FRESH_RANDOM(random);
  const std::string film = testing::write_film(directory_.file("film"), random, 120);
  SessionOptions options;
  options.frames_per_group = 2;
  options.max_group_tokens = 1;
  InputOptions input = once_a_second();
  input.drops = true;
  input.speed = 1e5;  // over before anything is taken in
  Session watching(engine_, options);
  watching.open(film, input);
  int64_t frames = 0, dropped = 0;
  TakenIn taken;
  do {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    taken = watching.take_in(0, {}, 2);
    frames += taken.frames;
    dropped += taken.dropped;
  } while (!taken.ended);
  EXPECT_EQ(frames + dropped, 120);
  EXPECT_GT(dropped, 0);
  const std::vector<double> times = watching.inputs()[0].times;
  EXPECT_EQ(times.back(), 119);  // the newest is never the one to go
  EXPECT_TRUE(std::is_sorted(times.begin(), times.end()));
  EXPECT_EQ(watching.ask("What is it?", greedy()).ids.size(), 6u);
  InputOptions backwards = once_a_second();
  backwards.speed = -1;
  Session wrong(engine_);
  error_of(ErrorKind::usage, [&] { wrong.open(film, backwards); });
}

TEST_F(OpenSession, ALimitGivesOthersTheirTurn) {
  KINORA_FRESH_RANDOM(random);
  const std::string film = testing::write_film(directory_.file("film"), random, 40);
  SessionOptions options;
  options.frames_per_group = 2;
  options.max_group_tokens = 1;
  Session watching(engine_, options);
  watching.open(film, once_a_second());
  int turns = 0;
  TakenIn taken;
  for (; !taken.ended; ++turns) {
    taken = watching.take_in(1, {}, 4);
    EXPECT_LE(taken.frames, 4);
  }
  EXPECT_GE(turns, 10);
  EXPECT_EQ(watching.inputs()[0].times.size(), 40u);
}

TEST_F(OpenSession, WhatMakesNoSenseIsRefused) {
  KINORA_FRESH_RANDOM(random);
  const std::string film = testing::write_film(directory_.file("film"), random, 6);
  Session session(engine_);
  error_of(ErrorKind::usage, [&] { session.take_in(); });
  InputOptions spread;
  spread.frames = FrameChoice::evenly(4);
  error_of(ErrorKind::usage, [&] { session.open(film, spread); });
  InputOptions spoken = once_a_second();
  spoken.subtitles = "film.srt";
  error_of(ErrorKind::usage, [&] { session.open(film, spoken); });
  error_of(ErrorKind::usage, [&] { session.open(film + "/1000.ppm"); });
  error_of(ErrorKind::not_found, [&] { session.open(directory_.file("absent")); });
  session.open(film, once_a_second());                                  // none of it did harm
  error_of(ErrorKind::usage, [&] { session.ask("What?", greedy()); });  // nothing has come yet
  error_of(ErrorKind::usage, [&] { session.open(film, once_a_second()); });
  session.take_in(6);
  // What is in memory came first and cannot come a second time.
  error_of(ErrorKind::usage, [&] { session.ask({{"Before:"}, {}, {"What?"}}, greedy()); });
  EXPECT_EQ(session.ask("What?", greedy()).ids.size(), 6u);
  // Other inputs may follow, and are read again when the video has grown.
  session.add(film + "/1001.ppm");
  EXPECT_GT(session.ask("And this?", greedy()).visual_tokens, 0);

  Session late(engine_);
  late.add(film);
  error_of(ErrorKind::usage, [&] { late.open(film, once_a_second()); });
  SessionOptions by_question;
  by_question.retain = "attention-score:0.5";
  Session chooses(engine_, by_question);
  error_of(ErrorKind::unsupported, [&] { chooses.open(film, once_a_second()); });
}

}  // namespace
}  // namespace kinora
