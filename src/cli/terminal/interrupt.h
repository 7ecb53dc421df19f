// What Ctrl-C does. The first one asks the work to stop, a second one ends the program. A command
// that continues after an interruption takes a new token for every piece of work; from then on
// Ctrl-C stops only that piece.
#pragma once

#include <deque>

#include "base/cancel.h"

namespace kinora::cli {

class Interrupts {
 public:
  // Installs the handlers of SIGINT, SIGTERM and SIGBUS. Only one object per program: a handler can
  // reach only a global, which points here.
  Interrupts();
  ~Interrupts();
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;

  // The token of the work under way.
  const CancelToken& token() const { return tokens_.back(); }
  const CancelToken& renew();
  // For commands that only measure and have nothing to put in order: the first one ends the
  // program.
  static void end_at_once();
  // True once SIGTERM has come: the program should end.
  static bool asked_to_end();

 private:
  std::deque<CancelToken> tokens_;  // all of them stay: the handler may be looking at one
};

}  // namespace kinora::cli
