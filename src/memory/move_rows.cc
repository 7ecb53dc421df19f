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

}  // namespace kinora
