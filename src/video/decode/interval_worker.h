// Decodes one interval after another and puts its sampled frames into the queue. The work of one
// thread; parallel_read.cc starts several over one source and one queue.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "video/decode/frame_queue.h"
#include "video/decode/frame_stream.h"
#include "video/decode/index_walk.h"
#include "video/decode/interval_plan.h"
#include "video/decode/interval_source.h"
#include "video/decode/picture_decoder.h"

namespace kinora {

// What the workers of one read share.
struct SharedWork {
  const VideoIndex& index;
  const ReadPlan& plan;
  const VideoLimits& limits;
  bool stills;  // every packet is a picture of its own
  const ReadOptions& options;
  FrameQueue& queue;
  CancelToken stop;

  std::mutex source_mutex;  // guards the next
  std::optional<IntervalSource> source;

  std::atomic<int64_t> packets_left = 0;  // to be decoded by anyone

  bool stopped() const { return stop.cancelled() || options.cancel.cancelled() || queue.stopped(); }
};

// CPU time of the calling thread.
double thread_cpu_seconds();

class IntervalWorker {
 public:
  IntervalWorker(SharedWork& shared, ConvertFrame convert, int number = 0);

  // Takes the next interval; false when there is none left or the work was stopped.
  bool decode_next();

  struct Tally {
    int64_t decoded = 0;
    int64_t lost = 0;
    double convert_seconds = 0;
    // For intervals that FFmpeg decodes on its own threads, whose CPU time it does not report.
    int64_t threaded_packets = 0;
    double threaded_seconds = 0;  // all that those threads can have used
    std::vector<DamagedSpan> damaged;
  };
  const Tally& tally() const { return tally_; }

 private:
  void begin(size_t number, const AVCodecParameters& parameters);
  PictureDecoder::Result decode(std::vector<NumberedPacket>& packets);
  bool take(int64_t number, const AVFrame& frame);
  // False when the queue was stopped.
  bool deliver(const Target& target, const AVFrame& frame);
  // Gives up the targets below this one that have not come.
  void lose_before(size_t target);
  void end();
  void note_broken(int64_t packet);
  void note_lost(const Target& target);
  void wait_for_turn();
  // Reports the work from `working_since_` to `end`.
  void note_span(std::chrono::steady_clock::time_point end);
  double time_of(IndexWalk& walk, int64_t packet) const;
  double end_of_frame(int64_t frame) const;

  SharedWork& shared_;
  ConvertFrame convert_;
  std::unique_ptr<PictureDecoder> decoder_;
  const AVCodecParameters* parameters_ = nullptr;
  int threads_ = 1;  // of the decoder
  const KeyframeInterval* interval_ = nullptr;
  std::vector<bool> done_;  // per target
  // Targets in the order of their samples; those before `given_` are done.
  std::vector<uint32_t> by_sample_;
  size_t given_ = 0;
  IndexWalk walk_;       // from the packet at hand
  IndexWalk ahead_;      // from the keyframe behind it
  size_t open_ = 0;      // targets not done
  int64_t packets_ = 0;  // of the interval, given to the decoder
  Tally tally_;
  const int number_;  // of this worker
  std::chrono::steady_clock::time_point working_since_;
};

}  // namespace kinora
