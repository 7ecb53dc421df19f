#include "model/weights/dequantize.h"

#include <algorithm>
#include <array>
#include <vector>

#include "base/error.h"
#include "ops/packed_matrix.h"

namespace kinora {
namespace {

template <typename Body>
void with_type(DType type, const Body& body) {
  switch (type) {
    case DType::f32:
      return body(float());
    case DType::bf16:
      return body(bf16());
    case DType::f16:
      return body(f16());
    default:
      throw Error(ErrorKind::internal, "weights become f32, bf16 or f16");
  }
}

float as_float(float value) { return value; }
float as_float(bf16 value) { return value.to_float(); }
float as_float(f16 value) { return value.to_float(); }

template <typename T>
T rounded(float value) {
  if constexpr (std::is_same_v<T, float>) {
    return value;
  } else {
    return T::from_float(value);
  }
}

std::vector<float> floats_of(const Tensor& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.elements()));
  with_type(tensor.dtype(), [&]<typename T>(T) {
    const T* from = tensor.data<T>();
    for (size_t i = 0; i < values.size(); ++i) values[i] = as_float(from[i]);
  });
  return values;
}

// Rows that are written together: weights stored [in, out] are then read in order.
constexpr int64_t rows_at_once = 64;

// out[n, k] = (value(n, k) − zero) × scale, where part(n, k) is the place of zero and scale.
template <typename Value, typename Part>
Tensor widen(const ThreadPool& threads, int64_t n, int64_t k, DType type, const PartScales& parts,
             const Part& part, const Value& value) {
  const std::vector<float> scales = floats_of(parts.scales);
  const int32_t* zeros = parts.zeros.defined() ? parts.zeros.data<int32_t>() : nullptr;
  Tensor out(type, {n, k});
  with_type(type, [&]<typename T>(T) {
    T* to = out.data<T>();
    const int64_t blocks = (n + rows_at_once - 1) / rows_at_once;
    threads.parallel_for(blocks, 1, [&](int64_t begin, int64_t end) {
      const int64_t last = std::min(n, end * rows_at_once);
      for (int64_t top = begin * rows_at_once; top < last; top += rows_at_once) {
        const int64_t bottom = std::min(last, top + rows_at_once);
        for (int64_t column = 0; column < k; ++column) {
          for (int64_t row = top; row < bottom; ++row) {
            const auto place = static_cast<size_t>(part(row, column));
            float number = value(row, column);
            if (zeros != nullptr) number -= static_cast<float>(zeros[place]);
            to[row * k + column] = rounded<T>(number * scales[place]);
          }
        }
      }
    });
  });
  return out;
}

// The part of a weight stored [out, in], and of one stored [in, out].
auto by_rows(const PartScales& parts) {
  const int64_t across = parts.scales.size(1);
  const int32_t* groups =
      parts.column_groups != nullptr ? parts.column_groups->data<int32_t>() : nullptr;
  return [rows = parts.rows, columns = parts.columns, across, groups](int64_t row, int64_t column) {
    return row / rows * across + (groups != nullptr ? groups[column] : column / columns);
  };
}
auto by_columns(const PartScales& parts) {
  const int64_t across = parts.scales.size(1);
  const int32_t* groups =
      parts.column_groups != nullptr ? parts.column_groups->data<int32_t>() : nullptr;
  return [columns = parts.columns, across, groups](int64_t row, int64_t column) {
    return (groups != nullptr ? groups[column] : column / columns) * across + row;
  };
}

uint32_t field(int32_t word, int place, int bits) {
  return (static_cast<uint32_t>(word) >> (place * bits)) & ((uint32_t{1} << bits) - 1);
}

}  // namespace

Tensor widen_e4m3(const ThreadPool& threads, const Tensor& weight, const PartScales& parts,
                  DType type) {
  std::array<float, 256> table{};
  for (size_t i = 0; i < table.size(); ++i) table[i] = e4m3_value(static_cast<uint8_t>(i));
  const uint8_t* from = weight.data<uint8_t>();
  const int64_t k = weight.size(1);
  return widen(threads, weight.size(0), k, type, parts, by_rows(parts),
               [&](int64_t row, int64_t column) { return table[from[row * k + column]]; });
}

Tensor widen_int8(const ThreadPool& threads, const Tensor& weight, const PartScales& parts,
                  DType type) {
  const int8_t* from = weight.data<int8_t>();
  const int64_t k = weight.size(1);
  return widen(
      threads, weight.size(0), k, type, parts, by_rows(parts),
      [&](int64_t row, int64_t column) { return static_cast<float>(from[row * k + column]); });
}

Tensor widen_packed_rows(const ThreadPool& threads, const Tensor& packed, int bits, int64_t k,
                         const PartScales& parts, DType type) {
  const int32_t* words = packed.data<int32_t>();
  const int64_t across = packed.size(1), per_word = 32 / bits;
  const int offset = 1 << (bits - 1);
  return widen(threads, packed.size(0), k, type, parts, by_rows(parts),
               [=](int64_t row, int64_t column) {
                 const int32_t word = words[row * across + column / per_word];
                 const auto stored =
                     static_cast<int>(field(word, static_cast<int>(column % per_word), bits));
                 return static_cast<float>(stored - offset);
               });
}

Tensor widen_packed_columns(const ThreadPool& threads, const Tensor& packed, int bits, int64_t k,
                            const PartScales& parts, DType type) {
  const int32_t* words = packed.data<int32_t>();
  const int64_t n = packed.size(1), per_word = 32 / bits;
  return widen(threads, n, k, type, parts, by_columns(parts), [=](int64_t row, int64_t column) {
    const int32_t word = words[column / per_word * n + row];
    return static_cast<float>(field(word, static_cast<int>(column % per_word), bits));
  });
}

Tensor widen_awq(const ThreadPool& threads, const Tensor& packed, const PartScales& parts,
                 DType type) {
  const int32_t* words = packed.data<int32_t>();
  const int64_t across = packed.size(1);
  return widen(threads, 8 * across, packed.size(0), type, parts, by_columns(parts),
               [=](int64_t row, int64_t column) {
                 const int32_t word = words[column * across + row / 8];
                 const int place = awq_place[static_cast<size_t>(row % 8)];
                 return static_cast<float>(field(word, place, 4));
               });
}

Tensor unpack_words(const Tensor& words, int bits, PackedAlong along, int64_t count) {
  const bool down = along == PackedAlong::rows;
  const int64_t per_word = 32 / bits, across = words.size(1);
  const int64_t rows = down ? count : words.size(0), columns = down ? across : count;
  Tensor out(DType::i32, {rows, columns});
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < columns; ++column) {
      const int64_t at = down ? row : column;
      auto place = static_cast<int>(at % per_word);
      if (along == PackedAlong::columns_awq) place = awq_place[static_cast<size_t>(place)];
      const int64_t word = down ? row / per_word * across + column : row * across + at / per_word;
      out.data<int32_t>()[row * columns + column] =
          static_cast<int32_t>(field(words.data<int32_t>()[word], place, bits));
    }
  }
  return out;
}

}  // namespace kinora
