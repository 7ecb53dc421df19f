// Shares one decoder among sessions. Each session's thread hands in a prefill group or an answer in
// the making and waits; rounds of work are done for all of them: either one prefill group, in order
// of arrival, or one batched step of every answer. When both kinds wait, each gets half of the
// time: between two of its steps an answer waits for one group at most (and, of more than a round
// takes, for the others' turns), a group for as much time of answers as the last one took, a step,
// and the groups before it, of which each session has one. A session that is alone does its rounds
// itself and never waits for anybody. Those of several are led by one thread, which starts when it
// is first needed: were they to take turns, the system would move the work from core to core with
// every round.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string_view>
#include <thread>
#include <vector>

#include "generate/generation.h"
#include "model/decoder/decoder.h"

namespace kinora {

class Scheduler {
 public:
  // The decoder outlives the scheduler. `clock` says what time it is, in seconds, wherever rounds
  // are done; null: the machine's.
  using Clock = std::function<double()>;
  Scheduler(const Context& context, const Decoder& decoder, Clock clock = nullptr);
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // Runs a group; throws what it failed with. A cancelled one leaves the queue within a tenth of a
  // second.
  Forwarded prefill(const Sequence& sequence);

  // Makes an answer from the prompt's last hidden row [1, hidden]. Text goes to `on_piece` on the
  // calling thread, where `on_first` is called before that, when the first token is known. Without
  // `on_piece` the thread sleeps until the answer is whole. After an exception the answer's memory
  // is as its last complete step left it.
  void run(Generation& generation, const Tensor& hidden, const CancelToken& cancel,
           const std::function<void(std::string_view)>& on_piece,
           const std::function<void()>& on_first = nullptr);

  // What was done so far.
  struct Report {
    int64_t prefills = 0;
    int64_t rounds = 0;   // of steps
    int64_t steps = 0;    // in those rounds, over all answers
    int64_t largest = 0;  // answers in one round
    int64_t waiting = 0;  // tasks that wait now
  };
  Report report() const;

 private:
  struct Task;
  struct Round;

  // Takes part in the work until the task is finished; `between` is called whenever it got on,
  // without the lock.
  void work_until_done(Task& task, const std::function<void()>& between);
  void lead(std::unique_lock<std::mutex>& lock);  // one round
  void lead_several();                            // what the thread does
  void end_leading();
  bool several() const { return prefills_.size() + answers_.size() > 1; }
  Round choose();
  void execute(Round& round);
  void settle(Round& round);
  void leave(Task& task);

  Context context_;
  const Decoder& decoder_;
  const Clock clock_;
  std::unique_ptr<DecoderRunner> runner_;  // used by whoever leads

  mutable std::mutex mutex_;
  std::condition_variable wanted_;  // the thread
  bool leading_ = false;
  bool stop_ = false;
  std::deque<Task*> prefills_;
  std::deque<Task*> answers_;
  double prefill_seconds_ = 0;  // spent while answers waited, less their time since then
  Report report_;
  std::thread thread_;
};

}  // namespace kinora
