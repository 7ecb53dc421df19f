#include "base/system/host_range.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "support/random_data.h"

namespace kinora {
namespace {

constexpr size_t kib = 1024, mib = 1024 * kib;

std::vector<std::byte> random_bytes(Random& random, size_t count) {
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.below(256));
  return bytes;
}

TEST(PagePool, NoBlockTouchesAnother) {
  KINORA_FRESH_RANDOM(random);
  struct Block {
    std::byte* data;
    size_t bytes;
    std::byte mark;
  };
  PagePool pool;
  std::vector<Block> blocks;
  const auto is_whole = [](const Block& block) {
    return std::all_of(block.data, block.data + block.bytes,
                       [&](std::byte byte) { return byte == block.mark; });
  };
  size_t most = 0;
  for (int step = 0; step < 300; ++step) {
    // Many come first, then most of them go.
    if (random.below(4) < (step < 150 ? 3 : 1)) {
      const size_t bytes = PagePool::smallest << random.below(5);
      std::byte* const data = pool.take(bytes);
      ASSERT_NE(data, nullptr);
      ASSERT_EQ(reinterpret_cast<uintptr_t>(data) % bytes, 0u);
      blocks.push_back({data, bytes, static_cast<std::byte>(step)});
      std::memset(data, step & 255, bytes);
    } else if (!blocks.empty()) {
      const auto gone = blocks.begin() + random.below(std::ssize(blocks));
      ASSERT_TRUE(is_whole(*gone));
      pool.give(gone->data, gone->bytes);
      blocks.erase(gone);
    }
    most = std::max(most, pool.pages());
  }
  EXPECT_GT(most, 2u);
  for (const Block& block : blocks) {
    ASSERT_TRUE(is_whole(block));
    pool.give(block.data, block.bytes);
  }
  EXPECT_EQ(pool.pages(), 1u);  // in reserve
}

TEST(HostRange, KeepsWhatIsUsed) {
  KINORA_FRESH_RANDOM(random);
  HostRange range;
  std::vector<std::byte> mirror;
  const std::vector<size_t> sizes = {1,           64 * kib,        64 * kib + 1, mib,      mib + 1,
                                     2 * mib - 1, 2 * mib + 65537, 9 * mib,      30 * mib, 3 * mib,
                                     700 * kib,   12 * mib,        100,          40 * kib};
  for (const size_t size : sizes) {
    const size_t kept = std::min(mirror.size(), size);
    ASSERT_TRUE(range.resize(kept, size));
    ASSERT_GE(range.capacity(), size);
    ASSERT_LE(range.capacity(), std::max(4 * size, PagePool::smallest));
    ASSERT_TRUE(
        std::equal(mirror.begin(), mirror.begin() + static_cast<int64_t>(kept), range.data()))
        << size;
    mirror = random_bytes(random, size);
    std::copy(mirror.begin(), mirror.end(), range.data());
  }
  HostRange moved = std::move(range);
  EXPECT_EQ(std::memcmp(moved.data(), mirror.data(), mirror.size()), 0);
  EXPECT_EQ(range.data(), nullptr);  // NOLINT: the moved-from state is documented
  range = std::move(moved);
  EXPECT_EQ(std::memcmp(range.data(), mirror.data(), mirror.size()), 0);
}

// Bytes that are appended a little at a time pass every boundary between pages.
TEST(HostRange, GrowsByALittle) {
  KINORA_FRESH_RANDOM(random);
  const std::vector<std::byte> bytes = random_bytes(random, 7 * mib + 77);
  HostRange range;
  size_t used = 0;
  while (used < bytes.size()) {
    const size_t more =
        std::min(bytes.size() - used, static_cast<size_t>(1 + random.below(100'000)));
    ASSERT_TRUE(range.resize(used, used + more));
    std::copy_n(bytes.data() + used, more, range.data() + used);
    used += more;
  }
  EXPECT_EQ(std::memcmp(range.data(), bytes.data(), bytes.size()), 0);
}

TEST(HostRange, CopiesBytes) {
  KINORA_FRESH_RANDOM(random);
  EXPECT_EQ(HostRange(std::span<const std::byte>()).data(), nullptr);
  for (const size_t size : {size_t{1}, 65 * kib, 2 * mib - 1, 2 * mib, 2 * mib + 1, 5 * mib}) {
    const std::vector<std::byte> bytes = random_bytes(random, size);
    const HostRange copy(bytes);
    EXPECT_EQ(std::memcmp(copy.data(), bytes.data(), size), 0) << size;
    const HostRange empty(size);
    EXPECT_EQ(std::count(empty.data(), empty.data() + size, std::byte{0}),
              static_cast<std::ptrdiff_t>(size));
  }
  EXPECT_THROW(HostRange(size_t{1} << 60), Error);
}

TEST(HostRange, SaysWhenThereIsNoMemory) {
  HostRange range;
  ASSERT_TRUE(range.resize(0, 1000));
  range.data()[999] = std::byte{7};
  EXPECT_FALSE(range.resize(1000, size_t{1} << 60));
  EXPECT_EQ(range.data()[999], std::byte{7});
}

}  // namespace
}  // namespace kinora
