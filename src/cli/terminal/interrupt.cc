#include "cli/terminal/interrupt.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstring>

#include "base/error.h"
#include "base/files/mapped_ranges.h"

namespace kinora::cli {
namespace {

std::atomic<const CancelToken*> raised_by_signals = nullptr;
std::atomic<bool> second_ends = true;
std::atomic<bool> terminated = false;

extern "C" void on_signal(int number) {
  if (const CancelToken* token = raised_by_signals.load()) token->cancel();
  if (number == SIGTERM) terminated = true;
  if (number == SIGTERM || second_ends) ::signal(number, SIG_DFL);
}

// A mapped file that became shorter ends in SIGBUS. What was computed from it cannot be told from
// what should have been, so the program ends, with a line that says why. Only calls that a handler
// may make.
extern "C" void on_bus_error(int number, siginfo_t* info, void*) {
  const char* path = mapped_file_at(info->si_addr);
  if (path == nullptr) {
    ::signal(number, SIG_DFL);  // the access is repeated and ends the program as ever
    return;
  }
  const auto say = [](const char* text) {
    if (::write(STDERR_FILENO, text, std::strlen(text)) < 0) return;
  };
  say("kinora: ");
  say(path);
  say(": the file became shorter while it was in use; fetch it again\n");
  ::_exit(exit_code(ErrorKind::bad_input));
}

// Without SA_RESTART, so that waiting for a line ends too.
void handle(int number) {
  struct sigaction action {};
  action.sa_handler = on_signal;
  ::sigemptyset(&action.sa_mask);
  ::sigaction(number, &action, nullptr);
}

}  // namespace

Interrupts::Interrupts() : tokens_(1) {
  raised_by_signals = &tokens_.back();
  handle(SIGINT);
  handle(SIGTERM);
  struct sigaction bus {};
  bus.sa_sigaction = on_bus_error;
  bus.sa_flags = SA_SIGINFO;
  ::sigemptyset(&bus.sa_mask);
  ::sigaction(SIGBUS, &bus, nullptr);
}

Interrupts::~Interrupts() { raised_by_signals = nullptr; }

const CancelToken& Interrupts::renew() {
  second_ends = false;
  tokens_.emplace_back();
  raised_by_signals = &tokens_.back();
  return tokens_.back();
}

void Interrupts::end_at_once() {
  ::signal(SIGINT, SIG_DFL);
  ::signal(SIGTERM, SIG_DFL);
}

bool Interrupts::asked_to_end() { return terminated; }

}  // namespace kinora::cli
