#include "engine/stage_clock.h"

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
  const auto moment = [&](const GpuEvent& event) {
    const std::chrono::duration<double> since(event.seconds_since(*origin_));
    return origin_time_ + std::chrono::duration_cast<Clock::duration>(since);
  };
  const auto end = moment(work->end);
  add(std::move(work->name), moment(work->begin), end);
}

}  // namespace kinora
