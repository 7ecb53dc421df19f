// Messages on standard error, separate from the output: what a person should know while the work
// continues. Whatever stops the work is an Error.
#pragma once

#include <string_view>

namespace kinora {

void log_warning(std::string_view message);

}  // namespace kinora
