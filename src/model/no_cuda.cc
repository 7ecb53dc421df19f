// This build has no CUDA compiler: no model can be loaded for a GPU.
#include "base/error.h"
#include "model/gpu_decoder.h"
#include "model/gpu_patches.h"

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

}  // namespace kinora
