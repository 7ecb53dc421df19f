#include "common/ceilings.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <numeric>

#include "base/random.h"

#ifdef KINORA_BENCH_OPENBLAS
#include <cblas.h>
#endif
#ifdef KINORA_BENCH_DNNL
#include <dnnl.h>
#endif

namespace kinora::bench {
namespace {

constexpr int64_t size = 2048;
constexpr double flops = 2.0 * size * size * size;
constexpr size_t read_bytes = size_t{512} << 20;

// Sixteen sums, so that adding never waits for the addition before it.
uint64_t sum_of(const uint64_t* values, int64_t count) {
  uint64_t sums[16] = {};
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) {
    for (int64_t j = 0; j < 16; ++j) sums[j] += values[i + j];
  }
  const uint64_t rest = std::accumulate(values + i, values + count, uint64_t{0});
  return std::accumulate(std::begin(sums), std::end(sums), rest);
}

// Runs one library; does nothing when the name is not one of those compiled in.
void multiply([[maybe_unused]] const std::string& library, [[maybe_unused]] int threads,
              [[maybe_unused]] const float* a, [[maybe_unused]] const float* b,
              [[maybe_unused]] float* c) {
#ifdef KINORA_BENCH_OPENBLAS
  if (library == "OpenBLAS") {
    openblas_set_num_threads(threads);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, size, size, size, 1.0f, a, size, b, size,
                0.0f, c, size);
  }
#endif
#ifdef KINORA_BENCH_DNNL
  if (library == "oneDNN") {
    dnnl_sgemm('N', 'T', size, size, size, 1.0f, a, size, b, size, 0.0f, c, size);
  }
#endif
}

}  // namespace

MatmulCeiling::MatmulCeiling(const ThreadPool& threads) : threads_(threads.threads()) {
#ifdef KINORA_BENCH_OPENBLAS
  libraries_.push_back({"OpenBLAS", {}});
#endif
#ifdef KINORA_BENCH_DNNL
  // oneDNN's own threads are OpenMP's, which read this when they first start.
  setenv("OMP_NUM_THREADS", std::to_string(threads_).c_str(), 1);
  libraries_.push_back({"oneDNN", {}});
#endif
  Random random(1);
  const auto fill = [&](std::vector<float>& matrix) {
    matrix.resize(size * size);
    for (float& value : matrix) value = static_cast<float>(random.uniform(-1, 1));
  };
  fill(a_);
  fill(b_);
  c_.resize(size * size);
  for (const Library& library : libraries_) {
    multiply(library.name, threads_, a_.data(), b_.data(), c_.data());
  }
}

bool MatmulCeiling::available() const { return !libraries_.empty(); }

void MatmulCeiling::sample() {
  double best = 0;
  for (Library& library : libraries_) {
    // A library that is several times slower than the other is not measured again and again.
    const Summary so_far = library.gflops.summary();
    if (library.gflops.values().size() >= 2 && so_far.median < best_.summary().median / 2) continue;
    settle();
    const double seconds =
        seconds_of([&] { multiply(library.name, threads_, a_.data(), b_.data(), c_.data()); });
    library.gflops.add(flops / seconds / 1e9);
    best = std::max(best, library.gflops.values().back());
  }
  settle();
  best_.add(best);
}

std::string MatmulCeiling::library() const {
  const auto better = [](const Library& a, const Library& b) {
    return a.gflops.summary().median < b.gflops.summary().median;
  };
  return std::max_element(libraries_.begin(), libraries_.end(), better)->name;
}

ReadCeiling::ReadCeiling(const ThreadPool& threads)
    : threads_(threads), buffer_(read_bytes / sizeof(uint64_t), 1) {}

void ReadCeiling::sample() {
  std::atomic<uint64_t> total = 0;
  const auto count = static_cast<int64_t>(buffer_.size());
  const double seconds = seconds_of([&] {
    threads_.parallel_for(count, 1 << 17, [&](int64_t begin, int64_t end) {
      total += sum_of(buffer_.data() + begin, end - begin);
    });
  });
  // The sum is looked at, so that the reading cannot be left out.
  speed_.add(total == static_cast<uint64_t>(count) ? read_bytes / seconds / 1e9 : 0);
}

}  // namespace kinora::bench
