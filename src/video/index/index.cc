#include "video/index/index.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "video/decode/picture_decoder.h"

namespace kinora {

namespace {

constexpr int64_t progress_step = 4096;             // packets
constexpr int64_t most_expected_packets = 1 << 19;  // a header may promise anything
constexpr int64_t max_settled = 1024;    // packets that are decoded to see what they show
constexpr int64_t settling_margin = 32;  // and more behind, as in full decoding

// Picture order numbers and field parities of H.264 and HEVC, by FFmpeg's parser.
class OrderReader {
 public:
  explicit OrderReader(const AVCodecParameters& parameters) {
    const bool known =
        parameters.codec_id == AV_CODEC_ID_H264 || parameters.codec_id == AV_CODEC_ID_HEVC;
    if (!known) return;
    parser_.reset(av_parser_init(parameters.codec_id));
    codec_ = own<CodecPtr>(avcodec_alloc_context3(nullptr));
    if (!parser_ || avcodec_parameters_to_context(codec_.get(), &parameters) < 0) {
      parser_.reset();
      return;
    }
    parser_->flags |= PARSER_FLAG_COMPLETE_FRAMES;
  }

  bool known() const { return parser_ != nullptr; }

  void read(const AVPacket& packet, PacketFacts& fact) {
    if (!parser_) return;
    uint8_t* out = nullptr;
    int out_size = 0;
    av_parser_parse2(parser_.get(), codec_.get(), &out, &out_size, packet.data, packet.size,
                     packet.pts, packet.dts, packet.pos);
    fact.order = parser_->output_picture_number;
    const AVPictureStructure structure = parser_->picture_structure;
    const bool field = structure == AV_PICTURE_STRUCTURE_TOP_FIELD ||
                       structure == AV_PICTURE_STRUCTURE_BOTTOM_FIELD;
    fact.second_field =
        field && open_field_ != AV_PICTURE_STRUCTURE_UNKNOWN && structure != open_field_;
    open_field_ = field && !fact.second_field ? structure : AV_PICTURE_STRUCTURE_UNKNOWN;
  }

 private:
  ParserPtr parser_;
  CodecPtr codec_;
  AVPictureStructure open_field_ = AV_PICTURE_STRUCTURE_UNKNOWN;
};

// Which of the first packets give a frame when decoding begins with the first.
std::set<int64_t> decode_first(Demuxer& demuxer, int64_t count, const OpenOptions& options) {
  std::set<int64_t> shown;
  PictureDecoder decoder(demuxer.parameters(), 1, 0, false, options.limits);
  const auto take = [&](int64_t number, const AVFrame&) {
    shown.insert(number);
    return true;
  };
  const PacketPtr packet = make_packet();
  for (int64_t i = 0; i < count + settling_margin && demuxer.read(*packet); ++i) {
    options.cancel.check();
    decoder.send(*packet, i, take);
  }
  decoder.finish(take);
  return shown;
}

std::vector<PacketFacts> collect_facts(Demuxer& demuxer, OrderReader* order,
                                       const OpenOptions& options) {
  const auto inspector = make_packet_inspector(demuxer.parameters());
  std::vector<PacketFacts> facts;
  facts.reserve(static_cast<size_t>(
      std::clamp<int64_t>(demuxer.stream().nb_frames, 0, most_expected_packets)));
  const PacketPtr packet = make_packet();
  while (demuxer.read(*packet)) {
    options.cancel.check();
    if (static_cast<int64_t>(facts.size()) >= options.limits.max_packets) {
      throw Error(ErrorKind::resource,
                  fmt::format("more than {} pictures: cut the video or raise the limits{}",
                              options.limits.max_packets, options.limits.how_to_raise));
    }
    PacketFacts fact;
    fact.pts = packet->pts;
    fact.dts = packet->dts;
    fact.duration = packet->duration;
    fact.position = packet->pos;
    fact.size = packet->size;
    fact.discarded = (packet->flags & AV_PKT_FLAG_DISCARD) != 0;
    fact.traits = inspector->inspect(*packet);
    if (order != nullptr) order->read(*packet, fact);
    facts.push_back(fact);
    const int64_t count = static_cast<int64_t>(facts.size());
    if (options.progress != nullptr && count % progress_step == 0) {
      const int64_t expected = std::max<int64_t>(demuxer.stream().nb_frames, 0);
      options.progress->update("index", count, expected);
    }
  }
  return facts;
}

}  // namespace

double nominal_rate(const AVStream& stream) {
  if (stream.avg_frame_rate.num > 0 && stream.avg_frame_rate.den > 0) {
    return av_q2d(stream.avg_frame_rate);
  }
  if (stream.r_frame_rate.num > 0 && stream.r_frame_rate.den > 0) {
    return av_q2d(stream.r_frame_rate);
  }
  return 0;
}

VideoIndex make_index(Demuxer& demuxer, double rate, const OpenOptions& options,
                      const std::function<std::unique_ptr<Demuxer>()>& open_again) {
  const AVStream& stream = demuxer.stream();
  const TimeBase base{stream.time_base.num, stream.time_base.den};
  // Containers with exact times need no order numbers and keep both fields in one packet; should
  // times be missing all the same, a second pass reads the numbers.
  OrderReader order(demuxer.parameters());
  bool numbered = order.known() && !demuxer.self_describing();
  std::vector<PacketFacts> facts = collect_facts(demuxer, numbered ? &order : nullptr, options);
  LoopGuard guard(options.cancel);
  VideoIndex index = build_index(facts, base, rate, numbered, guard);
  if (index.repaired_times && order.known() && !numbered) {
    numbered = true;
    facts = collect_facts(*open_again(), &order, options);
    index = build_index(facts, base, rate, numbered, guard);
  }

  const int64_t uncertain = std::min(uncertain_packets(index), max_settled);
  if (uncertain > 0) {
    const std::set<int64_t> shown = decode_first(*open_again(), uncertain, options);
    for (int64_t i = 0; i < uncertain; ++i) {
      PictureTraits& traits = facts[static_cast<size_t>(i)].traits;
      if (index.packet(i).start < 0 && !shown.contains(i)) traits.shown = false;
      // Without a proper start a decoder's guesses depend on all that it has seen.
      traits.disposable = false;
    }
    index = build_index(facts, base, rate, numbered, guard);
    for (IndexedPacket& one : index.packets) one.start = std::max(one.start, 0);
  }
  index.ended_badly = demuxer.ended_badly();
  if (index.frames() == 0) {
    throw Error(ErrorKind::bad_input, "there is no picture in it that could be shown");
  }
  return index;
}

}  // namespace kinora
