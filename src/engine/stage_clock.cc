#include "engine/stage_clock.h"

#include <algorithm>
#include <utility>

namespace kinora {

StageClock::StageClock(const Context& context, SpanRecorder& spans, std::string lane)
    : context_(context), spans_(spans), lane_(std::move(lane)) {
  if (context.device.is_cpu()) return;
  origin_ = std::make_unique<GpuEvent>(context.device, true);
  origin_->record(context);
  origin_->wait();
  origin_time_ = Clock::now();
}

void StageClock::add(std::string name, Clock::time_point begin, Clock::time_point end) {
  seconds_ += std::chrono::duration<double>(end - begin).count();
  spans_.add(lane_, std::move(name), begin, end);
}

void StageClock::begin() {
  if (!origin_) {
    begin_ = Clock::now();
    return;
  }
  under_way_.push_back(std::make_unique<Work>(context_.device));
  under_way_.back()->begin.record(context_);
}

void StageClock::end(std::string name) {
  if (!origin_) return add(std::move(name), begin_, Clock::now());
  under_way_.back()->end.record(context_);
  under_way_.back()->name = std::move(name);
  if (under_way_.size() > 1) take_oldest();
}

void StageClock::finish() {
  while (!under_way_.empty()) take_oldest();
}

void StageClock::take_oldest() {
  const std::unique_ptr<Work> work = std::move(under_way_.front());
  under_way_.pop_front();
  const auto since_origin = [&](const GpuEvent& event) {
    const std::chrono::duration<double> since(event.seconds_since(*origin_));
    return std::chrono::duration_cast<Clock::duration>(since);
  };
  const Clock::duration begin = since_origin(work->begin), end = since_origin(work->end);
  // This thread may have been woken late when it waited for the origin. What has ended by now did
  // not end later.
  origin_time_ = std::min(origin_time_, Clock::now() - end);
  add(std::move(work->name), origin_time_ + begin, origin_time_ + end);
}

}  // namespace kinora
