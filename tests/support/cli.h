// The program as a person runs it: for the tests of every command.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "support/run_program.h"

namespace kinora::testing {

inline Finished kinora(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), KINORA_PROGRAM);
  return run_program(arguments);
}

// Through the shell: redirections, pipes, limits. The program is $KINORA there.
inline Finished kinora_shell(const std::string& command) {
  return run_program({"/bin/bash", "-c", std::string("KINORA=") + KINORA_PROGRAM + "; " + command});
}

inline void make_media(const std::string& arguments) {
  const std::string command = "ffmpeg -nostdin -v error -y " + arguments;
  ASSERT_EQ(std::system(command.c_str()), 0) << command;
}

// An error is one line on standard error, from kinora, that mentions what it is about.
inline void expect_error(const Finished& finished, int code, const std::string& about) {
  EXPECT_EQ(finished.code, code) << finished.err;
  EXPECT_EQ(finished.out, "");
  EXPECT_EQ(std::count(finished.err.begin(), finished.err.end(), '\n'), 1) << finished.err;
  EXPECT_TRUE(finished.err.starts_with("kinora: ")) << finished.err;
  EXPECT_NE(finished.err.find(about), std::string::npos) << finished.err;
}

}  // namespace kinora::testing
