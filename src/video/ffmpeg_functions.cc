#include "video/ffmpeg_functions.h"

#include <dlfcn.h>
#include <fmt/core.h>
#include <sys/mman.h>

#include <string>

#include "base/error.h"

namespace kinora {
namespace {

// The libraries whose headers this was built with: another major version has other structures.
std::string file_of(FfmpegLibrary library) {
  return library == FfmpegLibrary::format
             ? fmt::format("libavformat.so.{}", LIBAVFORMAT_VERSION_MAJOR)
             : fmt::format("libswscale.so.{}", LIBSWSCALE_VERSION_MAJOR);
}

// Whether the process may still have the address space that FFmpeg's libraries take. The loader
// itself tells only in words why it failed.
bool has_room() {
  constexpr size_t bytes = size_t{512} << 20;
  void* room = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) return false;
  munmap(room, bytes);
  return true;
}

// Stays loaded until the end: threads of FFmpeg may still run.
void* load(FfmpegLibrary library) {
  void* handle = dlopen(file_of(library).c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (handle != nullptr) return handle;
  const char* why = dlerror();
  if (!has_room()) {
    throw Error(ErrorKind::resource, fmt::format("not enough memory to load FFmpeg ({})",
                                                 why != nullptr ? why : file_of(library)));
  }
  throw Error(ErrorKind::unsupported,
              fmt::format("FFmpeg, which reads videos and pictures, cannot be loaded ({}); install "
                          "its libraries",
                          why != nullptr ? why : file_of(library)));
}

}  // namespace

void* find_ffmpeg(FfmpegLibrary library, const char* function) {
  void* handle = nullptr;
  if (library == FfmpegLibrary::format) {
    static void* const format = load(FfmpegLibrary::format);
    handle = format;
  } else {
    static void* const scale = load(FfmpegLibrary::scale);
    handle = scale;
  }
  void* found = dlsym(handle, function);  // looks through what the library needs, too
  if (found != nullptr) return found;
  throw Error(ErrorKind::unsupported, fmt::format("{} has no function {}; install the version that "
                                                  "kinora was built for",
                                                  file_of(library), function));
}

}  // namespace kinora
