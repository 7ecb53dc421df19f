#include "cli/library_entry.h"

#ifdef KINORA_HAS_CATALOGUE
#include <fmt/format.h>

#include <string>

#include "base/error.h"
#include "catalogue/catalogue.h"
#include "cli/error_text.h"
#include "cli/terminal/output.h"
#endif

namespace kinora::cli {

#ifdef KINORA_HAS_CATALOGUE

void enter_in_library(const MemoryFile& file) {
  try {
    if (const std::string place = default_catalogue(); !place.empty()) {
      Catalogue(place).put(entry_of(file));
    }
  } catch (const Error& error) {
    complain("warning: " + error_text(error));
  }
}

#else

void enter_in_library(const MemoryFile&) {}

#endif

}  // namespace kinora::cli
