#include "server/work_queue.h"

#include <gtest/gtest.h>

#include <latch>
#include <string>

#include "server/api_error.h"

namespace kinora::server {
namespace {

// Work that tells when it runs.
struct Notes {
  std::mutex mutex;
  std::vector<std::string> names;

  Work work(const std::string& name) {
    Work made;
    made.run = [this, name] {
      const std::lock_guard lock(mutex);
      names.push_back(name);
    };
    return made;
  }
};

Work holding(std::latch& begun, std::latch& released) {
  Work work;
  work.run = [&] {
    begun.count_down();
    released.wait();
  };
  return work;
}

TEST(WorkQueue, LinesTakeTurns) {
  Notes notes;
  {
    std::latch begun(1), released(1), last(1);
    WorkQueue queue(1, 100);
    queue.add("first", holding(begun, released));
    begun.wait();
    for (int i = 0; i < 4; ++i) queue.add("greedy", notes.work("greedy " + std::to_string(i)));
    queue.add("modest", notes.work("modest"));
    queue.add("shy", notes.work("shy"));
    EXPECT_EQ(queue.waiting(), 6);
    EXPECT_EQ(queue.running(), 1);
    Work end;
    end.run = [&] { last.count_down(); };
    for (int i = 0; i < 4; ++i) queue.add("shy", Work{[] {}, {}, {}});
    queue.add("greedy", end);
    released.count_down();
    last.wait();
  }
  const std::vector<std::string> expected{"greedy 0", "modest",   "shy",
                                          "greedy 1", "greedy 2", "greedy 3"};
  EXPECT_EQ(notes.names, expected);
}

TEST(WorkQueue, RefusesWhatIsTooMuch) {
  std::latch begun(1), released(1);
  WorkQueue queue(1, 4);
  queue.add("first", holding(begun, released));
  begun.wait();
  const auto add = [&](const std::string& client) {
    try {
      queue.add(client, {[] {}, {}, std::chrono::steady_clock::time_point::max()});
    } catch (const ApiError& error) {
      EXPECT_TRUE(error.retry_after);
      return error.status;
    }
    return 200;
  };
  EXPECT_EQ(add("greedy"), 200);
  EXPECT_EQ(add("greedy"), 200);
  EXPECT_EQ(add("greedy"), 429) << "half of the places are for others";
  EXPECT_EQ(add("modest"), 200);
  EXPECT_EQ(add("shy"), 200);
  EXPECT_EQ(add("late"), 429);
  released.count_down();
}

TEST(WorkQueue, RaisesTheTokenAtTheDeadline) {
  WorkQueue queue(1, 4);
  std::latch done(1);
  Work work;
  work.deadline = std::chrono::steady_clock::now();
  work.run = [&, cancel = work.cancel] {
    while (!cancel.cancelled()) std::this_thread::yield();
    done.count_down();
  };
  queue.add("one", work);
  done.wait();
}

TEST(WorkQueue, EndsWhatIsLeft) {
  std::atomic<int> ran = 0;
  {
    WorkQueue queue(2, 100);
    for (int i = 0; i < 20; ++i) {
      Work work;
      work.run = [&ran, cancel = work.cancel] {
        while (!cancel.cancelled()) std::this_thread::yield();
        ++ran;
      };
      queue.add(std::to_string(i), work);
    }
  }
  EXPECT_EQ(ran, 20) << "someone still waits for a reply";
}

}  // namespace
}  // namespace kinora::server
