#include "video/source/camera.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <string>

#include "base/error.h"

namespace kinora {
namespace {

constexpr unsigned video_devices = 81;  // the kernel's number for them

// Makes the devices known to libavformat. It is numbered like that library.
bool register_devices() {
  const std::string name = fmt::format("libavdevice.so.{}", LIBAVFORMAT_VERSION_MAJOR);
  void* library = ::dlopen(name.c_str(), RTLD_LAZY | RTLD_LOCAL);
  void* function = library == nullptr ? nullptr : ::dlsym(library, "avdevice_register_all");
  if (function == nullptr) return false;
  reinterpret_cast<void (*)()>(function)();
  return true;
}

}  // namespace

bool is_camera(const struct ::stat& status) {
  return S_ISCHR(status.st_mode) && major(status.st_rdev) == video_devices;
}

const AVInputFormat* camera_format() {
  static const bool registered = register_devices();
  const AVInputFormat* format = registered ? av_find_input_format("v4l2") : nullptr;
  if (format != nullptr) return format;
  throw Error(ErrorKind::unsupported,
              "cameras are read with FFmpeg's libavdevice, which cannot be loaded: install it");
}

}  // namespace kinora
