// Writes a line for every kernel that a program runs on a GPU: when it began and ended, in
// nanoseconds, the graph that it was launched from (0: none), its grid, and its name. CUDA loads
// this library into any program (CUDA_INJECTION64_PATH); bench/trace_gpu/run builds it and reads
// what it writes.
#include <cupti.h>

#include <cstdio>
#include <cstdlib>

namespace {

std::FILE* out = nullptr;

void give_buffer(uint8_t** buffer, size_t* bytes, size_t* most_records) {
  *bytes = size_t{8} << 20;
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(8, *bytes));
  *most_records = 0;  // as many as fit
}

void take_buffer(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t valid) {
  CUpti_Activity* record = nullptr;
  while (cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS) {
    if (record->kind != CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) continue;
    const auto* kernel = reinterpret_cast<const CUpti_ActivityKernel9*>(record);
    std::fprintf(out, "%llu %llu %u %d %d %d %s\n", static_cast<unsigned long long>(kernel->start),
                 static_cast<unsigned long long>(kernel->end), kernel->graphId, kernel->gridX,
                 kernel->gridY, kernel->gridZ, kernel->name);
  }
  std::free(buffer);
}

void finish() {
  cuptiActivityFlushAll(1);
  std::fclose(out);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int InitializeInjection() {
  const char* path = std::getenv("KINORA_TRACE");
  out = path == nullptr ? nullptr : std::fopen(path, "w");
  if (out == nullptr) return 0;
  if (cuptiActivityRegisterCallbacks(give_buffer, take_buffer) != CUPTI_SUCCESS ||
      cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) != CUPTI_SUCCESS) {
    std::fprintf(stderr, "trace: CUPTI does not take part\n");
    return 0;
  }
  std::atexit(finish);
  return 1;
}
