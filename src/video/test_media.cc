#include "video/test_media.h"

#include <gtest/gtest.h>
#include <unistd.h>

extern "C" {
#include <libavutil/imgutils.h>
#include <libavutil/pixdesc.h>
}

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <optional>
#include <stdexcept>
#include <utility>

#include "base/files/content_key.h"
#include "video/ffmpeg_handles.h"

namespace kinora {

namespace {

namespace fs = std::filesystem;

std::map<std::string, std::string>& made() {
  static std::map<std::string, std::string> paths;
  return paths;
}

void run(const std::string& command) {
  const int status = std::system(command.c_str());
  if (status != 0) throw std::runtime_error("failed: " + command);
}

class Scratch {
 public:
  Scratch() {
    std::string path = (fs::temp_directory_path() / "kinora-video-test-XXXXXX").string();
    if (mkdtemp(path.data()) == nullptr) throw std::runtime_error("no scratch directory");
    path_ = path;
  }
  ~Scratch() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace

std::string scratch_directory() {
  static const Scratch scratch;
  static int count = 0;
  const fs::path path = fs::path(scratch.path()) / std::to_string(count++);
  fs::create_directory(path);
  return path.string();
}

std::string make_media(const std::string& name, const std::string& arguments) {
  std::string expanded = arguments;
  for (size_t at = expanded.find('{'); at != std::string::npos; at = expanded.find('{', at)) {
    const size_t end = expanded.find('}', at);
    expanded.replace(at, end - at + 1, made().at(expanded.substr(at + 1, end - at - 1)));
  }
  const fs::path folder = fs::temp_directory_path() / "kinora-test-media";
  fs::create_directories(folder);
  const size_t key = std::hash<std::string>()(name + " " + expanded);
  const fs::path path = folder / (std::to_string(key) + "-" + name);
  if (!fs::exists(path)) {
    const fs::path fresh = fs::path(scratch_directory()) / name;
    run("ffmpeg -nostdin -v error -y " + expanded + " '" + fresh.string() + "'");
    const fs::path beside = path.string() + "." + std::to_string(getpid());
    fs::copy_file(fresh, beside);
    fs::rename(beside, path);
  }
  made()[name] = path.string();
  return path.string();
}

bool has_encoder(const std::string& encoder) {
  return avcodec_find_encoder_by_name(encoder.c_str()) != nullptr;
}

void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

std::string read_whole(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

uint64_t hash_frame(const AVFrame& frame) {
  const AVPixelFormat format = static_cast<AVPixelFormat>(frame.format);
  const AVPixFmtDescriptor* pixels = av_pix_fmt_desc_get(format);
  ContentKey hash;
  const std::array<int, 3> shape = {frame.width, frame.height, frame.format};
  hash.add(shape.data(), sizeof shape);
  for (int plane = 0; plane < av_pix_fmt_count_planes(format); ++plane) {
    if (plane == 1 && (pixels->flags & AV_PIX_FMT_FLAG_PAL) != 0) {
      hash.add(frame.data[1], 1024);
      break;
    }
    const bool chroma = plane == 1 || plane == 2;
    const int shift = chroma ? pixels->log2_chroma_h : 0;
    const int rows = -((-frame.height) >> shift);
    const int bytes = av_image_get_linesize(format, frame.width, plane);
    for (int y = 0; y < rows; ++y) {
      hash.add(frame.data[plane] + static_cast<ptrdiff_t>(y) * frame.linesize[plane],
               static_cast<size_t>(bytes));
    }
  }
  return hash.value()[0];
}

void for_each_plain_frame(const std::string& path,
                          const std::function<void(const AVFrame& frame)>& use) {
  AVFormatContext* opened = nullptr;
  if (avformat_open_input(&opened, path.c_str(), nullptr, nullptr) < 0) {
    throw std::runtime_error("cannot open " + path);
  }
  const FormatPtr format(opened);
  if (avformat_find_stream_info(format.get(), nullptr) < 0) throw std::runtime_error(path);
  const int number = av_find_best_stream(format.get(), AVMEDIA_TYPE_VIDEO, -1, -1, nullptr, 0);
  const AVStream& stream = *format->streams[number];
  const AVCodec* decoder = avcodec_find_decoder(stream.codecpar->codec_id);
  const CodecPtr codec(avcodec_alloc_context3(decoder));
  avcodec_parameters_to_context(codec.get(), stream.codecpar);
  codec->thread_count = 1;
  if (avcodec_open2(codec.get(), decoder, nullptr) < 0) throw std::runtime_error(path);

  const PacketPtr packet = make_packet();
  const FramePtr frame = make_frame();
  const auto drain = [&] {
    while (avcodec_receive_frame(codec.get(), frame.get()) == 0) {
      use(*frame);
      av_frame_unref(frame.get());
    }
  };
  while (av_read_frame(format.get(), packet.get()) >= 0) {
    if (packet->stream_index == number) {
      avcodec_send_packet(codec.get(), packet.get());
      drain();
    }
    av_packet_unref(packet.get());
  }
  avcodec_send_packet(codec.get(), nullptr);
  drain();
}

std::vector<PlainFrame> decode_plainly(const std::string& path) {
  std::vector<PlainFrame> frames;
  for_each_plain_frame(path, [&](const AVFrame& frame) {
    frames.push_back({hash_frame(frame), frame.best_effort_timestamp});
  });
  return frames;
}

FrameGroup read_packed(Video& video, std::vector<SampledFrame> samples, ReadOptions options) {
  options.frames_per_group = std::max<int64_t>(1, static_cast<int64_t>(samples.size()));
  options.queue_groups = 1;
  FrameStream stream = video.read(std::move(samples), options);
  std::optional<FrameGroup> group = stream.next();
  if (!group) throw std::runtime_error("no frames were asked for");
  return std::move(*group);
}

std::string small_clip() {
  return make_media("small_clip.mp4",
                    "-f lavfi -i testsrc2=size=128x96:rate=24:duration=5 -c:v libx264 -preset "
                    "veryfast -g 12");
}

}  // namespace kinora
