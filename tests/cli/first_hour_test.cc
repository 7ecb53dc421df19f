// What a person meets in the first hour: words in the wrong place, a model that knows little, names
// that are nearly right.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "cli/ask_words.h"
#include "cli/notes.h"
#include "cli/video_flags.h"
#include "support/cli.h"
#include "support/temp_dir.h"

namespace kinora::testing {
namespace {

const std::string model = std::string(KINORA_FIXTURES) + "/models/qwen2_5_vl_untied_old";

class FirstHour : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    directory_ = new TempDir;
    make_media("-f lavfi -i testsrc2=size=64x48:rate=8:duration=2 -pix_fmt yuv420p " + clip());
  }
  static void TearDownTestSuite() {
    delete directory_;
    directory_ = nullptr;
  }
  static std::string file(const std::string& name) { return directory_->file(name); }
  static std::string clip() { return file("clip.mp4"); }
  static TempDir* directory_;
};
TempDir* FirstHour::directory_ = nullptr;

// The words taken apart where only these names are there; an error is its text.
std::string taken_apart(const std::vector<std::string>& words,
                        const std::set<std::string>& there = {}) {
  try {
    const cli::AskWords parts =
        cli::split_ask_words(words, [&](const std::string& name) { return there.contains(name); });
    std::string text;
    for (const std::string& input : parts.inputs) text += input + " + ";
    return text + parts.question;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    return std::string("! ") + error.what();
  }
}

TEST(AskWords, InputsComeFirstAndTheQuestionLast) {
  EXPECT_EQ(taken_apart({"talk.mp4", "What is it?"}), "talk.mp4 + What is it?");
  EXPECT_EQ(taken_apart({"a.PNG", "b.jpeg", "What changed?"}), "a.PNG + b.jpeg + What changed?");
  EXPECT_EQ(taken_apart({"rtsp://camera/1", "Who?"}), "rtsp://camera/1 + Who?");
  EXPECT_EQ(taken_apart({"-", "Who?"}), "- + Who?");
  EXPECT_EQ(taken_apart({"folder", "Who?"}, {"folder"}), "folder + Who?");
  EXPECT_EQ(taken_apart({"Hello"}), "Hello");
  EXPECT_EQ(taken_apart({"demmo", "What?"}), "demmo + What?");  // opening it says what was meant
  // The quotes say which word the question is; what is wrong with the other is said on opening it.
  EXPECT_EQ(taken_apart({"talk", "What is it?"}), "talk + What is it?");
}

TEST(AskWords, WhatLacksAQuestionIsNotGuessed) {
  const std::string none = "! there is no question; write it last, in quotes: ";
  EXPECT_EQ(taken_apart({"demo"}), none + "kinora ask demo \"…\"");
  EXPECT_EQ(taken_apart({"talk.mp4"}), none + "kinora ask talk.mp4 \"…\"");
  EXPECT_EQ(taken_apart({"my talk.mp4"}, {"my talk.mp4"}),
            none + "kinora ask \"my talk.mp4\" \"…\"");
  EXPECT_EQ(taken_apart({"a.png", "b.png"}), none + "kinora ask a.png b.png \"…\"");
  EXPECT_EQ(taken_apart({"What is it?", "talk.mp4"}),
            "! the question comes last: kinora ask talk.mp4 \"What is it?\"");
}

TEST(AskWords, AnUnquotedQuestionIsRecognised) {
  const std::string quotes = "! write the question in quotes, after the videos: ";
  EXPECT_EQ(taken_apart({"talk.mp4", "What", "is", "it?"}),
            quotes + "kinora ask talk.mp4 \"What is it?\"");
  EXPECT_EQ(taken_apart({"What", "is", "it?"}), quotes + "kinora ask \"What is it?\"");
  EXPECT_EQ(taken_apart({"What", "is", "in", "talk.mp4"}),
            quotes + "kinora ask talk.mp4 \"What is in\"");
}

TEST_F(FirstHour, AVideoWithoutAQuestionIsAUsageError) {
  expect_error(kinora({"ask", clip(), "-m", model}), 2, "there is no question");
  expect_error(kinora({"ask", "demo"}), 2, "there is no question");
  expect_error(kinora({"ask", clip(), "What", "is", "this", "-m", model}), 2, "in quotes");
  const Finished json = kinora({"ask", "demo", "--json"});
  EXPECT_EQ(json.code, 2);
  EXPECT_EQ(nlohmann::json::parse(json.out).at("error").at("kind"), "usage");
}

constexpr const char* little = "knows only a small drawn world";

TEST_F(FirstHour, TheBundledModelSaysWhatItKnowsBeforeItAnswers) {
  const Finished street = kinora({"ask", clip(), "What happens?", "-q"});
  EXPECT_EQ(street.code, 0) << street.err;
  EXPECT_TRUE(street.err.starts_with("kinora: note: ")) << street.err;
  EXPECT_NE(street.err.find(little), std::string::npos) << street.err;
  EXPECT_NE(street.err.find("-m "), std::string::npos) << street.err;
  // Without any video it knows even less.
  EXPECT_NE(kinora({"ask", "Who are you?", "-q"}).err.find(little), std::string::npos);
  const Finished json = kinora({"ask", clip(), "What happens?", "--json"});
  ASSERT_EQ(json.code, 0) << json.err;
  const auto warnings = nlohmann::json::parse(json.out).at("warnings");
  ASSERT_EQ(warnings.size(), 1u) << warnings;
  EXPECT_NE(warnings[0].get<std::string>().find(little), std::string::npos);
  const Finished chat = kinora_shell("printf 'Who?\\n' | $KINORA chat -q " + clip());
  EXPECT_NE(chat.err.find(little), std::string::npos) << chat.err;
}

TEST_F(FirstHour, TheBundledModelIsSilentAboutItsOwnWorld) {
  EXPECT_EQ(kinora({"ask", "demo", "What moves after the bear?", "-q"}).err, "");
  EXPECT_EQ(kinora({"ask", clip(), "What?", "-m", model, "-q", "--max-tokens", "2"}).err, "");
}

TEST_F(FirstHour, TheBundledModelIsSilentAboutItsOwnSets) {
  const auto evaluated = [&](nlohmann::json item) {
    item.update({{"id", "1"}, {"video", "clip.mp4"}, {"question", "What?"}, {"answer", "x"}});
    std::ofstream(file("set.jsonl")) << item.dump() << "\n";
    const Finished finished =
        kinora({"eval", file("set.jsonl"), "--no-cache", "--max-tokens", "2"});
    EXPECT_EQ(finished.code, 0) << finished.err;
    return finished.err;
  };
  EXPECT_NE(evaluated({{"fps", 1}}).find(little), std::string::npos);
  EXPECT_EQ(evaluated({{"fps", 1}, {"kind", "what_mover"}}), "");
}

TEST_F(FirstHour, InfoSaysWhatTheBundledModelKnows) {
  const std::string tiny = std::string(KINORA_FIXTURES) + "/../../models/kinora-tiny";
  EXPECT_NE(kinora({"info", tiny}).out.find(little), std::string::npos);
  const auto json = nlohmann::json::parse(kinora({"info", tiny, "--json"}).out);
  ASSERT_EQ(json.at("warnings").size(), 1u);
  EXPECT_EQ(kinora({"info", model}).out.find(little), std::string::npos);
  EXPECT_TRUE(nlohmann::json::parse(kinora({"info", model, "--json"}).out).at("warnings").empty());
}

// --- the same words everywhere ---

TEST(SameWords, TimesAreWrittenInEveryUsualWay) {
  for (const char* time : {"90", "90s", "90.0", "1:30", "0:01:30", "0:1:30.0"}) {
    EXPECT_EQ(cli::parse_time(time), 90) << time;
  }
  EXPECT_EQ(cli::parse_time("0:01:30.5"), 90.5);
  for (const char* time : {"", "s", "soon", "1:30s", "90ss", "90 s", "1.5:30", "1:2:3:4", "-1"}) {
    EXPECT_THROW(cli::parse_time(time), Error) << time;
  }
}

TEST_F(FirstHour, TimesAreTheSameInEveryCommand) {
  const auto seconds = [](const std::vector<std::string>& arguments) {
    const Finished finished = kinora(arguments);
    EXPECT_EQ(finished.code, 0) << finished.err;
    std::vector<double> times;
    const auto json = nlohmann::json::parse(finished.out);
    for (const auto& frame : json.at("frames")) times.push_back(frame.at("time"));
    return times;
  };
  const auto plain = seconds({"frames", clip(), "--every", "0.5", "--start", "1", "--json"});
  EXPECT_EQ(plain, (std::vector<double>{1.0, 1.5}));
  EXPECT_EQ(seconds({"frames", clip(), "--every", "0.5s", "--start", "0:01", "--json"}), plain);
  expect_error(kinora({"frames", clip(), "--every", "0s", "-o", file("x")}), 2, "above 0");
  expect_error(kinora({"eval", "set.jsonl", "--time-limit", "soon"}), 2, "'soon' is not a time");
}

TEST_F(FirstHour, BenchmarksSayWhatTheyTake) {
  const auto refuses = [](std::vector<std::string> arguments, const std::string& about) {
    arguments.insert(arguments.begin(), "bench");
    arguments.emplace_back("--random-weights");
    expect_error(kinora(arguments), 2, about);
  };
  refuses({"overlap", "demo", "--snap", "x"}, "'x' is not a number from 0 to 3600");
  refuses({"overlap", "demo", "--snap", "0,-1"}, "'-1' is not a number from 0 to 3600");
  refuses({"model", "--weights", "int3"}, "'int3' is not bf16, fp8, int8 or int4");
  refuses({"model", "--rows", "int4"}, "'int4' is not bf16, int8 or fp8");
  refuses({"model", "--attention-dtype", "int8"}, "'int8' is not bf16 or fp8");
  refuses({"stream", "--memory", "mosaik"}, "did you mean mosaic?");
  refuses({"stream", "--memory", "mosaic:gpu=0"}, "gpu is '0', but must be 1 or more, or all");
}

TEST_F(FirstHour, BenchStreamAsksOnTheWay) {
  const Finished run = kinora({"bench",
                               "stream",
                               "--random-weights",
                               "--shape",
                               "bundled",
                               "--device",
                               "cpu",
                               "--side",
                               "56",
                               "--frames",
                               "16",
                               "--frames-per-group",
                               "4",
                               "--moments",
                               "2",
                               "--questions",
                               "1",
                               "--memory",
                               "mosaic:rows=8,window=8",
                               "--json"});
  ASSERT_EQ(run.code, 0) << run.err;
  const auto memory = nlohmann::json::parse(run.out).at("memories").at(0);
  ASSERT_EQ(memory.at("moments").size(), 2u);
  EXPECT_EQ(memory.at("moments").at(0).at("frames"), 8);
  EXPECT_EQ(memory.at("moments").at(1).at("frames"), 16);
  EXPECT_GT(memory.at("moments").at(1).at("rows"), memory.at("moments").at(0).at("rows"));
  EXPECT_GT(memory.at("frames_per_s").get<double>(), 0);
}

TEST_F(FirstHour, DemoIsUnderstoodByEveryCommandThatTakesAVideo) {
  const Finished probed = kinora({"probe", "demo", "--json"});
  ASSERT_EQ(probed.code, 0) << probed.err;
  EXPECT_EQ(nlohmann::json::parse(probed.out).at("frames"), 1440);
  EXPECT_EQ(kinora({"frames", "demo", "--frames", "2", "--json"}).code, 0);
  EXPECT_EQ(kinora({"ask", "demo", "What is it?", "--dry-run"}).code, 0);
}

TEST_F(FirstHour, ProbeTellsWhatTheNamedModelCosts) {
  const Finished json = kinora({"probe", clip(), "-m", model, "--json"});
  ASSERT_EQ(json.code, 0) << json.err;
  const auto cost = nlohmann::json::parse(json.out).at("model_cost");
  EXPECT_EQ(cost.at("frames"), 4);
  EXPECT_GT(cost.at("memory_bytes").get<int64_t>(), 0);
  const Finished text = kinora({"probe", clip(), "-m", model});
  EXPECT_NE(text.out.find("A question to qwen2_5_vl_untied_old would cost"), std::string::npos)
      << text.out;
  EXPECT_NE(kinora({"probe", clip(), "-m", "kinora-tiny"}).out.find("kinora-tiny"),
            std::string::npos);
}

TEST_F(FirstHour, BenchMeasuresTheCpuWhereThereIsNoGpu) {
  const std::vector<std::string> bench{
      "bench",    "model", "--random-weights", "--device", "cpu",        "--shape", "3b",
      "--layers", "1",     "--tokens",         "16",       "--contexts", "64"};
  std::vector<std::string> scripted = bench;
  scripted.emplace_back("--json");
  const Finished json = kinora(scripted);
  ASSERT_EQ(json.code, 0) << json.err;
  const auto figures = nlohmann::json::parse(json.out);
  EXPECT_GT(figures.at("ceilings").at("multiply_gflops").get<double>(), 0);
  EXPECT_GT(figures.at("ceilings").at("read_gb_per_s").get<double>(), 0);
  EXPECT_GT(figures.at("prefill").at(0).at("tokens_per_s").get<double>(), 0);
  EXPECT_GT(figures.at("decode").at(0).at("ms_per_token").get<double>(), 0);
  std::vector<std::string> sparse = bench;
  sparse.insert(sparse.end(), {"--attention", "momo"});
  expect_error(kinora(sparse), 5, "need a GPU");
}

TEST_F(FirstHour, AContactSheetIsAPngOrRefused) {
  expect_error(kinora({"frames", clip(), "--contact-sheet", file("sheet.jpg")}), 2, ".png");
  EXPECT_EQ(kinora({"frames", clip(), "--contact-sheet", file("sheet.png"), "-q"}).code, 0);
}

// --- nothing changed in silence ---

TEST(Notes, AVideoTooLongForTheModelsOwnRateSaysSo) {
  ModelDescription qwen;
  qwen.default_fps = 2;
  qwen.default_max_frames = 768;
  const auto notes = [&](double apart, double share, FrameChoice choice = {}) {
    SessionOptions session;
    session.frame_share = share;
    InputInfo input;
    input.source = "talk.mp4";
    for (int i = 0; i < 768; ++i) input.times.push_back(apart * i);
    return cli::frame_notes(session, choice, qwen, {input});
  };
  EXPECT_TRUE(notes(0.5, 1).empty());
  ASSERT_EQ(notes(4.7, 1).size(), 1u);
  EXPECT_TRUE(notes(4.7, 1)[0].starts_with("talk.mp4: one frame every 4.7 s")) << notes(4.7, 1)[0];
  EXPECT_NE(notes(4.7, 1)[0].find("768 at most"), std::string::npos);
  EXPECT_TRUE(notes(4.7, 1, FrameChoice::rate(0.2)).empty());  // as was asked
  ASSERT_EQ(notes(0.667, 0.75).size(), 1u);
  EXPECT_NE(notes(0.667, 0.75)[0].find("75 % of the frames"), std::string::npos);
}

TEST_F(FirstHour, APresetThatTakesOtherFramesSaysSoFirst) {
  const std::vector<std::string> question{"ask",          clip(), "What is it?", "-m",  model, "-q",
                                          "--max-tokens", "2",    "--quality",   "fast"};
  const Finished text = kinora(question);
  EXPECT_EQ(text.err,
            "kinora: note: this quality takes frames up to 50 % of their distance earlier or later "
            "where they are cheaper to decode (--snap 0: the very frames)\n");
  std::vector<std::string> scripted = question;
  scripted.push_back("--json");
  const auto warnings = nlohmann::json::parse(kinora(scripted).out).at("warnings");
  ASSERT_EQ(warnings.size(), 2u) << warnings;  // the last: the answer was cut
  EXPECT_NE(warnings[0].get<std::string>().find("50 % of their distance"), std::string::npos);
  scripted.insert(scripted.end(), {"--snap", "0"});
  EXPECT_EQ(nlohmann::json::parse(kinora(scripted).out).at("warnings").size(), 1u);
  scripted.insert(scripted.end(), {"--fps", "2"});
  EXPECT_EQ(nlohmann::json::parse(kinora(scripted).out).at("warnings").size(), 1u);
}

TEST_F(FirstHour, WhatABudgetChangesIsSaidOnceAndBeforeTheAnswer) {
  const Finished free = kinora(
      {"ask", clip(), "What is it?", "-m", model, "--max-tokens", "2", "--fps", "8", "--json"});
  ASSERT_EQ(free.code, 0) << free.err;
  const int64_t tokens = nlohmann::json::parse(free.out).at("tokens").at("prompt");
  const Finished tight = kinora({"ask", clip(), "What is it?", "-m", model, "--max-tokens", "2",
                                 "--fps", "8", "-q", "--max-context", std::to_string(tokens - 8)});
  ASSERT_EQ(tight.code, 0) << tight.err;
  EXPECT_TRUE(tight.err.starts_with("kinora: note: ")) << tight.err;
  EXPECT_EQ(std::count(tight.err.begin(), tight.err.end(), '\n'), 1) << tight.err;
}

TEST_F(FirstHour, TheClosingLineIsShortUnlessMoreIsWanted) {
  const auto asked = [&](const std::vector<std::string>& more) {
    std::vector<std::string> arguments{"ask", "demo", "What moves after the bear?"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return kinora(arguments).err;
  };
  // The times that the answer rests on, if any, then one line. A machine that takes longer than
  // ten seconds reports how far it is before.
  std::string plain = asked({});
  while (plain.find(" %") < plain.find('\n')) plain.erase(0, plain.find('\n') + 1);
  const size_t closing = plain.starts_with("[") ? plain.find('\n') + 1 : 0;
  EXPECT_TRUE(plain.substr(closing).starts_with("120 frames and ")) << plain;
  EXPECT_LT(plain.size() - closing, 110u);
  EXPECT_EQ(std::count(plain.begin() + static_cast<ptrdiff_t>(closing), plain.end(), '\n'), 1)
      << plain;
  // Here momo reads all: the prompt is too short for it, and a report of nothing is not printed.
  const std::string wordy = asked({"-v", "--attention", "momo", "--dense-below", "100000"});
  EXPECT_NE(wordy.find("peak memory"), std::string::npos) << wordy;
  EXPECT_EQ(wordy.find("FLOPs"), std::string::npos) << wordy;
}

// --- models by name ---

TEST_F(FirstHour, TheBundledModelHasAName) {
  EXPECT_EQ(kinora({"ask", "demo", "What moves after the bear?", "-q", "-m", "kinora-tiny"}).out,
            "scissors\n");
  EXPECT_NE(kinora({"info", "kinora-tiny"}).out.find("kinora-tiny (qwen2_5_vl)"),
            std::string::npos);
  EXPECT_EQ(kinora({"info"}).out.substr(0, 40), kinora({"info", "kinora-tiny"}).out.substr(0, 40));
}

TEST_F(FirstHour, AModelThatIsNotHereSaysHowToGetIt) {
  const auto asked = [&](const std::string& name) {
    return kinora_shell("export HOME=" + directory_->path() +
                        "; unset HF_HOME HF_HUB_CACHE; $KINORA ask Hello -m " + name);
  };
  for (const auto& [given, name] :
       {std::pair{"Qwen/Qwen2.5-VL-3B-Instruct", "Qwen/Qwen2.5-VL-3B-Instruct"},
        {"Some-Model", "ORG/Some-Model"}}) {
    const Finished finished = asked(given);
    expect_error(finished, 3, "get it with: ");
    EXPECT_TRUE(finished.err.ends_with(std::string(" ") + name + "\n")) << finished.err;
  }
  expect_error(asked("Qwen/Qwen2.5-VL-3B-Instruct@v2"), 3, "Instruct --revision v2");
  expect_error(asked("kinora-tny"), 3, "did you mean kinora-tiny?");
  expect_error(asked("./nowhere/at/all"), 3, "there is no directory ./nowhere/at/all");
}

TEST_F(FirstHour, AFileOfWeightsStandsForItsDirectory) {
  const auto ask = [&](const std::string& given) {
    return kinora({"ask", "Hello", "-m", given, "--max-tokens", "3", "-q", "--temperature", "0"});
  };
  const Finished whole = ask(model);
  ASSERT_EQ(whole.code, 0) << whole.err;
  const std::string weights = [&] {
    for (const auto& entry : std::filesystem::directory_iterator(model)) {
      if (entry.path().extension() == ".safetensors") return entry.path().string();
    }
    return std::string();
  }();
  EXPECT_EQ(ask(weights).out, whole.out);
  std::ofstream(file("alone.safetensors")) << "x";
  expect_error(ask(file("alone.safetensors")), 2, "give the directory");
  std::ofstream(file("model.gguf")) << "x";
  expect_error(ask(file("model.gguf")), 5, "is not a model that kinora reads");
}

TEST_F(FirstHour, ModelsOfTheDataFolderAreKnownByName) {
  const std::string home = file("home");
  const std::string folder = home + "/kinora/models/org/mine";
  std::filesystem::create_directories(home + "/kinora/models/org");
  std::filesystem::copy(model, folder, std::filesystem::copy_options::recursive);
  std::filesystem::create_directories(home + "/kinora/models/parrot");
  std::ofstream(home + "/kinora/models/parrot/config.json") << R"({"model_type": "parrot"})";
  const std::string with = "export HOME=" + home + " XDG_DATA_HOME=" + home +
                           "; unset HF_HOME HF_HUB_CACHE XDG_CACHE_HOME; $KINORA ";
  const Finished listed = kinora_shell(with + "models --json");
  ASSERT_EQ(listed.code, 0) << listed.err;
  const auto json = nlohmann::json::parse(listed.out);
  ASSERT_EQ(json.size(), 3u) << json;
  EXPECT_EQ(json[1].at("name"), "org/mine");
  EXPECT_EQ(json[1].at("place"), "kinora");
  EXPECT_TRUE(json[1].at("supported").get<bool>());
  EXPECT_GT(json[1].at("bytes").get<int64_t>(), 10'000);
  EXPECT_EQ(json[2].at("family"), "parrot");
  EXPECT_FALSE(json[2].at("supported").get<bool>());
  const Finished table = kinora_shell(with + "models");
  EXPECT_NE(table.out.find("no: kinora does not know the family"), std::string::npos) << table.out;
  EXPECT_EQ(kinora_shell(with + "models --names").out, "kinora-tiny\norg/mine\nparrot\n");
  EXPECT_EQ(kinora_shell(with + "ask Hello -m mine -q --max-tokens 2").code, 0);
  // An index that nests more deeply than calls can be is left to whoever loads the model.
  std::ofstream(folder + "/model.safetensors.index.json")
      << "{\"weight_map\": " << std::string(250'000, '[') << std::string(250'000, ']') << "}";
  EXPECT_EQ(kinora_shell(with + "models --names").out, "kinora-tiny\norg/mine\nparrot\n");
}

}  // namespace
}  // namespace kinora::testing
