#include "video/decode/interval_worker.h"

#include <algorithm>
#include <ctime>
#include <numeric>
#include <utility>

namespace kinora {

double thread_cpu_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

IntervalWorker::IntervalWorker(SharedWork& shared, ConvertFrame convert, int number)
    : shared_(shared),
      convert_(std::move(convert)),
      walk_(shared.index),
      ahead_(shared.index),
      number_(number) {}

bool IntervalWorker::decode_next() {
  std::unique_lock source_lock(shared_.source_mutex);
  if (shared_.stopped()) return false;
  working_since_ = std::chrono::steady_clock::now();
  std::optional<IntervalSource::Work> work = shared_.source->take(shared_.queue.samples_open());
  if (!work) return false;
  begin(work->number, *work->parameters);
  const auto began = std::chrono::steady_clock::now();
  while (true) {
    const bool complete = work->from > interval_->end;
    if (complete && source_lock.owns_lock()) source_lock.unlock();
    if (decode(work->packets) == PictureDecoder::Result::enough) break;
    if (complete) {
      decoder_->finish(
          [this](int64_t packet, const AVFrame& frame) { return take(packet, frame); });
      break;
    }
    shared_.source->read_on(*work);
  }
  if (source_lock.owns_lock()) source_lock.unlock();
  end();
  const auto ended = std::chrono::steady_clock::now();
  if (threads_ > 1) {
    tally_.threaded_packets += packets_;
    tally_.threaded_seconds += threads_ * std::chrono::duration<double>(ended - began).count();
  }
  note_span(ended);
  return !shared_.stopped();
}

void IntervalWorker::wait_for_turn() {
  if (!shared_.options.before_packet) return;
  const auto asked = std::chrono::steady_clock::now();
  shared_.options.before_packet(number_);
  const auto allowed = std::chrono::steady_clock::now();
  if (allowed - asked < std::chrono::milliseconds(1)) return;
  note_span(asked);
  working_since_ = allowed;
}

void IntervalWorker::note_span(std::chrono::steady_clock::time_point end) {
  if (!shared_.options.on_span || interval_->targets.empty()) return;
  const double from = time_of(walk_, interval_->targets.front().packet);
  const double to = end_of_frame(shared_.index.packet(interval_->targets.back().packet).frame);
  shared_.options.on_span({number_, from, to, working_since_, end});
}

void IntervalWorker::begin(size_t number, const AVCodecParameters& parameters) {
  const KeyframeInterval& interval = shared_.plan.intervals[number];
  const int threads = threads_for(shared_.plan, number, shared_.packets_left);
  interval_ = &interval;
  packets_ = 0;
  done_.assign(interval.targets.size(), false);
  open_ = interval.targets.size();
  by_sample_.resize(open_);
  std::iota(by_sample_.begin(), by_sample_.end(), 0u);
  std::sort(by_sample_.begin(), by_sample_.end(), [&](uint32_t a, uint32_t b) {
    return interval.targets[a].first < interval.targets[b].first;
  });
  given_ = 0;
  if (decoder_ && parameters_ == &parameters && threads_ == threads) {
    decoder_->restart();
    return;
  }
  decoder_.reset();
  decoder_ = std::make_unique<PictureDecoder>(parameters, threads, shared_.index.reorder_depth,
                                              true, shared_.limits, shared_.stills);
  parameters_ = &parameters;
  threads_ = threads;
}

PictureDecoder::Result IntervalWorker::decode(std::vector<NumberedPacket>& packets) {
  for (NumberedPacket& packet : packets) {
    wait_for_turn();
    if (shared_.stopped()) return PictureDecoder::Result::enough;
    ++tally_.decoded;
    ++packets_;
    --shared_.packets_left;
    const PictureDecoder::Result result = decoder_->send(
        *packet.packet, packet.number,
        [this](int64_t number, const AVFrame& frame) { return take(number, frame); });
    packet.packet.reset();
    if (result == PictureDecoder::Result::broken) note_broken(packet.number);
    if (result == PictureDecoder::Result::enough) return result;
  }
  return PictureDecoder::Result::more;
}

bool IntervalWorker::take(int64_t number, const AVFrame& frame) {
  const std::vector<Target>& targets = interval_->targets;
  const auto place =
      std::lower_bound(targets.begin(), targets.end(), number,
                       [](const Target& target, int64_t wanted) { return target.packet < wanted; });
  if (place == targets.end() || place->packet != number) return true;
  const size_t target = static_cast<size_t>(place - targets.begin());
  if (done_[target]) return true;
  if (decoder_->is_damaged(frame)) {
    const int64_t rank = shared_.index.packet(number).frame;
    tally_.damaged.push_back({time_of(walk_, number), end_of_frame(rank), 0});
  }
  if (shared_.queue.beyond_window(place->first)) lose_before(target);
  done_[target] = true;
  --open_;
  return deliver(*place, frame) && open_ > 0;
}

bool IntervalWorker::deliver(const Target& target, const AVFrame& frame) {
  // A frame that is sampled several times is converted as often: its places may lie in groups of
  // which only one is inside the window.
  for (int64_t i = 0; i < target.count; ++i) {
    const bool waits = shared_.queue.beyond_window(target.first + i);
    if (waits) note_span(std::chrono::steady_clock::now());
    const std::optional<TensorView> room = shared_.queue.reserve(target.first + i);
    if (waits) working_since_ = std::chrono::steady_clock::now();
    if (!room) return false;
    const double before = thread_cpu_seconds();
    try {
      convert_(frame, *room);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::bad_input) throw;
      note_lost({target.packet, target.first + i, target.count - i});
      return true;
    }
    tally_.convert_seconds += thread_cpu_seconds() - before;
    shared_.queue.commit(target.first + i);
  }
  Progress* progress = shared_.options.progress;
  if (progress != nullptr) {
    progress->update("decode", shared_.queue.finished(), shared_.queue.samples());
  }
  return true;
}

void IntervalWorker::lose_before(size_t target) {
  const int64_t sample = interval_->targets[target].first;
  for (; given_ < by_sample_.size(); ++given_) {
    const size_t i = by_sample_[given_];
    if (interval_->targets[i].first >= sample) return;
    if (done_[i]) continue;
    done_[i] = true;
    --open_;
    note_lost(interval_->targets[i]);
  }
}

void IntervalWorker::end() {
  shared_.packets_left -= interval_->packets - packets_;
  if (shared_.stopped()) return;
  for (size_t i = 0; i < done_.size(); ++i) {
    if (!done_[i]) note_lost(interval_->targets[i]);
  }
}

void IntervalWorker::note_lost(const Target& target) {
  tally_.lost += target.count;
  const int64_t rank = shared_.index.packet(target.packet).frame;
  tally_.damaged.push_back({time_of(walk_, target.packet), end_of_frame(rank), target.count});
  for (int64_t i = 0; i < target.count; ++i) shared_.queue.lose(target.first + i);
}

void IntervalWorker::note_broken(int64_t packet) {
  const VideoIndex& index = shared_.index;
  const int64_t next = walk_.next_key(packet);
  const double from = time_of(walk_, packet);
  const bool last = next == static_cast<int64_t>(index.packets.size());
  const double to = last ? index.duration : time_of(ahead_, next);
  tally_.damaged.push_back({from, std::max(to, from), 0});
}

double IntervalWorker::time_of(IndexWalk& walk, int64_t packet) const {
  const int64_t frame = std::max(shared_.index.packet(walk.last_shown(packet)).frame, 0);
  return shared_.index.times[static_cast<size_t>(frame)];
}

double IntervalWorker::end_of_frame(int64_t frame) const {
  const size_t next = static_cast<size_t>(std::max<int64_t>(frame, 0)) + 1;
  return next < shared_.index.times.size() ? shared_.index.times[next] : shared_.index.duration;
}

}  // namespace kinora
