// The choice between a policy's lists and dense attention on a GPU. It follows from shapes alone,
// so that it is tested without one: tensors here have a place and no memory.
#include "attention/policies/gpu_cost.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "attention/policies/momo.h"
#include "attention/policies/policy.h"

namespace kinora {
namespace {

// The last `queries` of `rows` tokens of video.
class CallOnGpu {
 public:
  explicit CallOnGpu(const GpuCall& call, int64_t kv_heads)
      : call_(call),
        kv_heads_(kv_heads),
        ordinals_(static_cast<size_t>(call.rows)),
        modalities_(ordinals_.size(), Modality::video) {
    std::iota(ordinals_.begin(), ordinals_.end(), 0);
  }
  QueryView queries() const {
    const auto first = static_cast<size_t>(call_.rows - call_.queries);
    return {place({call_.queries, call_.heads, call_.head_size}),
            std::span(ordinals_).subspan(first), std::span(modalities_).subspan(first)};
  }
  RowSet memory() const {
    const ConstTensorView rows = place({call_.rows, kv_heads_, call_.head_size});
    return {rows, rows, ordinals_, modalities_};
  }

 private:
  static ConstTensorView place(const Shape& shape) {
    return ConstTensorView(nullptr, DType::bf16, shape, Device::cuda(0));
  }
  GpuCall call_;
  int64_t kv_heads_;
  std::vector<int32_t> ordinals_;
  std::vector<Modality> modalities_;
};

bool falls_back(const std::string& policy, const GpuCall& call, int64_t kv_heads,
                int64_t dense_below = 1, int32_t frame_tokens = 256) {
  AttentionOptions options;
  options.sparse.dense_below = dense_below;
  options.frame_stride = frame_tokens;
  const auto attention = make_attention(policy, options);
  const CallOnGpu on_gpu(call, kv_heads);
  return attention->planner()->falls_back(0, on_gpu.queries(), on_gpu.memory());
}

TEST(GpuCost, MoreRowsNeverSpeakForDense) {
  const GpuWorkload lists{.keys = 4736};
  const GpuWorkload momo{.keys = 4736, .measured = 1.0 / 16, .measures = 1};
  for (const GpuWorkload& work : {lists, momo}) {
    for (const auto& [heads, head_size] : {std::pair{6, 64}, {14, 64}, {16, 128}, {28, 128}}) {
      for (const int64_t queries : {64, 2048, 16384, 131072}) {
        bool sparse = false;
        // From memories on that are longer than the lists.
        for (int64_t rows = std::max<int64_t>(queries, 16384); rows <= int64_t{1} << 20;
             rows *= 2) {
          const GpuCall call{queries, rows, heads, head_size};
          const bool faster = sparse_seconds(call, work) < dense_seconds(call);
          EXPECT_TRUE(faster || !sparse) << queries << " of " << rows << ", " << heads << " heads";
          sparse = faster;
        }
        EXPECT_TRUE(sparse || queries < 2048) << "a million rows are read densely";
      }
    }
  }
}

TEST(GpuCost, APolicyReadsAsMuchAsPaysOff) {
  const GpuCall seven{16384, 131072, 28, 128};
  for (const char* policy :
       {"momo", "tri-shape", "grid:stride=64", "vertical-slash:slashes=1024"}) {
    EXPECT_FALSE(falls_back(policy, seven, 4)) << policy;
    // A few thousand rows of few narrow heads are read before lists are made,
    EXPECT_TRUE(falls_back(policy, {2048, 2048, 6, 64}, 2)) << policy;
    // unless lists are asked for whatever they cost.
    EXPECT_FALSE(falls_back(policy, {2048, 2048, 6, 64}, 2, 0)) << policy;
  }
  // So do lists that hold nearly everything.
  EXPECT_TRUE(falls_back("a-shape:local=100000", {2048, 100000, 28, 128}, 4));
  EXPECT_TRUE(falls_back("momo:keys=100000", {2048, 100000, 28, 128}, 4));
  EXPECT_TRUE(falls_back("momo:query-stride=1,k=32", seven, 4));
}

// Groups of 2,048 queries on one H200, in milliseconds (kinora bench attention --group 2048): what
// is chosen takes at most a fifth longer than what is not.
TEST(GpuCost, TheFasterOneIsChosen) {
  struct Measured {
    const char* policy;
    int64_t rows;
    double dense, sparse;
  };
  struct Model {
    int64_t heads, kv_heads, head_size;
    int32_t frame_tokens;
    std::vector<Measured> calls;
  };
  const Model models[] = {{6,
                           2,
                           64,
                           16,
                           {{"momo", 4096, 0.097, 0.164},
                            {"momo", 8192, 0.131, 0.170},
                            {"momo", 16384, 0.212, 0.209},
                            {"momo", 32768, 0.370, 0.267},
                            {"momo", 131072, 1.136, 0.432},
                            {"a-shape", 8192, 0.131, 0.063},
                            {"a-shape", 131072, 1.136, 0.172},
                            {"tri-shape", 131072, 1.136, 1.370},
                            {"vertical-slash", 8192, 0.131, 0.252},
                            {"vertical-slash", 131072, 1.136, 2.204},
                            {"grid", 8192, 0.131, 0.455},
                            {"grid", 131072, 1.136, 2.472}}},
                          {14,
                           2,
                           64,
                           196,
                           {{"momo", 8192, 0.220, 0.217},
                            {"momo", 131072, 2.390, 0.562},
                            {"a-shape", 131072, 2.390, 0.221},
                            {"tri-shape", 8192, 0.220, 0.143},
                            {"tri-shape", 131072, 2.390, 1.401},
                            {"vertical-slash", 131072, 2.390, 3.364},
                            {"grid", 131072, 2.390, 3.680}}},
                          {28,
                           4,
                           128,
                           256,
                           {{"momo", 4096, 0.197, 0.341},
                            {"momo", 8192, 0.431, 0.457},
                            {"momo", 131072, 6.007, 1.166},
                            {"a-shape", 8192, 0.431, 0.160},
                            {"tri-shape", 131072, 6.007, 1.688},
                            {"vertical-slash", 32768, 1.532, 2.044},
                            {"vertical-slash", 131072, 6.007, 6.272},
                            {"grid", 32768, 1.532, 2.687},
                            {"grid", 131072, 6.007, 5.843}}}};
  for (const Model& model : models) {
    for (const Measured& call : model.calls) {
      const bool dense = falls_back(call.policy, {2048, call.rows, model.heads, model.head_size},
                                    model.kv_heads, 1, model.frame_tokens);
      EXPECT_LE(dense ? call.dense : call.sparse, 1.2 * std::min(call.dense, call.sparse))
          << call.policy << ", " << model.heads << " heads of " << model.head_size << ", "
          << call.rows << " rows";
    }
  }
}

}  // namespace
}  // namespace kinora
