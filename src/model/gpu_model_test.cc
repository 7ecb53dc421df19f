// Models on a GPU against the reference cases and against the same model on the CPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "base/error.h"
#include "model/reference_case.h"
#include "support/random_data.h"
#include "support/sanitized.h"

namespace kinora {
namespace {

using testing::CaseName;
using testing::ReferenceCase;
using testing::row_error;

constexpr double exact_tolerance = 1e-4;
// Rounding of activations to bf16 in small layers; PyTorch's own bf16 is up to 0.068 away from the
// reference on these cases.
constexpr double bf16_tolerance = 6e-2;

class GpuModelTest : public ::testing::TestWithParam<CaseName> {
 protected:
  void SetUp() override {
    std::string why;
    if (cuda_devices(&why).empty()) GTEST_SKIP() << why;
    directory_ = testing::model_directory(GetParam().model);
    config_ = testing::read_config(directory_);
  }

  std::unique_ptr<Decoder> decoder(DType activations) const {
    DecoderOptions options;
    options.activations = activations;
    return std::make_unique<TransformerDecoder>(
        gpu_, config_.decoder, testing::bind_decoder(cpu_, config_.decoder, directory_), options);
  }
  FlatMemory memory(DType type = DType::f32) const {
    return FlatMemory(testing::row_layout(config_.decoder, type), gpu_.device);
  }

  // How much of a prompt is read in small groups: what comes later changes nothing before it.
  static int64_t length(const Tensor& prompt, int64_t group) {
    const int64_t all = prompt.size(0);
    return testing::sanitized() && group < all ? std::min<int64_t>(all, 2 * group + 1) : all;
  }
  // The prompt in groups of `size`; the final hidden rows of all of them, on the host.
  Tensor in_groups(DecoderRunner& runner, Memory& rows, int64_t size) {
    const ReferenceCase reference(GetParam());
    const Tensor embeddings = reference.tensor("hidden.embeddings");
    const std::vector<TokenInfo> tokens = reference.tokens(config_);
    const DeepRows deep = reference.deep(config_);
    const int64_t end = length(embeddings, size);
    Tensor all(DType::f32, Shape{end, embeddings.size(1)});
    for (int64_t begin = 0; begin < end; begin += size) {
      const int64_t count = std::min(size, end - begin);
      Sequence part;
      part.embeddings = Tensor(DType::f32, Shape{count, embeddings.size(1)}, gpu_.device);
      copy_bytes(part.embeddings.view().raw(), gpu_.device, embeddings.view().row<float>(begin),
                 Device::cpu(), static_cast<size_t>(part.embeddings.bytes()));
      part.deep = testing::deep_rows_of(deep, begin, count);
      part.tokens.assign(tokens.begin() + begin, tokens.begin() + begin + count);
      part.memory = &rows;
      part.attention = &attention_;
      part.hidden_rows = count;
      const Tensor hidden = runner.forward(part).hidden;
      copy_bytes(all.view().row<float>(begin), Device::cpu(), hidden.view().raw(), gpu_.device,
                 static_cast<size_t>(hidden.bytes()));
    }
    return all;
  }

  ThreadPool pool_{2};
  Context cpu_{pool_};
  Context gpu_{pool_, Device::cuda()};
  DenseAttention attention_;
  std::string directory_;
  ModelConfig config_;
};

// Groups of one and of a few tokens go through captured graphs, larger ones through plans.
TEST_P(GpuModelTest, GroupsOfAnySizeGiveTheReference) {
  const Tensor expected = ReferenceCase(GetParam()).tensor("hidden.final");
  const auto exact = decoder(DType::f32);
  const auto runner = exact->runner(gpu_);
  for (const int64_t size : {int64_t{1}, int64_t{5}, int64_t{8}, int64_t{9}, expected.size(0)}) {
    FlatMemory rows = memory();
    const int64_t read = length(expected, size);
    EXPECT_LE(row_error(in_groups(*runner, rows, size), expected.view().rows(0, read)),
              exact_tolerance)
        << "groups of " << size;
    EXPECT_EQ(rows.token_count(), read);
  }
}

TEST_P(GpuModelTest, Bf16StaysClose) {
  const Tensor expected = ReferenceCase(GetParam()).tensor("hidden.final");
  const auto rounded = decoder(DType::bf16);
  const auto runner = rounded->runner(gpu_);
  for (const int64_t size : {int64_t{1}, int64_t{8}, int64_t{33}, expected.size(0)}) {
    FlatMemory rows = memory(DType::bf16);
    EXPECT_LE(
        row_error(in_groups(*runner, rows, size), expected.view().rows(0, length(expected, size))),
        bf16_tolerance)
        << "groups of " << size;
  }
}

TEST_P(GpuModelTest, GreedyTokensAreIdentical) {
  const ReferenceCase reference(GetParam());
  const auto exact = decoder(DType::f32);
  const auto runner = exact->runner(gpu_);
  FlatMemory rows = memory();
  const int64_t count = reference.tensor("hidden.embeddings").size(0);
  const Tensor hidden = in_groups(*runner, rows, count).to(gpu_.device);
  std::vector<int32_t> expected = reference.greedy();
  if (testing::sanitized()) expected.resize(std::min<size_t>(4, expected.size()));
  EXPECT_EQ(
      testing::greedy_tokens(gpu_, *exact, *runner, rows, attention_, hidden,
                             static_cast<int32_t>(count + reference.rope_delta()), expected.size()),
      expected);
}

TEST_P(GpuModelTest, SeesWhatTheCpuSees) {
  KINORA_FRESH_RANDOM(random);
  LoadOptions options;
  options.gpu_exact = true;
  const auto on_cpu = load_model(cpu_, real_files(), directory_);
  if (!on_cpu->info().sees) return;
  const auto on_gpu = load_model(gpu_, real_files(), directory_, options);
  for (const Modality modality : {Modality::video, Modality::image}) {
    VisualSource source;
    source.modality = modality;
    source.size = {150, 100};
    source.frames = modality == Modality::video ? 5 : 1;
    source.sampled_fps = modality == Modality::video ? 2 : 0;
    const VisualPlan plan = on_cpu->plan_visual(source, {});
    FrameGroup frames;
    frames.pixels =
        Tensor(DType::u8, Shape{source.frames, plan.frame_size.height, plan.frame_size.width, 3});
    for (int64_t i = 0; i < frames.pixels.elements(); ++i) {
      frames.pixels.data<uint8_t>()[i] = static_cast<uint8_t>(random.below(256));
    }
    frames.times.assign(static_cast<size_t>(source.frames), 0.0);
    const Tensor expected = on_cpu->encode(cpu_, plan, frames, true);
    const Tensor actual = on_gpu->encode(gpu_, plan, frames, true).to(Device::cpu());
    EXPECT_LE(row_error(actual, expected), exact_tolerance) << modality_name(modality);
  }
}

INSTANTIATE_TEST_SUITE_P(Fixtures, GpuModelTest, ::testing::ValuesIn(testing::find_cases()),
                         testing::case_label);

}  // namespace
}  // namespace kinora
