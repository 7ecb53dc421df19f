// The command `ask` as a person meets it: what it prints, how it fails, with which exit code.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "support/cli.h"
#include "support/png_bomb.h"
#include "support/procedural_pixels.h"
#include "support/reference_ids.h"
#include "support/temp_dir.h"

namespace kinora::testing {
namespace {

const std::string fixtures = KINORA_FIXTURES;
const std::string model = fixtures + "/models/qwen2_5_vl_untied_old";

class Ask : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    directory_ = new TempDir;
    make_media("-f lavfi -i testsrc2=size=64x48:rate=8:duration=2 -pix_fmt yuv420p " + clip());
    make_media("-f lavfi -i testsrc2=size=61x47 -frames:v 1 " + picture());
  }
  static void TearDownTestSuite() {
    delete directory_;
    directory_ = nullptr;
  }
  static std::string file(const std::string& name) { return directory_->file(name); }
  static std::string clip() { return file("clip.mp4"); }
  static std::string picture() { return file("picture.png"); }

  static void write(const std::string& name, const std::string& content) {
    std::ofstream(file(name), std::ios::binary) << content;
  }

  static TempDir* directory_;
};
TempDir* Ask::directory_ = nullptr;

TEST_F(Ask, AnswersAboutAVideoAndTellsTheTimings) {
  const Finished finished =
      kinora({"ask", clip(), "What is this?", "-m", model, "--max-tokens", "8", "-v"});
  EXPECT_EQ(finished.code, 0) << finished.err;
  EXPECT_TRUE(finished.out.ends_with("\n"));
  for (const char* word : {"frames", "load", "decode", "vision", "prefill", "peak memory"}) {
    EXPECT_NE(finished.err.find(word), std::string::npos) << word << ": " << finished.err;
  }
}

TEST_F(Ask, GivesTheIdsOfPromptAndAnswer) {
  const Finished finished = kinora(
      {"ask", picture(), "What is this?", "-m", model, "--max-tokens", "4", "--json", "--ids"});
  ASSERT_EQ(finished.code, 0) << finished.err;
  const auto json = nlohmann::json::parse(finished.out);
  EXPECT_EQ(json.at("ids").at("answer").size(), json.at("tokens").at("answer"));
  EXPECT_EQ(json.at("ids").at("prompt").size(), json.at("tokens").at("prompt"));
  EXPECT_EQ(kinora({"ask", picture(), "What is this?", "-m", model, "--ids"}).code, 2);
}

// Those that Hugging Face's classes gave for the same words and pictures.
TEST_F(Ask, GivesTheIdsOfHuggingFace) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"llama3", "text"},
      {"qwen2_tied", "text"},
      {"qwen3", "text"},
      {"qwen2_5_vl_untied_old", "text"},
      {"qwen2_5_vl_untied_old", "image_odd"},
      {"qwen3_vl_untied", "image_odd"},
      {"llava_onevision_old", "image_odd"},
      {"llava_onevision_new", "image_odd"}};
  for (const auto& [name, place] : cases) {
    SCOPED_TRACE(name + " " + place);
    const ReferenceIds expected(name, place);
    const auto& content = expected.about.at("messages").at(0).at("content");
    std::vector<std::string> command = {"ask"};
    for (const auto& image : expected.about.at("images")) {
      const int64_t height = image.at("height"), width = image.at("width");
      const Tensor pixels = procedural_clip(image.at("seed"), 1, height, width);
      command.push_back(file(name + ".ppm"));
      std::ofstream(command.back(), std::ios::binary)
          << "P6\n"
          << width << " " << height << "\n255\n"
          << std::string(reinterpret_cast<const char*>(pixels.data<uint8_t>()),
                         static_cast<size_t>(pixels.size(1) * pixels.size(2) * 3));
    }
    command.push_back(content.is_string() ? content : content.back().at("text"));
    command.insert(command.end(),
                   {"-m", fixtures + "/models/" + name, "--device", "cpu", "--rows", "f32",
                    "--temperature", "0", "--max-tokens", "64", "--json", "--ids", "-q"});
    const Finished finished = kinora(command);
    ASSERT_EQ(finished.code, 0) << finished.err;
    const auto ids = nlohmann::json::parse(finished.out).at("ids");
    EXPECT_EQ(ids.at("prompt"), expected.prompt);
    EXPECT_EQ(ids.at("answer"), expected.answer);
  }
}

TEST_F(Ask, PrintsJsonForScripts) {
  const Finished finished = kinora(
      {"ask", clip(), picture(), "What is this?", "-m", model, "--max-tokens", "8", "--json"});
  ASSERT_EQ(finished.code, 0) << finished.err;
  const auto json = nlohmann::json::parse(finished.out);
  EXPECT_TRUE(json.at("answer").is_string());
  EXPECT_EQ(json.at("inputs").size(), 2u);
  EXPECT_EQ(json.at("inputs")[0].at("kind"), "video");
  EXPECT_EQ(json.at("inputs")[1].at("kind"), "image");
  EXPECT_EQ(json.at("inputs")[0].at("times").size(), 4u);  // 2 s at Qwen's 2 frames a second
  EXPECT_EQ(json.at("frames"), 5);
  const int64_t visual = json.at("tokens").at("visual");
  EXPECT_EQ(visual, json.at("inputs")[0].at("tokens").get<int64_t>() +
                        json.at("inputs")[1].at("tokens").get<int64_t>());
  EXPECT_GT(json.at("timings").at("total").get<double>(), 0);
  EXPECT_EQ(finished.err, "");
}

TEST_F(Ask, NamesTheTimesThatTheAnswerRestsOn) {
  const Finished said = kinora({"ask", "demo", "There is a red card. What is on it?"});
  ASSERT_EQ(said.code, 0) << said.err;
  EXPECT_EQ(said.out, "T\n");
  const std::string sheet = file("sheet.png");
  const Finished finished =
      kinora({"ask", "demo", "There is a red card. What is on it?", "--json", "--evidence", sheet});
  ASSERT_EQ(finished.code, 0) << finished.err;
  const auto json = nlohmann::json::parse(finished.out);
  ASSERT_FALSE(json.at("evidence").empty());
  const auto& first = json.at("evidence")[0];
  EXPECT_EQ(first.at("input"), 0);
  EXPECT_LT(first.at("start").get<double>(), first.at("end").get<double>());
  EXPECT_GT(first.at("share").get<double>(), 0.3);
  const auto clock = [](double seconds) {
    const int whole = static_cast<int>(seconds);
    return (whole < 10 ? "00:00:0" : "00:00:") + std::to_string(whole);
  };
  const std::string shown = "[" + clock(first.at("start").get<double>()) + "-";
  EXPECT_NE(said.err.find(shown), std::string::npos) << said.err << shown;
  std::ifstream drawn(sheet, std::ios::binary);
  std::string begin(4, ' ');
  drawn.read(begin.data(), 4);
  EXPECT_EQ(begin, "\x89PNG");
  // A picture alone has no times, and a text no frames.
  const Finished still =
      kinora({"ask", picture(), "What?", "-m", model, "--max-tokens", "3", "--evidence", sheet});
  EXPECT_EQ(still.code, 2);
  EXPECT_NE(still.err.find("no frame of a video"), std::string::npos) << still.err;
  const Finished nowhere = kinora({"ask", clip(), "What?", "-m", model, "--max-tokens", "3", "-q",
                                   "--evidence", file("no/such/sheet.png")});
  EXPECT_NE(nowhere.code, 0);
}

TEST_F(Ask, TheSameSeedGivesTheSameAnswer) {
  const std::vector<std::string> arguments{
      "ask", picture(),       "What?", "-m",      model, "-q",           "--seed",
      "5",   "--temperature", "1.0",   "--top-p", "0.9", "--max-tokens", "12"};
  const Finished one = kinora(arguments);
  EXPECT_EQ(one.code, 0) << one.err;
  EXPECT_EQ(one.err, "");
  EXPECT_EQ(one.out, kinora(arguments).out);
}

TEST_F(Ask, TakesAPartOfAVideo) {
  const Finished finished = kinora({"ask", clip(), "What?", "-m", model, "--start", "1", "--end",
                                    "1.5", "--frames", "4", "--max-tokens", "2", "--json"});
  ASSERT_EQ(finished.code, 0) << finished.err;
  const auto json = nlohmann::json::parse(finished.out);
  for (const double time : json.at("inputs")[0].at("times")) {
    EXPECT_GE(time, 1.0);
    EXPECT_LE(time, 1.5);
  }
  // The same on a clock.
  const Finished clock = kinora({"ask", clip(), "What?", "-m", model, "--start", "0:01", "--end",
                                 "0:00:01.5", "--frames", "4", "--max-tokens", "2", "--json"});
  ASSERT_EQ(clock.code, 0) << clock.err;
  EXPECT_EQ(nlohmann::json::parse(clock.out).at("inputs"), json.at("inputs"));
  expect_error(kinora({"ask", clip(), "What?", "-m", model, "--start", "soon"}), 2, "'soon'");
}

TEST_F(Ask, AnswersWithoutAnyInput) {
  const Finished finished = kinora({"ask", "Hello", "-m", model, "--max-tokens", "3", "-q"});
  EXPECT_EQ(finished.code, 0) << finished.err;
}

TEST_F(Ask, RefusesInputsThatAreNoVideo) {
  write("notes.mp4", "these are notes, not a film\n");
  write("empty.mp4", "");
  make_media("-f lavfi -i sine=duration=1 " + file("sound.wav"));
  expect_error(kinora({"ask", file("absent.mp4"), "What?", "-m", model}), 3, "absent.mp4");
  expect_error(kinora({"ask", file("notes.mp4"), "What?", "-m", model}), 4, "notes.mp4");
  expect_error(kinora({"ask", file("empty.mp4"), "What?", "-m", model}), 4, "empty.mp4");
  expect_error(kinora({"ask", file("sound.wav"), "What?", "-m", model}), 4, "sound.wav");
}

TEST_F(Ask, TakesATinyPictureAndRefusesAHugeOne) {
  write_white_png(file("dot.png"), 1, 1);
  write_white_png(file("wall.png"), 20000, 20000);  // 75 KB on disk, 1.2 GB as pixels
  EXPECT_EQ(kinora({"ask", file("dot.png"), "What?", "-m", model, "--max-tokens", "2"}).code, 0);
  expect_error(kinora({"ask", file("wall.png"), "What?", "-m", model}), 6, "20000");
}

TEST_F(Ask, RefusesQuestionsThatMakeNoSense) {
  expect_error(kinora({"ask", clip(), "", "-m", model}), 2, "empty");
  expect_error(kinora({"ask", clip(), " \n ", "-m", model}), 2, "empty");
  expect_error(kinora({"ask", clip(), "caf\xe9 or \xff", "-m", model}), 4, "UTF-8");
}

TEST_F(Ask, RefusesRatesThatMakeNoSense) {
  for (const char* fps : {"0", "-1", "nan", "-inf"}) {
    expect_error(kinora({"ask", clip(), "What?", "-m", model, "--fps=" + std::string(fps)}), 2,
                 "fps");
  }
  expect_error(kinora({"ask", clip(), "What?", "-m", model, "--fps", "soon"}), 2, "--fps");
  expect_error(kinora({"ask", clip(), "What?", "-m", model, "--frames", "0"}), 2, "frames");
  expect_error(kinora({"ask", clip(), "What?", "-m", model, "--frames", "4", "--fps", "1"}), 2,
               "not both");
  expect_error(kinora({"ask", clip(), "What?", "-m", model, "--start", "5", "--end", "4"}), 2, "");
}

TEST_F(Ask, RefusesDamagedModels) {
  expect_error(kinora({"ask", clip(), "What?", "-m", file("nowhere")}), 3, "nowhere");
  ASSERT_EQ(::mkdir(file("bare").c_str(), 0755), 0);
  expect_error(kinora({"ask", clip(), "What?", "-m", file("bare")}), 3, "config.json");

  const auto damaged = [&](const std::string& name) {
    std::filesystem::copy(fixtures + "/models/qwen2_5_vl_tied_new", file(name),
                          std::filesystem::copy_options::recursive);
    std::filesystem::permissions(file(name), std::filesystem::perms::owner_all,
                                 std::filesystem::perm_options::add);
    return file(name);
  };
  std::string directory = damaged("unknown");
  std::ofstream(directory + "/config.json") << R"({"model_type": "parrot", "architectures": []})";
  expect_error(kinora({"ask", clip(), "What?", "-m", directory}), 5, "parrot");

  directory = damaged("cut");
  std::filesystem::resize_file(directory + "/model.safetensors", 1000);
  expect_error(kinora({"ask", clip(), "What?", "-m", directory}), 4, "model.safetensors");

  directory = damaged("merges");
  std::ifstream source(fixtures + "/models/qwen2_5_vl_tied_new/tokenizer.json");
  auto tokenizer = nlohmann::json::parse(source);
  tokenizer.at("model").erase("merges");
  std::filesystem::remove(directory + "/tokenizer.json");
  std::ofstream(directory + "/tokenizer.json") << tokenizer.dump();
  expect_error(kinora({"ask", clip(), "What?", "-m", directory}), 4, "merges");
}

// The fixture as if it had been made for `largest` positions.
std::string with_largest_position(const std::string& directory, int largest) {
  const std::string source = fixtures + "/models/qwen2_5_vl_tied_new";
  std::filesystem::copy(source, directory, std::filesystem::copy_options::recursive);
  std::ifstream file(source + "/config.json");
  auto config = nlohmann::json::parse(file);
  auto& text = config.contains("text_config") ? config.at("text_config") : config;
  text["max_position_embeddings"] = largest;
  std::filesystem::remove(directory + "/config.json");
  std::ofstream(directory + "/config.json") << config.dump();
  return directory;
}

TEST_F(Ask, RefusesAQuestionPastTheLargestPositionBeforeAnyWork) {
  const std::string directory = with_largest_position(file("short"), 16);
  expect_error(kinora({"ask", clip(), "What is it?", "-m", directory}), 6, "position");
}

TEST_F(Ask, ManyTokensAtAllowedPositionsOnlyWarn) {
  const std::string directory = with_largest_position(file("flat"), 200);
  make_media("-f lavfi -i testsrc2=size=560x560 -frames:v 1 " + file("square.png"));
  std::vector<std::string> command = {"ask",    file("square.png"), "What?",
                                      "-m",     directory,          "--max-pixels",
                                      "400000", "--max-tokens",     "2"};
  const auto once = [](const std::string& text) {
    const std::string warning = "their positions are allowed";
    const size_t said = text.find(warning);
    EXPECT_NE(said, std::string::npos) << text;
    if (said == std::string::npos) return;
    EXPECT_EQ(text.find(warning, said + 1), std::string::npos) << text;
  };
  once(kinora(command).err);
  command.push_back("--json");
  const Finished finished = kinora(command);
  ASSERT_EQ(finished.code, 0) << finished.err;
  const auto answer = nlohmann::json::parse(finished.out);
  EXPECT_GT(answer.at("tokens").at("visual").get<int>(), 200);
  once(answer.at("warnings").dump());
  once(answer.at("expected").at("warnings").dump());
  command.push_back("--dry-run");
  once(kinora(command).out);
}

TEST_F(Ask, LooksForNumbersThatAreNoneOnlyWhenTold) {
  const std::string directory = file("poisoned");
  std::filesystem::copy(fixtures + "/models/qwen2_5_vl_tied_new", directory,
                        std::filesystem::copy_options::recursive);
  const std::string weights = directory + "/model.safetensors";
  std::filesystem::permissions(weights, std::filesystem::perms::owner_write,
                               std::filesystem::perm_options::add);
  std::fstream file(weights, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-4, std::ios::end);
  file.write("\xff\xff\xff\xff", 4);  // not a number, in f32 as in bf16
  file.close();
  const std::vector<std::string> question{"ask",     picture(), "What?",        "-m",
                                          directory, "-q",      "--max-tokens", "2"};
  EXPECT_EQ(kinora(question).code, 0);
  std::vector<std::string> checked = question;
  checked.push_back("--check-weights");
  expect_error(kinora(checked), 4, "NaN");
}

TEST_F(Ask, ExplainsWrongArguments) {
  expect_error(kinora({"ask", clip(), "What?", "-m", model, "--colour", "red"}), 2, "--colour");
  expect_error(kinora({"ask", "-m", model}), 2, "ask --help");
  expect_error(kinora({"answer"}), 2, "--help");
  expect_error(kinora({"ask", clip(), "What?", "-m", model, "--device", "tpu"}), 2, "tpu");
  expect_error(kinora({"ask", clip(), "What?", "-m", model, "--temperature", "-2"}), 2,
               "temperature");
}

TEST_F(Ask, TheBundledModelAnswersAboutTheBundledClip) {
  const std::pair<const char*, const char*> known[] = {
      {"Which thing moves over the green stripes?", "a chick\n"},
      {"There is a red card. What is on it?", "T\n"},
      {"What moves after the bear?", "scissors\n"}};
  for (const auto& [question, answer] : known) {
    const Finished finished = kinora({"ask", "demo", question, "-q"});
    EXPECT_EQ(finished.code, 0) << finished.err;
    EXPECT_EQ(finished.out, answer) << question;
  }
}

TEST_F(Ask, DraftsChangeNoAnswer) {
  for (const char* question :
       {"Which thing moves over the green stripes?", "What moves after the bear?"}) {
    const Finished plain = kinora({"ask", "demo", question, "-q"});
    const Finished drafted = kinora({"ask", "demo", question, "-q", "--draft", "ngram:adapt=0"});
    EXPECT_EQ(drafted.code, 0) << drafted.err;
    EXPECT_EQ(drafted.out, plain.out) << question;
  }
  // An answer that is long enough to repeat itself.
  const auto ask = [](const std::string& draft) {
    const Finished finished = kinora({"ask", "Say the card, the card, the card and the card again.",
                                      "-m", model, "--temperature", "0", "--repetition-penalty",
                                      "1", "--max-tokens", "60", "--draft", draft, "--json"});
    EXPECT_EQ(finished.code, 0) << finished.err;
    return nlohmann::json::parse(finished.out);
  };
  const auto plain = ask("none"), drafted = ask("ngram:least=1,adapt=0");
  EXPECT_EQ(drafted.at("answer"), plain.at("answer"));
  EXPECT_EQ(drafted.at("tokens"), plain.at("tokens"));
  EXPECT_TRUE(plain.at("draft").is_null());
  EXPECT_GT(drafted.at("draft").at("drafted").get<int64_t>(), 0);
  EXPECT_EQ(drafted.at("draft").at("kind"), "");
}

// Trained ones of other people too; the report says whose.
TEST_F(Ask, DraftsWithPublishedDrafts) {
  const std::string folder = std::string(KINORA_FIXTURES) + "/drafts/published/";
  const auto ask = [&](const std::string& draft, std::vector<std::string> more) {
    more.insert(more.begin(), {"ask", "Count.", "-m", folder + "target", "--temperature", "0",
                               "--max-tokens", "20", "--draft", draft});
    return kinora(more);
  };
  const Finished plain = ask("none", {});
  EXPECT_EQ(plain.code, 0) << plain.err;
  for (const auto& [name, kind] :
       {std::pair<std::string, std::string>{"eagle", "EAGLE"}, {"eagle3", "EAGLE-3"}}) {
    const Finished drafted = ask(folder + name, {"-v"});
    EXPECT_EQ(drafted.out, plain.out);
    EXPECT_NE(drafted.err.find("draft (" + kind + "): "), std::string::npos) << drafted.err;
    const Finished json = ask("sparrow:adapt=0,from=" + folder + name, {"--json"});
    EXPECT_EQ(json.code, 0) << json.err;
    EXPECT_EQ(nlohmann::json::parse(json.out).at("draft").at("kind"), kind);
  }
  const Finished refused = ask(folder + "target", {});
  EXPECT_NE(refused.code, 0);
  EXPECT_NE(refused.err.find("must be 1 in a draft"), std::string::npos) << refused.err;
}

TEST_F(Ask, ErrorsAreJsonTooForScripts) {
  const Finished finished = kinora({"ask", file("absent.mp4"), "What?", "-m", model, "--json"});
  EXPECT_EQ(finished.code, 3);
  const auto json = nlohmann::json::parse(finished.out);
  EXPECT_EQ(json.at("error").at("kind"), "not-found");
  EXPECT_NE(finished.err.find(json.at("error").at("message").get<std::string>()),
            std::string::npos);
}

TEST_F(Ask, HelpShowsExamples) {
  const Finished finished = kinora({"ask", "--help"});
  EXPECT_EQ(finished.code, 0);
  EXPECT_NE(finished.out.find("Examples:"), std::string::npos);
  EXPECT_EQ(kinora({"--help"}).code, 0);
  EXPECT_TRUE(kinora({"--version"}).out.starts_with("kinora 0."));
}

TEST_F(Ask, StopsOnCtrlC) {
  RunningProgram program({KINORA_PROGRAM, "ask", clip(), "Go on", "-m", model, "--max-tokens",
                          "100000000", "--stop", "never to be said"});
  ::usleep(700'000);
  program.signal(SIGINT);
  const Finished finished = program.wait(20);
  // The fixture may have come to a stop token by itself before the signal.
  EXPECT_TRUE(finished.code == 130 || finished.code == 0) << finished.code << finished.err;
}

TEST_F(Ask, InfoDescribesAModel) {
  const Finished text = kinora({"info", model});
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_NE(text.out.find("qwen2_5_vl"), std::string::npos);
  const Finished finished = kinora({"info", model, "--json"});
  ASSERT_EQ(finished.code, 0);
  const auto json = nlohmann::json::parse(finished.out);
  EXPECT_EQ(json.at("family"), "qwen2_5_vl");
  EXPECT_TRUE(json.at("sees").get<bool>());
  EXPECT_GT(json.at("parameters").get<int64_t>(), 0);
}

}  // namespace
}  // namespace kinora::testing
