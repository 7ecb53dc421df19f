#include "model/decoder/hidden_rows.h"

#include <cstring>
#include <vector>

#include "base/gpu.h"

namespace kinora {

HiddenRows::HiddenRows(const Context& context, std::span<const Forwarded> results, int64_t width) {
  std::vector<ConstTensorView> parts;
  int64_t count = 0;
  bool adjacent = true;
  for (const Forwarded& result : results) {
    if (result.failure || result.hidden.size(0) == 0) continue;
    const ConstTensorView part = result.hidden;
    if (!parts.empty()) adjacent &= parts.back().raw() + parts.back().bytes() == part.raw();
    parts.push_back(part);
    count += part.size(0);
  }
  if (parts.empty()) return;
  if (adjacent) {
    rows_ = ConstTensorView(parts[0].raw(), DType::f32, {count, width}, context.device);
    return;
  }
  copied_ = Tensor(DType::f32, {count, width}, context.device);
  int64_t at = 0;
  for (const ConstTensorView& part : parts) {
    std::byte* to = copied_.view().rows(at, part.size(0)).raw();
    const auto bytes = static_cast<size_t>(part.bytes());
    if (context.device.is_cpu()) {
      std::memcpy(to, part.raw(), bytes);
    } else {
      copy_async(context, to, part.raw(), bytes);
    }
    at += part.size(0);
  }
  rows_ = copied_;
}

}  // namespace kinora
