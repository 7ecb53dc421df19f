#include "base/error.h"

namespace kinora {

int exit_code(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::internal:
      return 1;
    case ErrorKind::usage:
      return 2;
    case ErrorKind::not_found:
      return 3;
    case ErrorKind::bad_input:
      return 4;
    case ErrorKind::unsupported:
      return 5;
    case ErrorKind::resource:
      return 6;
    case ErrorKind::network:
      return 7;
    case ErrorKind::cancelled:
      return 130;  // as a shell reports SIGINT
  }
  return 1;
}

const char* error_kind_name(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::internal:
      return "internal";
    case ErrorKind::usage:
      return "usage";
    case ErrorKind::not_found:
      return "not-found";
    case ErrorKind::bad_input:
      return "bad-input";
    case ErrorKind::unsupported:
      return "unsupported";
    case ErrorKind::resource:
      return "resource";
    case ErrorKind::network:
      return "network";
    case ErrorKind::cancelled:
      return "cancelled";
  }
  return "internal";
}

}  // namespace kinora
