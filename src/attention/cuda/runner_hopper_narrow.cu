#include "attention/cuda/hopper_launch.cuh"

namespace kinora::hopper {

void launch_narrow(const Context& context, const cuda_attention::Problem& problem,
                   const RowSet& rows, const ListKinds& lists, const ConstTensorView& key_columns,
                   const ConstTensorView& value_columns) {
  launch_columns<64>(context, problem, rows, lists, key_columns, value_columns);
}

}  // namespace kinora::hopper
