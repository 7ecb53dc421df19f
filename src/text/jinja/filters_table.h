// The filters that work on sequences, for find_filter in filters.cc.
#pragma once

#include <span>
#include <string_view>
#include <utility>

#include "text/jinja/runtime.h"

namespace kinora::jinja {

using NamedFilter = std::pair<std::string_view, Filter>;

std::span<const NamedFilter> sequence_filters();  // filters_items.cc

}  // namespace kinora::jinja
