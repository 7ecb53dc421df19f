#include "model/weights/packed_layers.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace kinora {
namespace {

// In 4 bits codes stay as they are stored; in 8 bits unsigned ones lose 128.
uint8_t code_of(uint32_t stored, int bits) {
  return static_cast<uint8_t>(bits == 8 ? stored ^ 0x80u : stored);
}

float number_at(const Tensor& tensor, int64_t at) {
  switch (tensor.dtype()) {
    case DType::bf16:
      return tensor.data<bf16>()[at].to_float();
    case DType::f16:
      return tensor.data<f16>()[at].to_float();
    default:
      return tensor.data<float>()[at];
  }
}

bool in_order(const PartScales& parts) {
  if (parts.column_groups == nullptr) return true;
  const int32_t* groups = parts.column_groups->data<int32_t>();
  for (int64_t k = 0; k < parts.column_groups->elements(); ++k) {
    if (groups[k] != k / parts.columns) return false;
  }
  return true;
}

}  // namespace

Codes codes_of_bytes(const Tensor& weight) {
  return [weight](int64_t first, int64_t count, uint8_t* codes) {
    const int64_t k = weight.size(1);
    std::memcpy(codes, weight.view().raw() + first * k, static_cast<size_t>(count * k));
  };
}

Codes codes_of_packed_rows(const Tensor& packed, int bits, int64_t k) {
  return [packed, bits, k](int64_t first, int64_t count, uint8_t* codes) {
    const int per_word = 32 / bits;
    const uint32_t mask = (1u << bits) - 1;
    for (int64_t row = first; row < first + count; ++row) {
      const int32_t* words = packed.data<int32_t>() + row * packed.size(1);
      for (int64_t column = 0; column < k; column += per_word, ++words) {
        auto word = static_cast<uint32_t>(*words);
        const int64_t end = std::min<int64_t>(k, column + per_word);
        for (int64_t at = column; at < end; ++at, word >>= bits) {
          *codes++ = code_of(word & mask, bits);
        }
      }
    }
  };
}

Codes codes_of_packed_columns(const Tensor& packed, int bits, int64_t k) {
  return [packed, bits, k](int64_t first, int64_t count, uint8_t* codes) {
    const int per_word = 32 / bits;
    const uint32_t mask = (1u << bits) - 1;
    const int64_t n = packed.size(1);
    for (int64_t column = 0; column < k; column += per_word) {
      const int32_t* words = packed.data<int32_t>() + column / per_word * n + first;
      for (int64_t row = 0; row < count; ++row) {
        auto word = static_cast<uint32_t>(words[row]);
        const int64_t end = std::min<int64_t>(k, column + per_word);
        for (int64_t at = column; at < end; ++at, word >>= bits) {
          codes[row * k + at] = code_of(word & mask, bits);
        }
      }
    }
  };
}

Codes codes_of_awq(const Tensor& packed) {
  return [packed](int64_t first, int64_t count, uint8_t* codes) {
    const int64_t k = packed.size(0), across = packed.size(1);
    for (int64_t column = 0; column < k; ++column) {
      for (int64_t row = 0; row < count; ++row) {
        const int64_t n = first + row;
        const auto word = static_cast<uint32_t>(packed.data<int32_t>()[column * across + n / 8]);
        codes[row * k + column] =
            static_cast<uint8_t>(word >> (4 * awq_place[static_cast<size_t>(n % 8)]) & 15);
      }
    }
  };
}

bool can_stay_packed(const PackedLayer& layer) {
  return PackedMatrix::takes_group(layer.columns, layer.parts.columns) && in_order(layer.parts);
}

std::shared_ptr<const PackedMatrix> pack_layer(const ThreadPool& threads,
                                               const PackedLayer& layer) {
  const PartScales& parts = layer.parts;
  const int64_t across = parts.scales.size(1);
  const auto place = [&](int64_t row, int64_t group) {
    return layer.transposed ? group * across + row : row / parts.rows * across + group;
  };
  PackedMatrix::Source source;
  source.kind = layer.kind;
  source.rows = layer.rows;
  source.columns = layer.columns;
  source.group = parts.columns;
  source.zero = layer.zero;
  source.codes = layer.codes;
  source.scale = [&](int64_t row, int64_t group) {
    return number_at(parts.scales, place(row, group));
  };
  if (parts.zeros.defined()) {
    const int32_t* zeros = parts.zeros.data<int32_t>();
    const int32_t* end = zeros + parts.zeros.elements();
    if (std::all_of(zeros, end, [&](int32_t zero) { return zero == zeros[0]; })) {
      source.zero += static_cast<float>(zeros[0]);
    } else {
      source.zero_of = [&, zeros](int64_t row, int64_t group) {
        return static_cast<float>(zeros[place(row, group)]) + layer.zero;
      };
    }
  }
  return std::make_shared<const PackedMatrix>(threads, source);
}

}  // namespace kinora
