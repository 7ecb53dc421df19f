// The last plan of the host that was sent to a GPU, for as long as the same tokens read the same
// rows: the layers of a group ask for it one after another.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "attention/attention.h"
#include "attention/cuda/device_plan.h"

namespace kinora {

struct StoredGpuPlan {
  cuda_attention::DevicePlan plan;
  std::string label;
  int64_t pairs = 0;
};

class GpuPlanStore {
 public:
  // Null where the tokens, the rows, the tensors' layout or `layer` are not those of the last put.
  const StoredGpuPlan* find(int layer, const QueryView& queries, const RowSet& rows,
                            const ConstTensorView& out) const;
  const StoredGpuPlan& put(int layer, const QueryView& queries, const RowSet& rows,
                           const ConstTensorView& out, StoredGpuPlan plan);

 private:
  // Everything that a plan which does not look at the data follows from.
  struct Key {
    int layer = 0;
    std::vector<int32_t> query_ordinals, row_ordinals;
    std::vector<Modality> query_modalities, row_modalities;
    std::vector<int64_t> layout;
    bool operator==(const Key&) const = default;
  };
  static std::vector<int64_t> layout_of(const QueryView& queries, const RowSet& rows,
                                        const ConstTensorView& out);

  Key key_;
  std::optional<StoredGpuPlan> plan_;
};

}  // namespace kinora
