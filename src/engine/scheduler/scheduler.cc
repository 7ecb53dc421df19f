#include "engine/scheduler/scheduler.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "base/error.h"
#include "engine/stopwatch.h"

namespace kinora {
namespace {

constexpr size_t most_answers = 64;  // in one round: what a captured graph takes
// How often a waiting thread looks whether it was cancelled.
constexpr std::chrono::milliseconds patience{20};

}  // namespace

struct Scheduler::Task {
  const Sequence* sequence = nullptr;  // a prefill group, or …
  Generation* generation = nullptr;    // … an answer
  const Tensor* hidden = nullptr;      // that has not begun
  CancelToken cancel;
  bool listens = false;  // its thread wants every piece of text, not only the first and the end
  bool busy = false;     // in the round under way
  bool begun = false;
  bool finished = false;
  bool progressed = false;          // since its thread last looked
  std::string text;                 // likewise
  std::condition_variable changed;  // something that its thread waits for
  Forwarded result;
  std::exception_ptr failure;
};

struct Scheduler::Round {
  Task* prefill = nullptr;
  std::vector<Task*> answers;
  double seconds = 0;
};

Scheduler::Scheduler(const Context& context, const Decoder& decoder, Clock clock)
    : context_(context),
      decoder_(decoder),
      clock_(clock != nullptr ? std::move(clock)
                              : [watch = Stopwatch()] { return watch.seconds(); }),
      runner_(decoder.runner(context)) {}

Scheduler::~Scheduler() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wanted_.notify_all();
  if (thread_.joinable()) thread_.join();
}

Forwarded Scheduler::prefill(const Sequence& sequence) {
  Task task;
  task.sequence = &sequence;
  task.cancel = sequence.cancel;
  work_until_done(task, [] {});
  if (task.failure) std::rethrow_exception(task.failure);
  return std::move(task.result);
}

void Scheduler::run(Generation& generation, const Tensor& hidden, const CancelToken& cancel,
                    const std::function<void(std::string_view)>& on_piece,
                    const std::function<void()>& on_first) {
  Task task;
  task.generation = &generation;
  task.hidden = &hidden;
  task.cancel = cancel;
  task.listens = on_piece != nullptr;
  bool first = true;
  work_until_done(task, [&] {
    std::string text;
    {
      const std::lock_guard lock(mutex_);
      text = std::exchange(task.text, {});
    }
    if (std::exchange(first, false) && on_first) on_first();
    if (!text.empty() && on_piece) on_piece(text);
  });
  if (task.failure) std::rethrow_exception(task.failure);
}

void Scheduler::work_until_done(Task& task, const std::function<void()>& between) {
  std::unique_lock lock(mutex_);
  (task.sequence != nullptr ? prefills_ : answers_).push_back(&task);
  try {
    while (true) {
      if (std::exchange(task.progressed, false)) {
        lock.unlock();
        between();
        lock.lock();
        continue;
      }
      if (task.finished) return;
      if (!task.busy) task.cancel.check();
      if (leading_) {
        task.changed.wait_for(lock, patience);
        continue;
      }
      if (several()) {
        if (!thread_.joinable()) thread_ = std::thread([this] { lead_several(); });
        wanted_.notify_all();
        task.changed.wait_for(lock, patience);
        continue;
      }
      leading_ = true;
      lead(lock);
      end_leading();
    }
  } catch (...) {
    if (!lock.owns_lock()) lock.lock();
    leave(task);  // no further round has it; others may be working on it just now
    task.changed.wait(lock, [&] { return !task.busy; });
    throw;
  }
}

void Scheduler::lead(std::unique_lock<std::mutex>& lock) {
  Round round = choose();
  lock.unlock();
  execute(round);  // keeps what goes wrong in its tasks
  lock.lock();
  settle(round);
}

void Scheduler::lead_several() {
  std::unique_lock lock(mutex_);
  while (true) {
    wanted_.wait(lock, [&] { return stop_ || (!leading_ && several()); });
    if (stop_) return;
    leading_ = true;
    while (several() && !stop_) lead(lock);
    end_leading();  // the one that is left goes on by itself
  }
}

void Scheduler::end_leading() {
  leading_ = false;
  for (Task* task : prefills_) task->changed.notify_one();
  for (Task* task : answers_) task->changed.notify_one();
}

void Scheduler::leave(Task& task) {
  std::erase(prefills_, &task);
  std::erase(answers_, &task);
}

Scheduler::Round Scheduler::choose() {
  Round round;
  const bool answers_first = prefill_seconds_ > 0 || prefills_.empty();
  if (!answers_.empty() && answers_first) {
    const size_t count = std::min(most_answers, answers_.size());
    round.answers.assign(answers_.begin(), answers_.begin() + static_cast<int64_t>(count));
    // Those left out come first the next time.
    std::rotate(answers_.begin(), answers_.begin() + static_cast<int64_t>(count), answers_.end());
  } else if (!prefills_.empty()) {
    round.prefill = prefills_.front();
  }
  if (round.prefill != nullptr) round.prefill->busy = true;
  for (Task* task : round.answers) task->busy = true;
  return round;
}

void Scheduler::execute(Round& round) {
  const double began = clock_();
  if (round.prefill != nullptr) {
    Task& task = *round.prefill;
    try {
      task.result = std::move(runner_->forward(std::span(task.sequence, 1))[0]);
      task.failure = task.result.failure;
    } catch (...) {
      task.failure = std::current_exception();
    }
  }
  std::vector<Task*> stepping;
  std::vector<Generation*> generations;
  for (Task* task : round.answers) {
    if (task->hidden == nullptr) {
      stepping.push_back(task);
      generations.push_back(task->generation);
      continue;
    }
    try {
      if (!task->generation->done()) {
        Tensor logits = decoder_.logits(context_, *task->hidden);
        task->generation->start(context_, logits);
      }
      task->hidden = nullptr;
    } catch (...) {
      task->failure = std::current_exception();
    }
  }
  if (!generations.empty()) {
    try {
      const auto failures = step(context_, *runner_, decoder_, generations);
      for (size_t i = 0; i < stepping.size(); ++i) stepping[i]->failure = failures[i];
    } catch (...) {
      for (Task* task : stepping) task->failure = std::current_exception();
    }
  }
  round.seconds = clock_() - began;
}

void Scheduler::settle(Round& round) {
  if (round.prefill != nullptr) {
    Task& task = *round.prefill;
    ++report_.prefills;
    task.busy = false;
    task.finished = true;
    task.changed.notify_one();
    leave(task);
    if (!answers_.empty()) prefill_seconds_ += round.seconds;
  }
  if (!round.answers.empty()) {
    ++report_.rounds;
    report_.steps += static_cast<int64_t>(round.answers.size());
    report_.largest = std::max(report_.largest, static_cast<int64_t>(round.answers.size()));
    prefill_seconds_ = std::max(0.0, prefill_seconds_ - round.seconds);
  }
  for (Task* task : round.answers) {
    task->busy = false;
    // A thread that is woken takes a core from the next round.
    if (task->listens || !std::exchange(task->begun, true)) task->progressed |= !task->failure;
    if (!task->failure) task->text += task->generation->take_text();
    task->finished = task->failure || task->generation->done();
    // One that has left the queue waits for the end of this round.
    const bool gone = std::find(answers_.begin(), answers_.end(), task) == answers_.end();
    if (task->progressed || task->finished || gone) task->changed.notify_one();
    if (task->finished) leave(*task);
  }
  if (answers_.empty()) prefill_seconds_ = 0;
}

Scheduler::Report Scheduler::report() const {
  const std::lock_guard lock(mutex_);
  Report report = report_;
  report.waiting = static_cast<int64_t>(prefills_.size() + answers_.size());
  return report;
}

}  // namespace kinora
