// Weights in f16: whatever type of rows is chosen for them, kinora loses less of what they compute
// than transformers does when it computes in f16 itself.
#include <gtest/gtest.h>

#include "model/reference_case.h"

namespace kinora {
namespace {

using testing::CaseName;
using testing::ReferenceCase;
using testing::row_error;

class HalfPrecisionTest : public ::testing::TestWithParam<CaseName> {};

// The prompt in groups, so that later ones read rows of the earlier ones.
void check(const Context& context, const CaseName& name, DType row_type) {
  SCOPED_TRACE(to_string(context.device) + ", rows in " + std::string(dtype_name(row_type)));
  const ReferenceCase reference(name);
  const std::string directory = testing::model_directory(name.model);
  const std::unique_ptr<Model> model = load_model(context, real_files(), directory);
  ASSERT_EQ(model->info().weight_dtype, DType::f16);
  FlatMemory memory(testing::row_layout(testing::read_config(directory).decoder, row_type),
                    context.device);
  DenseAttention attention;
  const std::unique_ptr<DecoderRunner> runner = model->decoder().runner(context);
  const std::vector<int32_t> ids = reference.ids();
  const std::vector<TokenInfo> tokens = reference.tokens(testing::read_config(directory));
  const Tensor expected = reference.tensor("hidden.final");
  const Tensor half = reference.tensor("half.hidden.final");
  Tensor all(DType::f32, expected.shape());
  Tensor last;
  const int64_t count = expected.size(0), step = 5;
  for (int64_t begin = 0; begin < count; begin += step) {
    const int64_t size = std::min(step, count - begin);
    Sequence group;
    group.memory = &memory;
    group.attention = &attention;
    group.ids.assign(ids.begin() + begin, ids.begin() + begin + size);
    group.tokens.assign(tokens.begin() + begin, tokens.begin() + begin + size);
    group.hidden_rows = size;
    last = runner->forward(group).hidden;
    const Tensor here = last.to(Device::cpu());
    std::copy_n(here.data<float>(), here.elements(), all.view().row<float>(begin));
  }
  EXPECT_LT(row_error(all, expected), row_error(half, expected));
  const Tensor logits =
      model->decoder().logits(context, last.view().rows(last.size(0) - 1, 1)).to(Device::cpu());
  EXPECT_LT(row_error(logits, reference.tensor("logits")),
            row_error(reference.tensor("half.logits"), reference.tensor("logits")));
}

TEST_P(HalfPrecisionTest, LosesLessThanTransformersInHalfPrecision) {
  const ThreadPool pool(2);
  for (const DType type : {DType::f32, DType::f16}) check(Context(pool), GetParam(), type);
  for (size_t i = 0; i < cuda_devices().size(); ++i) {
    check(Context(pool, Device::cuda(static_cast<int>(i))), GetParam(), DType::f32);
  }
}

INSTANTIATE_TEST_SUITE_P(Fixtures, HalfPrecisionTest,
                         ::testing::ValuesIn(testing::find_cases("llama_f16")),
                         testing::case_label);

}  // namespace
}  // namespace kinora
