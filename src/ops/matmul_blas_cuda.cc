// Products through cuBLASLt. The algorithm of a shape is chosen once: the library proposes, and for
// large products the proposals are timed on the spot. So are those of a few rows, where the first
// proposal is often not the best one. Prompts have many lengths, so what was found for a large
// number of rows also serves up to half and twice as many. A row-major product a · weightᵀ is the
// column-major product weight · aᵀ, so weights come first here.
#include <algorithm>
#include <limits>
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
// All numbers of rows from here on are alike: the product is cut into many more tiles than run at
// once.
constexpr int64_t enough_rows = 4096;
// Proposals that one run finds this much slower than the fastest are out. The others run again: of
// few rows some times, of many rows so many times without a pause. In a prompt one product follows
// the other, where the GPU's power limits them and what a kernel does at its start hardly counts.
constexpr float hopeless = 1.05f;
constexpr int more_times = 4;
constexpr int without_pause = 8;

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

  bool worth_timing() const {
    if (type == DType::f32) return false;
    return m >= timed_rows || (m <= decode_rows && n * k >= timed_weights);
  }
  bool large() const { return worth_timing() && m >= timed_rows; }
  Key with_rows(int64_t rows) const {
    Key key = *this;
    key.m = rows;
    return key;
  }
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
    const cublasLtMatmulAlgo_t* chosen = algorithm(context, work, key, scales, product, stream);
    if (chosen == nullptr) return false;
    multiply(product, work, *chosen, work.out.raw(), stream);
    return true;
  }

 private:
  struct Timed {
    int64_t rows;
    cublasLtMatmulAlgo_t algorithm;
  };

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
                                        const Key& key, const Fp8Scales& scales,
                                        const Product& product, cudaStream_t stream) {
    const std::lock_guard lock(mutex_);
    const auto known = algorithms_.find(key);
    if (known != algorithms_.end()) return known->second.empty() ? nullptr : &known->second[0];
    auto chosen = choose(context, work, key, scales, product, stream);
    auto& kept = algorithms_[key] = std::move(chosen);
    return kept.empty() ? nullptr : &kept[0];
  }

  std::vector<cublasLtMatmulAlgo_t> choose(const Context& context, const MatmulWork& work,
                                           const Key& key, const Fp8Scales& scales,
                                           const Product& product, cudaStream_t stream) {
    if (const auto* near = timed_near(key); near && fits(product, *near)) return {*near};
    const auto found = propose(api_, handle_, product, key);
    if (found.empty()) return {};
    if (found.size() == 1 || !key.worth_timing() || capturing(stream)) return {found[0].algo};
    const auto best = fastest(context, work, key, scales, stream, found);
    if (!fits(product, best)) return {found[0].algo};
    if (key.large()) timed_[key.with_rows(0)].push_back({std::min(key.m, enough_rows), best});
    return {best};
  }

  // Of those that were timed with up to half and twice as many rows the nearest; null: none was.
  const cublasLtMatmulAlgo_t* timed_near(const Key& key) const {
    const auto all = timed_.find(key.with_rows(0));
    if (!key.large() || all == timed_.end()) return nullptr;
    const int64_t rows = std::min(key.m, enough_rows);
    const Timed* nearest = nullptr;
    double least = 2;
    for (const Timed& one : all->second) {
      const auto [fewer, more] = std::minmax(rows, one.rows);
      const double ratio = static_cast<double>(more) / static_cast<double>(fewer);
      if (ratio > least) continue;
      nearest = &one;
      least = ratio;
    }
    return nearest == nullptr ? nullptr : &nearest->algorithm;
  }

  // Whether what was chosen for other rows can do this product.
  bool fits(const Product& product, const cublasLtMatmulAlgo_t& algorithm) const {
    cublasLtMatmulHeuristicResult_t said{};
    const cublasStatus_t status = api_.check(handle_, product.operation, product.weight, product.a,
                                             product.out, product.out, &algorithm, &said);
    return status == CUBLAS_STATUS_SUCCESS && said.state == CUBLAS_STATUS_SUCCESS &&
           said.workspaceSize <= workspace_bytes;
  }

  // Times proposals into scratch, so that an accumulating product is not added twice, in turns, as
  // the clock of a GPU changes. Weights of a decoding step come from memory: between two products
  // something else fills the caches.
  cublasLtMatmulAlgo_t fastest(const Context& context, const MatmulWork& work, const Key& given,
                               const Fp8Scales& scales, cudaStream_t stream,
                               const std::vector<cublasLtMatmulHeuristicResult_t>& found) {
    const Key key = given.with_rows(std::min(given.m, enough_rows));
    const Product product(api_, key, work.bias.raw(), scales);
    const bool few = key.m <= decode_rows;
    Tensor scratch, other;
    try {
      scratch = Tensor(key.out_type, {key.m * key.out_stride}, context.device);
      if (few) other = Tensor(DType::u8, {2 * cache_bytes()}, context.device);
    } catch (const Error&) {
      return found[0].algo;  // a GPU with no room for this still has room for the product
    }
    cudaEvent_t begin = nullptr, end = nullptr;
    check(cudaEventCreate(&begin), "making an event");
    check(cudaEventCreate(&end), "making an event");
    // Milliseconds of a product, of so many in a row.
    const auto time = [&](size_t proposal, int launches) {
      if (few) {
        check(cudaMemsetAsync(other.view().raw(), 0, static_cast<size_t>(other.elements()), stream),
              "emptying the caches");
      }
      check(cudaEventRecord(begin, stream), "timing a product");
      for (int i = 0; i < launches; ++i) {
        multiply(product, work, found[proposal].algo, scratch.view().raw(), stream);
      }
      check(cudaEventRecord(end, stream), "timing a product");
      check(cudaEventSynchronize(end), "timing a product");
      float milliseconds = 0;
      check(cudaEventElapsedTime(&milliseconds, begin, end), "timing a product");
      return milliseconds / static_cast<float>(launches);
    };
    std::vector<float> first;
    for (size_t i = 0; i < found.size(); ++i) {
      time(i, 1);  // warms up
      first.push_back(time(i, 1));
    }
    const float least = *std::min_element(first.begin(), first.end());
    std::vector<std::vector<float>> times(found.size());
    for (int turn = 0; turn < (few ? more_times : 1); ++turn) {
      for (size_t i = 0; i < found.size(); ++i) {
        if (i > 0 && first[i] > hopeless * least) continue;
        times[i].push_back(time(i, few ? 1 : without_pause));
      }
    }
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    std::vector<float> median;
    for (auto& own : times) {
      const auto middle = own.begin() + std::ssize(own) / 2;
      if (!own.empty()) std::nth_element(own.begin(), middle, own.end());
      median.push_back(own.empty() ? std::numeric_limits<float>::infinity() : *middle);
    }
    const auto best = std::min_element(median.begin(), median.end());
    return found[*best < worth * median[0] ? static_cast<size_t>(best - median.begin()) : 0].algo;
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
  std::map<Key, std::vector<Timed>> timed_;                      // by the key of no rows
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
