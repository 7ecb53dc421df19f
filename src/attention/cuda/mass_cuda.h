// The mass of rows (row_mass.h) on a GPU, outside of captured steps. Private to attention/.
#pragma once

#include <cstdint>
#include <span>

#include "attention/row_mass.h"

namespace kinora::cuda_attention {

void add_mass(const Context& context, int layer, const QueryView& queries,
              std::span<const RowSet> sets, float scale, int64_t counted, RowMass& mass);

// total [planes, capacity] += the accepted tokens' rows of waiting [tokens, planes × capacity]; of
// rows from `group_begin` on, those of the accepted tokens are moved up.
void accept_mass(const Context& context, TensorView total, ConstTensorView waiting,
                 int64_t group_begin, std::span<const int32_t> tokens);

}  // namespace kinora::cuda_attention
