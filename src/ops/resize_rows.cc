#include "ops/resize_rows.h"

#include <algorithm>
#include <utility>

#include "ops/resize_kernels.h"

namespace kinora {
namespace {

size_t round_up(size_t value, size_t step) { return (value + step - 1) / step * step; }

}  // namespace

ResizePlan::ResizePlan(ResizeFilter filter, int source_width, int source_height, int target_width,
                       int target_height)
    : horizontal(make_resize_axis(filter, source_width, target_width)),
      vertical(make_resize_axis(filter, source_height, target_height)) {}

RowResizer::RowResizer(std::shared_ptr<const ResizePlan> plan) : plan_(std::move(plan)) {
  const auto source_width = static_cast<size_t>(plan_->horizontal.source);
  const auto target_width = round_up(static_cast<size_t>(plan_->horizontal.target), 16);
  source_stride_ = round_up(source_width, 16) + slack;
  pair_stride_ = 2 * target_width;
  ring_pairs_ = static_cast<int>(
      round_up(static_cast<size_t>(plan_->vertical.max_pairs()), band / 2) + band / 2);
  band_rows_.resize(3 * band * source_stride_);
  band_transposed_.resize(round_up(source_width, 16) * band);
  band_filtered_.resize(target_width * band);
  ring_.resize(3 * static_cast<size_t>(ring_pairs_) * pair_stride_);
  out_.resize(3 * (target_width + slack));
  pair_rows_.resize(static_cast<size_t>(plan_->vertical.max_pairs()));
}

// Makes the pairs of rows [first_row, first_row + band) in the ring. Rows past the last one keep
// whatever they held: their weight is zero.
void RowResizer::fill_band(int first_row, const Source& source) {
  const int last_row = plan_->vertical.source;
  const size_t channel_stride = band * source_stride_;
  for (int r = 0; r < band && first_row + r < last_row; ++r) {
    uint8_t* row = band_rows_.data() + static_cast<size_t>(r) * source_stride_;
    source(first_row + r, {{row, row + channel_stride, row + 2 * channel_stride}});
  }
  const int first_pair = first_row / 2 % ring_pairs_;
  for (size_t c = 0; c < 3; ++c) {
    transpose_band(band_rows_.data() + c * channel_stride, source_stride_,
                   (plan_->horizontal.source + 1) / 2, band_transposed_.data());
    filter_band(plan_->horizontal, band_transposed_.data(), band_filtered_.data());
    untranspose_band(
        band_filtered_.data(), plan_->horizontal.target,
        ring_.data() +
            (c * static_cast<size_t>(ring_pairs_) + static_cast<size_t>(first_pair)) * pair_stride_,
        pair_stride_);
  }
}

void RowResizer::run(int begin, int end, const Source& source, const Sink& sink) {
  const ResizeAxis& vertical = plan_->vertical;
  const size_t out_stride = out_.size() / 3;
  const Rows out{{out_.data(), out_.data() + out_stride, out_.data() + 2 * out_stride}};
  int ready = 0;  // source rows in the ring, rounded up to whole bands
  for (int y = begin; y < end; ++y) {
    const auto at = static_cast<size_t>(y);
    const int first = vertical.first_pair[at];
    const int pairs = vertical.pairs(y);
    const int needed = std::min(2 * (first + pairs), vertical.source);
    ready = std::max(ready, 2 * first / band * band);
    while (ready < needed) {
      fill_band(ready, source);
      ready += band;
    }
    for (size_t c = 0; c < 3; ++c) {
      for (int p = 0; p < pairs; ++p)
        pair_rows_[static_cast<size_t>(p)] =
            ring_.data() + (c * static_cast<size_t>(ring_pairs_) +
                            static_cast<size_t>((first + p) % ring_pairs_)) *
                               pair_stride_;
      filter_pairs(pair_rows_.data(), vertical.weights.data() + vertical.weight_begin[at], pairs,
                   vertical.shift, plan_->horizontal.target, out.channel[c]);
    }
    sink(y, out);
  }
}

}  // namespace kinora
