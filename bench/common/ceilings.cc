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

// A line from each of several places in turn, with a sum for each word of a line: adding never
// waits for the addition before it.
uint64_t sum_of(const uint64_t* values, int64_t lines) {
  constexpr int64_t line = 8, places = 8;
  uint64_t sums[line] = {};
  const int64_t part = lines / places * line;
  for (int64_t i = 0; i < part; i += line) {
    for (int64_t place = 0; place < places; ++place) {
      for (int64_t j = 0; j < line; ++j) sums[j] += values[place * part + i + j];
    }
  }
  return std::accumulate(std::begin(sums), std::end(sums), uint64_t{0});
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

ReadCeiling::ReadCeiling(const ThreadPool& threads) : threads_(threads), buffer_(read_bytes) {
  auto* words = reinterpret_cast<uint64_t*>(buffer_.data());
  std::fill(words, words + read_bytes / sizeof(uint64_t), uint64_t{1});
}

double ReadCeiling::gigabytes() const { return static_cast<double>(read_bytes) / 1e9; }

void ReadCeiling::sample() {
  constexpr int64_t line_bytes = 64;
  constexpr int64_t piece = (int64_t{1} << 20) / line_bytes;  // lines; many for every thread
  constexpr auto pieces = static_cast<int64_t>(read_bytes) / line_bytes / piece;
  std::atomic<uint64_t> total = 0;
  const double seconds = seconds_of([&] {
    threads_.parallel_for(pieces, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        total += sum_of(reinterpret_cast<const uint64_t*>(buffer_.data() + i * piece * line_bytes),
                        piece);
      }
    });
  });
  // The sum is looked at, so that the reading cannot be left out.
  speed_.add(total == read_bytes / sizeof(uint64_t) ? read_bytes / seconds / 1e9 : 0);
}

}  // namespace kinora::bench
