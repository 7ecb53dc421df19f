// The inner loops of attention, on packed operands. Queries of a tile are cut into strips that fill
// vector lanes; a block of keys and values is packed once and used by all strips of the tile:
//   scores   s[key][query] = Σ_c keys[key][c] · strip[c][query]
//   weights  p[key][query] = 2^(s − max), with the running max and sum of every query
//   values   o[query][c]   = o[query][c] · correction[query] + Σ_key p[key][query] · values[key][c]
// No step reduces across lanes, and none depends on how many other queries or keys there are, so
// that a query's result is the same bits in any tile. Included once per Highway target.
#if defined(KINORA_ATTENTION_KERNELS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef KINORA_ATTENTION_KERNELS_INL_H
#undef KINORA_ATTENTION_KERNELS_INL_H
#else
#define KINORA_ATTENTION_KERNELS_INL_H
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "attention/cpu/runner_cpu.h"
#include "ops/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kinora::attention_cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using namespace kinora::HWY_NAMESPACE;

using Tag = hn::ScalableTag<float>;
using Vector = hn::Vec<Tag>;
constexpr int64_t lanes = hn::MaxLanes(Tag());

constexpr bool many_registers = HWY_TARGET == HWY_NEON || HWY_TARGET <= HWY_AVX3;
// One lane: the baseline of x86-64, which must work and need not be fast.
constexpr int strip_vectors = lanes >= 4 ? 2 : 8;
constexpr int64_t strip = strip_vectors * lanes;  // queries
constexpr int key_group = many_registers ? 12 : 4;
constexpr int value_rows = many_registers ? 8 : 4;  // queries of one step of the third product
constexpr int value_vectors = many_registers ? 3 : 2;

constexpr int64_t block_keys = job_block;

constexpr int64_t round_up(int64_t value, int64_t step) { return (value + step - 1) / step * step; }

// 2^x for x ≤ 0, within 2e-7; exactly 1 at 0, exactly 0 below −126.5, −∞ included.
HWY_INLINE Vector exp2(Vector x) {
  const Tag d;
  const hn::RebindToSigned<Tag> di;
  // Adding 1.5 · 2^23 leaves the nearest integer in the low bits of a float; 127 more make it the
  // exponent of the power of two, after a shift.
  const Vector magic = hn::Set(d, 12582912.0f + 127.0f);
  x = hn::Max(x, hn::Set(d, -127.0f));
  const Vector shifted = hn::Add(x, magic);
  const Vector part = hn::Sub(x, hn::Sub(shifted, magic));
  Vector y = hn::Set(d, 0.0013264727247022776f);
  y = hn::MulAdd(y, part, hn::Set(d, 0.009671512688154924f));
  y = hn::MulAdd(y, part, hn::Set(d, 0.05550733743574459f));
  y = hn::MulAdd(y, part, hn::Set(d, 0.24022242084635037f));
  y = hn::MulAdd(y, part, hn::Set(d, 0.6931469775987168f));
  y = hn::MulAdd(y, part, hn::Set(d, 1.0f));
  return hn::Mul(y, hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(di, shifted))));
}

// Elements [c, c + a vector) of a row; zeros beyond its end.
template <class D, typename T>
HWY_INLINE hn::Vec<D> load_row(D d, const T* row, int64_t c, int64_t size) {
  constexpr int64_t whole = hn::MaxLanes(D());
  if (c + whole <= size) return load_f32(d, row + c);
  return load_f32_part(d, row + c, std::clamp<int64_t>(size - c, 0, whole));
}

// Element `index` of a short run of floats, in every lane.
template <int index>
HWY_INLINE Vector broadcast(const float* run) {
  const Tag d;
  if constexpr (lanes == 4) {
    // Multiply-add takes one lane of a register; the load is shared by four elements.
    return hn::Broadcast<index % 4>(hn::LoadU(d, run + index / 4 * 4));
  } else {
    return hn::Set(d, run[index]);
  }
}

// Packs four keys (three of them may be null: zeros) for `score_strip`: [c][key_group], from a
// place that is a multiple of four.
template <typename T>
HWY_INLINE void pack_keys(const T* const key[4], int64_t head_size, float* packed) {
#if HWY_TARGET == HWY_SCALAR
  for (int64_t c = 0; c < round_up(head_size, 4); ++c, packed += key_group) {
    for (int i = 0; i < 4; ++i) {
      const bool there = key[i] != nullptr && c < head_size;
      packed[i] = there ? hn::GetLane(load_f32(Tag(), key[i] + c)) : 0.0f;
    }
  }
#else
  const hn::FixedTag<float, 4> d;
  const hn::FixedTag<double, 2> d2;
  const auto load = [&](int i, int64_t c) HWY_ATTR {
    if (key[i] == nullptr) return hn::Zero(d);
    return load_row(d, key[i], c, head_size);
  };
  for (int64_t c = 0; c < head_size; c += 4, packed += 4 * key_group) {
    const auto k0 = load(0, c), k1 = load(1, c), k2 = load(2, c), k3 = load(3, c);
    const auto low01 = hn::BitCast(d2, hn::InterleaveLower(d, k0, k1));
    const auto high01 = hn::BitCast(d2, hn::InterleaveUpper(d, k0, k1));
    const auto low23 = hn::BitCast(d2, hn::InterleaveLower(d, k2, k3));
    const auto high23 = hn::BitCast(d2, hn::InterleaveUpper(d, k2, k3));
    hn::Store(hn::BitCast(d, hn::InterleaveLower(d2, low01, low23)), d, packed);
    hn::Store(hn::BitCast(d, hn::InterleaveUpper(d2, low01, low23)), d, packed + key_group);
    hn::Store(hn::BitCast(d, hn::InterleaveLower(d2, high01, high23)), d, packed + 2 * key_group);
    hn::Store(hn::BitCast(d, hn::InterleaveUpper(d2, high01, high23)), d, packed + 3 * key_group);
  }
#endif
}

// A panel is `vectors` vectors of every value row: [key][vectors · lanes].
struct Panel {
  int64_t column = 0;
  int vectors = 0;
};

// Cuts a row of `count` vectors into panels of at most value_vectors, none needlessly thin.
HWY_INLINE int cut_panels(int64_t count, Panel* panels) {
  int made = 0;
  for (int64_t at = 0; at < count; ++made) {
    int64_t take = std::min<int64_t>(value_vectors, count - at);
    if (count - at == value_vectors + 1) take = (value_vectors + 1) / 2;
    panels[made] = {at * lanes, static_cast<int>(take)};
    at += take;
  }
  return made;
}

template <typename T>
HWY_INLINE void pack_value(const T* value, int64_t head_size, int64_t place, const Panel* panels,
                           int count, float* packed) {
  const Tag d;
  for (int i = 0; i < count; ++i) {
    const int64_t width = panels[i].vectors * lanes;
    float* to = packed + panels[i].column * block_keys + place * width;
    for (int64_t at = 0; at < width; at += lanes) {
      hn::Store(load_row(d, value, panels[i].column + at, head_size), d, to + at);
    }
  }
}

// scores[key][query] for `groups` groups of keys.  queries: [depth][strip], keys:
// [depth][key_group]
inline HWY_NOINLINE void score_strip(const float* HWY_RESTRICT queries,
                                     const float* HWY_RESTRICT keys, int64_t groups, int64_t depth,
                                     float* HWY_RESTRICT scores) {
  const Tag d;
  for (int64_t group = 0; group < groups; ++group) {
    Vector sums[key_group][strip_vectors];
    repeat<key_group>([&](auto k) HWY_ATTR {
      repeat<strip_vectors>([&](auto v) HWY_ATTR { sums[k][v] = hn::Zero(d); });
    });
    const float* query = queries;
    for (int64_t c = 0; c < depth; ++c, query += strip, keys += key_group) {
      Vector q[strip_vectors];
      repeat<strip_vectors>([&](auto v) HWY_ATTR { q[v] = hn::Load(d, query + v * lanes); });
      repeat<key_group>([&](auto k) HWY_ATTR {
        const Vector key = broadcast<k>(keys);
        repeat<strip_vectors>([&](auto v)
                                  HWY_ATTR { sums[k][v] = hn::MulAdd(q[v], key, sums[k][v]); });
      });
    }
    repeat<key_group>([&](auto k) HWY_ATTR {
      repeat<strip_vectors>(
          [&](auto v) HWY_ATTR { hn::Store(sums[k][v], d, scores + k * strip + v * lanes); });
    });
    scores += key_group * strip;
  }
}

// Hides keys from queries that are earlier than they.
HWY_INLINE void mask_strip(const int32_t* query_ordinals, const int32_t* key_ordinals, int64_t keys,
                           float* scores) {
  const Tag d;
  const hn::RebindToSigned<Tag> di;
  const Vector hidden = hn::Set(d, -std::numeric_limits<float>::infinity());
  for (int64_t v = 0; v < strip_vectors; ++v) {
    const auto query = hn::LoadU(di, query_ordinals + v * lanes);
    for (int64_t k = 0; k < keys; ++k) {
      float* at = scores + k * strip + v * lanes;
      const auto later = hn::RebindMask(d, hn::Gt(hn::Set(di, key_ordinals[k]), query));
      hn::Store(hn::IfThenElse(later, hidden, hn::Load(d, at)), d, at);
    }
  }
}

// Adds what the weight of each key is worth: bias[k] = log2 w.
HWY_INLINE void add_bias(const float* bias, int64_t keys, float* scores) {
  const Tag d;
  for (int64_t k = 0; k < keys; ++k) {
    const Vector more = hn::Set(d, bias[k]);
    for (int64_t v = 0; v < strip_vectors; ++v) {
      float* at = scores + k * strip + v * lanes;
      hn::Store(hn::Add(hn::Load(d, at), more), d, at);
    }
  }
}

// Scores become weights. max and sum: running values of the strip's queries; correction: what the
// earlier output must be multiplied by; of the first `rows` queries. With `unit` > 0,
// unit_sums[i][query] receives the weight of every `unit` keys, relative to the new max.
inline HWY_NOINLINE void weigh_strip(int64_t rows, int64_t keys, float* HWY_RESTRICT scores,
                                     float* HWY_RESTRICT max, float* HWY_RESTRICT sum,
                                     float* HWY_RESTRICT correction, int64_t unit,
                                     float* HWY_RESTRICT unit_sums) {
  const Tag d;
  const Vector none = hn::Set(d, -std::numeric_limits<float>::infinity());
  for (int64_t v = 0; v * lanes < rows; ++v) {
    float* column = scores + v * lanes;
    const Vector old = hn::Load(d, max + v * lanes);
    Vector top = old, top2 = none, top3 = none, top4 = none;
    int64_t k = 0;
    for (; k + 4 <= keys; k += 4) {
      top = hn::Max(top, hn::Load(d, column + k * strip));
      top2 = hn::Max(top2, hn::Load(d, column + (k + 1) * strip));
      top3 = hn::Max(top3, hn::Load(d, column + (k + 2) * strip));
      top4 = hn::Max(top4, hn::Load(d, column + (k + 3) * strip));
    }
    for (; k < keys; ++k) top = hn::Max(top, hn::Load(d, column + k * strip));
    top = hn::Max(hn::Max(top, top2), hn::Max(top3, top4));
    // A query that has seen nothing yet has max −∞; −∞ − 0 gives weight 0 where −∞ − −∞ would not.
    const Vector safe = hn::IfThenElse(hn::Eq(top, none), hn::Zero(d), top);
    const Vector scaled = exp2(hn::Sub(old, safe));
    Vector total = hn::Zero(d);
    const int64_t step = unit > 0 ? unit : keys;
    for (int64_t begin = 0, i = 0; begin < keys; begin += step, ++i) {
      const int64_t end = std::min(begin + step, keys);
      Vector part = hn::Zero(d), part2 = hn::Zero(d);
      for (k = begin; k + 2 <= end; k += 2) {
        const Vector p = exp2(hn::Sub(hn::Load(d, column + k * strip), safe));
        const Vector p2 = exp2(hn::Sub(hn::Load(d, column + (k + 1) * strip), safe));
        hn::Store(p, d, column + k * strip);
        hn::Store(p2, d, column + (k + 1) * strip);
        part = hn::Add(part, p);
        part2 = hn::Add(part2, p2);
      }
      if (k < end) {
        const Vector p = exp2(hn::Sub(hn::Load(d, column + k * strip), safe));
        hn::Store(p, d, column + k * strip);
        part = hn::Add(part, p);
      }
      part = hn::Add(part, part2);
      if (unit > 0) hn::Store(part, d, unit_sums + i * strip + v * lanes);
      total = hn::Add(total, part);
    }
    hn::Store(top, d, max + v * lanes);
    hn::Store(hn::MulAdd(hn::Load(d, sum + v * lanes), scaled, total), d, sum + v * lanes);
    hn::Store(scaled, d, correction + v * lanes);
  }
}

// One panel of the output of value_rows queries. weights: [keys][strip], from the first of them.
template <int vectors>
HWY_INLINE void add_panel(const float* HWY_RESTRICT weights, const float* HWY_RESTRICT values,
                          int64_t keys, const float* HWY_RESTRICT correction,
                          float* HWY_RESTRICT out, int64_t out_stride) {
  const Tag d;
  Vector sums[value_rows][vectors];
  repeat<value_rows>([&](auto r) HWY_ATTR {
    const Vector factor = hn::Set(d, correction[r]);
    repeat<vectors>([&](auto v) HWY_ATTR {
      sums[r][v] = hn::Mul(hn::Load(d, out + r * out_stride + v * lanes), factor);
    });
  });
  for (int64_t k = 0; k < keys; ++k, weights += strip, values += vectors * lanes) {
    Vector value[vectors];
    repeat<vectors>([&](auto v) HWY_ATTR { value[v] = hn::Load(d, values + v * lanes); });
    repeat<value_rows>([&](auto r) HWY_ATTR {
      const Vector weight = broadcast<r>(weights);
      repeat<vectors>([&](auto v)
                          HWY_ATTR { sums[r][v] = hn::MulAdd(value[v], weight, sums[r][v]); });
    });
  }
  repeat<value_rows>([&](auto r) HWY_ATTR {
    repeat<vectors>([&](auto v)
                        HWY_ATTR { hn::Store(sums[r][v], d, out + r * out_stride + v * lanes); });
  });
}

// All panels of the strip's first `rows` queries, with `keys` keys of the block from place `first`
// on. out: [strip][out_stride]
inline HWY_NOINLINE void add_values(const float* weights, const float* values, const Panel* panels,
                                    int panel_count, int64_t first, int64_t keys, int64_t rows,
                                    const float* correction, float* out, int64_t out_stride) {
  for (int i = 0; i < panel_count; ++i) {
    const float* panel = values + panels[i].column * block_keys + first * panels[i].vectors * lanes;
    for (int64_t r = 0; r < rows; r += value_rows) {
      float* to = out + r * out_stride + panels[i].column;
      if (panels[i].vectors == 3) {
        add_panel<3>(weights + r, panel, keys, correction + r, to, out_stride);
      } else if (panels[i].vectors == 2) {
        add_panel<2>(weights + r, panel, keys, correction + r, to, out_stride);
      } else {
        add_panel<1>(weights + r, panel, keys, correction + r, to, out_stride);
      }
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kinora::attention_cpu
HWY_AFTER_NAMESPACE();

#endif
