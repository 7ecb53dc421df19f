#include "model/quantize/compensation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/tensor.h"
#include "model/quantize/input_moments.h"
#include "support/random_data.h"

namespace kinora {
namespace {

using Rows = std::vector<std::vector<double>>;

constexpr int64_t block = InputMoments::block;

// Inputs that go together: each is a mixture of a few causes and some noise, in a size of its own.
class Source {
 public:
  Source(Random& random, int64_t inputs, int64_t causes) : random_(random) {
    for (int64_t i = 0; i < inputs; ++i) {
      mixtures_.push_back(testing::random_floats(random, causes));
      sizes_.push_back(std::exp(0.7 * random.normal()));
    }
  }
  Tensor rows(int64_t count) {
    Tensor made(DType::f32, {count, static_cast<int64_t>(sizes_.size())});
    for (int64_t row = 0; row < count; ++row) {
      const std::vector<float> causes =
          testing::random_floats(random_, static_cast<int64_t>(mixtures_[0].size()));
      for (size_t i = 0; i < sizes_.size(); ++i) {
        double value = 0.5 * random_.normal();
        for (size_t k = 0; k < causes.size(); ++k) value += mixtures_[i][k] * causes[k];
        made.view().row<float>(row)[i] = static_cast<float>(value * sizes_[i]);
      }
    }
    return made;
  }

 private:
  Random& random_;
  std::vector<std::vector<float>> mixtures_;
  std::vector<double> sizes_;
};

InputMoments moments_of(const ThreadPool& threads, const Tensor& rows) {
  InputMoments moments(rows.size(1));
  moments.add(threads, rows.view());
  return moments;
}

struct Rounded {
  std::vector<uint8_t> codes;
  std::vector<float> scales, back;
};
Rounded rounded(const Rounding& rounding, const std::vector<float>& row,
                const Compensation* compensation, const float* importance = nullptr) {
  const auto columns = static_cast<int64_t>(row.size());
  Rounded made{std::vector<uint8_t>(row.size()),
               std::vector<float>(static_cast<size_t>(rounding.groups(columns))),
               std::vector<float>(row.size())};
  if (compensation != nullptr) {
    compensation->round_row(rounding, row.data(), made.codes.data(), made.scales.data());
  } else {
    round_row(rounding, row.data(), columns, importance, made.codes.data(), made.scales.data());
  }
  unround_row(rounding, made.codes.data(), made.scales.data(), columns, made.back.data());
  return made;
}

// What rounding changes in the outputs: Σ (x·(w − ŵ))² over some rows of inputs.
double output_error(const Tensor& inputs, const std::vector<float>& row,
                    const std::vector<float>& back) {
  double sum = 0;
  for (int64_t token = 0; token < inputs.size(0); ++token) {
    double change = 0;
    for (size_t i = 0; i < row.size(); ++i) {
      change += static_cast<double>(inputs.view().row<float>(token)[i]) *
                (static_cast<double>(row[i]) - back[i]);
    }
    sum += change * change;
  }
  return sum;
}

// X with A·X = B, by elimination; A is symmetric and positive. Columns of B side by side.
Rows solved(Rows a, Rows b) {
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t k = i + 1; k < a.size(); ++k) {
      const double factor = a[k][i] / a[i][i];
      for (size_t j = i; j < a.size(); ++j) a[k][j] -= factor * a[i][j];
      for (size_t j = 0; j < b[k].size(); ++j) b[k][j] -= factor * b[i][j];
    }
  }
  for (size_t i = a.size(); i-- > 0;) {
    for (size_t j = 0; j < b[i].size(); ++j) {
      for (size_t k = i + 1; k < a.size(); ++k) b[i][j] -= a[i][k] * b[k][j];
      b[i][j] /= a[i][i];
    }
  }
  return b;
}

TEST(InputMoments, AreTheSumsOfProducts) {
  KINORA_FRESH_RANDOM(random);
  const ThreadPool one(1), three(3);
  for (const int64_t inputs : {1, 63, 65, 129, 512, 513, 600}) {
    InputMoments moments(inputs), again(inputs);
    std::vector<std::vector<double>> seen;
    for (const int64_t tokens : {1, 6, 700}) {
      Tensor rows(DType::f32, {tokens, inputs});
      for (int64_t i = 0; i < rows.elements(); ++i) {
        rows.data<float>()[i] = static_cast<float>(random.normal());
      }
      moments.add(one, rows.view());
      again.add(three, rows.view());
      for (int64_t token = 0; token < tokens; ++token) {
        const float* row = rows.view().row<float>(token);
        seen.emplace_back(row, row + inputs);
      }
    }
    EXPECT_TRUE(moments.finite());
    for (int64_t trial = 0; trial < 200; ++trial) {
      const auto index = random.below(moments.blocks());
      const int64_t width = moments.width(index);
      const int64_t i = random.below(width);
      const int64_t j = random.below(width);
      double sum = 0;
      for (const std::vector<double>& row : seen) {
        sum += row[static_cast<size_t>(index * block + i)] *
               row[static_cast<size_t>(index * block + j)];
      }
      EXPECT_NEAR(moments.sum(index, i, j), sum, 0.01);
      EXPECT_EQ(moments.sum(index, i, j), moments.sum(index, j, i));
      EXPECT_EQ(moments.sum(index, i, j), again.sum(index, i, j));
    }
  }
}

// Before a weight is rounded, those that are left in its block must be those that come closest to
// the right output, given the codes of the ones before it. Here they are found anew for every
// weight, straight from that definition.
class Definition {
 public:
  Definition(const Tensor& inputs, const std::vector<float>& scales)
      : sums_(scales.size(), std::vector<double>(scales.size())) {
    for (int64_t token = 0; token < inputs.size(0); ++token) {
      const float* row = inputs.view().row<float>(token);
      for (size_t i = 0; i < scales.size(); ++i) {
        for (size_t j = 0; j < scales.size(); ++j) {
          sums_[i][j] += static_cast<double>(row[i]) / scales[i] * row[j] / scales[j];
        }
      }
    }
    for (size_t i = 0; i < scales.size(); ++i) sums_[i][i] *= 1.1;
  }
  double square(size_t column) const { return sums_[column][column]; }

  // What is best for the weight in this place of the order, and of its input the sum of squares
  // that those of later places leave.
  struct Found {
    double weight, importance;
  };
  Found find(const Rounded& made, const std::vector<float>& row, const std::vector<int64_t>& order,
             size_t at) const {
    const size_t first = at / block * block, end = std::min<size_t>(first + block, row.size());
    // Moments times change is 0 at every weight that is left.
    Rows a, b;
    for (size_t i = at; i < end; ++i) {
      const std::vector<double>& sums = sums_[static_cast<size_t>(order[i])];
      a.emplace_back();
      for (size_t j = at; j < end; ++j) a.back().push_back(sums[static_cast<size_t>(order[j])]);
      double pull = 0;
      for (size_t j = first; j < at; ++j) {
        const auto column = static_cast<size_t>(order[j]);
        pull += sums[column] * (static_cast<double>(row[column]) - made.back[column]);
      }
      b.push_back({pull, i == at ? 1.0 : 0.0});
    }
    const Rows change = solved(a, b);
    // The importance is one over the inverse's first element.
    return {row[static_cast<size_t>(order[at])] + change[0][0], 1 / change[0][1]};
  }

 private:
  Rows sums_;
};

double scale_error(const std::vector<double>& weights, const std::vector<double>& importance,
                   double scale) {
  double error = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    const double change =
        std::clamp(std::nearbyint(weights[i] / scale), -8.0, 7.0) * scale - weights[i];
    error += change * change * importance[i];
  }
  return error;
}

void check_row(const Rounding& rounding, const Definition& definition,
               const std::vector<float>& row, const std::vector<int64_t>& order,
               const Rounded& made) {
  const auto group = static_cast<size_t>(rounding.group);
  const bool several = row.size() > block;  // blocks: the last places of each are enough
  std::vector<double> importance(row.size());
  for (size_t at = several ? block - 100 : 0; at < row.size(); ++at) {
    const auto column = static_cast<size_t>(order[at]);
    const Definition::Found found = definition.find(made, row, order, at);
    importance[column] = found.importance;
    const double place = std::clamp(found.weight / made.scales[column / group], -8.0, 7.0);
    EXPECT_LE(std::abs(place - static_cast<int8_t>(made.codes[column])), 0.51)
        << column << " of " << row.size();
  }
  for (size_t begin = 0; begin < row.size() && !several; begin += group) {
    const size_t end = std::min(begin + group, row.size());
    const std::vector<double> weights(row.data() + begin, row.data() + end);
    const std::vector<double> own(importance.data() + begin, importance.data() + end);
    double largest = 0, least = std::numeric_limits<double>::infinity();
    for (const double weight : weights) largest = std::max(largest, std::abs(weight));
    for (int k = 0; k < 24; ++k) {
      const auto tried = static_cast<float>(largest / 7 * (1 - 0.02 * k));
      least = std::min(least, scale_error(weights, own, bf16::from_float(tried).to_float()));
    }
    // Two scales beside each other in bf16 may change places by rounding in f32.
    EXPECT_LE(scale_error(weights, own, made.scales[begin / group]), 1.02 * least + 1e-9) << begin;
  }
}

void check_order(const Definition& definition, const std::vector<int64_t>& order) {
  std::vector<int64_t> sorted;
  for (size_t first = 0; first < order.size(); first += block) {
    const size_t end = std::min<size_t>(first + block, order.size());
    for (size_t i = first + 1; i < end; ++i) {
      EXPECT_LE(definition.square(static_cast<size_t>(order[i])),
                1.0001 * definition.square(static_cast<size_t>(order[i - 1])));
    }
    sorted.assign(order.data() + first, order.data() + end);
    std::sort(sorted.begin(), sorted.end());
    for (size_t i = first; i < end; ++i) EXPECT_EQ(sorted[i - first], static_cast<int64_t>(i));
  }
}

TEST(Compensation, LeavesTheWeightsThatComeClosest) {
  KINORA_FRESH_RANDOM(random);
  const ThreadPool threads(2);
  for (const int64_t inputs : {1, 63, 65, 127, 129, 200, 514}) {
    Source source(random, inputs, 12);
    const Tensor rows = source.rows(200);
    std::vector<float> scales;
    for (int64_t i = 0; i < inputs; ++i) {
      scales.push_back(static_cast<float>(std::exp(0.5 * random.normal())));
    }
    const Definition definition(rows, scales);
    const Compensation compensation(threads, moments_of(threads, rows), scales);
    check_order(definition, compensation.order());
    for (const int64_t group : {32, 64, 96, 128, 256}) {
      if (inputs > 500 && group != 96) continue;  // one whose groups lie in two blocks
      SCOPED_TRACE(group);
      const Rounding rounding{PackedKind::int4, group, DType::bf16, true};
      const std::vector<float> row = testing::random_floats(random, inputs);
      check_row(rounding, definition, row, compensation.order(),
                rounded(rounding, row, &compensation));
    }
  }
}

TEST(Compensation, ChangesOutputsLessThanTheNearestCodes) {
  KINORA_FRESH_RANDOM(random);
  const ThreadPool threads(2);
  for (const int64_t inputs : {63, 128, 600}) {
    Source source(random, inputs, 12);
    const Tensor rows = source.rows(1000), others = source.rows(300);
    const InputMoments moments = moments_of(threads, rows);
    const Compensation compensation(threads, moments, {});
    std::vector<float> squares;
    for (int64_t i = 0; i < inputs; ++i) {
      squares.push_back(moments.sum(i / block, i % block, i % block));
    }
    for (const bool search : {true, false}) {
      const Rounding rounding{PackedKind::int4, 64, DType::bf16, search};
      double sample = 0, plain_sample = 0, unseen = 0, plain_unseen = 0;
      for (int i = 0; i < 8; ++i) {
        const std::vector<float> row = testing::random_floats(random, inputs);
        const Rounded ours = rounded(rounding, row, &compensation);
        const Rounded plain = rounded(rounding, row, nullptr, squares.data());
        sample += output_error(rows, row, ours.back);
        plain_sample += output_error(rows, row, plain.back);
        unseen += output_error(others, row, ours.back);
        plain_unseen += output_error(others, row, plain.back);
      }
      EXPECT_LT(sample, 0.6 * plain_sample) << inputs;
      EXPECT_LT(unseen, 0.6 * plain_unseen) << inputs;
    }
  }
}

TEST(Compensation, InputsThatAreAlwaysZeroChangeNothing) {
  KINORA_FRESH_RANDOM(random);
  const ThreadPool threads(2);
  const Rounding rounding{PackedKind::int4, 32, DType::bf16, true};
  // All of them: the nearest codes.
  const std::vector<float> row = testing::random_floats(random, 200);
  const Compensation dead(threads, InputMoments(200), {});
  const std::vector<float> zeros(200, 0.0f);
  EXPECT_EQ(rounded(rounding, row, &dead).codes,
            rounded(rounding, row, nullptr, zeros.data()).codes);

  // Some of them: the others are rounded as if these were not there, but for groups.
  Source source(random, 200, 12);
  Tensor rows = source.rows(300);
  for (int64_t token = 0; token < rows.size(0); ++token) {
    for (int64_t i = 0; i < 200; i += 3) rows.view().row<float>(token)[i] = 0;
  }
  const Compensation some(threads, moments_of(threads, rows), {});
  const Rounded made = rounded(rounding, row, &some);
  for (const float scale : made.scales) EXPECT_TRUE(scale > 0 && std::isfinite(scale));
  for (size_t i = 0; i < row.size(); i += 3) {
    const float scale = made.scales[i / 32];
    EXPECT_LE(
        std::abs(std::clamp(row[i] / scale, -8.0f, 7.0f) - static_cast<int8_t>(made.codes[i])),
        0.501f);
  }
  EXPECT_LT(output_error(rows, row, made.back), output_error(rows, row, zeros));
}

TEST(Compensation, InputsThatAreAllTheSameKeepTheirSum) {
  KINORA_FRESH_RANDOM(random);
  const ThreadPool threads(2);
  const Rounding rounding{PackedKind::int4, 64, DType::bf16, true};
  Tensor rows(DType::f32, {100, 513});
  for (int64_t token = 0; token < 100; ++token) {
    std::fill_n(rows.view().row<float>(token), 513, static_cast<float>(random.normal()));
  }
  const Compensation compensation(threads, moments_of(threads, rows), {});
  double ours = 0, plain = 0;
  for (int i = 0; i < 32; ++i) {
    const std::vector<float> row = testing::random_floats(random, 513);
    ours += output_error(rows, row, rounded(rounding, row, &compensation).back);
    plain += output_error(rows, row, rounded(rounding, row, nullptr).back);
  }
  EXPECT_LT(ours, 0.2 * plain);
}

}  // namespace
}  // namespace kinora
