// A long list of which only the best are looked at, sorted as far as somebody looks.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace kinora {

// The first `sorted` are the best, in order. Sorts twice as many more, or 256 in all, and gives
// back how many are sorted then. `better` tells any two apart.
template <typename T, class Better>
size_t sort_more(std::vector<T>& list, size_t sorted, const Better& better) {
  const size_t wanted = std::min(list.size(), std::max<size_t>(256, 3 * sorted));
  const auto first = list.begin() + static_cast<int64_t>(sorted);
  const auto past = list.begin() + static_cast<int64_t>(wanted);
  if (past != list.end()) std::nth_element(first, past, list.end(), better);
  std::sort(first, past, better);
  return wanted;
}

}  // namespace kinora
