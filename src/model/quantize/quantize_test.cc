#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <vector>

#include "attention/policies/dense.h"
#include "base/error.h"
#include "memory/flat_memory.h"
#include "model/decoder/transformer_decoder.h"
#include "model/quantize/quantize_directory.h"
#include "model/quantize/rounding.h"
#include "model/reference_case.h"
#include "model/weights/quantized_files.h"
#include "ops/packed_matrix.h"
#include "support/compare.h"
#include "support/random_data.h"
#include "support/temp_dir.h"
#include "text/tokenizer.h"

namespace kinora {
namespace {

TEST(E4m3Bits, AreTheNearest) {
  for (int i = 0; i < 256; ++i) {
    const auto bits = static_cast<uint8_t>(i);
    if ((bits & 0x7f) == 0x7f) continue;
    EXPECT_EQ(e4m3_bits(e4m3_value(bits)), bits);
  }
  KINORA_FRESH_RANDOM(random);
  for (int i = 0; i < 20000; ++i) {
    const auto value = static_cast<float>(random.normal() * std::exp2(random.uniform(-12, 9)));
    const float found = e4m3_value(e4m3_bits(value));
    float least = std::numeric_limits<float>::infinity();
    for (int code = 0; code < 256; ++code) {
      const float other = e4m3_value(static_cast<uint8_t>(code));
      if (!std::isnan(other)) least = std::min(least, std::abs(other - value));
    }
    EXPECT_EQ(std::abs(found - value), least) << value;
  }
  EXPECT_EQ(e4m3_bits(1e9f), 0x7e);
  EXPECT_EQ(e4m3_bits(-1e9f), 0xfe);
  EXPECT_EQ(e4m3_bits(1.0625f), 0x38);  // half-way: to the even one
  EXPECT_EQ(e4m3_bits(1.1875f), 0x3a);
  EXPECT_EQ(e4m3_bits(std::nanf("")) & 0x7f, 0x7f);
}

TEST(RoundRow, SearchNeverHurtsAndWeighsWhatItIsTold) {
  KINORA_FRESH_RANDOM(random);
  for (const PackedKind kind : {PackedKind::int4, PackedKind::int8, PackedKind::fp8}) {
    for (const int64_t columns : {1, 31, 128, 200}) {
      const auto width = static_cast<size_t>(columns);
      std::vector<float> row(width), importance(width), back(width);
      for (float& value : row) value = static_cast<float>(random.normal());
      for (float& value : importance) value = static_cast<float>(std::exp(3 * random.normal()));
      std::vector<uint8_t> codes(width);
      const auto error = [&](bool search, bool weighed) {
        Rounding rounding{kind, 64, DType::bf16, search};
        std::vector<float> scales(static_cast<size_t>(rounding.groups(columns)));
        round_row(rounding, row.data(), columns, weighed ? importance.data() : nullptr,
                  codes.data(), scales.data());
        unround_row(rounding, codes.data(), scales.data(), columns, back.data());
        double sum = 0;
        for (size_t i = 0; i < width; ++i) {
          sum += (back[i] - row[i]) * (back[i] - row[i]) * (weighed ? importance[i] : 1.0);
        }
        return sum;
      };
      EXPECT_LE(error(true, false), error(false, false) * 1.00001);
      EXPECT_LE(error(true, true), error(false, true) * 1.00001);
    }
  }
}

TEST(RoundRow, GroupsOfZerosHaveAScale) {
  for (const PackedKind kind : {PackedKind::int4, PackedKind::int8, PackedKind::fp8}) {
    const std::vector<float> row(40, 0.0f);
    std::vector<uint8_t> codes(40);
    std::vector<float> scales(2);
    round_row({kind, 32, DType::f16, true}, row.data(), 40, nullptr, codes.data(), scales.data());
    EXPECT_EQ(scales, (std::vector<float>{1, 1}));
    for (const uint8_t code : codes) EXPECT_EQ(code, 0);
  }
}

class QuantizeTest : public ::testing::Test {
 protected:
  QuantizeResult quantize(const QuantizeOptions& options, const std::string& to) {
    return quantize_directory(context_, real_files(), model_, directory_.file(to), options, nullptr,
                              {});
  }
  // The hidden rows of the tokens after the last norm.
  Tensor hidden(const std::string& directory) {
    const ModelConfig config = testing::read_config(directory);
    const DecoderWeights weights = testing::bind_decoder(context_, config.decoder, directory);
    const TransformerDecoder decoder(context_, config.decoder, weights);
    FlatMemory memory(testing::row_layout(config.decoder));
    DenseAttention attention;
    Sequence sequence;
    sequence.ids = ids_;
    for (int32_t i = 0; i < static_cast<int32_t>(ids_.size()); ++i) {
      sequence.tokens.emplace_back();
      sequence.tokens.back().position = {i, i, i};
    }
    sequence.memory = &memory;
    sequence.attention = &attention;
    sequence.hidden_rows = static_cast<int64_t>(ids_.size());
    return decoder.runner(context_)->forward(sequence).hidden;
  }
  double error_of(const std::string& name) {
    const Tensor now = hidden(directory_.file(name)), then = hidden(model_);
    const auto count = static_cast<size_t>(then.elements());
    return testing::relative_error<float, float>({now.data<float>(), count},
                                                 {then.data<float>(), count});
  }
  void refuse(const QuantizeOptions& options, const std::string& to, const std::string& what) {
    try {
      quantize(options, to);
      ADD_FAILURE() << "accepted, though " << what;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(what), std::string::npos) << error.what();
    }
  }
  static QuantizeOptions options(PackedKind kind) {
    QuantizeOptions made;
    made.kind = kind;
    return made;
  }
  static QuantizeOptions sampled(PackedKind kind) {
    QuantizeOptions made = options(kind);
    for (int i = 0; i < 300; ++i) made.sample += "The door opens at second " + std::to_string(i);
    made.sample_tokens = 700;
    return made;
  }

  static std::vector<int32_t> any_ids() {
    std::vector<int32_t> ids;
    for (int32_t i = 0; i < 40; ++i) ids.push_back(i * 37 % 900 + 20);
    return ids;
  }

  testing::TempDir directory_;
  std::vector<int32_t> ids_ = any_ids();
  ThreadPool pool_{2};
  Context context_{pool_};
  std::string model_ = std::string(KINORA_SOURCE) + "/models/kinora-tiny";
};

TEST_F(QuantizeTest, WritesADirectoryThatComputesNearlyTheSame) {
  const double bounds[] = {0.4, 0.03, 0.12};
  const char* names[] = {"int4", "int8", "fp8"};
  for (const PackedKind kind : {PackedKind::int4, PackedKind::int8, PackedKind::fp8}) {
    SCOPED_TRACE(packed_kind_name(kind));
    const auto at = static_cast<size_t>(kind);
    const QuantizeResult result = quantize(options(kind), names[at]);
    EXPECT_LT(result.bytes_after, result.bytes_before);
    EXPECT_EQ(result.layers % 7, 0);
    EXPECT_GT(result.error, 0);
    EXPECT_LT(error_of(names[at]), bounds[at]);
    const TensorFiles files =
        open_weights(context_, real_files(), directory_.file(names[at]),
                     ConfigFiles::read(real_files(), directory_.file(names[at])));
    int64_t packed = 0;
    for (const std::string& name : files.names()) packed += files.has_packed(name) ? 1 : 0;
    EXPECT_EQ(packed, result.layers);
    for (const std::string& name : real_files().list(model_)) {
      if (!name.ends_with(".safetensors") && real_files().is_file(model_ + "/" + name)) {
        EXPECT_TRUE(real_files().is_file(directory_.file(names[at]) + "/" + name)) << name;
      }
    }
  }
}

TEST_F(QuantizeTest, ASampleScalesWithoutChangingTheModel) {
  const QuantizeResult result = quantize(sampled(PackedKind::int8), "sampled");
  EXPECT_EQ(result.sampled_tokens, 700);
  EXPECT_LT(error_of("sampled"), 0.03);
}

TEST_F(QuantizeTest, ASampleMakesFourBitsBetter) {
  QuantizeOptions with = sampled(PackedKind::int4);
  EXPECT_EQ(quantize(with, "sampled").sampled_tokens, 700);
  quantize(options(PackedKind::int4), "alone");
  with.search = false;
  with.head = true;
  quantize(with, "plain");
  // On a text as the sample, which is a narrow one.
  ids_ = Tokenizer::load(real_files(), model_).encode(with.sample.substr(with.sample.size() / 2));
  ids_.resize(200);
  EXPECT_LT(error_of("sampled"), 0.8 * error_of("alone"));
  EXPECT_LT(error_of("plain"), error_of("alone"));
}

TEST_F(QuantizeTest, ThreadsDoNotChangeWhatIsWritten) {
  const auto written = [&](int threads, const std::string& name) {
    const ThreadPool pool(threads);
    quantize_directory(Context(pool), real_files(), model_, directory_.file(name),
                       sampled(PackedKind::int4), nullptr, {});
    return real_files().read(directory_.file(name) + "/model.safetensors");
  };
  EXPECT_TRUE(written(1, "one") == written(3, "three"));
}

TEST_F(QuantizeTest, ASampleThatBreaksTheModelIsRefused) {
  // A norm's first weight becomes a NaN.
  const std::string broken = directory_.file("broken");
  std::filesystem::copy(model_, broken);
  const std::string path = broken + "/model.safetensors";
  std::string bytes = real_files().read(path);
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof(length));
  const auto header = nlohmann::json::parse(bytes.substr(8, length));
  for (const auto& [name, entry] : header.items()) {
    if (!name.ends_with("layers.1.input_layernorm.weight")) continue;
    ASSERT_EQ(entry["dtype"], "BF16");
    const uint16_t nan = 0x7fc0;
    const auto at = 8 + length + entry["data_offsets"][0].get<uint64_t>();
    std::memcpy(bytes.data() + at, &nan, sizeof(nan));
  }
  real_files().write(path, bytes);
  model_ = broken;
  refuse(sampled(PackedKind::int4), "a", "layer 1 meets a NaN or an infinity");
  EXPECT_FALSE(real_files().is_directory(directory_.file("a")));
}

TEST_F(QuantizeTest, TheHeadCanHaveEightBitsToo) {
  for (const PackedKind kind : {PackedKind::int4, PackedKind::fp8}) {
    SCOPED_TRACE(packed_kind_name(kind));
    QuantizeOptions with = options(kind);
    with.head = true;
    const std::string name = "head-" + std::string(packed_kind_name(kind));
    const QuantizeResult result = quantize(with, name);
    EXPECT_EQ(result.layers % 7, 1);
    const std::string directory = directory_.file(name);
    const ModelConfig config = testing::read_config(directory);
    const DecoderWeights weights = testing::bind_decoder(context_, config.decoder, directory);
    ASSERT_NE(weights.head.packed, nullptr);
    EXPECT_EQ(weights.head.packed->kind(),
              kind == PackedKind::int4 ? PackedKind::int8 : PackedKind::fp8);
    ASSERT_NE(weights.layers[0].down.packed, nullptr);
    EXPECT_EQ(weights.layers[0].down.packed->kind(), kind);
    const Tensor& plain = weights.embeddings;  // tied in the original
    ASSERT_EQ(weights.head.packed->rows(), plain.size(0));
    Tensor now(DType::f32, plain.shape());
    weights.head.packed->widen(0, plain.size(0), now);
    std::vector<float> then;
    for (int64_t i = 0; i < plain.elements(); ++i) {
      then.push_back(plain.data<bf16>()[i].to_float());
    }
    const double error =
        testing::relative_error<float, float>({now.data<float>(), then.size()}, then);
    EXPECT_LT(error, kind == PackedKind::int4 ? 0.02 : 0.035);
  }
}

TEST_F(QuantizeTest, RefusesWhatItCannotDoAndLeavesNothing) {
  QuantizeOptions wrong = options(PackedKind::int4);
  wrong.group = 48;
  refuse(wrong, "a", "a multiple of 32");
  QuantizeOptions little = options(PackedKind::int8);
  little.sample = "too little";
  refuse(little, "b", "give at least 100");
  quantize(options(PackedKind::int8), "c");
  refuse(options(PackedKind::int8), "c", "exists already");
  model_ = directory_.file("c");
  refuse(options(PackedKind::int4), "d", "quantised already");
  model_ = std::string(KINORA_FIXTURES) + "/models/qwen3";
  refuse(options(PackedKind::int4), "e", "no multiple of 32");
  CancelToken cancel;
  cancel.cancel();
  EXPECT_THROW(quantize_directory(context_, real_files(), model_, directory_.file("f"),
                                  options(PackedKind::int8), nullptr, cancel),
               Error);
  EXPECT_EQ(real_files().list(directory_.path()), std::vector<std::string>{"c"});
}

}  // namespace
}  // namespace kinora
