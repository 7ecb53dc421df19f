// The one exception type of kinora. Every failure that a person can cause or meet is an Error whose
// message is one line: what is wrong, where, and what to do. The kind decides the exit code of the
// program (documented in docs/exit-codes.md) and how a caller may react.
#pragma once

#include <stdexcept>
#include <string>

namespace kinora {

enum class ErrorKind {
  internal,     // a defect in kinora itself
  usage,        // the request makes no sense: a bad flag, an empty question
  not_found,    // a file, directory or device that is not there
  bad_input,    // a file that is there and is damaged, hostile or not what it claims to be
  unsupported,  // well formed, but kinora cannot do it
  resource,     // memory, disk, or a limit that protects them
  network,      // a remote source that does not answer
  cancelled,    // the caller asked to stop
};

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  ErrorKind kind() const { return kind_; }

 private:
  ErrorKind kind_;
};

// The process exit code for an error of this kind.
int exit_code(ErrorKind kind);

// A short name such as "bad-input", used in JSON output.
const char* error_kind_name(ErrorKind kind);

}  // namespace kinora
