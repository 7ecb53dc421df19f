#include "video/empty_part.h"

#include <fmt/format.h>

#include "base/error.h"

namespace kinora {

void refuse_empty_part(const std::string& source, std::span<const double> times) {
  if (times.empty()) throw Error(ErrorKind::bad_input, source + " has no frames");
  throw Error(ErrorKind::bad_input,
              fmt::format("{} has no frame in the part asked for: its frames begin between 0 and "
                          "{:.3f} s",
                          source, times.back()));
}

}  // namespace kinora
