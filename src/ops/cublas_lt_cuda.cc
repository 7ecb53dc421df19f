#include "ops/cublas_lt.h"

#include <dlfcn.h>

#include <string>

#include "base/error.h"

namespace kinora::cuda {
namespace {

void* open_library() {
  const std::string name = "libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR);
  for (const std::string& path : {name, "/usr/local/cuda/lib64/" + name}) {
    if (void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
  }
  throw Error(ErrorKind::not_found,
              name + " was not found: install cuBLAS of CUDA " + std::to_string(CUBLAS_VER_MAJOR) +
                  " or use the device cpu",
              ErrorHint::use_cpu);
}

template <typename Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  if (function == nullptr) {
    throw Error(ErrorKind::unsupported, std::string("cuBLASLt has no ") + name);
  }
}

CublasLt load() {
  void* library = open_library();
  CublasLt api;
  find(library, "cublasLtCreate", api.create);
  find(library, "cublasLtMatmul", api.matmul);
  find(library, "cublasLtMatmulDescCreate", api.desc_create);
  find(library, "cublasLtMatmulDescDestroy", api.desc_destroy);
  find(library, "cublasLtMatmulDescSetAttribute", api.desc_set);
  find(library, "cublasLtMatrixLayoutCreate", api.layout_create);
  find(library, "cublasLtMatrixLayoutDestroy", api.layout_destroy);
  find(library, "cublasLtMatmulPreferenceCreate", api.preference_create);
  find(library, "cublasLtMatmulPreferenceDestroy", api.preference_destroy);
  find(library, "cublasLtMatmulPreferenceSetAttribute", api.preference_set);
  find(library, "cublasLtMatmulAlgoGetHeuristic", api.heuristic);
  find(library, "cublasLtMatmulAlgoCheck", api.check);
  return api;
}

}  // namespace

const CublasLt& CublasLt::get() {
  static const CublasLt api = load();
  return api;
}

}  // namespace kinora::cuda
