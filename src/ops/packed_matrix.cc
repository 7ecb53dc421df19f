#include "ops/packed_matrix.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "base/error.h"
#include "base/system/host_range.h"

namespace kinora {
namespace {

constexpr int64_t unit_bytes = 64;
// Rows whose codes are asked for together: weights stored as [in, out] are then read in order.
constexpr int64_t rows_at_once = 64;

int64_t round_up(int64_t a, int64_t b) { return (a + b - 1) / b * b; }

// Where every token reads all of them, in pages of 2 MiB where there are many.
Tensor room_for_codes(const Shape& shape) {
  const auto bytes = static_cast<size_t>(shape.elements());
  if (bytes < large_page) return {DType::u8, shape};
  const auto range = std::make_shared<HostRange>(bytes);
  return {Buffer::borrow(range->data(), bytes, range), 0, DType::u8, shape};
}

const std::array<float, 256>& e4m3_table() {
  static const std::array<float, 256> table = [] {
    std::array<float, 256> made{};
    for (size_t i = 0; i < made.size(); ++i) made[i] = e4m3_value(static_cast<uint8_t>(i));
    return made;
  }();
  return table;
}

}  // namespace

std::string_view packed_kind_name(PackedKind kind) {
  switch (kind) {
    case PackedKind::int4:
      return "int4";
    case PackedKind::int8:
      return "int8";
    case PackedKind::fp8:
      return "fp8";
  }
  return "?";
}

float e4m3_value(uint8_t bits) {
  const int exponent = (bits >> 3) & 15, fraction = bits & 7;
  float value = std::numeric_limits<float>::quiet_NaN();
  if (exponent == 0) {
    value = static_cast<float>(fraction) * 0x1p-9f;
  } else if ((bits & 0x7f) != 0x7f) {
    value = std::ldexp(1.0f + static_cast<float>(fraction) / 8, exponent - 7);
  }
  return (bits & 0x80) != 0 ? -value : value;
}

bool PackedMatrix::takes_group(int64_t columns, int64_t group) {
  return group > 0 && (group % block == 0 || group >= columns);
}

PackedMatrix::PackedMatrix(const ThreadPool& threads, const Source& source)
    : kind_(source.kind),
      rows_(source.rows),
      columns_(source.columns),
      group_(round_up(source.group, block)),
      padded_(std::max(block, round_up(source.columns, block))),
      zero_(source.zero) {
  if (!takes_group(columns_, source.group)) {
    throw Error(ErrorKind::internal, "a packed matrix has groups of " +
                                         std::to_string(source.group) +
                                         " columns, not a multiple "
                                         "of " +
                                         std::to_string(block));
  }
  group_ = std::min(group_, padded_);
  groups_ = (padded_ + group_ - 1) / group_;
  codes_ = room_for_codes({panels(), panel_bytes()});
  scales_ = Tensor::zeros(DType::f32, {panels(), groups_, panel_rows});
  if (source.zero_of) zeros_ = Tensor::zeros(DType::f32, {panels(), groups_, panel_rows});
  const int64_t chunks = (rows_ + rows_at_once - 1) / rows_at_once;
  threads.parallel_for(chunks, 1, [&](int64_t begin, int64_t end) {
    std::vector<uint8_t> codes(static_cast<size_t>(rows_at_once * columns_));
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      const int64_t first = chunk * rows_at_once;
      const int64_t count = std::min(rows_at_once, rows_ - first);
      source.codes(first, count, codes.data());
      for (int64_t row = 0; row < count; row += panel_rows) {
        pack_panel(source, (first + row) / panel_rows, codes.data() + row * columns_);
      }
    }
  });
}

void PackedMatrix::pack_panel(const Source& source, int64_t index, const uint8_t* codes) {
  const int64_t first = index * panel_rows, count = std::min(panel_rows, rows_ - first);
  uint8_t* to = codes_.data<uint8_t>() + index * panel_bytes();
  std::memset(to, 0, static_cast<size_t>(panel_bytes()));
  for (int64_t row = 0; row < count; ++row) {
    const uint8_t* from = codes + row * columns_;
    if (kind_ == PackedKind::int4) {
      for (int64_t column = 0; column < columns_; ++column) {
        const int64_t in_unit = column % 16;
        uint8_t& byte = to[column / 16 * unit_bytes + row * 8 + in_unit % 8];
        byte = static_cast<uint8_t>(byte | (from[column] & 15) << (in_unit < 8 ? 0 : 4));
      }
    } else {
      for (int64_t column = 0; column < columns_; column += 8) {
        std::memcpy(to + column / 8 * unit_bytes + row * 8, from + column,
                    static_cast<size_t>(std::min<int64_t>(8, columns_ - column)));
      }
    }
    const int64_t own_groups = (columns_ + source.group - 1) / source.group;
    for (int64_t group = 0; group < std::min(groups_, own_groups); ++group) {
      const int64_t at = (index * groups_ + group) * panel_rows + row;
      scales_.data<float>()[at] = source.scale(first + row, group);
      if (zeros_.defined()) zeros_.data<float>()[at] = source.zero_of(first + row, group);
    }
  }
}

int64_t PackedMatrix::bytes() const {
  return codes_.bytes() + scales_.bytes() + (zeros_.defined() ? zeros_.bytes() : 0);
}

bool PackedMatrix::finite() const {
  const auto all_finite = [](const Tensor& tensor) {
    return std::all_of(tensor.data<float>(), tensor.data<float>() + tensor.elements(),
                       [](float value) { return std::isfinite(value); });
  };
  if (!all_finite(scales_) || (zeros_.defined() && !all_finite(zeros_))) return false;
  return kind_ != PackedKind::fp8 ||
         std::none_of(codes_.data<uint8_t>(), codes_.data<uint8_t>() + codes_.elements(),
                      [](uint8_t code) { return (code & 0x7f) == 0x7f; });
}

void PackedMatrix::read_codes(int64_t row, uint8_t* codes) const {
  const uint8_t* from = panel(row / panel_rows) + row % panel_rows * 8;
  for (int64_t j = 0; j < columns_; ++j) {
    codes[j] = kind_ == PackedKind::int4
                   ? static_cast<uint8_t>(from[j / 16 * unit_bytes + j % 8] >> (j & 8) / 2 & 15)
                   : from[j / 8 * unit_bytes + j % 8];
  }
}

void PackedMatrix::widen(int64_t first, int64_t count, TensorView out) const {
  const std::array<float, 256>& e4m3 = e4m3_table();
  for (int64_t i = 0; i < count; ++i) {
    const int64_t index = (first + i) / panel_rows, row = (first + i) % panel_rows;
    const uint8_t* from = panel(index) + row * 8;
    for (int64_t group = 0; group < groups_; ++group) {
      const float scale = scales(index)[group * panel_rows + row];
      const float zero = zeros_.defined() ? zeros(index)[group * panel_rows + row] : zero_;
      const int64_t end = std::min(columns_, (group + 1) * group_);
      const auto each = [&](const auto& value) {
        if (out.dtype() == DType::bf16) {
          bf16* to = out.row<bf16>(i);
          for (int64_t j = group * group_; j < end; ++j) to[j] = bf16::from_float(value(j));
        } else {
          float* to = out.row<float>(i);
          for (int64_t j = group * group_; j < end; ++j) to[j] = value(j);
        }
      };
      switch (kind_) {
        case PackedKind::int4:
          each([&](int64_t j) {
            const int shift = (j & 8) != 0 ? 4 : 0;
            const int code = from[j / 16 * unit_bytes + j % 8] >> shift & 15;
            return (static_cast<float>(code) - zero) * scale;
          });
          break;
        case PackedKind::int8:
          each([&](int64_t j) {
            const auto code = static_cast<int8_t>(from[j / 8 * unit_bytes + j % 8]);
            return (static_cast<float>(code) - zero) * scale;
          });
          break;
        case PackedKind::fp8:
          each([&](int64_t j) { return e4m3[from[j / 8 * unit_bytes + j % 8]] * scale; });
          break;
      }
    }
  }
}

}  // namespace kinora
