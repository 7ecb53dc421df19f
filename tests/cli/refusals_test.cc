// What is refused, and how: one cause has one exit code on every path, what files say stays on one
// line, the flag that raises a limit is named and works, and signals end the program at any time.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "support/cli.h"
#include "support/png_bomb.h"
#include "support/random_data.h"
#include "support/temp_dir.h"

namespace kinora::testing {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

const std::string tiny = KINORA_SOURCE "/models/kinora-tiny";
const std::string demo = KINORA_SOURCE "/models/demo.mp4";

std::string read_text(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

class Refusals : public ::testing::Test {
 protected:
  std::string file(const std::string& name) const { return directory_.file(name); }
  void write(const std::string& name, const std::string& content) const {
    std::ofstream(file(name), std::ios::binary) << content;
  }
  // A copy of a model, the bundled one unless said otherwise, with one file changed.
  std::string model_with(const std::string& name, const std::string& content,
                         const std::string& from = tiny) const {
    const std::string model = file("model");
    fs::remove_all(model);
    fs::create_directory(model);
    for (const auto& entry : fs::directory_iterator(from)) {
      if (entry.path().filename() == name) continue;
      fs::create_symlink(fs::canonical(entry.path()),
                         model + "/" + entry.path().filename().string());
    }
    write("model/" + name, content);
    return model;
  }

  TempDir directory_;
};

TEST_F(Refusals, WhatMayNotBeOpenedIsNotFound) {
  // Nothing is forbidden to root: nobody runs the program then.
  std::string nobody;
  if (::geteuid() == 0) nobody = "setpriv --reuid=65534 --regid=65534 --clear-groups ";
  fs::permissions(directory_.path(), fs::perms(0755));
  const std::string settings =
      "HOME=" + directory_.path() + " XDG_CACHE_HOME=" + file("cache") + " ";
  if (kinora_shell(settings + nobody + "$KINORA info " + tiny).code != 0) {
    GTEST_SKIP() << "nobody may not run the program here";
  }
  for (const char* name : {"video.mp4", "subtitles.srt", "set.jsonl"}) {
    fs::copy_file(demo, file(name));
    fs::permissions(file(name), fs::perms::none);
  }
  write("open.jsonl", R"({"question": "What?", "answer": "nothing"})");
  fs::create_directory(file("cache"));
  fs::permissions(file("cache"), fs::perms(0777));
  fs::create_directory(file("closed"));
  fs::permissions(file("closed"), fs::perms(0555));
  const std::string weights = model_with("model.safetensors", "");
  fs::permissions(weights + "/model.safetensors", fs::perms::none);
  const std::string brief = " --frames 2 --max-tokens 2 -q";
  const std::pair<std::string, std::string> cases[] = {
      {"probe " + file("video.mp4"), "video.mp4"},
      {"frames " + file("video.mp4") + " --frames 1 --json", "video.mp4"},
      {"ask " + file("video.mp4") + " 'What?'" + brief, "video.mp4"},
      {"ask demo 'What?' --subtitles " + file("subtitles.srt") + brief, "subtitles.srt"},
      {"info " + weights, "model.safetensors"},
      {"ask demo 'What?' -m " + weights + brief, "model.safetensors"},
      {"eval " + file("set.jsonl"), "set.jsonl"},
      {"eval " + file("open.jsonl") + " --results " + file("closed/results"), "closed/results"},
      {"frames demo --frames 1 -o " + file("closed/frames"), "closed/frames"},
      {"index demo --frames 2 -q -o " + file("closed/demo.kinora"), "closed/demo.kinora"},
      {"ask demo 'What?' --trace " + file("closed/trace.json") + brief, "closed/trace.json"},
  };
  for (const auto& [command, about] : cases) {
    SCOPED_TRACE(command);
    const Finished finished = kinora_shell(settings + nobody + "$KINORA " + command);
    EXPECT_EQ(finished.code, 3) << finished.err;
    EXPECT_NE(finished.err.find(about + ": Permission denied"), std::string::npos) << finished.err;
  }
  fs::permissions(file("closed"), fs::perms(0755));
}

TEST_F(Refusals, ADirectoryInThePlaceOfAFileIsBadInput) {
  fs::create_directory(file("folder"));
  write("open.jsonl", R"({"question": "What?", "answer": "nothing"})");
  const std::string folder = file("folder");
  const std::vector<std::string> cases[] = {
      {"probe", folder},
      {"eval", folder},
      {"eval", file("open.jsonl"), "--results", folder},
      {"ask", demo, "What?", "--subtitles", folder},
      {"ask", demo, "What?", "--trace", folder, "--frames", "2", "--max-tokens", "2"},
      {"index", demo, "--frames", "2", "-o", folder},
  };
  for (const std::vector<std::string>& command : cases) {
    const Finished finished = kinora(command);
    EXPECT_EQ(finished.code, 4) << command[0] << ": " << finished.err;
    EXPECT_NE(finished.err.find(folder), std::string::npos) << finished.err;
  }
}

TEST_F(Refusals, TheFlagThatRaisesALimitIsNamedAndWorks) {
  write_white_png(file("wide.png"), 20000, 200);
  const std::string wide = file("wide.png");
  const std::vector<std::string> commands[] = {
      {"probe", wide},
      {"frames", wide, "--all", "-o", file("frames")},
      {"ask", wide, "What?", "-q", "--max-tokens", "2", "--dry-run"},
  };
  for (std::vector<std::string> command : commands) {
    SCOPED_TRACE(command[0]);
    expect_error(kinora(command), 6, "--raise-limits 2");
    command.insert(command.end(), {"--raise-limits", "2"});
    const Finished raised = kinora(command);
    EXPECT_EQ(raised.code, 0) << raised.err;
  }
  expect_error(kinora({"probe", wide, "--raise-limits", "0"}), 2, "--raise-limits");
  expect_error(kinora({"frames", demo, "--fps", "100000", "-o", file("x")}), 6, "--raise-limits 2");
}

// A file of every kind with bytes that would clear a terminal, or pass for another message.
TEST_F(Refusals, WhatFilesSayStaysOnOneLine) {
  const std::string hostile = "\n\x1b[2J\rkinora: all is well\x07\xff";
  const std::string escaped = json(hostile).dump(-1, ' ', false, json::error_handler_t::replace);
  const auto ask_with = [&](const std::string& name, const std::string& content) {
    return kinora({"ask", demo, "What?", "-q", "--frames", "2", "--max-tokens", "2", "--attention",
                   "mminference", "-m", model_with(name, content)});
  };
  const auto say_with = [&](const std::string& chat_template) {
    return kinora(
        {"ask", "What?", "-q", "--max-tokens", "2", "-m",
         model_with("chat_template.jinja", chat_template, KINORA_FIXTURES "/models/llama3")});
  };
  write("set.jsonl", "{\"question\": " + escaped + "}");
  json config = json::parse(read_text(tiny + "/config.json"));
  config["model_type"] = "qwen" + hostile;
  const std::string with_type = config.dump(-1, ' ', false, json::error_handler_t::replace);
  std::string table = read_text(tiny + "/kinora-attention.json");
  const size_t pattern = table.find("a-shape");
  ASSERT_NE(pattern, std::string::npos);
  json tokenizer = json::parse(read_text(tiny + "/tokenizer.json"));
  tokenizer["normalizer"] = {{"type", "N\n\x1b[2J"}};
  const Finished cases[] = {
      ask_with("kinora-attention.json", table.substr(0, pattern) +
                                            escaped.substr(1, escaped.size() - 2) +
                                            table.substr(pattern + 7)),
      ask_with("kinora-attention.json", hostile + table),
      ask_with("kinora-attention.json", table.substr(0, pattern) + hostile + table.substr(pattern)),
      ask_with("config.json", with_type),
      ask_with("config.json", hostile),
      ask_with("tokenizer.json", tokenizer.dump()),
      say_with("{{ raise_exception('a\x1b[2J\nb') }}"),
      say_with("{% \x1b[2J\n %}"),
      say_with("{{ messages." + hostile),
      ask_with("generation_config.json", hostile),
      kinora({"eval", file("set.jsonl")}),
  };
  for (const Finished& finished : cases) {
    EXPECT_GE(finished.code, 2) << finished.err;
    EXPECT_LE(finished.code, 5) << finished.err;
    for (size_t begin = 0; begin < finished.err.size();) {
      const size_t end = finished.err.find('\n', begin);
      const std::string line = finished.err.substr(begin, end - begin);
      EXPECT_FALSE(line.starts_with("kinora: all is well")) << line;
      for (const char byte : line) EXPECT_FALSE(byte >= 0 && byte < ' ') << line;
      begin = end == std::string::npos ? finished.err.size() : end + 1;
    }
  }
}

TEST_F(Refusals, SignalsInTheFirstMillisecondsEndTheProgram) {
  for (int delay = 0; delay <= 20'000; delay += 500) {
    RunningProgram program({KINORA_PROGRAM, "ask", demo, "What?", "-q", "--max-tokens", "100"});
    ::usleep(static_cast<useconds_t>(delay));
    program.signal(SIGINT);
    const Finished finished = program.wait(20);
    EXPECT_EQ(finished.code, 130) << delay << " µs: " << finished.err;
    EXPECT_EQ(finished.out, "");
  }
}

// The other commands that take long; nothing of what they were to write is left.
TEST_F(Refusals, EveryCommandEndsWithASignal) {
  std::ofstream(file("set.jsonl")) << nlohmann::json{{"video", demo},
                                                     {"question", "What is on the card?"},
                                                     {"answer", "T"},
                                                     {"times", {{0, 1}}}}
                                   << "\n";
  const std::string out = file("out.png");
  // Once it watches something, a signal ends `watch` well.
  const std::string silent = file("silent");
  ASSERT_EQ(::mkfifo(silent.c_str(), 0600), 0);
  const std::vector<std::vector<std::string>> commands = {
      {"index", demo, "-o", out},
      {"inspect", "attention", demo, "-o", out},
      {"tune", "-m", "kinora-tiny", "--sample", demo, "-o", out},
      {"calibrate", file("set.jsonl"), "-o", out},
      {"eval", file("set.jsonl"), "--no-cache", "--results", out},
      {"watch", silent},
      {"quantize", KINORA_SOURCE "/models/kinora-tiny", "-o", out, "--int4"},
      {"frames", demo, "--all", "--contact-sheet", out},
      {"bench", "stream", "--random-weights", "--shape", "bundled", "--device", "cpu", "--frames",
       "4096"}};
  for (const std::vector<std::string>& command : commands) {
    for (const int delay : {0, 1'000, 3'000, 10'000, 30'000}) {
      SCOPED_TRACE(command[0] + " after " + std::to_string(delay) + " µs");
      std::vector<std::string> whole = command;
      whole.insert(whole.begin(), KINORA_PROGRAM);
      RunningProgram program(whole);
      ::usleep(static_cast<useconds_t>(delay));
      program.signal(SIGINT);
      const Finished finished = program.wait(20);
      EXPECT_EQ(finished.code, 130) << finished.err;
      EXPECT_EQ(finished.out, "");
      // Answers are kept one by one as they come: the file of results is begun at once.
      EXPECT_TRUE(command[0] == "eval" || !std::filesystem::exists(out));
      std::filesystem::remove_all(out);
    }
  }
}

// Nobody writes into it: it is given up, and Ctrl-C does not wait for that.
TEST_F(Refusals, SilentPipesAsSubtitlesAreGivenUp) {
  const std::string pipe = file("subtitles.srt");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const std::vector<std::string> command = {KINORA_PROGRAM, "ask", demo,          "What?", "-q",
                                            "--frames",     "2",   "--subtitles", pipe};
  RunningProgram silent(command);
  RunningProgram stopped(command);
  ::usleep(1'500'000);  // it waits by now
  stopped.signal(SIGINT);
  EXPECT_EQ(stopped.wait(5).code, 130);
  expect_error(silent.wait(60), 7, "subtitles.srt: nothing came from it");
}

}  // namespace
}  // namespace kinora::testing
