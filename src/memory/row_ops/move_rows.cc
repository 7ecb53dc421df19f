#include "memory/row_ops/move_rows.h"

#include <cstring>
#include <mutex>

#include "base/gpu.h"

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

void move_rows_up(const Context& context, std::span<std::byte* const> lists, int64_t row_bytes,
                  std::span<const int32_t> kept) {
  if (!context.device.is_cpu() && kept.size() <= cuda::most_moved_together) {
    return cuda::move_lists_up(context, lists, row_bytes, kept);
  }
  for (std::byte* rows : lists) move_rows_up(context.device, rows, row_bytes, kept);
}

namespace {

// One buffer for all who collect rows on the host, because making one takes longer than filling it.
std::mutex& staging_turn() {
  static std::mutex turn;
  return turn;
}

PinnedBuffer& staging(size_t bytes) {
  static auto& buffer = *new PinnedBuffer;  // outlives CUDA's end
  if (buffer.size() < bytes) buffer = PinnedBuffer(bytes);
  return buffer;
}

void collect(const std::byte* rows, size_t bytes, std::span<const int32_t> places, std::byte* to) {
  for (size_t i = 0; i < places.size();) {
    size_t end = i + 1;  // of rows that lie together
    while (end < places.size() && places[end] == places[end - 1] + 1) ++end;
    std::memcpy(to + i * bytes, rows + static_cast<size_t>(places[i]) * bytes, (end - i) * bytes);
    i = end;
  }
}

}  // namespace

void copy_rows(const Context& context, ConstTensorView rows, std::span<const int32_t> places,
               TensorView to) {
  if (places.empty()) return;
  const int64_t row_bytes = rows.stride(0) * dtype_size(rows.dtype());
  const auto bytes = static_cast<size_t>(row_bytes);
  if (context.device.is_cpu()) return collect(rows.raw(), bytes, places, to.raw());
  const bool reads = rows.device() == context.device || gpu_reads(context, rows.raw());
  const cuda::RowCopy copy{rows.raw(), to.raw()};
  if (reads) return cuda::copy_rows(context, {&copy, 1}, row_bytes, places);
  const std::lock_guard lock(staging_turn());
  PinnedBuffer& together = staging(bytes * places.size());
  context.threads->parallel_for(std::ssize(places), 256, [&](int64_t begin, int64_t end) {
    const auto first = static_cast<size_t>(begin);
    collect(rows.raw(), bytes, places.subspan(first, static_cast<size_t>(end - begin)),
            together.data() + first * bytes);
  });
  copy_async(context, to.raw(), together.data(), bytes * places.size());
  synchronize(context);  // others may use the buffer now
}

void copy_row_pairs(const Context& context, ConstTensorView keys, ConstTensorView values,
                    std::span<const int32_t> places, TensorView to_keys, TensorView to_values) {
  const auto reads = [&](ConstTensorView rows) {
    return rows.device() == context.device || gpu_reads(context, rows.raw());
  };
  if (context.device.is_cpu() || places.empty() || !reads(keys) || !reads(values)) {
    copy_rows(context, keys, places, to_keys);
    return copy_rows(context, values, places, to_values);
  }
  const cuda::RowCopy copies[] = {{keys.raw(), to_keys.raw()}, {values.raw(), to_values.raw()}};
  cuda::copy_rows(context, copies, keys.stride(0) * dtype_size(keys.dtype()), places);
}

}  // namespace kinora
