// What kind of error a code of the operating system is: the same on every path, so that one cause
// has one exit code. Used wherever files are opened or written.
#pragma once

#include "base/error.h"

namespace kinora {

// not_found for what is not there or may not be opened, resource for what there is too little of,
// else bad_input: a directory in the place of a file, and the like.
ErrorKind kind_of_errno(int code);

}  // namespace kinora
