#include "ops/packed_strips.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "ops/activation.h"
#include "ops/checks.h"
#include "ops/cuda_kernels.h"
#include "ops/elementwise.h"
#include "ops/rms_norm.h"

namespace kinora {
namespace {

constexpr int64_t lanes = 32;
constexpr int64_t fp8_block = 128;  // rows and columns that share a scale in published fp8
constexpr int64_t half_strip = PackedStrips::strip_rows / 2;
// Zero points are kept as 128 + zero, which bf16 holds exactly from 0 to 255.
constexpr float zero_offset = 128;

// Where the tensor cores want an element of a product of sixteen rows by sixteen columns: lane,
// register and half of the register.
struct Place {
  int64_t lane, part, half;
};
constexpr Place place_of(int64_t row, int64_t column) {
  return {row % 8 * 4 + column % 8 / 2, row / 8 + column / 8 * 2, column % 2};
}

// Of a piece: the byte of an element, and how far its bits are shifted there.
struct Bits {
  int64_t byte;
  int shift;
};
Bits bits_of(PackedKind kind, int64_t row, int64_t column) {
  const int64_t step = column / 16;
  const Place place = place_of(row, column % 16);
  if (kind == PackedKind::int4) {
    const int64_t nibble = place.part + 4 * place.half;
    return {place.lane * 16 + step * 4 + nibble / 2, static_cast<int>(nibble % 2 * 4)};
  }
  const int64_t word = step % 2 * 2 + place.part / 2;
  return {step / 2 * lanes * 16 + place.lane * 16 + word * 4 + place.part % 2 * 2 + place.half, 0};
}

bool holds(float zero) {
  const float kept = zero + zero_offset;
  return kept >= 0 && kept <= 255 && kept == std::floor(kept);
}

bool zeros_fit(const PackedMatrix& matrix) {
  if (matrix.kind() == PackedKind::fp8) return true;
  if (matrix.zeros(0) == nullptr) return holds(matrix.zero());
  const int64_t all = matrix.panels() * matrix.groups() * PackedMatrix::panel_rows;
  return std::all_of(matrix.zeros(0), matrix.zeros(0) + all, holds);
}

int64_t piece_bytes(PackedKind kind) {
  return PackedStrips::strip_rows * PackedStrips::piece_columns /
         (kind == PackedKind::int4 ? 2 : 1);
}

}  // namespace

bool PackedStrips::takes(std::span<const PackedMatrix* const> parts) {
  if (parts.empty() || parts[0] == nullptr) return false;
  const PackedMatrix& first = *parts[0];
  if (first.group() % piece_columns != 0 && first.groups() != 1) return false;
  return std::all_of(parts.begin(), parts.end(), [&](const PackedMatrix* part) {
    return part != nullptr && part->kind() == first.kind() && part->columns() == first.columns() &&
           part->group() == first.group() && zeros_fit(*part);
  });
}

PackedStrips::PackedStrips(const Context& context, std::span<const PackedMatrix* const> parts,
                           bool paired)
    : kind_(parts[0]->kind()),
      columns_(parts[0]->columns()),
      group_(parts[0]->group()),
      groups_(parts[0]->groups()),
      pieces_((columns_ + piece_columns - 1) / piece_columns),
      paired_(paired),
      zero_(parts[0]->zero()) {
  if (!takes(parts) || (paired && (parts.size() != 2 || parts[0]->rows() != parts[1]->rows()))) {
    throw Error(ErrorKind::internal, "these packed matrices do not fit under one another");
  }
  // In 4 bits two pieces are read at once.
  if (kind_ == PackedKind::int4) pieces_ += pieces_ % 2;
  stored_groups_ = groups_ == 1 ? 1 : (pieces_ * piece_columns + group_ - 1) / group_;
  // The matrix and the row in it of every row, one matrix after the other.
  std::vector<std::pair<const PackedMatrix*, int64_t>> own;
  bool differ = false;
  for (const PackedMatrix* part : parts) {
    for (int64_t row = 0; row < part->rows(); ++row) own.emplace_back(part, row);
    differ |= part->zeros(0) != nullptr || part->zero() != zero_;
  }
  rows_ = static_cast<int64_t>(own.size());
  const int64_t in_strips = paired ? half_strip : strip_rows;
  strips_ = ((paired ? rows_ / 2 : rows_) + in_strips - 1) / in_strips;
  codes_ = Tensor::zeros(DType::u8, {strips_, pieces_, piece_bytes(kind_)});
  scales_ = Tensor::zeros(DType::f32, {strips_, stored_groups_, half_strip, 2});
  differ &= kind_ != PackedKind::fp8;
  if (differ) zeros_ = Tensor::zeros(DType::bf16, {strips_, stored_groups_, half_strip, 2});
  // int8 is kept as code + 128: what is added to make it a number takes that off again.
  const uint8_t flip = kind_ == PackedKind::int8 ? 0x80 : 0;
  std::array<std::array<Bits, piece_columns>, strip_rows> bits;
  for (int64_t row = 0; row < strip_rows; ++row) {
    for (int64_t column = 0; column < piece_columns; ++column) {
      bits[static_cast<size_t>(row)][static_cast<size_t>(column)] = bits_of(kind_, row, column);
    }
  }
  context.threads->parallel_for(strips_, 1, [&](int64_t begin, int64_t end) {
    std::vector<uint8_t> codes(static_cast<size_t>(columns_));
    for (int64_t strip = begin; strip < end; ++strip) {
      for (int64_t row = 0; row < strip_rows; ++row) {
        const int64_t at = row_at(strip, row);
        if (at >= rows_) continue;
        const auto& [matrix, index] = own[static_cast<size_t>(at)];
        matrix->read_codes(index, codes.data());
        uint8_t* to = codes_.data<uint8_t>() + strip * pieces_ * piece_bytes(kind_);
        for (int64_t j = 0; j < columns_; ++j) {
          const Bits place = bits[static_cast<size_t>(row)][static_cast<size_t>(j % piece_columns)];
          uint8_t& byte = to[j / piece_columns * piece_bytes(kind_) + place.byte];
          byte = static_cast<uint8_t>(byte | (codes[static_cast<size_t>(j)] ^ flip) << place.shift);
        }
        const int64_t panel = index / PackedMatrix::panel_rows,
                      lane = index % PackedMatrix::panel_rows;
        for (int64_t group = 0; group < groups_; ++group) {
          const int64_t from = group * PackedMatrix::panel_rows + lane;
          const int64_t target =
              ((strip * stored_groups_ + group) * half_strip + row % half_strip) * 2 +
              row / half_strip;
          scales_.data<float>()[target] = matrix->scales(panel)[from];
          if (!differ) continue;
          const float* zeros = matrix->zeros(panel);
          const float zero = zeros != nullptr ? zeros[from] : matrix->zero();
          zeros_.data<bf16>()[target] = bf16::from_float(zero_offset + zero);
        }
      }
    }
  });
  if (kind_ == PackedKind::fp8) {
    keep_fp8_scales([&](int64_t row, int64_t group) {
      const auto& [matrix, index] = own[static_cast<size_t>(row)];
      return matrix->scales(index / PackedMatrix::panel_rows)[group * PackedMatrix::panel_rows +
                                                              index % PackedMatrix::panel_rows];
    });
    if (row_scales_.defined()) row_scales_ = row_scales_.to(context.device);
    if (block_scales_.defined()) block_scales_ = block_scales_.to(context.device);
  }
  codes_ = codes_.to(context.device);
  scales_ = scales_.to(context.device);
  if (differ) zeros_ = zeros_.to(context.device);
}

void PackedStrips::keep_fp8_scales(const std::function<float(int64_t row, int64_t group)>& scale) {
  if (groups_ == 1) {
    row_scales_ = Tensor(DType::f32, {rows_});
    for (int64_t row = 0; row < rows_; ++row) row_scales_.data<float>()[row] = scale(row, 0);
    return;
  }
  if (group_ != fp8_block || rows_ % fp8_block != 0 || columns_ % fp8_block != 0) return;
  for (int64_t row = 0; row < rows_; ++row) {
    for (int64_t group = 0; group < groups_; ++group) {
      if (scale(row, group) != scale(row / fp8_block * fp8_block, group)) return;
    }
  }
  const int64_t across = (groups_ + 3) / 4 * 4;
  block_scales_ = Tensor::zeros(DType::f32, {rows_ / fp8_block, across});
  for (int64_t block = 0; block < rows_ / fp8_block; ++block) {
    for (int64_t group = 0; group < groups_; ++group) {
      block_scales_.data<float>()[block * across + group] = scale(block * fp8_block, group);
    }
  }
}

int64_t PackedStrips::row_at(int64_t strip, int64_t row) const {
  if (!paired_) return strip * strip_rows + row;
  const int64_t own = strip * half_strip + row % half_strip, each = rows_ / 2;
  return own < each ? row / half_strip * each + own : rows_;
}

int64_t PackedStrips::bytes() const {
  return codes_.bytes() + scales_.bytes() + (zeros_.defined() ? zeros_.bytes() : 0);
}

namespace {

// The slow and obvious way, for a CPU.
void widen_on_cpu(const PackedStrips& weight, TensorView out) {
  const uint8_t* codes = weight.codes().data<uint8_t>();
  const float* scales = weight.scales().data<float>();
  const bool own_zeros = weight.zeros().raw() != nullptr;
  for (int64_t strip = 0; strip < weight.strips(); ++strip) {
    for (int64_t row = 0; row < PackedStrips::strip_rows; ++row) {
      const int64_t at = weight.row_at(strip, row);
      if (at >= weight.rows()) continue;
      for (int64_t j = 0; j < weight.columns(); ++j) {
        const Bits place = bits_of(weight.kind(), row, j % PackedStrips::piece_columns);
        const uint8_t byte = codes[(strip * weight.pieces() + j / PackedStrips::piece_columns) *
                                       piece_bytes(weight.kind()) +
                                   place.byte];
        const int64_t in_group =
            ((strip * weight.stored_groups() + j / weight.group()) * half_strip +
             row % half_strip) *
                2 +
            row / half_strip;
        const float zero = own_zeros
                               ? weight.zeros().data<bf16>()[in_group].to_float() - zero_offset
                               : weight.zero();
        const float number = weight.kind() == PackedKind::int4
                                 ? static_cast<float>(byte >> place.shift & 15) - zero
                             : weight.kind() == PackedKind::int8
                                 ? static_cast<float>(static_cast<int8_t>(byte ^ 0x80)) - zero
                                 : e4m3_value(byte);
        out.row<bf16>(at)[j] = bf16::from_float(number * scales[in_group]);
      }
    }
  }
}

Tensor widened(const Context& context, const PackedStrips& weight) {
  Tensor wide(DType::bf16, {weight.rows(), weight.columns()}, context.device);
  widen(context, weight, wide);
  return wide;
}

OpChecks checked(const Context& context, std::string_view op, ConstTensorView a,
                 const PackedStrips& weight, ConstTensorView bias, ConstTensorView out,
                 bool gated) {
  const OpChecks checks(context, op, {{"a", a}, {"weight", weight.codes()}, {"out", out}});
  checks.rank("a", a, 2, 2);
  checks.activation("out", out);
  checks.that(weight.columns() == a.size(1), "the packed weight has as many columns as a");
  checks.that(weight.paired() == gated, "only a gated product has weights in pairs");
  checks.shape("out", out, {a.size(0), gated ? weight.rows() / 2 : weight.rows()});
  if (bias.raw() != nullptr) {
    checks.floating("bias", bias);
    checks.shape("bias", bias, {weight.rows()});
  }
  return checks;
}

}  // namespace

void widen(const Context& context, const PackedStrips& weight, TensorView out) {
  const OpChecks checks(context, "widen", {{"weight", weight.codes()}, {"out", out}});
  checks.shape("out", out, {weight.rows(), weight.columns()});
  checks.that(out.dtype() == DType::bf16, "out is bf16");
  if (context.device.is_cpu()) return widen_on_cpu(weight, out);
  cuda::widen_strips(context, weight, 0, weight.strips(), out);
}

void matmul(const Context& context, ConstTensorView a, const PackedStrips& weight, TensorView out,
            const MatmulOptions& options) {
  checked(context, "matmul", a, weight, options.bias, out, false).activation("a", a);
  if (context.device.is_cpu()) return matmul(context, a, widened(context, weight), out, options);
  cuda::packed_matmul(context, {a, {}, options.bias, out, options.accumulate}, weight, {});
}

void gated_matmul(const Context& context, ConstTensorView a, const PackedStrips& weight,
                  TensorView out, ConstTensorView bias) {
  checked(context, "gated_matmul", a, weight, bias, out, true).activation("a", a);
  if (context.device.is_cpu()) return gated_matmul(context, a, widened(context, weight), out, bias);
  cuda::packed_matmul(context, {a, {}, bias, out, false}, weight, {});
}

namespace {

void normed_product(const Context& context, std::string_view op, const NormedRows& rows,
                    const PackedStrips& weight, ConstTensorView bias, TensorView out) {
  const OpChecks checks = checked(context, op, rows.x, weight, bias, out, weight.paired());
  checks.f32("x", rows.x);
  checks.floating("norm", rows.norm);
  checks.activation("room", rows.room);
  checks.shape("norm", rows.norm, {rows.x.size(1)});
  checks.shape("room", rows.room, rows.x.shape());
  if (!context.device.is_cpu() && cuda::packed_matmul(context, {rows.x, {}, bias, out, false},
                                                      weight, {rows.norm, rows.epsilon})) {
    return;
  }
  rms_norm(context, rows.x, rows.norm, rows.epsilon, rows.room);
  MatmulOptions options;
  options.bias = bias;
  if (weight.paired()) return gated_matmul(context, rows.room, weight, out, bias);
  matmul(context, rows.room, weight, out, options);
}

}  // namespace

void norm_matmul(const Context& context, const NormedRows& rows, const PackedStrips& weight,
                 ConstTensorView bias, TensorView out) {
  normed_product(context, "norm_matmul", rows, weight, bias, out);
}

void norm_gated_matmul(const Context& context, const NormedRows& rows, const PackedStrips& weight,
                       ConstTensorView bias, TensorView out) {
  normed_product(context, "norm_gated_matmul", rows, weight, bias, out);
}

}  // namespace kinora
