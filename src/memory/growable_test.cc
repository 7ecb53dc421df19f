#include "memory/growable.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace kinora
