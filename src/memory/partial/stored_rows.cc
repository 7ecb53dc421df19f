#include "memory/partial/stored_rows.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "memory/row_ops/move_rows.h"
#include "ops/elementwise.h"
#include "ops/rope.h"

namespace kinora {

StoredRows::StoredRows(const Memory& memory, int layer, const FrameTable& frames,
                       std::vector<RowSet> sets, int32_t first)
    : memory_(memory),
      layer_(layer),
      frames_(frames),
      sets_(std::move(sets)),
      begins_{0},
      first_(first) {
  for (const RowSet& set : sets_) {
    begins_.push_back(begins_.back() + set.count());
    const auto known = set.ordinals;
    spans_.push_back(known.empty() ? Span{0, -1, true}
                                   : Span{known.front(), known.back(),
                                          known.back() - known.front() + 1 == std::ssize(known)});
  }
  count_ = row_of(first);
}

int32_t StoredRows::ordinal(int64_t row) const {
  const auto past = std::upper_bound(begins_.begin() + 1, begins_.end() - 1, row);
  const auto set = static_cast<size_t>(past - begins_.begin()) - 1;
  return ordinal_in(set, row - begins_[set]);
}

int32_t StoredRows::ordinal_in(size_t set, int64_t place) const {
  const Span& span = spans_[set];
  if (span.whole) return static_cast<int32_t>(span.first + place);
  return sets_[set].ordinals[static_cast<size_t>(place)];
}

template <class Each>
void StoredRows::by_set(std::span<const int32_t> rows, const Each& each) const {
  std::vector<int32_t> places;
  places.reserve(rows.size());
  for (size_t next = 0; next < rows.size();) {
    if (rows[next] < 0 || rows[next] >= total()) {
      throw Error(ErrorKind::internal, "there are no such rows in memory");
    }
    const auto past = std::upper_bound(begins_.begin() + 1, begins_.end() - 1, rows[next]);
    const auto set = static_cast<size_t>(past - begins_.begin()) - 1;
    const size_t first = next;
    const int64_t begin = begins_[set], end = begins_[set + 1];
    places.clear();
    for (; next < rows.size() && rows[next] >= begin && rows[next] < end; ++next) {
      places.push_back(static_cast<int32_t>(rows[next] - begin));
    }
    each(set, static_cast<int64_t>(first), std::span<const int32_t>(places));
  }
}

std::vector<int32_t> StoredRows::ordinals(std::span<const int32_t> rows) const {
  std::vector<int32_t> out;
  out.reserve(rows.size());
  by_set(rows, [&](size_t set, int64_t, std::span<const int32_t> places) {
    for (const int32_t place : places) out.push_back(ordinal_in(set, place));
  });
  return out;
}

int64_t StoredRows::row_of(int64_t token) const {
  for (size_t i = 0; i < sets_.size(); ++i) {
    const Span& span = spans_[i];
    if (span.last < token) continue;
    if (span.whole) return begins_[i] + std::max<int64_t>(0, token - span.first);
    const auto ordinals = sets_[i].ordinals;
    return begins_[i] +
           (std::lower_bound(ordinals.begin(), ordinals.end(), token) - ordinals.begin());
  }
  return total();
}

std::vector<RowRange> ranges_of(std::span<const int32_t> rows) {
  std::vector<RowRange> ranges;
  for (const int32_t row : rows) {
    if (!ranges.empty() && ranges.back().end == row) {
      ++ranges.back().end;
    } else {
      ranges.push_back({row, row + 1});
    }
  }
  return ranges;
}

// Rows of a memory that was opened from a file may have to be read first.
void StoredRows::fetch(const Context& context, std::span<const int32_t> rows) const {
  memory_.fetch(context, layer_, ranges_of(rows));
}

Tensor StoredRows::copy_of(const Context& context, std::span<const int32_t> rows,
                           ConstTensorView RowSet::*field) const {
  const RowLayout& layout = memory_.layout();
  Tensor out(layout.dtype, layout.shape(static_cast<int64_t>(rows.size())), memory_.device());
  by_set(rows, [&](size_t set, int64_t first, std::span<const int32_t> places) {
    copy_rows(context, sets_[set].*field, places, out.view().rows(first, std::ssize(places)));
  });
  return out;
}

void StoredRows::copy(const Context& context, std::span<const int32_t> rows, Tensor& keys,
                      Tensor& values) const {
  fetch(context, rows);
  const RowLayout& layout = memory_.layout();
  const Shape shape = layout.shape(std::ssize(rows));
  keys = Tensor(layout.dtype, shape, memory_.device());
  values = Tensor(layout.dtype, shape, memory_.device());
  by_set(rows, [&](size_t set, int64_t first, std::span<const int32_t> places) {
    const int64_t count = std::ssize(places);
    copy_row_pairs(context, sets_[set].keys, sets_[set].values, places,
                   keys.view().rows(first, count), values.view().rows(first, count));
  });
}

Tensor StoredRows::plain_keys_there(const Context& context, std::span<const int32_t> rows) const {
  fetch(context, rows);
  const Tensor stored = copy_of(context, rows, &RowSet::keys);
  Tensor keys(DType::f32, {stored.size(0), stored.size(1), head_size_of(stored)}, stored.device());
  widen_rows(context, stored, keys);
  std::vector<Position> back;
  back.reserve(rows.size());
  for (const int32_t row : rows) {
    const Position& at = token(row).position;
    back.push_back({-at[0], -at[1], -at[2]});
  }
  turn_by(context, memory_.layout(), back, keys);
  return keys;
}

Tensor StoredRows::values_there(const Context& context, std::span<const int32_t> rows) const {
  fetch(context, rows);
  const Tensor stored = copy_of(context, rows, &RowSet::values);
  Tensor wide(DType::f32, {stored.size(0), stored.size(1), head_size_of(stored)}, stored.device());
  widen_rows(context, stored, wide);
  return wide;
}

std::vector<float> StoredRows::plain_keys(const Context& context,
                                          std::span<const int32_t> rows) const {
  if (rows.empty()) return {};
  return floats_on_host(context, plain_keys_there(context, rows));
}

std::vector<float> StoredRows::values(const Context& context, std::span<const int32_t> rows) const {
  if (rows.empty()) return {};
  return floats_on_host(context, values_there(context, rows));
}

void turn_by(const Context& context, const RowLayout& layout, std::span<const Position> differences,
             TensorView rows) {
  if (layout.rotary.frequencies.empty()) {
    throw Error(ErrorKind::unsupported,
                "this memory moves keys, and how this model turns them is not known");
  }
  rerotate(context, layout.rotary.frequencies, layout.rotary.axes, differences, rows);
}

std::vector<float> floats_on_host(const Context& context, ConstTensorView tensor) {
  Tensor wide(DType::f32, tensor.shape(), tensor.device());
  convert(context, tensor, wide);
  std::vector<float> out(static_cast<size_t>(wide.elements()));
  copy_bytes(out.data(), Device::cpu(), wide.view().raw(), wide.device(),
             out.size() * sizeof(float));
  return out;
}

Tensor plain_queries_there(const Context& context, const Memory& memory, const QueryView& queries) {
  Tensor wide(DType::f32, queries.queries.shape(), queries.queries.device());
  convert(context, queries.queries, wide);
  std::vector<Position> back;
  for (const int32_t ordinal : queries.ordinals) {
    const Position& at = memory.token(ordinal).position;
    back.push_back({-at[0], -at[1], -at[2]});
  }
  turn_by(context, memory.layout(), back, wide);
  return wide;
}

std::vector<float> plain_queries(const Context& context, const Memory& memory,
                                 const QueryView& queries) {
  return floats_on_host(context, plain_queries_there(context, memory, queries));
}

}  // namespace kinora
