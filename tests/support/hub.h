// A loopback hub (hub_server.py) and a home of its own for the program that talks to it.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "support/cli.h"
#include "support/temp_dir.h"

namespace kinora::testing {

class Hub {
 public:
  // Serves the folder until the object goes.
  explicit Hub(const std::string& folder, const std::vector<std::string>& troubles = {}) {
    int out[2];
    if (::pipe(out) != 0) return;
    std::vector<std::string> command{"/usr/bin/python3",
                                     KINORA_SOURCE "/tests/support/hub_server.py", folder};
    command.insert(command.end(), troubles.begin(), troubles.end());
    std::vector<char*> arguments;
    for (std::string& argument : command) arguments.push_back(argument.data());
    arguments.push_back(nullptr);
    child_ = ::fork();
    if (child_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::dup2(out[1], 1);
      ::execv(arguments[0], arguments.data());
      ::_exit(127);
    }
    ::close(out[1]);
    std::string line;
    for (char c = 0; ::read(out[0], &c, 1) == 1 && c != '\n';) line += c;
    ::close(out[0]);
    endpoint_ = "http://127.0.0.1:" + line.substr(0, line.find(' '));
  }
  ~Hub() {
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
  }
  Hub(const Hub&) = delete;
  Hub& operator=(const Hub&) = delete;

  const std::string& endpoint() const { return endpoint_; }

 private:
  pid_t child_ = -1;
  std::string endpoint_;
};

inline std::string content_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace kinora::testing
