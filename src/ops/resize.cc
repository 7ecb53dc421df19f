#include "ops/resize.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>

#include "ops/checks.h"
#include "ops/resize_kernels.h"
#include "ops/resize_rows.h"

namespace kinora {
namespace {

constexpr std::string_view names[] = {"bicubic", "area", "bilinear", "nearest"};

// Sizes beyond int are beyond every limit; the plan refuses them.
int side(int64_t size) {
  return static_cast<int>(std::min<int64_t>(size, std::numeric_limits<int>::max()));
}

}  // namespace

std::string_view resize_filter_name(ResizeFilter filter) {
  return names[static_cast<size_t>(filter)];
}

std::optional<ResizeFilter> parse_resize_filter(std::string_view name) {
  for (size_t i = 0; i < std::size(names); ++i)
    if (names[i] == name) return static_cast<ResizeFilter>(i);
  return std::nullopt;
}

void resize(const Context& context, ConstTensorView source, ResizeFilter filter,
            TensorView target) {
  const OpChecks checks(context, "resize", {{"source", source}, {"target", target}});
  checks.that(source.dtype() == DType::u8 && target.dtype() == DType::u8, "pixels are u8");
  checks.rank("source", source, 3, 3);
  checks.rank("target", target, 3, 3);
  checks.that(source.size(2) == 3 && target.size(2) == 3, "three channels");
  checks.that(source.stride(1) == 3 && target.stride(1) == 3, "contiguous rows");
  const int width = side(target.size(1));
  const int height = side(target.size(0));
  if (source.shape() == target.shape()) {
    for (int y = 0; y < height; ++y)
      std::memcpy(target.row<uint8_t>(y), source.row<uint8_t>(y), 3 * static_cast<size_t>(width));
    return;
  }
  const auto plan = std::make_shared<const ResizePlan>(filter, side(source.size(1)),
                                                       side(source.size(0)), width, height);
  // Neighbouring pieces read the same source rows twice, so pieces are large.
  const int64_t grain =
      std::max<int64_t>(32, (height + context.threads->threads() - 1) / context.threads->threads());
  context.threads->parallel_for(height, grain, [&](int64_t begin, int64_t end) {
    RowResizer resizer(plan);
    resizer.run(
        static_cast<int>(begin), static_cast<int>(end),
        [&](int y, const RowResizer::Rows& row) {
          unpack_rgb(source.row<uint8_t>(y), plan->horizontal.source, row.channel[0],
                     row.channel[1], row.channel[2]);
        },
        [&](int y, const RowResizer::Rows& row) {
          pack_rgb(row.channel[0], row.channel[1], row.channel[2], width, target.row<uint8_t>(y));
        });
  });
}

}  // namespace kinora
