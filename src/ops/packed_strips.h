// Packed weights in the order in which a GPU reads them, and their products. Matrices of one input
// stand under one another in strips of sixteen rows. A strip is a row of pieces of 64 columns, and
// a piece is what the 32 lanes of a warp hold of it for four products of the tensor cores: 16 bytes
// each in 4 bits, twice 16 in 8 bits. Made when a model is placed on a GPU (model/decoder/).
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "base/context.h"
#include "base/tensor.h"
#include "ops/matmul.h"
#include "ops/norm_matmul.h"
#include "ops/packed_matrix.h"

namespace kinora {

class PackedStrips {
 public:
  static constexpr int64_t strip_rows = 16;
  static constexpr int64_t piece_columns = 64;

  // Whether these can stand under one another: one kind, one width, groups of one size, which is a
  // multiple of a piece or a whole row.
  static bool takes(std::span<const PackedMatrix* const> parts);
  // `paired` puts eight rows of the first of two matrices and the same rows of the second into each
  // strip, so that one lane has what a gated product joins.
  PackedStrips(const Context& context, std::span<const PackedMatrix* const> parts,
               bool paired = false);

  PackedKind kind() const { return kind_; }
  int64_t rows() const { return rows_; }  // of all matrices
  int64_t columns() const { return columns_; }
  int64_t group() const { return group_; }  // columns that share a scale
  int64_t groups() const { return groups_; }
  int64_t stored_groups() const { return stored_groups_; }  // those of padding included
  bool paired() const { return paired_; }
  int64_t strips() const { return strips_; }
  int64_t pieces() const { return pieces_; }  // in 4 bits an even number
  int64_t bytes() const;
  Device device() const { return codes_.device(); }

  ConstTensorView codes() const { return codes_.view(); }
  ConstTensorView scales() const { return scales_.view(); }
  // A default view where one zero point holds for all.
  ConstTensorView zeros() const { return view_or_none(zeros_); }
  float zero() const { return zero_; }
  // The scales of fp8 weights for products of e4m3 by e4m3, one for each row or for 128 rows by 128
  // columns (matmul_cuda.h); a default view where they are of another kind.
  ConstTensorView row_scales() const { return view_or_none(row_scales_); }
  ConstTensorView block_scales() const { return view_or_none(block_scales_); }

  // The row of all matrices, one after the other, that is row `row` of a strip; may lie outside.
  int64_t row_at(int64_t strip, int64_t row) const;

 private:
  static ConstTensorView view_or_none(const Tensor& tensor) {
    return tensor.defined() ? tensor.view() : ConstTensorView();
  }
  // scale(row, group) of all rows, one matrix after the other.
  void keep_fp8_scales(const std::function<float(int64_t row, int64_t group)>& scale);

  PackedKind kind_;
  int64_t rows_ = 0, columns_, group_, groups_, stored_groups_, strips_, pieces_;
  bool paired_;
  float zero_;
  Tensor codes_;   // u8 [strips, pieces, 512 × bytes of a code pair]
  Tensor scales_;  // f32 [strips, stored groups, 8, 2]: of rows r and r + 8
  Tensor zeros_;   // bf16 of the same shape: 128 + zero point; or undefined
  Tensor row_scales_, block_scales_;
};

// As the functions of the same names in matmul.h and norm_matmul.h, with weights in strips, on a
// GPU. Rows are bf16. Up to 64 rows read the packed bytes, on Hopper once and elsewhere once for
// every sixteen of them, and take no memory; for more the weights are widened to bf16, a part at a
// time.
void matmul(const Context& context, ConstTensorView a, const PackedStrips& weight, TensorView out,
            const MatmulOptions& options = {});
void gated_matmul(const Context& context, ConstTensorView a, const PackedStrips& weight,
                  TensorView out, ConstTensorView bias = {});
void norm_matmul(const Context& context, const NormedRows& rows, const PackedStrips& weight,
                 ConstTensorView bias, TensorView out);
void norm_gated_matmul(const Context& context, const NormedRows& rows, const PackedStrips& weight,
                       ConstTensorView bias, TensorView out);
// The numbers that rows stand for, in the order of row_at without pairs: [rows, columns] bf16.
void widen(const Context& context, const PackedStrips& weight, TensorView out);

}  // namespace kinora
