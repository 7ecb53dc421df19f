// A decoder whose layers are in 4 or 8 bits computes what one with the same weights widened does:
// long groups, short ones, batches, and single tokens, on every device.
#include <gtest/gtest.h>

#include <vector>

#include "memory/flat_memory.h"
#include "model/decoder/transformer_decoder.h"
#include "model/reference_case.h"
#include "model/weights/random_weights.h"
#include "support/random_data.h"

namespace kinora {
namespace {

struct Place {
  PackedKind kind = PackedKind::int8;
  bool gpu = false;
};
void PrintTo(const Place& place, std::ostream* out) {
  *out << packed_kind_name(place.kind) << (place.gpu ? " on a GPU" : " on the CPU");
}

DecoderConfig small_config() {
  DecoderConfig config;
  config.hidden = 192;
  config.layers = 2;
  config.heads = 4;
  config.kv_heads = 2;
  config.head_size = 64;
  config.intermediate = 328;
  config.vocabulary = 300;
  config.max_position = 4096;
  config.qkv_bias = true;
  config.tied = false;
  return config;
}

LinearWeights widened(const LinearWeights& linear) {
  LinearWeights wide;
  wide.bias = linear.bias;
  wide.weight = Tensor(DType::f32, {linear.packed->rows(), linear.packed->columns()});
  linear.packed->widen(0, linear.packed->rows(), wide.weight);
  return wide;
}

DecoderWeights widened(DecoderWeights weights) {
  for (DecoderLayerWeights& layer : weights.layers) {
    for (LinearWeights* linear : {&layer.query, &layer.key, &layer.value, &layer.output,
                                  &layer.gate, &layer.up, &layer.down}) {
      *linear = widened(*linear);
    }
  }
  return weights;
}

class PackedWeightsDecoder : public ::testing::TestWithParam<Place> {
 protected:
  void SetUp() override {
    std::string why;
    if (GetParam().gpu && cuda_devices(&why).empty()) GTEST_SKIP() << why;
    if (GetParam().gpu) context_.device = Device::cuda();
    const DecoderWeights weights = random_decoder(context_, config_, DType::bf16, GetParam().kind);
    const DecoderOptions options{.activations = GetParam().gpu ? DType::bf16 : DType::f32};
    packed_ = std::make_unique<TransformerDecoder>(context_, config_, weights, options);
    wide_ = std::make_unique<TransformerDecoder>(context_, config_, widened(weights), options);
  }

  // A few tokens more, whose hidden rows both decoders give.
  struct Reader {
    const Decoder* decoder;
    std::unique_ptr<DecoderRunner> runner;
    std::unique_ptr<Memory> memory;
    DenseAttention attention;
  };
  Reader reader(const Decoder& decoder) const {
    return {&decoder,
            decoder.runner(context_),
            std::make_unique<FlatMemory>(testing::row_layout(config_), context_.device),
            {}};
  }
  Tensor read(Reader& reader, std::span<const int32_t> ids) const {
    Sequence sequence;
    const auto begin = static_cast<int32_t>(reader.memory->token_count());
    for (size_t i = 0; i < ids.size(); ++i) {
      sequence.ids.push_back(ids[i]);
      sequence.tokens.emplace_back();
      const int32_t at = begin + static_cast<int32_t>(i);
      sequence.tokens.back().position = {at, at, at};
    }
    sequence.memory = reader.memory.get();
    sequence.attention = &reader.attention;
    sequence.hidden_rows = static_cast<int64_t>(ids.size());
    return reader.runner->forward(sequence).hidden;
  }

  const ThreadPool pool_{2};
  Context context_{pool_};
  DecoderConfig config_ = small_config();
  std::unique_ptr<TransformerDecoder> packed_, wide_;
};

TEST_P(PackedWeightsDecoder, ComputesWhatWidenedWeightsGive) {
  KINORA_FRESH_RANDOM(random);
  Reader packed = reader(*packed_), wide = reader(*wide_);
  // bf16 rounds weights and rows at other places.
  const double tolerance = GetParam().gpu ? 3e-2 : 1e-4;
  for (const int count : {129, 1, 1, 1, 1, 16, 2, 8, 9, 33, 1, 65, 1, 1}) {
    std::vector<int32_t> ids;
    for (int i = 0; i < count; ++i) {
      ids.push_back(static_cast<int32_t>(random.below(config_.vocabulary)));
    }
    const Tensor ours = read(packed, ids), expected = read(wide, ids);
    EXPECT_LE(testing::row_error(ours.to(Device::cpu()), expected.to(Device::cpu())), tolerance)
        << count << " tokens";
    const Tensor logits = packed_->logits(context_, ours),
                 others = wide_->logits(context_, expected);
    EXPECT_LE(testing::row_error(logits.to(Device::cpu()), others.to(Device::cpu())), tolerance);
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, PackedWeightsDecoder,
                         ::testing::Values(Place{PackedKind::int4}, Place{PackedKind::int8},
                                           Place{PackedKind::fp8}, Place{PackedKind::int4, true},
                                           Place{PackedKind::int8, true},
                                           Place{PackedKind::fp8, true}));

}  // namespace
}  // namespace kinora
