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
  if (group_->count <= units) return std::move(*std::exchange(group_, std::nullopt));
  const auto end = static_cast<int32_t>(units * tokens_per_unit);
  const auto later = std::lower_bound(group_->kept.begin(), group_->kept.end(), end);
  const int64_t rows = later - group_->kept.begin();
  TokenGroup piece = *group_;
  piece.count = units;
  piece.last = false;
  piece.frames.clear();
  piece.times.resize(static_cast<size_t>(units));
  piece.tokens = copy_rows(group_->tokens, 0, rows);
  piece.kept.resize(static_cast<size_t>(rows));
  group_->first += units;
  group_->count -= units;
  group_->times.erase(group_->times.begin(), group_->times.begin() + units);
  group_->tokens = copy_rows(group_->tokens, rows, group_->tokens.size(0) - rows);
  group_->kept.erase(group_->kept.begin(), later);
  for (int32_t& place : group_->kept) place -= end;
  return piece;
}

ReadReport SegmentReader::report() {
  const std::optional<TokenGroup> end = ingest_.next(cancel_);
  if (!end || !end->report) throw Error(ErrorKind::internal, "an input ended without a report");
  return *end->report;
}

}  // namespace kinora
