#include "memory/growable.h"

#include <gtest/gtest.h>

#include "base/tensor.h"
#include "base/threads.h"
#include "memory/row_ops/move_rows.h"
#include "support/random_data.h"

namespace kinora {
namespace {

TEST(Growable, KeepsItsBytesThroughEverySize) {
  KINORA_FRESH_RANDOM(random);
  Growable block;
  std::vector<uint8_t> mirror;
  for (int step = 0; step < 300; ++step) {
    const auto size = static_cast<size_t>(random.below(step % 10 == 0 ? 4 : 3'000'000));
    const size_t before = mirror.size();
    block.resize(size);
    mirror.resize(size);
    ASSERT_EQ(block.size(), size);
    for (size_t i = before; i < size; ++i) {
      mirror[i] = static_cast<uint8_t>(i * 31 + static_cast<size_t>(step));
      block.data()[i] = std::byte{mirror[i]};
    }
    for (size_t i = 0; i < size; i += 997) ASSERT_EQ(block.data()[i], std::byte{mirror[i]});
  }
  Growable moved = std::move(block);
  EXPECT_EQ(moved.size(), mirror.size());
  EXPECT_EQ(block.size(), 0u);  // NOLINT: the moved-from state is documented
}

TEST(Growable, IsReadByGpusWhereItIsPinned) {
  std::string why;
  if (cuda_devices(&why).empty()) GTEST_SKIP() << why;
  KINORA_FRESH_RANDOM(random);
  const ThreadPool threads(1);
  const Context context(threads, Device::cuda());
  Growable block = Growable::pinned(size_t{64} << 20);
  const std::byte* const first = block.data();
  std::vector<std::byte> mirror;
  for (int step = 0; step < 20; ++step) {
    const auto size = static_cast<size_t>(1 + random.below(step % 5 == 0 ? 4 : 20'000'000));
    const size_t before = mirror.size();
    block.resize(size);
    mirror.resize(size);
    ASSERT_EQ(block.data(), first);
    for (size_t i = before; i < size; ++i) {
      block.data()[i] = mirror[i] = static_cast<std::byte>(i * 31 + static_cast<size_t>(step));
    }
    // Bytes from a GPU, across chunks.
    const auto at = static_cast<size_t>(random.below(static_cast<int64_t>(size)));
    const auto more = static_cast<size_t>(random.below(static_cast<int64_t>(size - at) + 1));
    Tensor ones(DType::u8, {static_cast<int64_t>(more) + 1}, Device::cuda());
    const std::vector<std::byte> fill(more, static_cast<std::byte>(step));
    copy_bytes(ones.view().raw(), Device::cuda(), fill.data(), Device::cpu(), more);
    block.copy_in(at, ones.view().raw(), Device::cuda(), more);
    std::copy(fill.begin(), fill.end(), mirror.begin() + static_cast<int64_t>(at));
    for (size_t i = 0; i < size; i += 997) ASSERT_EQ(block.data()[i], mirror[i]);
    ASSERT_TRUE(gpu_reads(context, block.data()));
    ASSERT_TRUE(gpu_reads(context, block.data() + size - 1));
    // Rows of seven bytes, from one end to the other.
    const auto rows = static_cast<int64_t>(size / 7);
    if (rows == 0) continue;
    std::vector<int32_t> places;
    for (int i = 0; i < 50; ++i) places.push_back(static_cast<int32_t>(random.below(rows)));
    Tensor there(DType::u8, {50, 1, 7}, Device::cuda());
    copy_rows(context, ConstTensorView(block.data(), DType::u8, {rows, 1, 7}), places, there);
    const Tensor here = there.to(Device::cpu());
    for (size_t i = 0; i < places.size(); ++i) {
      for (size_t k = 0; k < 7; ++k) {
        ASSERT_EQ(here.view().raw()[i * 7 + k], mirror[static_cast<size_t>(places[i]) * 7 + k]);
      }
    }
  }
  EXPECT_FALSE(gpu_reads(context, mirror.data()));
}

}  // namespace
}  // namespace kinora
