#include "engine/ingest/segment_reader.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace kinora {
namespace {

// Rows [begin, begin + count).
Tensor copy_rows(const Tensor& source, int64_t begin, int64_t count) {
  Tensor out(source.dtype(), {count, source.size(1)}, source.device());
  const ConstTensorView rows = source.view().rows(begin, count);
  copy_bytes(out.view().raw(), out.device(), rows.raw(), source.device(),
             static_cast<size_t>(out.bytes()));
  return out;
}

}  // namespace

SegmentReader::SegmentReader(Ingest& ingest, CancelToken cancel)
    : ingest_(ingest), cancel_(std::move(cancel)) {}

TokenGroup SegmentReader::take(int64_t units, int64_t tokens_per_unit) {
  if (!group_) group_ = ingest_.next(cancel_);
  if (!group_ || group_->report) {
    throw Error(ErrorKind::internal, "an input ended before its frames did");
  }
  // Every row is copied once, and those of a group that one piece takes whole not at all.
  const int64_t left = group_->count - used_, taken = std::min(units, left);
  if (taken == group_->count) return std::move(*std::exchange(group_, std::nullopt));
  const bool ends = taken == left;
  const auto row_of = [&](int64_t unit) {
    const auto place = static_cast<int32_t>(unit * tokens_per_unit);
    return std::lower_bound(group_->kept.begin(), group_->kept.end(), place);
  };
  const auto begin = row_of(used_), end = ends ? group_->kept.end() : row_of(used_ + taken);
  TokenGroup piece;
  piece.first = group_->first + used_;
  piece.count = taken;
  piece.times.assign(group_->times.begin() + used_, group_->times.begin() + used_ + taken);
  piece.tokens = copy_rows(group_->tokens, begin - group_->kept.begin(), end - begin);
  piece.kept.assign(begin, end);
  for (int32_t& place : piece.kept) place -= static_cast<int32_t>(used_ * tokens_per_unit);
  used_ += taken;
  if (!ends) return piece;
  piece.last = group_->last;
  piece.frames = std::move(group_->frames);
  group_ = std::nullopt;
  used_ = 0;
  return piece;
}

ReadReport SegmentReader::report() {
  const std::optional<TokenGroup> end = ingest_.next(cancel_);
  if (!end || !end->report) throw Error(ErrorKind::internal, "an input ended without a report");
  return *end->report;
}

}  // namespace kinora
