#include "base/no_cuda.h"

#include "model/decoder/steps.h"
#include "model/vision/gpu_patches.h"
#include "model/weights/random_weights.h"

namespace kinora {

std::unique_ptr<DecoderSteps> make_decoder_steps(const DecoderLayers&, std::span<const double>) {
  no_cuda();
}

bool replays_graphs() { no_cuda(); }

void cuda::cut_patches(const Context&, const PatchWork&) { no_cuda(); }
void cuda::fill_random(const Context&, TensorView, float, uint64_t) { no_cuda(); }
void cuda::read_all(const Context&, ConstTensorView) { no_cuda(); }

}  // namespace kinora
