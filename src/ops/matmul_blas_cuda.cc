// Products through cuBLASLt. The algorithm of a shape is chosen once: the library proposes, and for
// large products the proposals are timed on the spot. So are those of a few rows, where the first
// proposal is often not the best one. A row-major product a · weightᵀ is the
// column-major product weight · aᵀ, so weights come first here.
#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/cuda_host.h"
#include "base/error.h"
#include "ops/cublas_lt.h"
#include "ops/matmul_cuda.h"

namespace kinora::cuda {
namespace {

constexpr size_t workspace_bytes = size_t{64} << 20;
constexpr int proposals = 8;
// Proposals are timed for at least timed_rows rows, and for at most decode_rows where the weights
// have timed_weights elements. The first one stays unless another takes less than `worth` of it.
constexpr int64_t timed_rows = 1024;
constexpr int64_t decode_rows = 64;
constexpr int64_t timed_weights = int64_t{8} << 20;
constexpr float worth = 0.98f;

void check_blas(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw Error(ErrorKind::internal, std::string(what) + " failed: cuBLASLt status " +
                                       std::to_string(static_cast<int>(status)));
}

// Bytes are e4m3.
cudaDataType_t blas_type(DType type) {
  if (type == DType::u8) return CUDA_R_8F_E4M3;
  return type == DType::bf16 ? CUDA_R_16BF : CUDA_R_32F;
}

uint32_t alignment_of(const void* data) {
  const auto address = reinterpret_cast<uintptr_t>(data);
  uint32_t bytes = 256;
  while (address % bytes != 0) bytes /= 2;
  return bytes;
}

// Everything that an algorithm depends on.
struct Key {
  int64_t m, n, k, a_stride, weight_stride, out_stride;
  DType type, out_type, bias_type;
  bool bias, accumulate;
  Fp8Scales::Kind scales;  // of e4m3 factors
  uint32_t a_alignment, weight_alignment, out_alignment;
  auto operator<=>(const Key&) const = default;
};

// Descriptors of one product, destroyed with it.
class Product {
 public:
  Product(const CublasLt& api, const Key& key, const void* bias, const Fp8Scales& scales)
      : api_(api) {
    check_blas(api.desc_create(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), "matmul");
    set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
    if (key.type == DType::u8) {
      const bool blocks = key.scales == Fp8Scales::Kind::blocks;
      set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, blocks ? CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F
                                                    : CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F);
      set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, blocks ? CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F
                                                    : CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F);
      set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, static_cast<const void*>(scales.weight));
      set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, static_cast<const void*>(scales.a));
    }
    if (key.bias) {
      set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
      set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
      set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, blas_type(key.bias_type));
    }
    const cudaDataType_t type = blas_type(key.type);
    layout(weight, type, key.k, key.n, key.weight_stride);
    layout(a, type, key.k, key.m, key.a_stride);
    layout(out, blas_type(key.out_type), key.n, key.m, key.out_stride);
  }
  ~Product() {
    api_.layout_destroy(weight);
    api_.layout_destroy(a);
    api_.layout_destroy(out);
    api_.desc_destroy(operation);
  }
  Product(const Product&) = delete;
  Product& operator=(const Product&) = delete;

  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t weight = nullptr, a = nullptr, out = nullptr;

 private:
  template <typename Value>
  void set(cublasLtMatmulDescAttributes_t attribute, Value value) {
    check_blas(api_.desc_set(operation, attribute, &value, sizeof(value)), "matmul");
  }
  void layout(cublasLtMatrixLayout_t& target, cudaDataType_t type, int64_t rows, int64_t columns,
              int64_t stride) {
    check_blas(api_.layout_create(&target, type, static_cast<uint64_t>(rows),
                                  static_cast<uint64_t>(columns), stride),
               "matmul");
  }
  const CublasLt& api_;
};

std::vector<cublasLtMatmulHeuristicResult_t> propose(const CublasLt& api, cublasLtHandle_t handle,
                                                     const Product& product, const Key& key) {
  cublasLtMatmulPreference_t preference = nullptr;
  check_blas(api.preference_create(&preference), "matmul");
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    api.preference_set(preference, attribute, &value, sizeof(value));
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace_bytes);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key.weight_alignment);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key.a_alignment);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key.out_alignment);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key.out_alignment);
  std::vector<cublasLtMatmulHeuristicResult_t> found(proposals);
  int count = 0;
  const cublasStatus_t status =
      api.heuristic(handle, product.operation, product.weight, product.a, product.out, product.out,
                    preference, proposals, found.data(), &count);
  api.preference_destroy(preference);
  found.resize(status == CUBLAS_STATUS_SUCCESS ? static_cast<size_t>(count) : 0);
  std::erase_if(found, [](const auto& one) { return one.state != CUBLAS_STATUS_SUCCESS; });
  return found;
}

// The library's state on one device. Its handle may be used by many threads; a workspace belongs
// to one stream, and threads that share the stream must not start products between the kernels of
// one another's: a product may leave partial sums there for its next kernel.
class Blas {
 public:
  explicit Blas(int device) : api_(CublasLt::get()), device_(device) {
    check_blas(api_.create(&handle_), "starting cuBLASLt");
  }

  static Blas& of(int device) {
    static std::mutex mutex;
    static std::map<int, std::unique_ptr<Blas>> all;
    const std::lock_guard lock(mutex);
    auto& one = all[device];
    if (one == nullptr) one = std::make_unique<Blas>(device);
    return *one;
  }

  bool run(const Context& context, const MatmulWork& work, const Key& key,
           const Fp8Scales& scales) {
    const cudaStream_t stream = enter(context);
    const Product product(api_, key, work.bias.raw(), scales);
    const cublasLtMatmulAlgo_t* chosen = algorithm(context, work, key, product, stream);
    if (chosen == nullptr) return false;
    multiply(product, work, *chosen, work.out.raw(), stream);
    return true;
  }

 private:
  void multiply(const Product& product, const MatmulWork& work,
                const cublasLtMatmulAlgo_t& algorithm, void* target, cudaStream_t stream) {
    const float one = 1.0f, beta = work.accumulate ? 1.0f : 0.0f;
    const std::lock_guard lock(workspace_mutex_);
    check_blas(api_.matmul(handle_, product.operation, &one, work.weight.raw(), product.weight,
                           work.a.raw(), product.a, &beta, work.out.raw(), product.out, target,
                           product.out, &algorithm, workspace(stream), workspace_bytes, stream),
               "matmul");
  }

  // Null when the library has none. Kept for good.
  const cublasLtMatmulAlgo_t* algorithm(const Context& context, const MatmulWork& work,
                                        const Key& key, const Product& product,
                                        cudaStream_t stream) {
    const std::lock_guard lock(mutex_);
    const auto known = algorithms_.find(key);
    if (known != algorithms_.end()) return known->second.empty() ? nullptr : &known->second[0];
    const auto found = propose(api_, handle_, product, key);
    size_t best = 0;
    if (found.size() > 1 && worth_timing(key) && !capturing(stream)) {
      best = fastest(context, work, key, product, stream, found);
    }
    auto& kept = algorithms_[key];
    if (!found.empty()) kept.push_back(found[best].algo);
    return kept.empty() ? nullptr : &kept[0];
  }

  static bool worth_timing(const Key& key) {
    if (key.type == DType::f32) return false;
    return key.m >= timed_rows || (key.m <= decode_rows && key.n * key.k >= timed_weights);
  }

  // Times every proposal into scratch, so that an accumulating product is not added twice. Weights
  // of a decoding step come from memory: between two products something else fills the caches.
  size_t fastest(const Context& context, const MatmulWork& work, const Key& key,
                 const Product& product, cudaStream_t stream,
                 const std::vector<cublasLtMatmulHeuristicResult_t>& found) {
    const bool few = key.m <= decode_rows;
    const int repeats = few ? 5 : 1;
    Tensor scratch, other;
    try {
      scratch = Tensor(key.out_type, {key.m * key.out_stride}, context.device);
      if (few) other = Tensor(DType::u8, {2 * cache_bytes()}, context.device);
    } catch (const Error&) {
      return 0;  // a GPU with no room for this still has room for the product
    }
    cudaEvent_t begin = nullptr, end = nullptr;
    check(cudaEventCreate(&begin), "making an event");
    check(cudaEventCreate(&end), "making an event");
    std::vector<float> median;
    for (const auto& proposal : found) {
      std::vector<float> times;
      for (int repeat = 0; repeat <= repeats; ++repeat) {  // the first warms up
        if (few) {
          check(
              cudaMemsetAsync(other.view().raw(), 0, static_cast<size_t>(other.elements()), stream),
              "emptying the caches");
        }
        check(cudaEventRecord(begin, stream), "timing a product");
        multiply(product, work, proposal.algo, scratch.view().raw(), stream);
        check(cudaEventRecord(end, stream), "timing a product");
        check(cudaEventSynchronize(end), "timing a product");
        float milliseconds = 0;
        check(cudaEventElapsedTime(&milliseconds, begin, end), "timing a product");
        if (repeat > 0) times.push_back(milliseconds);
      }
      std::nth_element(times.begin(), times.begin() + repeats / 2, times.end());
      median.push_back(times[static_cast<size_t>(repeats / 2)]);
    }
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    const auto best = std::min_element(median.begin(), median.end());
    return *best < worth * median[0] ? static_cast<size_t>(best - median.begin()) : 0;
  }

  int64_t cache_bytes() const {
    int bytes = 0;
    check(cudaDeviceGetAttribute(&bytes, cudaDevAttrL2CacheSize, device_),
          "reading the properties of a GPU");
    return std::max(bytes, 1);
  }

  static bool capturing(cudaStream_t stream) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    return stream != nullptr && cudaStreamIsCapturing(stream, &status) == cudaSuccess &&
           status != cudaStreamCaptureStatusNone;
  }

  // Graphs are replayed on the default stream and share its workspace. Under workspace_mutex_.
  void* workspace(cudaStream_t stream) {
    auto& one = workspaces_[capturing(stream) ? nullptr : stream];
    if (!one) one = Buffer::allocate(Device::cuda(device_), workspace_bytes);
    return one->data();
  }

  const CublasLt& api_;
  int device_;
  cublasLtHandle_t handle_ = nullptr;
  std::mutex mutex_;
  std::map<Key, std::vector<cublasLtMatmulAlgo_t>> algorithms_;  // none or one
  std::mutex workspace_mutex_;
  std::map<cudaStream_t, std::shared_ptr<Buffer>> workspaces_;
};

}  // namespace

bool matmul_blas(const Context& context, const MatmulWork& work, const Fp8Scales& scales) {
  const bool biased = work.bias.raw() != nullptr;
  const auto stride = [](const ConstTensorView& view) {
    return view.size(0) > 1 ? view.stride(0) : std::max(view.stride(0), view.size(1));
  };
  Key key{work.out.size(0),
          work.out.size(1),
          work.a.size(1),
          stride(work.a),
          stride(work.weight),
          stride(work.out),
          work.a.dtype(),
          work.out.dtype(),
          work.bias.dtype(),
          biased && work.bias.dtype() != DType::f16,
          work.accumulate,
          scales.kind,
          alignment_of(work.a.raw()),
          alignment_of(work.weight.raw()),
          alignment_of(work.out.raw())};
  Blas& blas = Blas::of(context.device.index);
  if (key.bias && blas.run(context, work, key, scales)) return true;
  key.bias = false;
  key.bias_type = DType::f32;
  if (!blas.run(context, work, key, scales)) return false;
  if (biased) add_bias(context, work.bias, work.out);
  return true;
}

}  // namespace kinora::cuda
