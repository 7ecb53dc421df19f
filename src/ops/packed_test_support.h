// Random packed weights for the tests of their products.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "ops/packed_matrix.h"
#include "support/random_data.h"

namespace kinora::testing {

constexpr PackedKind packed_kinds[] = {PackedKind::int4, PackedKind::int8, PackedKind::fp8};

// A random packed matrix and the numbers that it stands for.
struct PackedWeights {
  std::unique_ptr<PackedMatrix> packed;
  std::vector<double> values;  // [n, k]
};

inline PackedWeights random_packed(Random& random, PackedKind kind, int64_t n, int64_t k,
                                   int64_t group, bool zeros, int64_t scale_rows = 1) {
  const int64_t groups = (k + group - 1) / group;
  std::vector<uint8_t> codes(static_cast<size_t>(n * k));
  std::vector<float> scales(static_cast<size_t>(n * groups)), shifts(scales.size());
  for (uint8_t& code : codes) {
    code = static_cast<uint8_t>(random.below(kind == PackedKind::int4 ? 16 : 256));
    if (kind == PackedKind::fp8 && (code & 0x7f) == 0x7f) code = 0x08;
  }
  for (float& scale : scales) scale = static_cast<float>(0.01 + 0.02 * random.uniform());
  for (int64_t i = 0; i < n * groups; ++i) {  // rows that share their scales
    const int64_t first = i / groups / scale_rows * scale_rows;
    scales[static_cast<size_t>(i)] = scales[static_cast<size_t>(first * groups + i % groups)];
  }
  for (float& shift : shifts) {
    const int most = kind == PackedKind::int4 ? 16 : 100;
    shift = static_cast<float>(random.below(static_cast<uint64_t>(most)));
  }
  PackedMatrix::Source source;
  source.kind = kind;
  source.rows = n;
  source.columns = k;
  source.group = group;
  source.zero = kind == PackedKind::int4 ? 8.0f : 0.0f;
  source.codes = [&](int64_t first, int64_t count, uint8_t* to) {
    std::copy_n(codes.begin() + first * k, count * k, to);
  };
  source.scale = [&](int64_t row, int64_t at) {
    return scales[static_cast<size_t>(row * groups + at)];
  };
  if (zeros) {
    source.zero_of = [&](int64_t row, int64_t at) {
      return shifts[static_cast<size_t>(row * groups + at)];
    };
  }
  PackedWeights made;
  const ThreadPool pool(2);
  made.packed = std::make_unique<PackedMatrix>(pool, source);
  for (int64_t row = 0; row < n; ++row) {
    for (int64_t column = 0; column < k; ++column) {
      const uint8_t code = codes[static_cast<size_t>(row * k + column)];
      const auto part = static_cast<size_t>(row * groups + column / group);
      const double number = kind == PackedKind::int4   ? code
                            : kind == PackedKind::int8 ? static_cast<int8_t>(code)
                                                       : e4m3_value(code);
      const double zero = kind == PackedKind::fp8 ? 0 : zeros ? shifts[part] : source.zero;
      made.values.push_back((number - zero) * scales[part]);
    }
  }
  return made;
}

}  // namespace kinora::testing
