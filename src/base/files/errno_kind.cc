#include "base/files/errno_kind.h"

#include <cerrno>

namespace kinora {

ErrorKind kind_of_errno(int code) {
  switch (code) {
    case ENOENT:
    case ENOTDIR:
    case EACCES:
    case EPERM:
    case EROFS:
    case ELOOP:
    case ENAMETOOLONG:
    case ENXIO:
    case ENODEV:
      return ErrorKind::not_found;
    case ENOMEM:
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
    case EMFILE:
    case ENFILE:
    case EAGAIN:
    case EIO:
      return ErrorKind::resource;
    default:
      return ErrorKind::bad_input;
  }
}

}  // namespace kinora
