#include "bench/video_keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "base/error.h"
#include "base/gpu.h"
#include "base/random.h"
#include "ops/rope.h"

namespace kinora::cli {
namespace {

// Masses of a head are balanced at this length, that of the paper's figure.
constexpr int64_t reference_tokens = 131072;
constexpr int64_t longest = int64_t{1} << 21;  // distances that nearness tells apart
constexpr int64_t least_head_size = 32;
constexpr int64_t sinks = 4;
constexpr int64_t landmark_every = 1024;  // tokens, on average
constexpr double noise = 0.5;             // of a score
constexpr int64_t block_tokens = 8192;    // after which noise repeats, about

// Lines that a frame has of each grid of keys.
constexpr std::array<int64_t, 3> grid_parts = {1, 16, 32};
int64_t grid_stride(int64_t frame_tokens, size_t grid) {
  return std::max<int64_t>(2, frame_tokens / grid_parts[grid]);
}

// Columns of a head. Column pairs turn with their position: `near` ones by frequencies from 1
// downwards in equal ratios, `comb` ones by multiples of a turn a frame. The others stay.
struct Columns {
  explicit Columns(int64_t head_size)
      : half(head_size / 2), comb(half * 3 / 16), near(half - half / 4 - comb) {}

  int64_t half, comb, near;

  double ratio() const {  // between frequencies, as a difference of logarithms
    return std::log(static_cast<double>(longest) / (2 * std::numbers::pi)) /
           static_cast<double>(near - 1);
  }
  std::vector<double> frequencies(int64_t frame_tokens) const {
    std::vector<double> all(static_cast<size_t>(half));
    for (int64_t i = 0; i < near; ++i) {
      all[static_cast<size_t>(i)] = std::exp(-ratio() * static_cast<double>(i));
    }
    for (int64_t i = 0; i < comb; ++i) {
      all[static_cast<size_t>(near + i)] =
          2 * std::numbers::pi * static_cast<double>(i + 1) / static_cast<double>(frame_tokens);
    }
    return all;
  }
  // The columns that stay, one after another: first those that mean something, the rest is noise.
  int64_t still(int64_t i) const {
    const int64_t first = near + comb, count = half - first;
    return i < count ? first + i : half + first + i - count;
  }
  int64_t stills() const { return 2 * (half - near - comb); }
  // Multiples of a turn that make a head's slashes: the more, the thinner they are.
  int64_t harmonics(const VideoHead& head) const {
    return std::max<int64_t>(1, comb / head.slashes);
  }
};
enum Meaning : int64_t {
  grid_key,
  landmark_key = grid_parts.size(),
  sink_key,
  text_key,
  video_key,
  meanings
};

double between(double sharp, double soft, double softness) {
  return sharp + (soft - sharp) * softness;
}

// Σ exp of a head's decay and comb over all distances: what its other terms are measured by.
class NearMass {
 public:
  NearMass(const Columns& columns, int64_t frame_tokens)
      : columns_(columns),
        frame_tokens_(frame_tokens),
        frame_angle_(2 * std::numbers::pi / static_cast<double>(frame_tokens)),
        near_(reference_tokens) {
    const std::vector<double> all = columns.frequencies(frame_tokens);
    for (size_t i = 0; i < near_.size(); ++i) {
      for (int64_t p = 0; p < columns.near; ++p) {
        near_[i] +=
            columns.ratio() * std::cos(all[static_cast<size_t>(p)] * static_cast<double>(i));
      }
    }
  }
  double operator()(const VideoHead& head) const {
    std::vector<double> comb(static_cast<size_t>(frame_tokens_));
    for (size_t i = 0; i < comb.size() && head.comb != 0; ++i) {
      const int64_t harmonics = columns_.harmonics(head);
      for (int64_t m = 1; m <= harmonics; ++m) {
        comb[i] +=
            head.comb / static_cast<double>(harmonics) *
            std::cos(frame_angle_ * static_cast<double>(m * head.slashes) * static_cast<double>(i));
      }
    }
    double sum = 0;
    for (size_t i = 0; i < near_.size(); ++i) {
      sum += std::exp(head.decay * near_[i] + comb[i % comb.size()] + noise * noise / 2);
    }
    return sum;
  }

 private:
  Columns columns_;
  int64_t frame_tokens_;
  double frame_angle_;
  std::vector<double> near_;  // [distance]
};

// The head of a kind whose softness is this, in 0 … 1. Sharp heads fall off fast, have thin slashes
// and grids of one line a frame.
VideoHead shape_head(VideoHeadKind kind, double softness, int64_t frame_tokens,
                     const NearMass& near_mass) {
  VideoHead head;
  head.kind = kind;
  switch (kind) {
    case VideoHeadKind::grid:
      head.decay = between(1.4, 0.5, softness);
      head.grid = softness < 0.43 ? 0 : softness < 0.71 ? 1 : 2;
      head.line = std::log(
          50.0 * static_cast<double>(grid_stride(frame_tokens, static_cast<size_t>(head.grid))));
      break;
    case VideoHeadKind::slash:
      head.decay = between(0.9, 0.35, softness);
      head.comb = between(13, 6.5, softness);
      head.slashes = softness < 0.43 ? 1 : softness < 0.71 ? 2 : 4;
      break;
    case VideoHeadKind::vertical:
      head.decay = between(1.7, 0.93, softness);
      break;
    case VideoHeadKind::boundary:
      head.decay = between(1.8, 0.88, softness);
      head.boundary = 5;
      break;
  }
  const double mass = near_mass(head);
  head.sink = std::log(0.2 * mass / static_cast<double>(sinks));
  head.landmark = kind == VideoHeadKind::vertical
                      ? std::log(0.5 * mass * static_cast<double>(landmark_every) /
                                 static_cast<double>(reference_tokens))
                      : 0;
  return head;
}

// Rows [tokens, (heads + 2 × kv heads) × head size] before they are turned, from a token on that
// begins a frame.
class TokenRows {
 public:
  TokenRows(const AttentionShape& shape, const VideoKeyOptions& options,
            const std::vector<VideoHead>& heads)
      : shape_(shape), options_(options), heads_(heads), columns_(shape.head_size) {
    Random random(options.seed);
    for (size_t i = 0; i < grid_parts.size(); ++i) {
      phases_[i] = random.below(grid_stride(options.frame_tokens, i));
    }
  }

  int64_t width() const { return (shape_.heads + 2 * shape_.kv_heads) * shape_.head_size; }

  // One token's row in f32.
  void fill(int64_t token, float* row) const {
    Random random(options_.seed + (static_cast<uint64_t>(token) + 1) * 0x9e3779b97f4a7c15u);
    std::fill_n(row, width(), 0.0f);
    const int64_t d = shape_.head_size;
    const bool text = token % options_.frame_tokens < options_.text_tokens;
    for (int64_t head = 0; head < shape_.heads; ++head) {
      fill_query(heads_[static_cast<size_t>(head)], text, random, row + head * d);
    }
    for (int64_t head = 0; head < shape_.kv_heads; ++head) {
      fill_key(token, text, random, row + (shape_.heads + head) * d);
    }
    float* values = row + (shape_.heads + shape_.kv_heads) * d;
    for (int64_t i = 0; i < shape_.kv_heads * d; ++i) values[i] = normal(random);
  }

  // A key row with one meaning and nothing else, for all kv heads.
  std::vector<bf16> plain_key(Meaning meaning) const {
    std::vector<bf16> row(static_cast<size_t>(shape_.kv_heads * shape_.head_size),
                          bf16::from_float(0));
    for (int64_t head = 0; head < shape_.kv_heads; ++head) {
      row[static_cast<size_t>(head * shape_.head_size + columns_.still(meaning))] =
          bf16::from_float(1);
    }
    return row;
  }

 private:
  static float normal(Random& random) { return static_cast<float>(random.normal()); }

  // Scores are divided by the root of the head size, so that terms are multiplied by it here.
  void fill_query(const VideoHead& head, bool text, Random& random, float* to) const {
    const double root = std::sqrt(static_cast<double>(shape_.head_size));
    const auto still = [&](int64_t i) -> float& { return to[columns_.still(i)]; };
    const auto term = [&](double value) { return static_cast<float>(value * root); };
    std::fill_n(to, columns_.near, term(head.decay * columns_.ratio()));
    const int64_t harmonics = columns_.harmonics(head);
    for (int64_t m = 1; m <= harmonics; ++m) {
      to[columns_.near + std::min(m * head.slashes, columns_.comb) - 1] =
          term(head.comb / static_cast<double>(harmonics));
    }
    still(grid_key + head.grid) = term(head.line);
    still(landmark_key) = term(head.landmark);
    still(sink_key) = term(head.sink);
    still(text ? video_key : text_key) = term(-head.boundary);
    const int64_t noisy = columns_.stills() - meanings;
    for (int64_t i = meanings; i < columns_.stills(); ++i) {
      still(i) = term(noise / std::sqrt(static_cast<double>(noisy))) * normal(random);
    }
  }

  void fill_key(int64_t token, bool text, Random& random, float* to) const {
    const auto still = [&](int64_t i) -> float& { return to[columns_.still(i)]; };
    std::fill_n(to, columns_.near + columns_.comb, 1.0f);
    for (size_t i = 0; i < grid_parts.size(); ++i) {
      const int64_t stride = grid_stride(options_.frame_tokens, i);
      still(grid_key + static_cast<int64_t>(i)) =
          token % options_.frame_tokens % stride == phases_[i] ? 1.0f : 0.0f;
    }
    still(text ? text_key : video_key) = 1;
    for (int64_t i = meanings; i < columns_.stills(); ++i) still(i) = normal(random);
  }

  const AttentionShape& shape_;
  const VideoKeyOptions& options_;
  const std::vector<VideoHead>& heads_;
  Columns columns_;
  std::array<int64_t, grid_parts.size()> phases_{};
};

}  // namespace

std::vector<VideoHead> video_heads(const AttentionShape& shape, const VideoKeyOptions& options) {
  const Columns columns(shape.head_size);
  const NearMass near_mass(columns, options.frame_tokens);
  std::vector<VideoHead> heads;
  for (int64_t head = 0; head < shape.heads; ++head) {
    const int64_t kind = head % video_head_kinds;
    const int64_t of_kind = (shape.heads - kind + video_head_kinds - 1) / video_head_kinds;
    const double place =
        (static_cast<double>(head / video_head_kinds) + 0.5) / static_cast<double>(of_kind);
    heads.push_back(shape_head(static_cast<VideoHeadKind>(kind), place * options.softest,
                               options.frame_tokens, near_mass));
  }
  return heads;
}

VideoKeys::VideoKeys(const Context& context, const AttentionShape& shape, int64_t tokens,
                     const VideoKeyOptions& options) {
  if (shape.head_size < least_head_size || shape.head_size % 2 != 0) {
    throw Error(ErrorKind::usage, fmt::format("video keys: a head size of {}; it must be even and "
                                              "at least {}",
                                              shape.head_size, least_head_size));
  }
  if (options.text_tokens >= options.frame_tokens) {
    throw Error(ErrorKind::usage, fmt::format("video keys: {} text tokens in a frame of {}",
                                              options.text_tokens, options.frame_tokens));
  }
  const Device device = context.device;
  const DType type = device.is_cpu() ? DType::f32 : DType::bf16;
  const Shape kv_shape{tokens, shape.kv_heads, shape.head_size};
  queries_ = Tensor(type, {tokens, shape.heads, shape.head_size}, device);
  keys_ = Tensor(DType::bf16, kv_shape, device);
  values_ = Tensor(DType::bf16, kv_shape, device);

  const std::vector<VideoHead> heads = video_heads(shape, options);
  const TokenRows rows(shape, options, heads);
  const int64_t frames = std::max<int64_t>(1, block_tokens / options.frame_tokens);
  const int64_t block = std::min(tokens, frames * options.frame_tokens);
  Tensor made(type, {block, rows.width()});
  context.threads->parallel_for(block, 64, [&](int64_t begin, int64_t end) {
    std::vector<float> row(static_cast<size_t>(rows.width()));
    for (int64_t token = begin; token < end; ++token) {
      rows.fill(token, row.data());
      if (type == DType::f32) {
        std::copy(row.begin(), row.end(), made.view().row<float>(token));
      } else {
        std::transform(row.begin(), row.end(), made.view().row<bf16>(token), bf16::from_float);
      }
    }
  });
  const Tensor qkv = made.to(device);
  const std::vector<double> frequencies =
      Columns(shape.head_size).frequencies(options.frame_tokens);
  std::vector<int64_t> positions;
  for (int64_t begin = 0; begin < tokens; begin += block) {
    const int64_t count = std::min(block, tokens - begin);
    positions.resize(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) positions[static_cast<size_t>(i)] = begin + i;
    rope_split(context, rope_table(context, frequencies, positions), qkv.view().rows(0, count),
               queries_.view().rows(begin, count), keys_.view().rows(begin, count),
               values_.view().rows(begin, count));
  }
  synchronize(context);

  const auto put_key = [&](int64_t token, const std::vector<bf16>& key) {
    copy_bytes(keys_.view()[token].raw(), device, key.data(), Device::cpu(),
               key.size() * sizeof(bf16));
  };
  const std::vector<bf16> landmark = rows.plain_key(landmark_key);
  Random random(options.seed + 1);
  for (int64_t token = random.below(2 * landmark_every); token < tokens;
       token += 1 + random.below(2 * landmark_every)) {
    put_key(token, landmark);
  }
  const std::vector<bf16> sink = rows.plain_key(sink_key);
  for (int64_t token = 0; token < std::min(sinks, tokens); ++token) put_key(token, sink);

  for (int64_t token = 0; token < tokens; ++token) {
    ordinals_.push_back(static_cast<int32_t>(token));
    modalities_.push_back(token % options.frame_tokens < options.text_tokens ? Modality::text
                                                                             : Modality::video);
  }
}

float VideoKeys::scale() const { return 1 / std::sqrt(static_cast<float>(queries_.size(2))); }

}  // namespace kinora::cli
