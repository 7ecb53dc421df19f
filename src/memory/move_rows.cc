#include "memory/move_rows.h"

#include <cstring>

namespace kinora {

void move_rows_up(Device device, std::byte* rows, int64_t row_bytes,
                  std::span<const int32_t> kept) {
  if (!device.is_cpu()) return cuda::move_rows_up(device.index, rows, row_bytes, kept);
  const auto bytes = static_cast<size_t>(row_bytes);
  for (size_t i = 0; i < kept.size(); ++i) {
    const auto from = static_cast<size_t>(kept[i]);
    if (from != i) std::memcpy(rows + i * bytes, rows + from * bytes, bytes);
  }
}

void copy_rows(const Context& context, ConstTensorView rows, std::span<const int32_t> places,
               TensorView to) {
  const int64_t row_bytes = rows.stride(0) * dtype_size(rows.dtype());
  if (!context.device.is_cpu()) {
    return cuda::copy_rows(context, rows.raw(), row_bytes, places, to.raw());
  }
  const auto bytes = static_cast<size_t>(row_bytes);
  for (size_t i = 0; i < places.size();) {
    size_t end = i + 1;  // of rows that lie together
    while (end < places.size() && places[end] == places[end - 1] + 1) ++end;
    std::memcpy(to.raw() + i * bytes, rows.raw() + static_cast<size_t>(places[i]) * bytes,
                (end - i) * bytes);
    i = end;
  }
}

}  // namespace kinora
