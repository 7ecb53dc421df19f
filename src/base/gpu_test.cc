#include "base/gpu.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/tensor.h"

namespace kinora {
namespace {

class GpuBaseTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    if (cuda_devices(&why).empty()) GTEST_SKIP() << why;
  }
  std::vector<uint8_t> fetched(const std::byte* there, size_t bytes) const {
    std::vector<uint8_t> here(bytes);
    copy_bytes(here.data(), Device::cpu(), there, device_, bytes);
    return here;
  }

  Device device_ = Device::cuda();
  ThreadPool pool_{1};
  Context context_{pool_, device_};
};

TEST_F(GpuBaseTest, CountsMemoryAndKeepsItsBudget) {
  const GpuMemory before = gpu_memory(device_);
  EXPECT_GT(before.total, 0);
  reset_gpu_peak(device_);
  constexpr int64_t bytes = 8 << 20;
  {
    const Tensor block(DType::u8, {bytes}, device_);
    EXPECT_EQ(gpu_memory(device_).used, before.used + bytes);
  }
  EXPECT_EQ(gpu_memory(device_).used, before.used);
  EXPECT_GE(gpu_memory(device_).peak, before.used + bytes);
  set_gpu_budget(device_, before.used + bytes);
  try {
    const Tensor block(DType::u8, {bytes + 1}, device_);
    ADD_FAILURE() << "the budget was not kept";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::resource);
    EXPECT_NE(std::string(error.what()).find("budget"), std::string::npos) << error.what();
  }
  EXPECT_NO_THROW(Tensor(DType::u8, {bytes}, device_));
  set_gpu_budget(device_, 0);
}

// A session that ends gives back its rows while another one's step is captured.
TEST_F(GpuBaseTest, GivingBackMemorySpoilsNoCapture) {
  Tensor from(DType::u8, {1 << 20}, device_), to(DType::u8, {1 << 20}, device_);
  std::atomic<bool> ended = false;
  std::thread other([&] {
    while (!ended.load()) {
      GpuRange range(device_, size_t{64} << 20);
      range.reserve(size_t{4} << 20);
    }
  });
  for (int i = 0; i < 200; ++i) {
    EXPECT_NO_THROW({
      const GpuGraph graph = GpuGraph::record(context_, [&](const Context& inside) {
        for (int copies = 0; copies < 50; ++copies) {
          copy_async(inside, to.view().raw(), from.view().raw(), 1 << 20);
        }
      });
      graph.launch(context_);
    });
  }
  ended = true;
  other.join();
}

TEST_F(GpuBaseTest, RefusesMoreThanThereIs) {
  try {
    const Tensor block(DType::u8, {gpu_memory(device_).total + (int64_t{1} << 30)}, device_);
    ADD_FAILURE() << "there cannot be so much memory";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::resource);
    EXPECT_NE(std::string(error.what()).find("out of memory on cuda:0"), std::string::npos)
        << error.what();
  }
  EXPECT_NO_THROW(Tensor(DType::u8, {1 << 20}, device_));
}

TEST_F(GpuBaseTest, RangesGrowInPlaceAndGiveBack) {
  const int64_t used = gpu_memory(device_).used;
  GpuRange range(device_, size_t{1} << 30);
  range.reserve(1000);
  const std::byte* start = range.data();
  const std::vector<uint8_t> pattern{1, 2, 3, 250, 251};
  copy_bytes(range.data() + 990, device_, pattern.data(), Device::cpu(), pattern.size());
  for (size_t bytes = size_t{1} << 20; bytes <= size_t{256} << 20; bytes *= 3) {
    range.reserve(bytes);
    EXPECT_GE(range.capacity(), bytes);
    EXPECT_EQ(range.data(), start);
    clear_async(context_, range.data() + bytes - 100, 100);
    EXPECT_EQ(fetched(range.data() + 990, pattern.size()), pattern);
  }
  range.shrink(4096);
  EXPECT_LT(range.capacity(), size_t{16} << 20);
  EXPECT_EQ(fetched(range.data() + 990, pattern.size()), pattern);
  EXPECT_THROW(range.reserve(size_t{2} << 30), Error);
  range = GpuRange();
  EXPECT_EQ(gpu_memory(device_).used, used);
}

TEST_F(GpuBaseTest, RangesThatEndedAreUsedAgain) {
  drop_spare_ranges(device_);
  const size_t limit = size_t{1} << 30;
  const GpuMemory before = gpu_memory(device_);
  std::byte *small = nullptr, *large = nullptr;
  size_t large_capacity = 0;
  {
    GpuRange one(device_, limit), two(device_, limit);
    one.reserve(1000);
    two.reserve(size_t{20} << 20);
    small = one.data();
    large = two.data();
    large_capacity = two.capacity();
  }
  EXPECT_EQ(gpu_memory(device_).used, before.used) << "nobody has them";
  {
    GpuRange likely(device_, limit, size_t{10} << 20), any(device_, limit);
    EXPECT_EQ(likely.data(), large) << "the smallest that is large enough";
    EXPECT_EQ(any.data(), small);
    EXPECT_EQ(likely.capacity(), 0u) << "it is paid for when it is used";
    EXPECT_EQ(gpu_memory(device_).used, before.used);
    likely.reserve(1);
    EXPECT_EQ(likely.capacity(), large_capacity);
    EXPECT_EQ(gpu_memory(device_).used, before.used + static_cast<int64_t>(large_capacity));
    likely.reserve(large_capacity + 1);
    const std::vector<uint8_t> pattern{5, 6, 7};
    copy_bytes(likely.data() + large_capacity - 1, device_, pattern.data(), Device::cpu(), 3);
    EXPECT_EQ(fetched(likely.data() + large_capacity - 1, 3), pattern);
    set_gpu_budget(device_, gpu_memory(device_).used);
    EXPECT_THROW(any.reserve(1), Error);
    set_gpu_budget(device_, 0);
    any.reserve(1);
    const GpuRange another(device_, limit);
    EXPECT_NE(another.data(), small);
    EXPECT_NE(another.data(), large);
  }
  drop_spare_ranges(device_);
  EXPECT_EQ(gpu_memory(device_).used, before.used);
  EXPECT_GE(gpu_memory(device_).free, before.free - (int64_t{1} << 20));
}

TEST_F(GpuBaseTest, StreamsAndEventsOrderCopies) {
  constexpr size_t bytes = 4 << 20;
  PinnedBuffer from(bytes), to(bytes);
  for (size_t i = 0; i < bytes; ++i) from.data()[i] = static_cast<std::byte>(i * 7 + 3);
  Tensor there(DType::u8, {static_cast<int64_t>(bytes)}, device_);
  synchronize(context_);
  GpuStream up(device_, true), down(device_, true);
  Context going_up = context_, coming_down = context_;
  going_up.stream = up.handle();
  coming_down.stream = down.handle();
  GpuEvent arrived(device_);
  copy_async(going_up, there.view().raw(), from.data(), bytes);
  arrived.record(going_up);
  arrived.order(coming_down);
  copy_async(coming_down, to.data(), there.view().raw(), bytes);
  synchronize(coming_down);
  EXPECT_EQ(std::memcmp(from.data(), to.data(), bytes), 0);
}

TEST_F(GpuBaseTest, GraphsReplayWhatWasRecorded) {
  Tensor a(DType::u8, {256}, device_), b(DType::u8, {256}, device_);
  const std::vector<uint8_t> first(256, 7), second(256, 9);
  const GpuGraph graph = GpuGraph::record(context_, [&](const Context& recorder) {
    copy_async(recorder, b.view().raw(), a.view().raw(), 256);
  });
  for (const auto& values : {first, second}) {
    copy_bytes(a.view().raw(), device_, values.data(), Device::cpu(), 256);
    graph.launch(context_);
    EXPECT_EQ(fetched(b.view().raw(), 256), values);
  }
}

}  // namespace
}  // namespace kinora
