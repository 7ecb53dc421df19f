#include "memory/row_ops/move_rows.h"

#include <gtest/gtest.h>

#include <vector>

#include "attention/cuda/device_test_support.h"
#include "base/random.h"
#include "support/random_data.h"

namespace kinora {
namespace {

using Bytes = std::vector<std::byte>;

// Gaps in several lists closed at once, with rows of any size and at any address.
TEST(MoveRows, ClosesTheSameGapsInManyLists) {
  KINORA_FRESH_RANDOM(random);
  const ThreadPool pool(1);
  for (const Device device : testing::all_devices()) {
    const Context context(pool, device);
    for (const int64_t row_bytes : {1, 3, 4, 16, 20, 63, 65, 256, 1040}) {
      const int64_t count = 1 + random.below(90), lists = 1 + random.below(150);
      const int64_t offset = row_bytes % 16 == 0 ? 0 : random.below(5);
      std::vector<int32_t> kept;
      for (int32_t i = 0; i < count; ++i) {
        if (random.below(3) == 0) kept.push_back(i);
      }
      std::vector<Bytes> before(static_cast<size_t>(lists));
      std::vector<Tensor> there;
      std::vector<std::byte*> rows;
      for (Bytes& list : before) {
        list.resize(static_cast<size_t>(offset + count * row_bytes));
        for (std::byte& byte : list) byte = static_cast<std::byte>(random.below(256));
        there.emplace_back(DType::u8, Shape{std::ssize(list)}, device);
        copy_bytes(there.back().view().raw(), device, list.data(), Device::cpu(), list.size());
        rows.push_back(there.back().view().raw() + offset);
      }
      move_rows_up(context, rows, row_bytes, kept);
      for (size_t i = 0; i < before.size(); ++i) {
        Bytes expected = before[i], actual(before[i].size());
        for (size_t k = 0; k < kept.size(); ++k) {
          const auto at = before[i].begin() + offset;
          std::copy_n(at + kept[k] * row_bytes, row_bytes,
                      expected.begin() + offset + static_cast<int64_t>(k) * row_bytes);
        }
        copy_bytes(actual.data(), Device::cpu(), there[i].view().raw(), device, actual.size());
        // What lies behind the rows that stay may be anything.
        const auto end = static_cast<size_t>(offset + std::ssize(kept) * row_bytes);
        actual.resize(end);
        expected.resize(end);
        ASSERT_EQ(actual, expected) << "list " << i << " of " << lists << ", rows of " << row_bytes
                                    << " bytes, " << kept.size() << " of " << count;
      }
    }
  }
}

}  // namespace
}  // namespace kinora
