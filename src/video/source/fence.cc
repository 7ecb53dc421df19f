#include "video/source/fence.h"

extern "C" {
#include <libavutil/opt.h>
}

#include <algorithm>
#include <cctype>
#include <utility>

namespace kinora {

namespace {

bool take_prefix(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

// Where an open address led in the end; empty where that is not known.
std::string redirected_to(AVIOContext* input) {
  uint8_t* found = nullptr;
  if (av_opt_get(input, "location", AV_OPT_SEARCH_CHILDREN, &found) < 0 || found == nullptr) {
    return "";
  }
  std::string place(reinterpret_cast<const char*>(found));
  av_free(found);
  return place;
}

}  // namespace

std::string host_of(std::string_view url) {
  const size_t begin = url.find("://");
  if (begin == std::string_view::npos) return "";
  std::string_view rest = url.substr(begin + 3);
  rest = rest.substr(0, rest.find_first_of("/?#\\"));
  if (const size_t user = rest.rfind('@'); user != std::string_view::npos) {
    rest.remove_prefix(user + 1);
  }
  const size_t end = rest.starts_with('[') ? rest.find(']') + 1 : rest.find(':');
  std::string host(rest.substr(0, end));
  std::transform(host.begin(), host.end(), host.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return host;
}

Fence::Fence(std::string url, bool other_hosts)
    : url_(std::move(url)), other_hosts_(other_hosts), hosts_{host_of(url_)} {}

void Fence::guard(AVFormatContext& format) {
  format.opaque = this;
  format.io_open = &open;
}

const char* Fence::protocols() {
  return "http,https,httpproxy,tls,tcp,udp,rtp,srtp,rtsp,rtmp,rtmps,rtmpt,srt,ftp,crypto,data";
}

bool Fence::permits(std::string_view url) const {
  if (url_.empty()) return false;
  if (url == url_) return true;
  if (!take_prefix(url, "crypto+")) take_prefix(url, "crypto:");  // encrypted parts of a playlist
  if (url.starts_with("data:")) return true;
  if (!url.starts_with("http://") && !url.starts_with("https://")) return false;
  const std::string host = host_of(url);
  if (host.empty()) return false;
  return other_hosts_ || std::find(hosts_.begin(), hosts_.end(), host) != hosts_.end();
}

int Fence::open(AVFormatContext* format, AVIOContext** input, const char* url, int flags,
                AVDictionary** settings) {
  auto& fence = *static_cast<Fence*>(format->opaque);
  if ((flags & AVIO_FLAG_WRITE) != 0 || !fence.permits(url)) {
    fence.refused_ = url;
    return AVERROR(EPERM);
  }
  AVDictionary* own = nullptr;
  AVDictionary** given = settings != nullptr ? settings : &own;
  av_dict_set(given, "protocol_whitelist", protocols(), 0);
  const int opened = avio_open2(input, url, flags, &format->interrupt_callback, given);
  av_dict_free(&own);
  if (opened < 0) return opened;
  const std::string place = redirected_to(*input);
  if (url == fence.url_) {
    if (const std::string host = host_of(place); !host.empty()) fence.hosts_.push_back(host);
  } else if (!place.empty() && !fence.permits(place)) {
    // FFmpeg follows redirections by itself; what it was led to is not looked at.
    avio_closep(input);
    fence.refused_ = place;
    return AVERROR(EPERM);
  }
  return opened;
}

}  // namespace kinora
