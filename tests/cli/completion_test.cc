// Completions of shells and the man page, as the program prints them.
#include <gtest/gtest.h>

#include <fstream>
#include <functional>

#include "cli/command_line.h"
#include "cli/help/help_format.h"
#include "support/cli.h"
#include "support/temp_dir.h"

namespace kinora::testing {
namespace {

// What bash would offer for these words, one per line.
std::string completed(const std::string& words, int at) {
  const Finished finished = kinora_shell(
      "PATH=$(dirname $KINORA):$PATH; source <($KINORA completion bash); COMP_WORDS=(kinora " +
      words + "); COMP_CWORD=" + std::to_string(at) +
      "; _kinora; printf '%s\\n' \"${COMPREPLY[@]}\"");
  EXPECT_EQ(finished.code, 0) << finished.err;
  EXPECT_EQ(finished.err, "");
  return finished.out;
}

TEST(Completion, BashKnowsCommandsFlagsAndChoices) {
  EXPECT_EQ(completed("pro", 1), "probe\n");
  EXPECT_EQ(completed("inspect at", 2), "attention\n");
  EXPECT_EQ(completed("ask --max-t", 2), "--max-tokens\n");
  EXPECT_EQ(completed("inspect attention demo --cel", 4), "--cells\n");
  EXPECT_EQ(completed("ask demo --quality ba", 4), "balanced\n");
  EXPECT_EQ(completed("ask demo --attention mo", 4), "momo\n");
  EXPECT_EQ(completed("ask dem", 2), "demo\n");
  EXPECT_EQ(completed("ask demo -m kinora-t", 4), "kinora-tiny\n");
  EXPECT_EQ(completed("frames demo --fps ''", 4), "\n");  // a number is nobody's guess
}

TEST(Completion, BashOffersFiles) {
  const TempDir folder;
  std::ofstream(folder.file("talk.mp4")) << "x";
  EXPECT_EQ(completed("ask " + folder.file("ta"), 2), folder.file("talk.mp4") + "\n");
  EXPECT_EQ(completed("ask demo --trace " + folder.file("ta"), 4), folder.file("talk.mp4") + "\n");
}

TEST(Completion, EveryShellIsGivenEveryFlag) {
  cli::CommandLine line;
  cli::add_commands(line);
  const std::string bash = kinora({"completion", "bash"}).out;
  const std::string zsh = kinora({"completion", "zsh"}).out;
  const std::string fish = kinora({"completion", "fish"}).out;
  std::string man = kinora({"help", "--man"}).out;
  for (size_t at; (at = man.find("\\-")) != std::string::npos;) man.replace(at, 2, "-");
  const std::function<void(const CLI::App&)> look = [&](const CLI::App& command) {
    for (const CLI::Option* option : command.get_options()) {
      for (const std::string& name : option->get_lnames()) {
        EXPECT_NE(bash.find("--" + name), std::string::npos) << name;
        EXPECT_NE(zsh.find("--" + name), std::string::npos) << name;
        EXPECT_NE(fish.find("-l " + name + " "), std::string::npos) << name;
        EXPECT_NE(man.find("--" + name), std::string::npos) << name;
      }
    }
    for (const CLI::App* sub : cli::subcommands_of(command)) {
      EXPECT_NE(man.find(".SS " + cli::full_name(*sub) + "\n"), std::string::npos);
      look(*sub);
    }
  };
  look(line.app);
  expect_error(kinora({"completion", "bsh"}), 2, "did you mean bash?");
}

TEST(Completion, TheShellsAcceptTheirScripts) {
  const auto accepts = [](const std::string& shell, const std::string& command) {
    return run_program({"/bin/bash", "-c",
                        "command -v " + shell + " > /dev/null || exit 0; " + KINORA_PROGRAM +
                            " completion " + shell + " | " + command});
  };
  for (const auto& [shell, command] :
       {std::pair{"bash", "bash -n"}, {"zsh", "zsh -n /dev/stdin"}, {"fish", "fish -n"}}) {
    const Finished finished = accepts(shell, command);
    EXPECT_EQ(finished.code, 0) << shell << finished.err;
    EXPECT_EQ(finished.err, "") << shell;
  }
}

TEST(Completion, TheManPageIsGoodRoff) {
  const Finished finished = kinora_shell(
      "command -v groff > /dev/null || exit 0; $KINORA help --man | "
      "groff -man -t -Kutf8 -Tutf8 -ww -z");
  EXPECT_EQ(finished.code, 0);
  EXPECT_EQ(finished.err, "");
}

}  // namespace
}  // namespace kinora::testing
