// Names that are nearly right, numbers out of range, and help: every command, from its definition.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/command_line.h"
#include "cli/help/help_format.h"
#include "cli/help/wrap.h"
#include "support/cli.h"
#include "support/temp_dir.h"

namespace kinora::testing {
namespace {

const std::string model = std::string(KINORA_FIXTURES) + "/models/qwen2_5_vl_untied_old";

TEST(Typos, ACommandThatIsNearlyRightIsSuggested) {
  expect_error(kinora({"aks", "demo", "What is it?"}), 2, "did you mean ask?");
  expect_error(kinora({"inspect", "atention", "demo"}), 2, "did you mean attention?");
  expect_error(kinora({"xylophone"}), 2, "there are ask, bench");
  expect_error(kinora({"inspect"}), 2, "kinora inspect needs a command: attention");
  expect_error(kinora({"help", "atention"}), 2, "did you mean attention?");
}

TEST(Typos, AFlagThatIsNearlyRightIsSuggested) {
  expect_error(kinora({"ask", "demo", "What is it?", "--max-token", "3"}), 2,
               "did you mean --max-tokens?");
  expect_error(kinora({"ask", "demo", "What is it?", "--sed=3"}), 2, "did you mean --seed?");
  expect_error(kinora({"--versoin"}), 2, "did you mean --version?");
  expect_error(kinora({"ask", "demo", "What is it?", "-z"}), 2, "'-z'");
  expect_error(kinora({"probe", "demo", "b"}), 2, "'b' is one word too many");
}

TEST(Typos, AChoiceThatIsNearlyRightIsSuggested) {
  expect_error(kinora({"ask", "demo", "What is it?", "--quality", "fsat"}), 2,
               "did you mean fast?");
  expect_error(kinora({"ask", "demo", "What is it?", "--attention", "moom"}), 2,
               "did you mean momo?");
  expect_error(kinora({"frames", "demo", "-o", "x", "--filter", "bicubik"}), 2,
               "did you mean bicubic?");
}

TEST(Typos, AFileThatIsNearlyRightIsSuggested) {
  const TempDir folder;
  std::ofstream(folder.file("talk.mp4")) << "x";
  const std::string meant = "did you mean " + folder.file("talk.mp4") + "?";
  expect_error(kinora({"ask", folder.file("tlak.mp4"), "What is it?", "-m", model}), 3, meant);
  expect_error(kinora({"ask", folder.file("talk"), "What is it?", "-m", model}), 3, meant);
  expect_error(kinora({"probe", folder.file("talk.mp")}), 3, meant);
  expect_error(kinora({"frames", folder.file("talkk.mp4"), "-o", folder.file("x")}), 3, meant);
  expect_error(kinora({"probe", folder.file("else.mkv")}), 3, "else.mkv");
  expect_error(kinora({"probe", "dmeo"}), 3, "did you mean demo?");
}

TEST(Typos, NumbersOutOfRangeSayTheRangeInWords) {
  const auto refused = [](const std::string& flag, const std::string& value,
                          const std::string& about) {
    expect_error(kinora({"ask", "demo", "What is it?", flag + "=" + value}), 2, about);
  };
  refused("--max-tokens", "0", "--max-tokens: '0' is not a whole number of 1 or more");
  refused("--max-tokens", "many", "'many' is not a whole number of 1 or more");
  refused("--max-tokens", "99999999999", "2147483647 at most");
  refused("--threads", "-3", "--threads: '-3' is not a whole number from 0 to 4096");
  refused("--threads", "100000", "'100000' is not a whole number from 0 to 4096");
  refused("--decode-threads", "99999999999", "is not a whole number from 0 to 4096");
  refused("--seed", "-1", "'-1' is not a whole number of 0 or more");
  refused("--temperature", "hot", "'hot' is not a number");
  expect_error(kinora({"inspect", "attention", "demo", "--cells", "4"}), 2,
               "'4' is not a whole number from 8 to 1024");
  if (kinora({"serve", "--help"}).code == 0) {  // builds without Boost have none
    expect_error(kinora({"serve", "--port", "65536"}), 2,
                 "--port: '65536' is not a whole number from 0 to 65535");
  }
  const Finished json = kinora({"ask", "demo", "What is it?", "--max-tokens", "0", "--json"});
  EXPECT_EQ(nlohmann::json::parse(json.out).at("error").at("kind"), "usage");
}

TEST(Typos, TheVersionIsToldInEveryWay) {
  const std::string version = kinora({"version"}).out;
  EXPECT_TRUE(version.starts_with("kinora 0.")) << version;
  EXPECT_EQ(kinora({"-V"}).out, version);
  EXPECT_EQ(kinora({"--version"}).out, version);
}

// Calls `see` with every command that there is.
void each_command(const CLI::App& command, const std::function<void(const CLI::App&)>& see) {
  see(command);
  for (const CLI::App* sub : cli::subcommands_of(command)) each_command(*sub, see);
}

TEST(Help, EveryCommandHasExamplesOfItsOwnAndLinesThatFit) {
  cli::CommandLine line;
  cli::add_commands(line);
  int commands = 0;
  each_command(line.app, [&](const CLI::App& command) {
    ++commands;
    const std::string name = cli::full_name(command);
    EXPECT_NE(command.get_footer().find("Examples:\n  "), std::string::npos) << name;
    EXPECT_NE(command.get_footer().find("  " + name), std::string::npos) << name;
    std::istringstream lines(cli::help_text(command));
    for (std::string text; std::getline(lines, text);) {
      EXPECT_LE(cli::width_of(text), cli::help_width) << name << ": " << text;
    }
  });
  EXPECT_GT(commands, 12);
}

TEST(Help, CommandsThatReadAVideoNameThePipe) {
  cli::CommandLine line;
  cli::add_commands(line);
  int videos = 0;
  each_command(line.app, [&](const CLI::App& command) {
    for (const CLI::Option* option : command.get_options()) {
      const auto [names, meaning] = cli::option_text(*option);
      if (!option->get_positional() || names.find("VIDEO") == std::string::npos) continue;
      ++videos;
      EXPECT_NE(meaning.find("- for a pipe"), std::string::npos) << cli::full_name(command);
    }
  });
  EXPECT_GE(videos, 4);
}

TEST(Help, EveryNumberRefusesWords) {
  cli::CommandLine line;
  cli::add_commands(line);
  int numbers = 0;
  each_command(line.app, [&](const CLI::App& command) {
    for (const CLI::Option* option : command.get_options()) {
      const std::string names = cli::option_text(*option).names;
      if (!names.ends_with(" N") && !names.ends_with(" NUMBER")) continue;
      ++numbers;
      std::vector<std::string> arguments{"soon", "--" + option->get_lnames().front()};
      for (const CLI::App* at = &command; at->get_parent() != nullptr; at = at->get_parent()) {
        arguments.push_back(at->get_name());
      }
      std::string problem;  // CLI11 takes the arguments from the back
      try {
        line.app.parse(arguments);
      } catch (const CLI::ParseError& error) {
        problem = error.what();
      }
      EXPECT_NE(problem.find("'soon' is not a "), std::string::npos) << names << ": " << problem;
      line.app.clear();
    }
  });
  EXPECT_GT(numbers, 40);
}

}  // namespace
}  // namespace kinora::testing
