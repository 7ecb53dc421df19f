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

TokenGroup piece_of(const TokenGroup& group, int64_t first, int64_t count,
                    int64_t tokens_per_unit) {
  const bool ends = first + count == group.count;
  const auto row_of = [&](int64_t unit) {
    const auto place = static_cast<int32_t>(unit * tokens_per_unit);
    return std::lower_bound(group.kept.begin(), group.kept.end(), place);
  };
  const auto begin = row_of(first), end = ends ? group.kept.end() : row_of(first + count);
  TokenGroup piece;
  piece.first = group.first + first;
  piece.count = count;
  piece.times.assign(group.times.begin() + first, group.times.begin() + first + count);
  piece.tokens = copy_rows(group.tokens, begin - group.kept.begin(), end - begin);
  piece.kept.assign(begin, end);
  for (int32_t& place : piece.kept) place -= static_cast<int32_t>(first * tokens_per_unit);
  if (ends) {
    piece.last = group.last;
    piece.frames = group.frames;
  }
  return piece;
}

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
  TokenGroup piece = piece_of(*group_, used_, taken, tokens_per_unit);
  used_ += taken;
  if (taken < left) return piece;
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
