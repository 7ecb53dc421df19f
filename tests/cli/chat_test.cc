// The command `chat` as a person meets it: from a pipe, on a terminal, interrupted.
#include <gtest/gtest.h>
#include <pty.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <string>

#include "base/error.h"
#include "cli/chat_commands.h"
#include "support/cli.h"
#include "support/temp_dir.h"

namespace kinora::testing {
namespace {

const std::string model = std::string(KINORA_FIXTURES) + "/models/qwen2_5_vl_untied_old";

class Chat : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    directory_ = new TempDir;
    make_media("-f lavfi -i testsrc2=size=64x48:rate=8:duration=2 -pix_fmt yuv420p " + clip());
  }
  static void TearDownTestSuite() {
    delete directory_;
    directory_ = nullptr;
  }
  static std::string clip() { return directory_->file("clip.mp4"); }
  static Finished piped(const std::string& lines, const std::string& flags) {
    return kinora_shell("printf '" + lines + "' | $KINORA chat -m " + model + " " + flags);
  }
  static TempDir* directory_;
};
TempDir* Chat::directory_ = nullptr;

TEST_F(Chat, APipeGivesTheAnswersOfOneConversation) {
  const Finished chat =
      piped("What is this?\\nAnd then?\\n", clip() + " -q --temperature 0 --max-tokens 6");
  ASSERT_EQ(chat.code, 0) << chat.err;
  const Finished asked = kinora({"ask", clip(), "What is this?", "-m", model, "-q", "--temperature",
                                 "0", "--max-tokens", "6"});
  EXPECT_TRUE(chat.out.starts_with(asked.out)) << chat.out << asked.out;
  EXPECT_GT(chat.out.size(), asked.out.size());
  EXPECT_EQ(chat.err, "");
}

TEST_F(Chat, TheVideoIsReadOnce) {
  const Finished chat = piped("What?\\n/stats\\nAgain?\\n/stats\\n", clip() + " -q --max-tokens 2");
  ASSERT_EQ(chat.code, 0) << chat.err;
  // Both answers found the video in memory.
  size_t at = 0;
  for (int i = 0; i < 2; ++i) {
    at = chat.out.find("last: 0 frames", at + 1);
    EXPECT_NE(at, std::string::npos) << chat.out;
  }
  EXPECT_NE(chat.out.find("clip.mp4: 4 frames"), std::string::npos) << chat.out;
}

TEST_F(Chat, CommandsHelpAndForget) {
  const Finished chat = piped("/help\\n/nonsense\\nWhat?\\n/clear\\nWhat?\\n/quit\\nnever\\n",
                              clip() + " -q --temperature 0 --max-tokens 4");
  ASSERT_EQ(chat.code, 0) << chat.err;
  EXPECT_NE(chat.out.find("/stats"), std::string::npos);
  EXPECT_EQ(chat.err, "kinora: there is no command /nonsense; /help lists them\n");
  // After /clear the same question has the same answer.
  const std::string forgotten = "the conversation is forgotten\n";
  const size_t at = chat.out.find(forgotten);
  ASSERT_NE(at, std::string::npos);
  const std::string second = chat.out.substr(at + forgotten.size());
  EXPECT_TRUE(chat.out.substr(0, at).ends_with(second)) << chat.out;
}

TEST(ChatCommands, AreTakenApart) {
  EXPECT_EQ(cli::parse_chat_command("  /add  my talk.mp4 ").file, "my talk.mp4");
  EXPECT_EQ(cli::parse_chat_command("/evidence").file, "");
  EXPECT_EQ(cli::parse_chat_command("/exit").command, cli::ChatCommand::quit);
  for (const char* wrong : {"/add", "/save  ", "/stats now", "/nonsense", "/", "/addtalk.mp4"}) {
    EXPECT_THROW(cli::parse_chat_command(wrong), Error) << wrong;
  }
}

TEST(ChatCommands, AreCompleted) {
  const TempDir folder;
  for (const char* name : {"talk one.mp4", "talk two.mp4", "größe.png", ".hidden"}) {
    std::ofstream(folder.file(name)) << "x";
  }
  std::filesystem::create_directory(folder.file("films"));
  const auto words = [](const std::string& typed) {
    cli::Completions found = cli::complete_chat(typed);
    for (std::string& word : found.words) word = typed.substr(0, found.from) + word;
    return found.words;
  };
  using Words = std::vector<std::string>;
  EXPECT_EQ(words("/ev"), Words{"/evidence"});
  EXPECT_EQ(words("/s"), (Words{"/save", "/stats"}));
  EXPECT_EQ(words("What"), Words{});
  EXPECT_EQ(words("/stats "), Words{});
  const std::string add = "/add " + folder.file("");
  EXPECT_EQ(words(add),
            (Words{add + "films/", add + "größe.png", add + "talk one.mp4", add + "talk two.mp4"}));
  EXPECT_EQ(words(add + "talk t"), Words{add + "talk two.mp4"});
  EXPECT_EQ(words(add + ".h"), Words{add + ".hidden"});
  EXPECT_EQ(words("/add /nowhere/at/all/x"), Words{});
  EXPECT_EQ(cli::common_beginning({"talk one", "talk two"}), "talk ");
  EXPECT_EQ(cli::common_beginning({"gr\u00f6", "gr\u00fc"}), "gr");  // no half of a character
}

TEST_F(Chat, AddsAndSaves) {
  const std::string notes = directory_->file("talk.md"), memory = directory_->file("talk.kinora");
  const Finished chat =
      piped("What?\\n/save " + memory + "\\n/add " + clip() + "\\nAnd this?\\n/stats\\n/save " +
                notes + "\\n/add /nowhere.mp4\\n",
            clip() + " -q --temperature 0 --max-tokens 4");
  ASSERT_EQ(chat.code, 0) << chat.err;
  EXPECT_NE(chat.out.find(clip() + ": 4 frames, "), std::string::npos) << chat.out;
  const size_t first = chat.out.find("clip.mp4: 4 frames of");
  EXPECT_NE(chat.out.find("clip.mp4: 4 frames of", first + 1), std::string::npos) << chat.out;
  EXPECT_NE(chat.err.find("kinora: /nowhere.mp4: no such file"), std::string::npos) << chat.err;
  std::ifstream file(notes);
  const std::string said((std::istreambuf_iterator<char>(file)), {});
  EXPECT_NE(said.find("**What?**\n\n"), std::string::npos) << said;
  EXPECT_NE(said.find("**And this?**\n\n"), std::string::npos) << said;
  const Finished asked = kinora({"ask", memory, "What?", "-m", model, "-q", "--max-tokens", "2"});
  EXPECT_EQ(asked.code, 0) << asked.err;
}

TEST_F(Chat, TellsWhatAnAnswerRestsOn) {
  const std::string sheet = directory_->file("evidence.png");
  const Finished chat = piped("/evidence\\nWhat?\\n/evidence\\n/evidence " + sheet + "\\n",
                              clip() + " -q --temperature 0 --max-tokens 4");
  ASSERT_EQ(chat.code, 0) << chat.err;
  EXPECT_EQ(chat.err, "");
  EXPECT_TRUE(chat.out.starts_with("the last answer rests on no frame of a video\n")) << chat.out;
  EXPECT_NE(chat.out.find("\n[00:00:0"), std::string::npos) << chat.out;
  EXPECT_TRUE(chat.out.ends_with("drawn in " + sheet + "\n")) << chat.out;
  EXPECT_GT(std::filesystem::file_size(sheet), 100u);
}

TEST_F(Chat, AnErrorEndsTheQuestionAndNotTheChat) {
  const Finished chat = piped("   \\nWhat?\\n", "--max-tokens 3 -q --max-context 20");
  EXPECT_EQ(chat.code, 0) << chat.err;
  EXPECT_NE(chat.err.find("kinora: "), std::string::npos) << chat.err;
}

TEST_F(Chat, AnInterruptWhileAPipeIsSilentIsTheEnd) {
  const std::string pipe = directory_->file("pipe");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const int writer = ::open(pipe.c_str(), O_RDWR);  // so that the pipe never ends by itself
  ASSERT_EQ(::write(writer, "What?\n", 6), 6);
  RunningProgram program({"/bin/bash", "-c",
                          std::string("exec ") + KINORA_PROGRAM + " chat -m " + model +
                              " -q --max-tokens 2 < " + pipe});
  ::usleep(1'500'000);
  program.signal(SIGINT);
  const Finished finished = program.wait(20);
  ::close(writer);
  EXPECT_EQ(finished.code, 130) << finished.err;
}

TEST_F(Chat, RefusesRowsChosenByAQuestion) {
  expect_error(piped("What?\\n", clip() + " --retain attention-score:0.5"), 5, "attention-score");
}

TEST_F(Chat, WritesATrace) {
  const std::string trace = directory_->file("chat.json");
  const Finished chat = piped("What?\\nAgain?\\n", clip() + " -q --max-tokens 3 --trace " + trace);
  ASSERT_EQ(chat.code, 0) << chat.err;
  const auto json = nlohmann::json::parse(std::ifstream(trace));
  int generated = 0;
  for (const auto& event : json.at("traceEvents")) {
    generated += event.at("ph") == "X" && event.at("cat") == "generate";
  }
  EXPECT_EQ(generated, 2);
}

// A program on a terminal of its own.
class Terminal {
 public:
  explicit Terminal(const std::vector<std::string>& arguments, const std::string& home) {
    child_ = ::forkpty(&master_, nullptr, nullptr, nullptr);
    if (child_ == 0) {
      ::setenv("XDG_STATE_HOME", home.c_str(), 1);
      ::setenv("TERM", "vt100", 1);
      std::vector<char*> argv;
      for (const std::string& argument : arguments)
        argv.push_back(const_cast<char*>(argument.c_str()));
      argv.push_back(nullptr);
      ::execv(argv[0], argv.data());
      ::_exit(127);
    }
  }
  ~Terminal() {
    if (child_ > 0) {
      ::kill(child_, SIGKILL);
      ::waitpid(child_, nullptr, 0);
    }
    ::close(master_);
  }

  void type(const std::string& text) const {
    ASSERT_EQ(::write(master_, text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  // Reads until the text has been seen once more; false after a minute without.
  bool sees(const std::string& text) {
    const auto end =
        std::chrono::steady_clock::now() + std::chrono::duration<double>(60 * patience);
    while (std::chrono::steady_clock::now() < end) {
      const size_t found = shown_.find(text, looked_);
      if (found != std::string::npos) {
        looked_ = found + text.size();
        return true;
      }
      pollfd waiting{master_, POLLIN, 0};
      if (::poll(&waiting, 1, 100) <= 0) continue;
      char piece[4096];
      const ssize_t got = ::read(master_, piece, sizeof piece);
      if (got <= 0) return shown_.find(text, looked_) != std::string::npos;
      shown_.append(piece, static_cast<size_t>(got));
    }
    return false;
  }
  // Reads until the program waits at its prompt: a line of its own, and nothing more comes. What a
  // random model says may look like a prompt in passing.
  bool asks() {
    const auto end =
        std::chrono::steady_clock::now() + std::chrono::duration<double>(60 * patience);
    while (std::chrono::steady_clock::now() < end) {
      pollfd waiting{master_, POLLIN, 0};
      if (::poll(&waiting, 1, 300) <= 0) {
        looked_ = shown_.size();
        if (shown_.ends_with("\n> ") || shown_.ends_with("\r> ")) return true;
        continue;
      }
      char piece[4096];
      const ssize_t got = ::read(master_, piece, sizeof piece);
      if (got <= 0) return false;
      shown_.append(piece, static_cast<size_t>(got));
    }
    return false;
  }
  int wait() {
    const auto end =
        std::chrono::steady_clock::now() + std::chrono::duration<double>(30 * patience);
    int status = 0;
    while (::waitpid(child_, &status, WNOHANG) == 0) {
      if (std::chrono::steady_clock::now() > end) return -1;
      read_more(50);
    }
    while (read_more(0)) {
    }
    child_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  const std::string& shown() const { return shown_; }

 private:
  // Whether anything came within the time.
  bool read_more(int milliseconds) {
    pollfd waiting{master_, POLLIN, 0};
    if (::poll(&waiting, 1, milliseconds) <= 0) return false;
    char piece[4096];
    const ssize_t got = ::read(master_, piece, sizeof piece);
    if (got <= 0) {
      ::usleep(1000);  // at the end a terminal is always ready
      return false;
    }
    shown_.append(piece, static_cast<size_t>(got));
    return true;
  }

  int master_ = -1;
  pid_t child_ = -1;
  std::string shown_;
  size_t looked_ = 0;
};

TEST_F(Chat, CtrlCStopsTheAnswerAndNotTheProgram) {
  Terminal terminal({KINORA_PROGRAM, "chat", clip(), "-m", model, "--max-tokens", "100000000",
                     "--stop", "never to be said", "--temperature", "1"},
                    directory_->file("state"));
  ASSERT_TRUE(terminal.sees("keys and values")) << terminal.shown();  // the cost comes first
  ASSERT_TRUE(terminal.sees("> ")) << terminal.shown();
  terminal.type("Go on and on\n");
  ASSERT_TRUE(terminal.sees("\n"));
  ::usleep(500'000);
  terminal.type("\x03");
  // The fixture may have come to a stop token by itself before.
  ASSERT_TRUE(terminal.asks()) << terminal.shown();
  terminal.type("unfinished\x03");
  ASSERT_TRUE(terminal.asks()) << terminal.shown();
  terminal.type("/stats\n");
  ASSERT_TRUE(terminal.sees("peak memory")) << terminal.shown();
  terminal.type("/quit\n");
  EXPECT_EQ(terminal.wait(), 0) << terminal.shown();
  // What was asked is remembered for the next time.
  std::ifstream history(directory_->file("state") + "/kinora/history");
  const std::string remembered((std::istreambuf_iterator<char>(history)), {});
  EXPECT_NE(remembered.find("Go\\040on"), std::string::npos) << remembered;
}

TEST_F(Chat, EarlierQuestionsAreOneKeyAway) {
  const std::string state = directory_->file("recalled");
  const std::vector<std::string> command{KINORA_PROGRAM, "chat",         "-m", model,
                                         "-q",           "--max-tokens", "2"};
  {
    Terminal terminal(command, state);
    ASSERT_TRUE(terminal.sees("> ")) << terminal.shown();
    terminal.type("What is thisx\x7f, then?\n");  // edited before it is sent
    ASSERT_TRUE(terminal.asks()) << terminal.shown();
    terminal.type("/quit\n");
    EXPECT_EQ(terminal.wait(), 0) << terminal.shown();
  }
  Terminal terminal(command, state);
  ASSERT_TRUE(terminal.sees("> ")) << terminal.shown();
  terminal.type("\x10\x10");  // past /quit
  ASSERT_TRUE(terminal.sees("What is this, then?")) << terminal.shown();
  terminal.type("\n");
  ASSERT_TRUE(terminal.asks()) << terminal.shown();
  terminal.type("/stats\n");
  ASSERT_TRUE(terminal.sees("1 answers")) << terminal.shown();
  ASSERT_TRUE(terminal.asks()) << terminal.shown();
  terminal.type("\x04");  // Ctrl-D
  EXPECT_EQ(terminal.wait(), 0) << terminal.shown();
}

TEST_F(Chat, WhatIsPastedIsOneQuestion) {
  Terminal terminal({KINORA_PROGRAM, "chat", "-m", model, "-q", "--max-tokens", "2"},
                    directory_->file("pasted"));
  ASSERT_TRUE(terminal.sees("\x1b[?2004h")) << terminal.shown();  // asks for marks around pastes
  ASSERT_TRUE(terminal.sees("> ")) << terminal.shown();
  terminal.type("Look: \x1b[200~first line\rsecond line\rthird\r\x1b[201~?");
  ASSERT_TRUE(terminal.sees("third")) << terminal.shown();
  terminal.type("\n");
  ASSERT_TRUE(terminal.asks()) << terminal.shown();
  const std::string notes = directory_->file("pasted.md");
  terminal.type("/save " + notes + "\n");
  ASSERT_TRUE(terminal.sees("1 question")) << terminal.shown();
  std::ifstream file(notes);
  const std::string said((std::istreambuf_iterator<char>(file)), {});
  EXPECT_NE(said.find("**Look: first line\nsecond line\nthird?**"), std::string::npos) << said;
  ASSERT_TRUE(terminal.asks()) << terminal.shown();
  terminal.type("\x04");
  EXPECT_EQ(terminal.wait(), 0) << terminal.shown();
}

TEST_F(Chat, TabCompletesAndCtrlDEndsOnAFreshLine) {
  Terminal terminal({KINORA_PROGRAM, "chat", "-m", model, "-q", "--max-tokens", "2"},
                    directory_->file("completed"));
  ASSERT_TRUE(terminal.sees("> ")) << terminal.shown();
  terminal.type("/st\t\n");
  ASSERT_TRUE(terminal.sees("peak memory")) << terminal.shown();
  ASSERT_TRUE(terminal.asks()) << terminal.shown();
  const std::string path = clip();
  terminal.type("/add " + path.substr(0, path.size() - 5) + "\t\n");  // clip.mp4, alone in its way
  ASSERT_TRUE(terminal.sees("4 frames")) << terminal.shown();
  ASSERT_TRUE(terminal.asks()) << terminal.shown();
  terminal.type("/s\t\t");  // two of them: they are listed
  ASSERT_TRUE(terminal.sees("/save  /stats")) << terminal.shown();
  terminal.type("\x15");  // Ctrl-U
  terminal.type("\x04");
  EXPECT_EQ(terminal.wait(), 0) << terminal.shown();
  EXPECT_TRUE(terminal.sees("\n"));
}

TEST_F(Chat, ATerminalShowsHowFarReadingIs) {
  const std::vector<std::vector<std::string>> commands{
      {KINORA_PROGRAM, "chat", clip(), "-m", model},
      {KINORA_PROGRAM, "ask", clip(), "What?", "-m", model, "--max-tokens", "2"}};
  for (const std::vector<std::string>& command : commands) {
    Terminal terminal(command, directory_->file("state"));
    ASSERT_TRUE(terminal.sees("4 frames, ")) << terminal.shown();  // what it will cost
    if (command[1] == "chat") {
      ASSERT_TRUE(terminal.asks()) << terminal.shown();
      terminal.type("/quit\n");
    }
    EXPECT_EQ(terminal.wait(), 0) << terminal.shown();
    // Stages run beside each other: which of them ends first is not said.
    const std::string shown = terminal.shown();
    EXPECT_NE(shown.find("decode 4/4 frames"), std::string::npos) << shown;
    EXPECT_TRUE(std::regex_search(shown, std::regex("prefill [0-9]+/[0-9]+ tokens"))) << shown;
  }
}

}  // namespace
}  // namespace kinora::testing
