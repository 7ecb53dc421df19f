// What `ask` offers besides the answer (traces, budgets, subtitles, presets) and what it does when
// things break halfway.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>

#include "support/cli.h"
#include "support/random_data.h"
#include "support/temp_dir.h"

namespace kinora::testing {
namespace {

const std::string model = std::string(KINORA_FIXTURES) + "/models/qwen2_5_vl_untied_old";

class Road : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    directory_ = new TempDir;
    // Twenty seconds with a keyframe every second, cut so that headers come first.
    make_media(
        "-f lavfi -i testsrc2=size=96x64:rate=8:duration=20 -g 8 -pix_fmt yuv420p -movflags "
        "+faststart " +
        clip());
    make_media("-i " + clip() + " -c copy " + file("clip.ts"));
  }
  static void TearDownTestSuite() {
    delete directory_;
    directory_ = nullptr;
  }
  static std::string file(const std::string& name) { return directory_->file(name); }
  static std::string clip() { return file("clip.mp4"); }
  static nlohmann::json ask_json(std::vector<std::string> more) {
    std::vector<std::string> arguments{"ask",          clip(), "What?",         "-m", model,
                                       "--max-tokens", "3",    "--temperature", "0",  "--json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Finished finished = kinora(arguments);
    EXPECT_EQ(finished.code, 0) << finished.err;
    return nlohmann::json::parse(finished.out);
  }
  static TempDir* directory_;
};
TempDir* Road::directory_ = nullptr;

TEST_F(Road, ATraceNamesEveryStage) {
  const Finished finished = kinora({"ask", clip(), "What?", "-m", model, "--max-tokens", "3", "-q",
                                    "--trace", file("trace.json"), "--timeline", file("line.svg")});
  ASSERT_EQ(finished.code, 0) << finished.err;
  const auto json = nlohmann::json::parse(std::ifstream(file("trace.json")));
  std::set<std::string> stages;
  for (const auto& event : json.at("traceEvents")) {
    if (event.at("ph") != "X") continue;
    stages.insert(event.at("cat"));
    EXPECT_TRUE(
        event.at("name").get<std::string>().starts_with(event.at("cat").get<std::string>()));
    EXPECT_GE(event.at("dur").get<double>(), 0);
  }
  EXPECT_EQ(stages, (std::set<std::string>{"decode", "generate", "prefill", "vision"}));
  std::ifstream svg(file("line.svg"));
  EXPECT_NE(std::string((std::istreambuf_iterator<char>(svg)), {}).find("prefill"),
            std::string::npos);
}

TEST_F(Road, AFullDiskForTheTraceIsToldAndTheAnswerStays) {
  const std::vector<std::string> plain{"ask", clip(), "What?",         "-m", model, "--max-tokens",
                                       "3",   "-q",   "--temperature", "0"};
  std::vector<std::string> traced = plain;
  traced.insert(traced.end(), {"--trace", "/dev/full"});
  const Finished finished = kinora(traced);
  EXPECT_EQ(finished.code, 6);
  EXPECT_EQ(finished.out, kinora(plain).out);
  EXPECT_TRUE(finished.err.starts_with("kinora: cannot write /dev/full: No space left"))
      << finished.err;
  struct ::stat device {};
  ASSERT_EQ(::stat("/dev/full", &device), 0);
  EXPECT_TRUE(S_ISCHR(device.st_mode));
  traced.push_back("--json");
  const Finished json = kinora(traced);
  EXPECT_EQ(json.code, 6);
  EXPECT_TRUE(nlohmann::json::parse(json.out).contains("answer")) << json.out;
}

TEST_F(Road, WrongPlacesForATraceAreRefusedBeforeAnyWork) {
  expect_error(kinora({"ask", clip(), "What?", "-m", model, "--trace", file("no/where/t.json")}), 3,
               "no/where");
  expect_error(kinora({"ask", clip(), "What?", "-m", model, "--timeline", file("t.gif")}), 2,
               ".png or .svg");
}

TEST_F(Road, TheCostIsKnownFirst) {
  const Finished finished = kinora({"ask", clip(), "What?", "-m", model, "--dry-run", "--json"});
  ASSERT_EQ(finished.code, 0) << finished.err;
  const auto cost = nlohmann::json::parse(finished.out);
  const auto answer = ask_json({});
  EXPECT_EQ(cost.at("frames"), answer.at("frames"));
  EXPECT_EQ(cost.at("tokens"), answer.at("tokens").at("prompt"));
  // The answer adds rows for all but its last token.
  const int64_t tokens = answer.at("tokens").at("prompt").get<int64_t>();
  const int64_t rows = tokens + answer.at("tokens").at("answer").get<int64_t>() - 1;
  EXPECT_EQ(cost.at("row_bytes").get<int64_t>() / tokens * rows, answer.at("row_bytes"));
  EXPECT_GT(cost.at("seconds").get<double>(), 0);
  EXPECT_EQ(answer.at("expected").at("tokens"), cost.at("tokens"));
}

TEST_F(Road, BudgetsAreKeptAndSaidAloud) {
  const auto free = ask_json({"--fps", "8"});
  const int64_t tokens = free.at("tokens").at("prompt");
  const auto tight = ask_json({"--fps", "8", "--max-context", std::to_string(tokens / 2)});
  EXPECT_LT(tight.at("frames").get<int>(), free.at("frames").get<int>());
  EXPECT_LE(tight.at("tokens").at("prompt").get<int64_t>(), tokens / 2);
  // The other one is about the answer, which is cut as well.
  ASSERT_EQ(tight.at("warnings").size(), 2u) << tight.at("warnings");
  const std::string said = tight.at("warnings")[0];
  EXPECT_NE(said.find("frames of " + clip()), std::string::npos) << said;
  EXPECT_EQ(tight.at("inputs")[0].at("times").size(), tight.at("frames"));

  const int64_t memory = free.at("expected").at("memory_bytes");
  const int64_t rows = free.at("expected").at("row_bytes");
  const auto lean = ask_json({"--fps", "8", "--memory-budget", std::to_string(memory - rows / 3)});
  EXPECT_LT(lean.at("frames").get<int>(), free.at("frames").get<int>());
  EXPECT_LE(lean.at("expected").at("memory_bytes").get<int64_t>(), memory - rows / 3);
  // Where pruning was chosen, it is raised before frames are given up.
  const auto pruned = ask_json({"--fps", "8", "--retain", "key-norm:0.8"});
  const int64_t pruned_memory = pruned.at("expected").at("memory_bytes");
  const int64_t pruned_rows = pruned.at("expected").at("row_bytes");
  const auto harder = ask_json({"--fps", "8", "--retain", "key-norm:0.8", "--memory-budget",
                                std::to_string(pruned_memory - pruned_rows / 4)});
  EXPECT_EQ(harder.at("frames"), pruned.at("frames"));
  EXPECT_LT(harder.at("row_bytes").get<int64_t>(), pruned.at("row_bytes").get<int64_t>());
  EXPECT_NE(harder.at("warnings")[0].get<std::string>().find("key-norm"), std::string::npos);
}

TEST_F(Road, StrictBudgetsAndImpossibleOnesAreRefused) {
  expect_error(kinora({"ask", clip(), "What?", "-m", model, "--max-context", "100", "--strict"}), 6,
               "--strict");
  expect_error(kinora({"ask", clip(), "What?", "-m", model, "--memory-budget", "1KiB"}), 6,
               "memory");
  expect_error(kinora({"ask", clip(), "What?", "-m", model, "--max-context", "12"}), 6, "context");
  for (const char* size : {"lots", "-1GiB", "6 parsecs", "0"}) {
    expect_error(kinora({"ask", clip(), "What?", "-m", model, "--memory-budget", size}), 2, "");
  }
  expect_error(kinora({"ask", clip(), "What?", "-m", model, "--memory-budget", "116"}), 2,
               "116MiB");
}

TEST_F(Road, ARefusalNamesTheSmallestBudgetThatWorks) {
  const auto asked = [&](const char* flag, const std::string& budget) {
    return kinora({"ask", clip(), "What?", "-m", model, "--dry-run", flag, budget});
  };
  const auto smallest = [](const Finished& refused) {
    const std::string mark = "the smallest that works is ";
    const size_t begin = refused.err.find(mark);
    EXPECT_NE(begin, std::string::npos) << refused.err;
    if (begin == std::string::npos) return std::string();
    const size_t at = begin + mark.size();
    return refused.err.substr(at, refused.err.find_first_of(",:", at) - at);
  };
  const Finished refused = asked("--memory-budget", "1.5MiB");
  EXPECT_EQ(refused.code, 6);
  EXPECT_NE(refused.err.find("budget of 1.5 MiB"), std::string::npos) << refused.err;
  const std::string memory = smallest(refused);  // "93.1 MiB"
  EXPECT_EQ(asked("--memory-budget", memory).code, 0) << memory;
  const double number = std::stod(memory);
  EXPECT_EQ(asked("--memory-budget", std::to_string(number - 0.2) + "MiB").code, 6) << memory;
  EXPECT_NE(asked("--memory-budget", "1KiB").err.find("1.0 KiB"), std::string::npos);

  const int64_t tokens = std::stoll(smallest(asked("--max-context", "12")));
  EXPECT_EQ(asked("--max-context", std::to_string(tokens)).code, 0) << tokens;
  EXPECT_EQ(asked("--max-context", std::to_string(tokens - 1)).code, 6) << tokens;
}

TEST_F(Road, SubtitlesAreReadAlong) {
  std::ofstream(file("clip.srt")) << "1\n00:00:02,000 --> 00:00:04,000\nOne\n\n"
                                     "2\n00:00:09,500 --> 00:00:11,000\nTwo <i>words</i>\n";
  const auto silent = ask_json({});
  const auto spoken = ask_json({"--subtitles", file("clip.srt")});
  EXPECT_EQ(spoken.at("frames"), silent.at("frames"));
  EXPECT_EQ(spoken.at("tokens").at("visual"), silent.at("tokens").at("visual"));
  EXPECT_GT(spoken.at("tokens").at("prompt").get<int64_t>(),
            silent.at("tokens").at("prompt").get<int64_t>());
  EXPECT_EQ(spoken.at("expected").at("tokens"), spoken.at("tokens").at("prompt"));
  expect_error(kinora({"ask", clip(), "What?", "-m", model, "--subtitles", file("absent.srt")}), 3,
               "absent.srt");
  expect_error(kinora({"ask", clip(), "What?", "-m", model, "--subtitles", clip()}), 4, "clip.mp4");
  expect_error(kinora({"ask", "What?", "-m", model, "--subtitles", file("clip.srt")}), 2,
               "subtitles");
}

TEST_F(Road, PresetsAreCombinationsThatCanBeOverruled) {
  const auto exact = ask_json({"--quality", "exact"});
  EXPECT_EQ(exact.at("row_bytes"), ask_json({}).at("row_bytes"));
  const auto fast = ask_json({"--quality", "fast"});
  EXPECT_LT(fast.at("row_bytes").get<int64_t>(), exact.at("row_bytes").get<int64_t>());
  EXPECT_EQ(exact.at("frames"), 40);
  EXPECT_EQ(fast.at("frames"), 40);
  EXPECT_LT(fast.at("tokens").at("visual").get<int64_t>(),
            exact.at("tokens").at("visual").get<int64_t>() / 2);
  EXPECT_EQ(fast.at("expected").at("tokens"), fast.at("tokens").at("prompt"));
  const auto overruled =
      ask_json({"--quality", "fast", "--tokens", "all", "--fps", "2", "--rows", "f32"});
  EXPECT_EQ(overruled.at("frames"), 40);
  EXPECT_EQ(overruled.at("expected").at("row_bytes"),
            ask_json({"--rows", "f32"}).at("expected").at("row_bytes"));
  expect_error(kinora({"ask", clip(), "What?", "-m", model, "--quality", "best"}), 2, "balanced");
  const Finished help = kinora({"help", "quality"});
  EXPECT_EQ(help.code, 0);
  for (const char* name : {"exact", "balanced", "fast"}) {
    EXPECT_NE(help.out.find(name), std::string::npos);
  }
  const Finished attention = kinora({"help", "attention"});
  EXPECT_EQ(attention.code, 0);
  for (const char* name : {"dense", "mminference", "momo", "a-shape", "tri-shape", "sf-fixed",
                           "sf-strided", "vertical-slash", "grid", "mean-pool", "oracle"}) {
    EXPECT_NE(attention.out.find(name), std::string::npos) << name;
  }
  EXPECT_NE(kinora({"help"}).out.find("frames"), std::string::npos);  // all commands
  expect_error(kinora({"help", "cooking"}), 2, "cooking");
  EXPECT_NE(kinora({"help", "ask"}).out.find("Usage: kinora ask"), std::string::npos);
  EXPECT_NE(kinora({"eval", "--help"}).out.find("Usage: kinora eval"), std::string::npos);
}

TEST_F(Road, KeysAndValuesHaveTheTypeThatIsChosen) {
  const auto bytes = [&](const std::vector<std::string>& flags) {
    std::vector<std::string> all = {"--device", "cpu"};
    all.insert(all.end(), flags.begin(), flags.end());
    return ask_json(all).at("expected").at("row_bytes").get<int64_t>();
  };
  const int64_t wide = bytes({"--rows", "f32"});
  EXPECT_EQ(bytes({"--rows", "bf16"}), wide / 2);
  EXPECT_EQ(bytes({"--rows", "f16"}), wide / 2);
  EXPECT_EQ(bytes({}), wide) << "what a CPU computes is f32";
  EXPECT_EQ(bytes({"--quality", "exact"}), wide);
  EXPECT_EQ(bytes({"--quality", "exact", "--rows", "bf16"}), wide / 2);
  for (const char* command : {"ask", "chat", "eval", "serve"}) {
    const Finished refused = kinora({command, "--rows", "f64"});
    EXPECT_EQ(refused.code, 2) << command;
    EXPECT_NE(refused.err.find("f16"), std::string::npos) << refused.err;
  }
}

TEST_F(Road, PresetsCanBeEvaluatedOneAtATime) {
  std::ofstream(file("set.jsonl")) << nlohmann::json{{"id", "1"},
                                                     {"video", "clip.mp4"},
                                                     {"question", "What?"},
                                                     {"answer", "nothing"},
                                                     {"fps", 1}}
                                          .dump()
                                   << "\n";
  const std::vector<std::string> command{"eval",       file("set.jsonl"), "-m", model,
                                         "--no-cache", "--max-tokens",    "2",  "--policy"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), command.begin(), command.end());
    return kinora(more);
  };
  const Finished fast = with({"quality=fast"});
  EXPECT_EQ(fast.code, 0) << fast.err;
  EXPECT_NE(fast.out.find("quality=fast"), std::string::npos);
  expect_error(with({"quality=exact", "--policy", "quality=fast"}), 2, "precision");
  expect_error(with({"quality=best"}), 2, "balanced");
}

TEST_F(Road, TheOverlapBenchRunsWholeQuestionsWithRandomWeights) {
  const std::vector<std::string> command{"bench",    "overlap", clip(),     "--shape", "bundled",
                                         "--device", "cpu",     "--pixels", "3136"};
  expect_error(kinora(command), 2, "--random-weights");
  std::vector<std::string> whole = command;
  whole.insert(whole.end(), {"--random-weights", "--frames-per-group", "4", "--max-tokens", "2",
                             "--json", "--timeline", file("bench.svg")});
  const Finished finished = kinora(whole);
  ASSERT_EQ(finished.code, 0) << finished.err;
  const auto json = nlohmann::json::parse(finished.out);
  EXPECT_EQ(json.at("frames"), 20);
  ASSERT_EQ(json.at("runs").size(), 4u);  // two policies, apart and overlapped
  for (const auto& run : json.at("runs")) {
    EXPECT_EQ(run.at("answer_tokens"), 2);
    EXPECT_GT(run.at("prefill").get<double>(), 0);
    EXPECT_GE(run.at("complete").get<double>(), run.at("first_token").get<double>());
    if (run.at("overlap")) {
      EXPECT_GT(run.at("bound").get<double>(), 0);
      EXPECT_TRUE(run.at("same_answer"));
    }
  }
  EXPECT_LT(json.at("runs")[0].at("row_bytes").get<int64_t>(),
            json.at("runs")[2].at("row_bytes").get<int64_t>());
  EXPECT_TRUE(std::filesystem::exists(file("bench.svg")));

  std::vector<std::string> fewer = command;
  fewer.insert(fewer.end(), {"--random-weights", "--frames-per-group", "4", "--max-tokens", "2",
                             "--retain", "all", "--tokens", "all,evs:0.25", "--overlapped-only"});
  const Finished gains = kinora(fewer);
  ASSERT_EQ(gains.code, 0) << gains.err;
  EXPECT_NE(gains.out.find("| evs:0.25, all, overlapped |"), std::string::npos) << gains.out;
  EXPECT_NE(gains.out.find("tokens, prefill "), std::string::npos) << gains.out;
}

TEST_F(Road, TokensAreLeftOutBeforeTheDecoder) {
  const auto all = ask_json({"--fps", "8"});
  const auto fewer = ask_json({"--fps", "8", "--tokens", "evs:0.25"});
  EXPECT_EQ(all.at("tokens").at("seen"), all.at("tokens").at("visual"));
  EXPECT_EQ(fewer.at("tokens").at("seen"), all.at("tokens").at("seen"));
  EXPECT_LT(fewer.at("tokens").at("visual").get<int>(), all.at("tokens").at("seen").get<int>());
  EXPECT_EQ(fewer.at("tokens").at("prompt"), fewer.at("expected").at("tokens"));
  EXPECT_LT(fewer.at("row_bytes").get<int64_t>(), all.at("row_bytes").get<int64_t>());
  const Finished said = kinora({"ask", clip(), "What?", "-m", model, "--max-tokens", "3", "--fps",
                                "8", "--tokens", "evs:0.25", "-v"});
  EXPECT_NE(said.err.find("visual ones reached the decoder"), std::string::npos) << said.err;
}

// --- what breaks half-way ---

TEST_F(Road, AFileCutInTheMiddleIsAnsweredFromWhatIsThere) {
  std::filesystem::copy_file(file("clip.ts"), file("cut.ts"));
  std::filesystem::resize_file(file("cut.ts"), std::filesystem::file_size(file("clip.ts")) / 2);
  const Finished finished =
      kinora({"ask", file("cut.ts"), "What?", "-m", model, "--max-tokens", "3", "--json"});
  ASSERT_EQ(finished.code, 0) << finished.err;
  const int frames = nlohmann::json::parse(finished.out).at("frames");
  EXPECT_GT(frames, 8);
  EXPECT_LT(frames, 40);
  // With its header in front, an MP4 promises frames that are not there: the answer says so.
  std::filesystem::copy_file(clip(), file("cut.mp4"));
  std::filesystem::resize_file(file("cut.mp4"), std::filesystem::file_size(clip()) / 2);
  const auto ask_cut = [&](std::vector<std::string> more) {
    more.insert(more.begin(),
                {"ask", file("cut.mp4"), "What?", "-m", model, "--max-tokens", "3", "--json"});
    const Finished cut = kinora(more);
    EXPECT_EQ(cut.code, 0) << cut.err;
    return nlohmann::json::parse(cut.out);
  };
  const auto missing = [](const nlohmann::json& answer) {
    const std::string warnings = answer.at("warnings").dump();
    return warnings.find("its header promises 20.00 s") != std::string::npos;
  };
  const auto cut = ask_cut({});
  EXPECT_GT(cut.at("frames").get<int>(), 8);
  EXPECT_LT(cut.at("frames").get<int>(), 40);
  EXPECT_TRUE(missing(cut)) << cut.at("warnings");
  EXPECT_FALSE(missing(ask_cut({"--end", "5"})));
  EXPECT_FALSE(missing(ask_json({})));
  // Sound that lasts longer than the pictures is nothing missing.
  for (const char* name : {"song.mp4", "song.mkv", "song.ts"}) {
    make_media(
        "-f lavfi -i testsrc2=size=64x48:rate=8:duration=2 -f lavfi -i sine=duration=8 "
        "-pix_fmt yuv420p " +
        file(name));
    const Finished sung =
        kinora({"ask", file(name), "What?", "-m", model, "--max-tokens", "1", "--json"});
    ASSERT_EQ(sung.code, 0) << sung.err;
    EXPECT_EQ(sung.out.find("its header promises"), std::string::npos) << sung.out;
  }
}

TEST_F(Road, ACorruptStretchIsNamedAndWhatFollowsArrives) {
  std::filesystem::copy_file(clip(), file("hurt.mp4"));
  const auto size = static_cast<int64_t>(std::filesystem::file_size(file("hurt.mp4")));
  KINORA_FRESH_RANDOM(random);
  {
    std::fstream hurt(file("hurt.mp4"), std::ios::in | std::ios::out | std::ios::binary);
    hurt.seekp(size * 45 / 100);
    for (int64_t i = 0; i < size / 10; ++i) hurt.put(static_cast<char>(random.next()));
  }
  const Finished finished = kinora(
      {"ask", file("hurt.mp4"), "What?", "-m", model, "--max-tokens", "3", "--fps", "8", "--json"});
  ASSERT_EQ(finished.code, 0) << finished.err;
  const auto json = nlohmann::json::parse(finished.out);
  ASSERT_FALSE(json.at("warnings").empty());
  EXPECT_NE(json.at("warnings")[0].get<std::string>().find("damaged"), std::string::npos);
  EXPECT_GT(json.at("inputs")[0].at("times").back().get<double>(), 17.0);
}

TEST_F(Road, AHeaderThatLiesAboutTheLengthFoolsNoBudget) {
  std::string bytes;
  {
    std::ifstream in(clip(), std::ios::binary);
    bytes.assign(std::istreambuf_iterator<char>(in), {});
  }
  for (const char* box : {"mvhd", "mdhd"}) {  // both: …, time scale, length
    const size_t at = bytes.find(box);
    ASSERT_NE(at, std::string::npos);
    ASSERT_EQ(bytes[at + 4], 0);  // version
    uint32_t length = 0;
    for (size_t i = 0; i < 4; ++i) {
      length = length << 8 | static_cast<unsigned char>(bytes[at + 20 + i]);
    }
    length /= 6;
    for (size_t i = 0; i < 4; ++i) bytes[at + 20 + i] = static_cast<char>(length >> (24 - 8 * i));
  }
  std::ofstream(file("liar.mp4"), std::ios::binary) << bytes;
  const auto honest = ask_json({});
  const auto ask = [&](std::vector<std::string> more) {
    more.insert(more.begin(),
                {"ask", file("liar.mp4"), "What?", "-m", model, "--max-tokens", "3", "--json"});
    return kinora(more);
  };
  const Finished whole = ask({});
  ASSERT_EQ(whole.code, 0) << whole.err;
  const auto json = nlohmann::json::parse(whole.out);
  EXPECT_EQ(json.at("frames"), honest.at("frames"));
  EXPECT_EQ(json.at("expected").at("tokens"), json.at("tokens").at("prompt"));
  const int64_t context = honest.at("tokens").at("prompt").get<int64_t>() / 2;
  const Finished limited = ask({"--max-context", std::to_string(context)});
  ASSERT_EQ(limited.code, 0) << limited.err;
  const auto kept = nlohmann::json::parse(limited.out);
  EXPECT_LE(kept.at("tokens").at("prompt").get<int64_t>(), context);
  EXPECT_FALSE(kept.at("warnings").empty());
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// Wherever the system refuses memory, it is one line and the exit code for it.
TEST_F(Road, MemoryThatRunsOutAnywhereIsOneLine) {
  int rounds = 0;
  const auto ask = [&](int64_t kilobytes) {
    const std::string threads = ++rounds % 2 == 0 ? "1" : "3";
    return kinora_shell("export MALLOC_ARENA_MAX=1; ulimit -v " + std::to_string(kilobytes) +
                        "; exec $KINORA ask " + clip() + " 'What?' -m " + model +
                        " -q --fps 8 --threads 2 --decode-threads " + threads + " --max-tokens 3");
  };
  int64_t too_little = 50'000, enough = 4'000'000;
  ASSERT_EQ(ask(enough).code, 0);
  std::set<std::string> lines;
  const auto check = [&](int64_t kilobytes) {
    const Finished finished = ask(kilobytes);
    if (finished.code == 0) return true;
    // So little that the loader or the C++ library do not get started is not kinora's to tell.
    if (finished.code == 127 || finished.err.find("kinora: ") == std::string::npos) return false;
    EXPECT_EQ(finished.code, 6) << kilobytes << ": " << finished.err;
    EXPECT_EQ(std::count(finished.err.begin(), finished.err.end(), '\n'), 1) << finished.err;
    lines.insert(finished.err);
    return false;
  };
  while (enough - too_little > 400) {
    const int64_t middle = (too_little + enough) / 2;
    (check(middle) ? enough : too_little) = middle;
  }
  for (int step = 0; step < 24; ++step) check(enough - 300 * step);
  EXPECT_FALSE(lines.empty());
}
#endif

TEST_F(Road, AFileThatVanishesWhileReadingIsNoHang) {
  for (const int delay : {0, 20'000, 60'000, 150'000}) {
    std::filesystem::copy_file(file("clip.ts"), file("brief.ts"),
                               std::filesystem::copy_options::overwrite_existing);
    RunningProgram program(
        {KINORA_PROGRAM, "ask", file("brief.ts"), "What?", "-m", model, "-q", "--max-tokens", "3"});
    ::usleep(static_cast<useconds_t>(delay));
    std::filesystem::remove(file("brief.ts"));
    const Finished finished = program.wait();
    // An open file stays readable after its name is gone; before that it is not found.
    EXPECT_TRUE(finished.code == 0 || finished.code == 3 || finished.code == 4)
        << finished.code << finished.err;
  }
}

TEST_F(Road, AFileThatShrinksWhileReadingIsNoCrash) {
  for (const int delay : {30'000, 80'000, 200'000}) {
    std::filesystem::copy_file(file("clip.ts"), file("brief.ts"),
                               std::filesystem::copy_options::overwrite_existing);
    RunningProgram program(
        {KINORA_PROGRAM, "ask", file("brief.ts"), "What?", "-m", model, "-q", "--max-tokens", "3"});
    ::usleep(static_cast<useconds_t>(delay));
    std::filesystem::resize_file(file("brief.ts"), 2000);
    const Finished finished = program.wait();
    EXPECT_TRUE(finished.code == 0 || finished.code == 4) << finished.code << finished.err;
  }
}

TEST_F(Road, InterruptsAtAnyTimeLeaveOneLineAndNoFile) {
  KINORA_FRESH_RANDOM(random);
  std::filesystem::create_directory(file("out"));
  const std::vector<std::string> command = {KINORA_PROGRAM,
                                            "ask",
                                            clip(),
                                            "What?",
                                            "-m",
                                            model,
                                            "-q",
                                            "--fps",
                                            "8",
                                            "--max-tokens",
                                            "200",
                                            "--trace",
                                            file("out/trace.json")};
  // Signals fall within the time that an undisturbed run takes on this machine.
  const auto began = std::chrono::steady_clock::now();
  ASSERT_EQ(RunningProgram(command).wait(60).code, 0);
  int64_t whole = std::chrono::duration_cast<std::chrono::microseconds>(
                      std::chrono::steady_clock::now() - began)
                      .count();
  std::filesystem::remove(file("out/trace.json"));
  int stopped = 0;
  for (int round = 0; round < 12; ++round) {
    RunningProgram program(command);
    const int64_t delay = random.below(whole);
    ::usleep(static_cast<useconds_t>(delay));
    program.signal(SIGINT);
    const Finished finished = program.wait(20);
    // Before the handlers stand, the signal itself ends the program.
    EXPECT_TRUE(finished.code == 130 || finished.code == 0) << finished.code << finished.err;
    if (finished.code == 130) {
      ++stopped;
      EXPECT_TRUE(finished.err.empty() || finished.err == "kinora: cancelled\n") << finished.err;
      EXPECT_TRUE(std::filesystem::is_empty(file("out")));
    } else {
      whole = std::max<int64_t>(1, delay);  // runs have become shorter than the first one
    }
    std::filesystem::remove(file("out/trace.json"));
  }
  EXPECT_GT(stopped, 0);
}

}  // namespace
}  // namespace kinora::testing
