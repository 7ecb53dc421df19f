// Batches of decoding sequences with random row sets on a GPU, and what attention over them must
// give, straight from the definition in double precision. For the tests of decode_cuda.h.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "attention/cuda/decode/decode_cuda.h"
#include "attention/cuda/device_test_support.h"
#include "base/gpu.h"

namespace kinora::testing {

struct SetCase {
  int64_t count = 0;
  bool listed = false;
  bool weighted = false;
  uint64_t serves = ~uint64_t{0};
  bool scattered = false;  // mass goes to places of its own
};

struct SequenceCase {
  std::vector<SetCase> sets;
  int64_t tokens = 1;
  int own = 0;
  int32_t earlier = 0;  // rows before the new ones that masks name; random where tokens are a tree
  // What counts for the mass of rows, and whether every token and head is added apart.
  uint64_t mass_heads = ~uint64_t{0};
  int32_t mass_from = 0;
  bool mass_apart = false;

  bool counts(int64_t token, int64_t head) const {
    return token >= mass_from && (mass_heads >> head & 1) != 0;
  }
};

// What a captured batch keeps.
struct BatchShape {
  int64_t heads = 1, kv_heads = 1, head_size = 128;
  DType rows_type = DType::bf16;
  int64_t tokens = 1;       // of all sequences, padding included
  int64_t sequences = 1;    // those that are not there included
  int64_t most_tokens = 1;  // of a sequence
  // Of queries and output. Heads that tensor cores take are given bf16 with rows of 8 bits.
  DType type = !rows_are_packed(rows_type)           ? rows_type
               : head_size == 64 || head_size == 128 ? DType::bf16
                                                     : DType::f32;
};

class DecodeBatch {
 public:
  struct Set {
    SetCase shape;
    std::vector<float> keys, values;   // [stored rows, kv heads, head size], as the device has them
    std::vector<float> value_scales;   // of every element of `values`, in 8 bits
    std::vector<int32_t> rows;         // [count]: which row stands at a place
    std::vector<float> weights;        // [count]
    std::vector<int32_t> mass_places;  // [count]
    int64_t mass_stride = 0;           // of heads, where they are apart
    std::vector<double> mass;          // [count] or [tokens, heads, count], expected
    Tensor device_keys, device_values, device_list, device_weights, device_mass, device_places;
  };
  struct Sequence {
    SequenceCase shape;
    int64_t first_token = 0;
    std::vector<Set> sets;
    std::vector<uint64_t> masks;  // [tokens]
  };

  DecodeBatch(const BatchShape& shape, Device device, const ThreadPool& pool)
      : shape_(shape), device_(device), context_(pool, device) {
    const Shape pairs{shape.tokens, shape.heads};
    queries_ = Tensor(shape.type, out_shape(), device);
    out_ = Tensor(shape.type, out_shape(), device);
    max_ = Tensor(DType::f32, pairs, device);
    sum_ = Tensor(DType::f32, pairs, device);
    masks_ = Tensor(DType::u8, {shape.tokens * 8}, device);
    table_ =
        Tensor(DType::u8, {shape.sequences * static_cast<int64_t>(sizeof(DeviceSequence))}, device);
  }

  // The same tensors at every call; scratch is made at the first one.
  DecodeAttention work(int splits) {
    DecodeAttention work;
    work.queries = queries_;
    work.sequences = reinterpret_cast<const DeviceSequence*>(table_.view().raw());
    work.sequence_count = static_cast<int>(shape_.sequences);
    work.most_tokens_per_sequence = static_cast<int>(shape_.most_tokens);
    work.row_type = shape_.rows_type;
    work.kv_heads = static_cast<int>(shape_.kv_heads);
    work.splits = splits;
    work.scale = scale();
    work.out = out_;
    work.masks = reinterpret_cast<const uint64_t*>(masks_.view().raw());
    work.state_max = max_.data<float>();
    work.state_sum = sum_.data<float>();
    if (!scratch_.defined()) {
      scratch_ = Tensor::zeros(
          DType::u8, {static_cast<int64_t>(decode_scratch_bytes(context_, work))}, device_);
    }
    work.scratch = scratch_.view().raw();
    return work;
  }

  // New sequences with fresh rows; the batch's tokens that they leave over belong to nobody. Chains
  // of tokens, or random trees.
  void fill(Random& random, const std::vector<SequenceCase>& cases, bool tree) {
    query_data_ = random_floats(random, shape_.tokens * shape_.heads * shape_.head_size, 2.0);
    if (shape_.rows_type != DType::f32) narrow(query_data_);
    upload(queries_, query_data_);
    sequences_.clear();
    int64_t left = shape_.tokens;
    for (const SequenceCase& one : cases) left -= one.tokens;
    ASSERT_GE(left, 0);
    int64_t first_token = random.below(left + 1);
    for (const SequenceCase& one : cases) {
      sequences_.push_back(make_sequence(random, one, first_token, tree));
      first_token += one.tokens;
    }
    send();
  }

  // Describes the sequences to the device and spoils what a run writes.
  void send() {
    std::vector<DeviceSequence> table(static_cast<size_t>(shape_.sequences));
    std::vector<uint64_t> masks(static_cast<size_t>(shape_.tokens), ~uint64_t{0});
    for (size_t i = 0; i < sequences_.size(); ++i) {
      Sequence& sequence = sequences_[i];
      // Those that are there need not come first.
      DeviceSequence& to = table[table.size() - sequences_.size() + i];
      to.first_token = static_cast<int32_t>(sequence.first_token);
      to.tokens = static_cast<int32_t>(sequence.shape.tokens);
      to.own = sequence.shape.own;
      to.earlier = sequence.shape.earlier;
      to.mass_heads = sequence.shape.mass_heads;
      to.mass_from = sequence.shape.mass_from;
      std::copy(sequence.masks.begin(), sequence.masks.end(), masks.begin() + sequence.first_token);
      // Sets of a sequence are as far apart as the longest needs.
      int64_t longest = 1;
      for (const Set& set : sequence.sets) longest = std::max(longest, set.shape.count);
      if (sequence.shape.mass_apart) {
        to.mass_head_stride = longest;
        to.mass_token_stride = shape_.heads * longest;
      }
      for (size_t s = 0; s < sequence.sets.size(); ++s) {
        to.sets[s] = describe(sequence.shape, longest, sequence.sets[s]);
      }
    }
    copy_bytes(table_.view().raw(), device_, table.data(), Device::cpu(),
               table.size() * sizeof(DeviceSequence));
    copy_bytes(masks_.view().raw(), device_, masks.data(), Device::cpu(), masks.size() * 8);
    for (Tensor* spoilt : {&out_, &max_, &sum_}) {
      upload(*spoilt, std::vector<float>(static_cast<size_t>(spoilt->elements()),
                                         std::numeric_limits<float>::quiet_NaN()));
    }
  }

  // Compares output and state, and the mass of all rows where it was asked for.
  void expect(bool mass) {
    const std::vector<float> out = floats_of(out_), max = floats_of(max_), sum = floats_of(sum_);
    std::vector<float> actual;
    Expected expected;
    std::vector<bool> owned(static_cast<size_t>(shape_.tokens));
    for (Sequence& sequence : sequences_) {
      for (int64_t token = 0; token < sequence.shape.tokens; ++token) {
        const auto whole = static_cast<size_t>(sequence.first_token + token);
        owned[whole] = true;
        for (int64_t head = 0; head < shape_.heads; ++head) {
          refer(sequence, token, head, expected);
          const size_t pair = whole * static_cast<size_t>(shape_.heads) + static_cast<size_t>(head);
          const auto size = static_cast<size_t>(shape_.head_size);
          actual.insert(actual.end(), out.begin() + static_cast<int64_t>(pair * size),
                        out.begin() + static_cast<int64_t>((pair + 1) * size));
          const double log_sum = expected.log_sum.back();
          if (std::isinf(log_sum)) {
            EXPECT_EQ(sum[pair], 0) << whole << ' ' << head;
            EXPECT_EQ(max[pair], -std::numeric_limits<float>::infinity());
          } else {
            EXPECT_NEAR(max[pair] + std::log(sum[pair]), log_sum, 1e-3) << whole << ' ' << head;
          }
        }
      }
    }
    const bool exact = shape_.type == DType::f32 && shape_.rows_type != DType::bf16 &&
                       !(rows_are_packed(shape_.rows_type) && tensor_heads());
    EXPECT_LE(error_of(actual, expected.out), exact ? 3e-6 : allowed(expected));
    for (size_t i = 0; i < out.size(); ++i) {
      const size_t token = i / static_cast<size_t>(shape_.heads * shape_.head_size);
      ASSERT_TRUE(owned[token] || std::isnan(out[i])) << "token " << token << " is nobody's";
    }
    if (mass) expect_mass();
  }

  std::vector<Sequence>& sequences() { return sequences_; }
  const std::vector<float>& query_data() const { return query_data_; }
  std::vector<float> result() const { return floats_of(out_); }
  const Context& context() const { return context_; }
  Shape out_shape() const { return {shape_.tokens, shape_.heads, shape_.head_size}; }
  float scale() const { return 1.0f / std::sqrt(static_cast<float>(shape_.head_size)); }

 private:
  static constexpr float mass_before = 0.25f;

  bool tensor_heads() const { return shape_.head_size == 64 || shape_.head_size == 128; }

  static void narrow(std::vector<float>& values) {
    for (float& value : values) value = bf16::from_float(value).to_float();
  }

  void upload(Tensor& to, const std::vector<float>& values) {
    const Tensor from = tensor_of(values, to.shape(), to.dtype(), Device::cpu());
    copy_bytes(to.view().raw(), device_, from.view().raw(), Device::cpu(),
               static_cast<size_t>(from.bytes()));
  }

  // The scale of every element of rows in 8 bits.
  std::vector<float> scales_of(const Tensor& rows) const {
    std::vector<float> scales;
    for (int64_t head = 0; head < rows.size(0) * rows.size(1); ++head) {
      const std::byte* codes = rows.view().raw() + head * rows.size(2);
      for (int64_t c = 0; c < shape_.head_size; ++c) {
        bf16 scale;
        std::memcpy(&scale.bits, codes + shape_.head_size + c / columns_per_scale * 2, 2);
        scales.push_back(scale.to_float());
      }
    }
    return scales;
  }

  Sequence make_sequence(Random& random, const SequenceCase& one, int64_t first_token, bool tree) {
    Sequence sequence{one, first_token, {}, {}};
    int64_t named = 0;  // rows before the new ones
    if (tree && one.own != no_own_rows) {
      const int64_t old = one.sets[static_cast<size_t>(one.own)].count - one.tokens;
      named = random.below(std::min<int64_t>(64 - one.tokens, old) + 1);
      sequence.shape.earlier = static_cast<int32_t>(named);
    }
    for (int64_t i = 0; i < one.tokens; ++i) {
      const uint64_t before = (uint64_t{1} << (named + i)) - 1;
      sequence.masks.push_back((tree ? random.next() & before : before) | uint64_t{1}
                                                                              << (named + i));
    }
    for (const SetCase& set : one.sets) sequence.sets.push_back(make_set(random, set));
    return sequence;
  }

  Set make_set(Random& random, const SetCase& shape) {
    Set set;
    set.shape = shape;
    const int64_t stored =
        shape.listed ? shape.count * 3 / 2 + 1 : std::max<int64_t>(1, shape.count);
    const int64_t row = shape_.kv_heads * shape_.head_size;
    set.keys = random_floats(random, stored * row);
    set.values = random_floats(random, stored * row);
    if (shape_.rows_type == DType::bf16) {
      narrow(set.keys);
      narrow(set.values);
    }
    for (int64_t i = 0; i < shape.count; ++i) {
      set.rows.push_back(static_cast<int32_t>(shape.listed ? random.below(stored) : i));
      const bool plain = !shape.weighted || random.below(4) == 0;
      set.weights.push_back(plain ? 1
                                  : static_cast<float>(std::pow(10.0, random.uniform(-3.0, 4.0))));
    }
    const Shape rows{stored, shape_.kv_heads, shape_.head_size};
    if (rows_are_packed(shape_.rows_type)) {
      set.device_keys = packed_rows(set.keys, rows, shape_.rows_type).to(device_);
      const Tensor values = packed_rows(set.values, rows, shape_.rows_type);
      set.value_scales = scales_of(values);
      set.device_values = values.to(device_);
    } else {
      set.device_keys = tensor_of(set.keys, rows, shape_.rows_type, device_);
      set.device_values = tensor_of(set.values, rows, shape_.rows_type, device_);
    }
    if (shape.count == 0) return set;
    const Shape places{shape.count};
    for (int32_t i = 0; i < shape.count; ++i) set.mass_places.push_back(i);
    if (shape.scattered) {
      std::reverse(set.mass_places.begin(), set.mass_places.end());
      set.device_places = Tensor(DType::u8, {shape.count * 4}, device_);
      copy_bytes(set.device_places.view().raw(), device_, set.mass_places.data(), Device::cpu(),
                 set.mass_places.size() * 4);
    }
    if (shape.listed) {
      set.device_list = Tensor(DType::u8, {shape.count * 4}, device_);
      copy_bytes(set.device_list.view().raw(), device_, set.rows.data(), Device::cpu(),
                 set.rows.size() * 4);
    }
    if (shape.weighted) {
      set.device_weights = tensor_of(set.weights, places, DType::f32, device_);
    }
    return set;
  }

  DeviceRowSet describe(const SequenceCase& sequence, int64_t stride, Set& set) {
    DeviceRowSet to;
    to.count = set.shape.count;
    to.serves = set.shape.serves;
    if (to.count == 0) return to;
    to.keys = set.device_keys.view().raw();
    to.values = set.device_values.view().raw();
    if (set.shape.listed) {
      to.list = reinterpret_cast<const int32_t*>(set.device_list.view().raw());
    }
    if (set.shape.weighted) to.weights = set.device_weights.data<float>();
    const int64_t numbers =
        sequence.mass_apart ? sequence.tokens * shape_.heads * stride : to.count;
    set.mass_stride = stride;
    set.mass.assign(static_cast<size_t>(numbers), 0);
    set.device_mass =
        tensor_of(std::vector<float>(set.mass.size(), mass_before), {numbers}, DType::f32, device_);
    to.mass = set.device_mass.data<float>();
    if (set.shape.scattered) {
      to.mass_places = reinterpret_cast<const int32_t*>(set.device_places.view().raw());
    }
    return to;
  }

  // Adds one token and head to `expected`, and what it gave every row to the rows' mass.
  void refer(Sequence& sequence, int64_t token, int64_t head, Expected& expected) {
    struct Read {
      Set* set;
      size_t place;
      double score;
    };
    const auto to_bf16 = [](double value) {
      return double{bf16::from_float(static_cast<float>(value)).to_float()};
    };
    const auto size = static_cast<size_t>(shape_.head_size);
    const auto kv_heads = static_cast<size_t>(shape_.kv_heads);
    const auto kv = static_cast<size_t>(head / (shape_.heads / shape_.kv_heads));
    const float* q =
        &query_data_[static_cast<size_t>((sequence.first_token + token) * shape_.heads + head) *
                     size];
    std::vector<Read> reads;
    double max = -std::numeric_limits<double>::infinity();
    for (size_t s = 0; s < sequence.sets.size(); ++s) {
      Set& set = sequence.sets[s];
      if ((set.shape.serves >> token & 1) == 0) continue;
      for (size_t place = 0; place < set.rows.size(); ++place) {
        if (static_cast<int>(s) == sequence.shape.own) {
          const int64_t bit = static_cast<int64_t>(place) - set.shape.count +
                              sequence.shape.tokens + sequence.shape.earlier;
          if (bit >= 0 && (sequence.masks[static_cast<size_t>(token)] >> bit & 1) == 0) continue;
        }
        const float* k = &set.keys[(static_cast<size_t>(set.rows[place]) * kv_heads + kv) * size];
        const double score = exact_dot(q, k, shape_.head_size).sum * double{scale()} +
                             std::log(double{set.weights[place]});
        reads.push_back({&set, place, score});
        max = std::max(max, score);
      }
    }
    double sum = 0;
    for (const Read& read : reads) sum += std::exp(read.score - max);
    std::vector<double> out(size), rounded(size);
    for (const Read& read : reads) {
      const double weight = std::exp(read.score - max);
      const double wide = weight / sum;
      if (sequence.shape.counts(token, head)) {
        int64_t at = read.set->mass_places[read.place];
        if (sequence.shape.mass_apart) {
          at += (token * shape_.heads + head) * read.set->mass_stride;
        }
        read.set->mass[static_cast<size_t>(at)] += wide;
      }
      const size_t first = (static_cast<size_t>(read.set->rows[read.place]) * kv_heads + kv) * size;
      const float* v = &read.set->values[first];
      add_scaled(out.data(), wide, v, size);
      const auto& scales = read.set->value_scales;
      if (scales.empty()) {
        add_scaled(rounded.data(), to_bf16(weight) / sum, v, size);
        continue;
      }
      // With rows of 8 bits it is weight · scale that is rounded to bf16; a scale of 0 has zeros.
      for (size_t c = 0; c < size; c += columns_per_scale) {
        const double scale = double{scales[first + c]};
        const double narrow = scale > 0 ? to_bf16(weight * scale) / scale / sum : 0;
        add_scaled(rounded.data() + c, narrow, v + c,
                   std::min<size_t>(columns_per_scale, size - c));
      }
    }
    for (double& value : rounded) value = to_bf16(value);
    expected.out.insert(expected.out.end(), out.begin(), out.end());
    expected.rounded.insert(expected.rounded.end(), rounded.begin(), rounded.end());
    expected.log_sum.push_back(max + std::log(sum));
  }

  void expect_mass() {
    for (Sequence& sequence : sequences_) {
      double total = 0;
      for (Set& set : sequence.sets) {
        if (set.shape.count == 0) continue;
        const std::vector<float> mass = floats_of(set.device_mass);
        for (size_t i = 0; i < mass.size(); ++i) {
          const double given = double{mass[i]} - double{mass_before};
          EXPECT_NEAR(given, set.mass[i], 1e-5 + 3e-4 * set.mass[i]) << "place " << i;
          total += given;
        }
      }
      double whole = 0;
      for (int64_t head = 0; head < shape_.heads; ++head) {
        if (!sequence.shape.counts(sequence.shape.tokens - 1, head)) continue;
        whole += static_cast<double>(sequence.shape.tokens - sequence.shape.mass_from);
      }
      EXPECT_NEAR(total, whole, 1e-3 * (1 + whole));
    }
  }

  BatchShape shape_;
  Device device_;
  Context context_;
  std::vector<float> query_data_;
  std::vector<Sequence> sequences_;
  Tensor queries_, out_, max_, sum_, masks_, table_, scratch_;
};

}  // namespace kinora::testing
