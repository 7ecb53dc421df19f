#include "base/threads.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <vector>

namespace kinora {
namespace {

TEST(ThreadPool, VisitsEveryElementOnce) {
  for (const int threads : {1, 2, 5}) {
    const ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (const int64_t count : {0, 1, 63, 65, 1000}) {
      for (const int64_t grain : {0, 1, 7, 2000}) {
        std::vector<std::atomic<int>> visits(static_cast<size_t>(count));
        pool.parallel_for(count, grain, [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) ++visits[static_cast<size_t>(i)];
        });
        for (const auto& visit : visits) EXPECT_EQ(visit.load(), 1);
      }
    }
  }
}

TEST(ThreadPool, RethrowsWhatAPieceThrew) {
  const ThreadPool pool(2);
  EXPECT_THROW(pool.parallel_for(100, 1,
                                 [](int64_t begin, int64_t) {
                                   if (begin == 50) throw std::runtime_error("fifty");
                                 }),
               std::runtime_error);
}

TEST(ThreadPool, LoopsNest) {
  const ThreadPool pool(2);
  std::atomic<int64_t> sum = 0;
  pool.parallel_for(10, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      pool.parallel_for(10, 1, [&](int64_t b, int64_t e) { sum += (e - b); });
    }
  });
  EXPECT_EQ(sum.load(), 100);
}

}  // namespace
}  // namespace kinora
