#include "memory/row_ops/mean_rows.h"

#include <gtest/gtest.h>

#include <string>

#include "base/gpu.h"
#include "support/random_data.h"

namespace kinora {
namespace {

TEST(MeanRows, AreMeans) {
  KINORA_FRESH_RANDOM(random);
  std::string why;
  std::vector<Device> devices{Device::cpu()};
  if (!cuda_devices(&why).empty()) devices.push_back(Device::cuda());
  for (const Device device : devices) {
    const ThreadPool threads(1);
    const Context context(threads, device);
    const std::vector<float> rows = testing::random_floats(random, 37 * 129, 1.0);
    Tensor there(DType::f32, {37, 129}, device);
    copy_bytes(there.view().raw(), device, rows.data(), Device::cpu(), rows.size() * 4);
    const std::vector<int32_t> begins{0, 1, 5, 5, 36};
    const std::vector<float> means = mean_rows(context, there, begins);
    ASSERT_EQ(means.size(), 4u * 129);
    for (size_t i = 0; i < 4; ++i) {
      for (size_t k = 0; k < 129; ++k) {
        double sum = 0;
        for (auto row = static_cast<size_t>(begins[i]); row < static_cast<size_t>(begins[i + 1]);
             ++row) {
          sum += double{rows[row * 129 + k]};
        }
        const double count = std::max(1, begins[i + 1] - begins[i]);
        ASSERT_NEAR(means[i * 129 + k], sum / count, 1e-6);
      }
    }
  }
}

}  // namespace
}  // namespace kinora
