#include "draw/cairo_functions.h"

#include <dlfcn.h>

#include <string>

#include "base/error.h"

namespace kinora {
namespace {

constexpr const char* library = "libcairo.so.2";

// Stays loaded until the end.
void* load() {
  void* handle = dlopen(library, RTLD_LAZY | RTLD_LOCAL);
  if (handle != nullptr) return handle;
  const char* why = dlerror();
  throw Error(ErrorKind::unsupported,
              std::string("Cairo, which draws the text of pictures, cannot be loaded (") +
                  (why != nullptr ? why : library) + "); install it (Debian: libcairo2)");
}

}  // namespace

void* find_cairo(const char* function) {
  static void* const handle = load();
  void* found = dlsym(handle, function);
  if (found != nullptr) return found;
  throw Error(ErrorKind::unsupported,
              std::string(library) + " has no function " + function + "; install a newer one");
}

}  // namespace kinora
