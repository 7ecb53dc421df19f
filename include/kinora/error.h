// The one exception type of kinora. Every failure that a person can cause or meet is an Error whose
// message is one line: what is wrong, where, and what to do. The kind decides the exit code of the
// program (documented in docs/exit-codes.md) and how a caller may react.
#pragma once

#include <stdexcept>
#include <string>

#include <kinora/api.h>

namespace kinora {

enum class ErrorKind {
  internal,     // a defect in kinora itself
  usage,        // the request makes no sense: a bad flag, an empty question
  not_found,    // a file, directory or device that is not there
  bad_input,    // a file that is damaged, hostile or not what it claims to be
  unsupported,  // well formed, but kinora cannot do it
  resource,     // memory, disk, or a limit that protects them
  network,      // a remote source that does not answer
  cancelled,    // the caller asked to stop
};

// What a caller can change to succeed, where that is known. The message says it in plain words; a
// program may add how its own users do that (the kinora command names its flags).
enum class ErrorHint {
  none,
  use_cpu,          // run on the device cpu
  dense_or_cpu,     // dense attention, or the device cpu
  set_frame_rate,   // say how many frames per second to look at
  fewer_frames,     // look at fewer frames, a shorter part or smaller frames
  shorter_part,     // look at a shorter part
  not_strict,       // let the session keep its budget by looking at less
  make_head_table,  // search the attention patterns of the model's heads
};

class KINORA_API Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message, ErrorHint hint = ErrorHint::none)
      : std::runtime_error(message), kind_(kind), hint_(hint) {}
  ErrorKind kind() const { return kind_; }
  ErrorHint hint() const { return hint_; }

 private:
  ErrorKind kind_;
  ErrorHint hint_;
};

// The process exit code for an error of this kind.
KINORA_API int exit_code(ErrorKind kind);

// A short name such as "bad-input", used in JSON output.
KINORA_API const char* error_kind_name(ErrorKind kind);

}  // namespace kinora
