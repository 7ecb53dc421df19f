#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "video/decode/frame_stream.h"
#include "video/decode/interval_worker.h"

namespace kinora {

namespace {

// Enough groups for every worker to be busy with an interval of its own and one behind it, within
// the memory that frames may take.
int64_t choose_window(const ParallelRead& read, const ReadPlan& plan) {
  const int64_t group = read.options.frames_per_group;
  const int64_t wanted = read.options.queue_groups > 0
                             ? read.options.queue_groups
                             : std::max<int64_t>(4, samples_under_way(plan) / group + 2);
  return choose_group_room(group, wanted, read.size, read.limits).groups;
}

ParallelRead with_room(ParallelRead read) {
  int64_t& group = read.options.frames_per_group;
  group = choose_group_room(group, 2, read.size, read.limits).frames;
  return read;
}

class ParallelJob final : public FrameStream::Job {
 public:
  explicit ParallelJob(ParallelRead read)
      : read_(with_room(std::move(read))),
        plan_(make_plan(*read_.index, read_.samples, choose_threads(read_.options),
                        read_.options.frames_per_group)),
        queue_(read_.samples, read_.size, read_.options.frames_per_group,
               choose_window(read_, plan_)),
        shared_{*read_.index, plan_, read_.limits, read_.stills, read_.options,
                queue_,       {},    {},           {},           plan_.packets} {
    shared_.source.emplace(plan_, read_.open_feed(shared_.stop));
    report_.intervals = static_cast<int64_t>(plan_.intervals.size());
    report_.workers = plan_.workers;
    try {
      for (int i = 0; i < plan_.workers; ++i) workers_.emplace_back([this, i] { work(i); });
    } catch (const std::system_error&) {
      stop();
      throw Error(ErrorKind::resource,
                  fmt::format("{} threads cannot be started: ask for fewer", plan_.workers));
    }
  }

  ~ParallelJob() override { stop(); }

  std::optional<FrameGroup> next() override {
    std::optional<FrameGroup> group = queue_.next(read_.options.cancel);
    if (group) {
      delivered_ += group->frames();
      return group;
    }
    join();
    if (delivered_ == 0 && queue_.samples() > 0) {
      throw Error(ErrorKind::bad_input,
                  fmt::format("none of the {} sampled frames could be decoded: the video is "
                              "damaged",
                              queue_.samples()));
    }
    return group;
  }

  FrameSize size() const override { return read_.size; }

  ReadReport report() const override {
    const std::lock_guard lock(report_mutex_);
    ReadReport report = report_;
    report.delivered = delivered_;
    // FFmpeg's own threads cost as much for a picture as a worker alone does.
    const int64_t alone = report.decoded_packets - threaded_packets_;
    const double each = (report.decode_cpu_seconds - report.convert_seconds) /
                        static_cast<double>(std::max<int64_t>(alone, 1));
    report.decode_cpu_seconds +=
        alone > 0 ? std::min(threaded_seconds_, each * static_cast<double>(threaded_packets_))
                  : threaded_seconds_;
    report.damaged = join_spans(report.damaged);
    return report;
  }

 private:
  void stop() {
    shared_.stop.cancel();
    queue_.stop();
    join();
  }

  void join() {
    for (std::thread& worker : workers_) {
      if (worker.joinable()) worker.join();
    }
  }

  void work(int number) {
    const double cpu_before = thread_cpu_seconds();
    IntervalWorker::Tally tally;
    try {
      IntervalWorker worker(shared_, read_.make_convert(), number);
      while (worker.decode_next()) {
      }
      tally = worker.tally();
    } catch (...) {
      queue_.fail(std::current_exception());
      shared_.stop.cancel();
    }
    const std::lock_guard source_lock(shared_.source_mutex);
    const std::lock_guard lock(report_mutex_);
    report_.seeks = shared_.source->seeks();
    report_.decoded_packets += tally.decoded;
    report_.lost += tally.lost;
    threaded_packets_ += tally.threaded_packets;
    threaded_seconds_ += tally.threaded_seconds;
    report_.convert_seconds += tally.convert_seconds;
    report_.decode_cpu_seconds += thread_cpu_seconds() - cpu_before;
    report_.damaged.insert(report_.damaged.end(), tally.damaged.begin(), tally.damaged.end());
    const int64_t all = static_cast<int64_t>(read_.index->packets.size());
    report_.skipped_packets = std::max<int64_t>(0, all - report_.decoded_packets);
  }

  ParallelRead read_;
  ReadPlan plan_;
  FrameQueue queue_;
  SharedWork shared_;
  int64_t delivered_ = 0;  // the consumer's
  mutable std::mutex report_mutex_;
  ReadReport report_;
  int64_t threaded_packets_ = 0;
  double threaded_seconds_ = 0;
  std::vector<std::thread> workers_;
};

}  // namespace

std::unique_ptr<FrameStream::Job> start_parallel_read(ParallelRead read) {
  return std::make_unique<ParallelJob>(std::move(read));
}

}  // namespace kinora
