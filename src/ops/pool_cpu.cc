#include <algorithm>

#include "ops/cpu_kernels.h"
#include "ops/rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/pool_cpu.cc"
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

#include "ops/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kinora::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using namespace kinora::HWY_NAMESPACE;

// The two input places between which an output place lies, and the share of the second.
struct Between {
  int64_t first, second;
  float share;
};

// In f32 and in this order, as torch computes it.
Between between(int64_t out, int64_t in_size, int64_t out_size) {
  const float ratio = static_cast<float>(in_size) / static_cast<float>(out_size);
  const float place = std::max(0.0f, ratio * (static_cast<float>(out) + 0.5f) - 0.5f);
  const int64_t first = std::min(static_cast<int64_t>(place), in_size - 1);
  const int64_t second = std::min(first + 1, in_size - 1);
  return {first, second, std::clamp(place - static_cast<float>(first), 0.0f, 1.0f)};
}

// out = the mix of four tokens, weights (1 − y)(1 − x), …
HWY_NOINLINE void mix_tokens(const float* top_left, const float* top_right,
                             const float* bottom_left, const float* bottom_right, float y, float x,
                             int64_t channels, float* out) {
  for_vectors(channels, [&](auto d, int64_t at, auto part) HWY_ATTR {
    const auto left_share = hn::Set(d, 1.0f - x);
    const auto right_share = hn::Set(d, x);
    const auto top = hn::MulAdd(part.load(d, top_left + at), left_share,
                                hn::Mul(part.load(d, top_right + at), right_share));
    const auto bottom = hn::MulAdd(part.load(d, bottom_left + at), left_share,
                                   hn::Mul(part.load(d, bottom_right + at), right_share));
    const auto value = hn::MulAdd(top, hn::Set(d, 1.0f - y), hn::Mul(bottom, hn::Set(d, y)));
    part.store(d, value, out + at);
  });
}

HWY_NOINLINE void take_token(const float* token, PoolKind kind, int64_t channels, float* out) {
  for_vectors(channels, [&](auto d, int64_t at, auto part) HWY_ATTR {
    const auto value = part.load(d, token + at);
    const auto so_far = part.load(d, out + at);
    part.store(d, kind == PoolKind::max ? hn::Max(so_far, value) : hn::Add(so_far, value),
               out + at);
  });
}

// A grid [frames, h, w, c], whether or not the view has frames.
struct Grid {
  int64_t frames, height, width, channels;
  int64_t frame_stride, row_stride, token_stride;
  explicit Grid(const ConstTensorView& view) {
    const int base = view.rank() - 3;
    frames = base == 0 ? 1 : view.size(0);
    frame_stride = base == 0 ? 0 : view.stride(0);
    height = view.size(base);
    width = view.size(base + 1);
    channels = view.size(base + 2);
    row_stride = view.stride(base);
    token_stride = view.stride(base + 1);
  }
  int64_t offset(int64_t frame, int64_t y, int64_t x) const {
    return frame * frame_stride + y * row_stride + x * token_stride;
  }
};

// Calls token(frame, y, x) for every token of a grid.
template <class Token>
void for_tokens(const Context& context, const Grid& grid, const Token& token) {
  for_row_ranges(context, grid.frames * grid.height, grid.width * grid.channels,
                 [&](int64_t begin, int64_t end) {
                   for (int64_t row = begin; row < end; ++row) {
                     for (int64_t x = 0; x < grid.width; ++x) {
                       token(row / grid.height, row % grid.height, x);
                     }
                   }
                 });
}

void bilinear_pool(const Context& context, ConstTensorView x, TensorView out) {
  const Grid from(x), to(out);
  const float* in = x.data<float>();
  float* result = out.data<float>();
  for_tokens(context, to, [&](int64_t frame, int64_t row, int64_t column) {
    const Between y = between(row, from.height, to.height);
    const Between w = between(column, from.width, to.width);
    mix_tokens(
        in + from.offset(frame, y.first, w.first), in + from.offset(frame, y.first, w.second),
        in + from.offset(frame, y.second, w.first), in + from.offset(frame, y.second, w.second),
        y.share, w.share, to.channels, result + to.offset(frame, row, column));
  });
}

void window_pool(const Context& context, ConstTensorView x, int64_t window, PoolKind kind,
                 TensorView out) {
  const Grid from(x), to(out);
  const float* in = x.data<float>();
  float* result = out.data<float>();
  const float factor = 1.0f / static_cast<float>(window * window);
  for_tokens(context, to, [&](int64_t frame, int64_t row, int64_t column) {
    float* token = result + to.offset(frame, row, column);
    for (int64_t i = 0; i < window * window; ++i) {
      const float* source =
          in + from.offset(frame, row * window + i / window, column * window + i % window);
      if (i == 0) {
        std::copy_n(source, to.channels, token);
      } else {
        take_token(source, kind, to.channels, token);
      }
    }
    if (kind == PoolKind::average) {
      for (int64_t c = 0; c < to.channels; ++c) token[c] *= factor;
    }
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace kinora::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kinora::cpu {
HWY_EXPORT(bilinear_pool);
HWY_EXPORT(window_pool);

void bilinear_pool(const Context& context, ConstTensorView x, TensorView out) {
  HWY_DYNAMIC_DISPATCH(bilinear_pool)(context, x, out);
}
void window_pool(const Context& context, ConstTensorView x, int64_t window, PoolKind kind,
                 TensorView out) {
  HWY_DYNAMIC_DISPATCH(window_pool)(context, x, window, kind, out);
}
}  // namespace kinora::cpu
#endif
