// Runs a program and keeps what it printed. Waits at most five minutes, longer under a sanitizer: a
// hang is a failure, not a wait, but on a busy machine a program of seconds may take minutes.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <vector>

namespace kinora::testing {

// Programs under a sanitizer or without optimisation are many times slower, and no less right.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(NDEBUG)
inline constexpr double patience = 15;
#else
inline constexpr double patience = 1;
#endif

struct Finished {
  int code = -1;  // exit code, 128 + signal number, or -1 when it had to be killed
  std::string out;
  std::string err;
};

class RunningProgram {
 public:
  explicit RunningProgram(const std::vector<std::string>& arguments) {
    int out[2], err[2];
    if (::pipe2(out, O_CLOEXEC) != 0 || ::pipe2(err, O_CLOEXEC) != 0) return;
    std::vector<char*> argv;
    for (const std::string& argument : arguments)
      argv.push_back(const_cast<char*>(argument.c_str()));
    argv.push_back(nullptr);
    child_ = ::fork();
    if (child_ == 0) {
      const int null = ::open("/dev/null", O_RDONLY);
      ::dup2(null, 0);
      ::dup2(out[1], 1);
      ::dup2(err[1], 2);
      ::signal(SIGINT, SIG_DFL);  // a shell's background jobs inherit that it is ignored
      ::execv(argv[0], argv.data());
      ::_exit(127);
    }
    ::close(out[1]);
    ::close(err[1]);
    out_ = out[0];
    err_ = err[0];
  }
  ~RunningProgram() {
    if (child_ > 0) wait(0);
    ::close(out_);
    ::close(err_);
  }
  RunningProgram(const RunningProgram&) = delete;
  RunningProgram& operator=(const RunningProgram&) = delete;

  void signal(int number) const { ::kill(child_, number); }

  Finished wait(double seconds = 300) {
    Finished finished;
    const auto end =
        std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds * patience);
    bool open[2] = {true, true};
    std::string* texts[2] = {&finished.out, &finished.err};
    const int pipes[2] = {out_, err_};
    while ((open[0] || open[1]) && std::chrono::steady_clock::now() < end) {
      pollfd waiting[2] = {{open[0] ? out_ : -1, POLLIN, 0}, {open[1] ? err_ : -1, POLLIN, 0}};
      ::poll(waiting, 2, 50);
      for (int i = 0; i < 2; ++i) {
        if (waiting[i].revents == 0) continue;
        char piece[4096];
        const ssize_t got = ::read(pipes[i], piece, sizeof(piece));
        if (got > 0) texts[i]->append(piece, static_cast<size_t>(got));
        if (got == 0) open[i] = false;
      }
    }
    const bool late = open[0] || open[1];
    if (late) ::kill(child_, SIGKILL);
    int status = 0;
    ::waitpid(child_, &status, 0);
    child_ = -1;
    if (!late) finished.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return finished;
  }

 private:
  pid_t child_ = -1;
  int out_ = -1;
  int err_ = -1;
};

inline Finished run_program(const std::vector<std::string>& arguments) {
  return RunningProgram(arguments).wait();
}

}  // namespace kinora::testing
