#include "cli/interrupt.h"

#include <signal.h>

#include <atomic>

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
}

Interrupts::~Interrupts() { raised_by_signals = nullptr; }

const CancelToken& Interrupts::renew() {
  second_ends = false;
  tokens_.emplace_back();
  raised_by_signals = &tokens_.back();
  return tokens_.back();
}

bool Interrupts::asked_to_end() { return terminated; }

}  // namespace kinora::cli
