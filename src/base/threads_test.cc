#include "base/threads.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>
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

TEST(ThreadPool, GoesOnAfterAFailure) {
  const ThreadPool pool(3);
  for (int round = 0; round < 200; ++round) {
    EXPECT_THROW(pool.parallel_for(9, 1, [](int64_t, int64_t) { throw std::runtime_error("all"); }),
                 std::runtime_error);
    std::atomic<int64_t> sum = 0;
    pool.parallel_for(9, 2, [&](int64_t begin, int64_t end) { sum += end - begin; });
    EXPECT_EQ(sum.load(), 9);
  }
}

// Short loops, with pauses long enough for the workers to fall asleep in between now and then.
TEST(ThreadPool, WakesItsWorkers) {
  const ThreadPool pool(4);
  for (int round = 0; round < 3000; ++round) {
    if (round % 500 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    std::vector<int> seen(17, 0);
    pool.parallel_for(17, 3, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) seen[static_cast<size_t>(i)] += 1;
    });
    ASSERT_EQ(seen, std::vector<int>(17, 1));
  }
}

TEST(ThreadPool, ServesSeveralCallers) {
  const ThreadPool pool(2);
  std::atomic<int64_t> sum = 0;
  std::vector<std::thread> callers;
  for (int c = 0; c < 4; ++c) {
    callers.emplace_back([&] {
      for (int round = 0; round < 500; ++round) {
        pool.parallel_for(10, 1, [&](int64_t begin, int64_t end) { sum += end - begin; });
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(sum.load(), 4 * 500 * 10);
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
