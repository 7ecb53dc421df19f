// When every group went through a stage, as spans and in seconds. On a GPU the host only starts
// work, so times are taken from events on the stream. The host may run at most two groups ahead; it
// then sleeps instead of spinning, so that decoders get the core. Used by the vision and prefill
// stages, each from one thread.
#pragma once

#include <deque>
#include <memory>
#include <string>

#include "base/context.h"
#include "base/gpu.h"
#include "engine/span_recorder.h"

namespace kinora {

class StageClock {
 public:
  StageClock(const Context& context, SpanRecorder& spans, std::string lane);

  void begin();
  // The work that was begun is done or, on a GPU, started.
  void end(std::string name);
  // Waits until all of it is done; only then are spans and seconds complete.
  void finish();

  double seconds() const { return seconds_; }

 private:
  using Clock = SpanRecorder::Clock;
  struct Work {
    explicit Work(Device device) : begin(device, true), end(device, true) {}
    GpuEvent begin;
    GpuEvent end;
    std::string name;
  };
  void add(std::string name, Clock::time_point begin, Clock::time_point end);
  void take_oldest();

  const Context& context_;
  SpanRecorder& spans_;
  const std::string lane_;
  Clock::time_point begin_;
  double seconds_ = 0;
  std::unique_ptr<GpuEvent> origin_;  // on a GPU: a moment known on both sides,
  Clock::time_point origin_time_;
  std::deque<std::unique_ptr<Work>> under_way_;
};

}  // namespace kinora
