#include "stage_costs.h"

#include <ctime>
#include <limits>
#include <memory>
#include <vector>

#include "base/tensor.h"
#include "video/convert/convert.h"
#include "video/decode/interval_plan.h"
#include "video/decode/packet_feed.h"
#include "video/decode/picture_decoder.h"
#include "video/index/index.h"

namespace kinora {

namespace {

double cpu_now() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

template <typename Work>
void charge(double& account, const Work& work) {
  const double before = cpu_now();
  work();
  account += cpu_now() - before;
}

class Stages {
 public:
  explicit Stages(const std::string& file) {
    origin_.name = file;
    origin_.url = "file:" + file;
    charge(costs_.index, [&] {
      auto demuxer =
          std::make_unique<Demuxer>(origin_, options_, CancelToken(), CancelToken(), true);
      const double rate = nominal_rate(demuxer->stream());
      if (demuxer->needs_no_parser()) demuxer = open();
      index_ = make_index(*demuxer, rate, options_, [this] { return open(); });
    });
    costs_.all = static_cast<int64_t>(index_.packets.size());
  }

  void read_samples(double every, int size, ResizeFilter filter) {
    const std::vector<SampledFrame> samples =
        sample_frames(FrameChoice::rate(1 / every), index_.times, index_.duration, {});
    const ReadPlan plan = make_plan(index_, samples, 1);
    costs_.samples = static_cast<int64_t>(samples.size());
    StreamFeed feed(index_, [this] { return open(); });
    PictureDecoder decoder(feed.parameters(), 1, index_.reorder_depth, true, options_.limits);
    FrameConverter converter({size, size, filter});
    Tensor pixels(DType::u8, {size, size, 3});
    for (size_t number = 0; number < plan.intervals.size(); ++number) {
      const KeyframeInterval& interval = plan.intervals[number];
      const bool last = number + 1 == plan.intervals.size();
      const int64_t next =
          last ? std::numeric_limits<int64_t>::max() : plan.intervals[number + 1].begin;
      int64_t from = interval.begin;
      double converting = 0;
      const PictureDecoder::Take take = [&](int64_t packet, const AVFrame& frame) {
        if (interval.wants(packet)) {
          charge(converting, [&] { converter.convert(frame, pixels.view()); });
        }
        return true;
      };
      charge(costs_.decode, [&] { decoder.restart(); });
      while (from <= interval.end) {
        std::vector<NumberedPacket> packets;
        charge(costs_.read, [&] { packets = feed.read(interval, from, next, 1 << 20); });
        costs_.needed += static_cast<int64_t>(packets.size());
        charge(costs_.decode, [&] {
          for (NumberedPacket& packet : packets) decoder.send(*packet.packet, packet.number, take);
        });
      }
      charge(costs_.decode, [&] { decoder.finish(take); });
      costs_.decode -= converting;
      costs_.convert += converting;
    }
  }

  void decode_all() {
    const auto demuxer = open();
    PictureDecoder decoder(demuxer->parameters(), 1, index_.reorder_depth, false, options_.limits);
    const PacketPtr packet = make_packet();
    const PictureDecoder::Take take = [](int64_t, const AVFrame&) { return true; };
    for (int64_t i = 0; demuxer->read(*packet); ++i) {
      charge(costs_.decode_all, [&] { decoder.send(*packet, i, take); });
    }
    charge(costs_.decode_all, [&] { decoder.finish(take); });
  }

  const StageCosts& costs() const { return costs_; }

 private:
  std::unique_ptr<Demuxer> open() const {
    return std::make_unique<Demuxer>(origin_, options_, CancelToken(), CancelToken(), false);
  }

  Origin origin_;
  OpenOptions options_;
  VideoIndex index_;
  StageCosts costs_;
};

}  // namespace

StageCosts measure_stages(const std::string& file, double every, int size, ResizeFilter filter) {
  Stages stages(file);
  stages.read_samples(every, size, filter);
  stages.decode_all();
  return stages.costs();
}

}  // namespace kinora
