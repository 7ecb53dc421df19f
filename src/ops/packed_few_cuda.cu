#include "ops/packed_few_cuda.cuh"

#include "ops/packed_cuda.h"

namespace kinora::cuda {
bool packed_norm_fits(const MatmulWork& work, const RowNorm& norm) {
  return few::norm_fits(work, norm);
}

bool packed_few_rows(const Context& context, const MatmulWork& work, const PackedStrips& weight,
                     const RowNorm& norm, int split) {
  bool done = false;
  const StripCodes codes = codes_of(weight);
  with_packed_kind(weight.kind(), [&]<PackedKind kind> {
    if constexpr (kind == PackedKind::int4) {
      if (codes.group_pieces % 2 == 0) {
        done = few::run_passes(context, work, few::Source<kind, 2>(codes), norm, split);
        return;
      }
    }
    done = few::run_passes(context, work, few::Source<kind, 1>(codes), norm, split);
  });
  return done;
}

}  // namespace kinora::cuda
