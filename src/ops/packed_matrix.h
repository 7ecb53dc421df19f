// A weight that stays in 4 or 8 bits in memory: what quantised model directories hold, in one form
// for the products of matmul.h, whatever scheme it was published in. Made when a model is loaded
// (model/weights/), on the CPU.
//
// The form: panels of eight rows, each panel in units of one cache line. A unit holds eight
// columns of every row (8 bits), row after row, or sixteen (4 bits: the first eight columns in the
// low halves of its bytes, the others in the high halves). Kernels read it from front to back.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

#include "base/tensor.h"
#include "base/threads.h"

namespace kinora {

// int4: codes 0 … 15; int8: −128 … 127; fp8: e4m3, the finite kind.
enum class PackedKind : uint8_t { int4, int8, fp8 };
std::string_view packed_kind_name(PackedKind kind);

// The finite kind of e4m3: 448 is the largest, there is no infinity, 0x7f and 0xff are NaN.
float e4m3_value(uint8_t bits);

class PackedMatrix {
 public:
  static constexpr int64_t panel_rows = 8;
  // Columns are padded to a multiple of this, and groups must be one.
  static constexpr int64_t block = 32;

  // Where codes and scales come from; called from several threads.
  struct Source {
    PackedKind kind = PackedKind::int8;
    int64_t rows = 0;
    int64_t columns = 0;
    int64_t group = 0;  // columns that share a scale: a multiple of `block`, or at least `columns`
    float zero = 0;     // the code that means 0, where `zeros` is not given
    // Codes of rows [first, first + count), one byte each, [count, columns].
    std::function<void(int64_t first, int64_t count, uint8_t* codes)> codes;
    std::function<float(int64_t row, int64_t group)> scale;
    std::function<float(int64_t row, int64_t group)> zero_of;  // null: `zero` everywhere
  };
  // Whether groups of this many columns can be packed, or must be widened.
  static bool takes_group(int64_t columns, int64_t group);

  PackedMatrix(const ThreadPool& threads, const Source& source);

  PackedKind kind() const { return kind_; }
  int64_t rows() const { return rows_; }
  int64_t columns() const { return columns_; }
  int64_t group() const { return group_; }
  int64_t groups() const { return groups_; }
  int64_t padded_columns() const { return padded_; }
  int64_t panels() const { return (rows_ + panel_rows - 1) / panel_rows; }
  int64_t panel_bytes() const { return padded_ * panel_rows / (kind_ == PackedKind::int4 ? 2 : 1); }
  int64_t bytes() const;  // of everything it holds

  const uint8_t* panel(int64_t index) const {
    return codes_.data<uint8_t>() + index * panel_bytes();
  }
  // [groups, panel_rows] of a panel; zeros are null where `zero` holds everywhere.
  const float* scales(int64_t index) const {
    return scales_.data<float>() + index * groups_ * panel_rows;
  }
  const float* zeros(int64_t index) const {
    return zeros_.defined() ? zeros_.data<float>() + index * groups_ * panel_rows : nullptr;
  }
  float zero() const { return zero_; }
  // Whether any code 0 stands for another number than 0.
  bool shifted() const { return zeros_.defined() || zero_ != 0; }

  // Whether no number in it is a NaN or an infinity.
  bool finite() const;

  // The codes of one row as the source gave them: [columns].
  void read_codes(int64_t row, uint8_t* codes) const;

  // (code − zero) × scale of rows [first, first + count) → [count, columns] f32 or bf16.
  void widen(int64_t first, int64_t count, TensorView out) const;

 private:
  void pack_panel(const Source& source, int64_t index, const uint8_t* codes);

  PackedKind kind_;
  int64_t rows_, columns_, group_, groups_, padded_;
  float zero_;
  Tensor codes_;   // u8 [panels, panel bytes]
  Tensor scales_;  // f32 [panels, groups, panel_rows]
  Tensor zeros_;   // the same, or undefined
};

}  // namespace kinora
