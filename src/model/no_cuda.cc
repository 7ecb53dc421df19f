// This build has no CUDA compiler: no model can be loaded for a GPU.
#include "base/error.h"
#include "model/decoder/gpu_decoder.h"
#include "model/vision/gpu_patches.h"
#include "model/weights/random_weights.h"

namespace kinora {
namespace {

[[noreturn]] void refuse() {
  throw Error(ErrorKind::unsupported, "this kinora was built without CUDA; use --device cpu");
}

}  // namespace

std::unique_ptr<Decoder> make_gpu_decoder(const Context&, const DecoderConfig&,
                                          const DecoderWeights&, DType) {
  refuse();
}

void cuda::cut_patches(const Context&, const PatchWork&) { refuse(); }
void cuda::fill_random(const Context&, TensorView, float, uint64_t) { refuse(); }
void cuda::read_all(const Context&, ConstTensorView) { refuse(); }

}  // namespace kinora
