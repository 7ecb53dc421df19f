// What FFmpeg may open. A video is one file, one pipe or one address; some formats name others
// (playlists, lists of parts), and a hostile one could name any file or host. Whatever FFmpeg wants
// to open beside the source itself it asks for here:
//   a local source gets nothing;
//   a remote one gets http and https on its own host, or anywhere if that was allowed;
//   nothing remote ever opens a local file.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "video/ffmpeg_handles.h"

namespace kinora {

// The host of an address, in lower case, without user and port; empty where there is none.
std::string host_of(std::string_view url);

class Fence {
 public:
  // `url` is the remote source's address; empty for a local one.
  Fence(std::string url, bool other_hosts);

  // Before the format is opened. The fence must outlive it.
  void guard(AVFormatContext& format);
  // Settings for opening it: protocols that reach only the network.
  static const char* protocols();

  // Whether the source may lead to this address.
  bool permits(std::string_view url) const;
  // The last address that was refused; empty if none was.
  const std::string& refused() const { return refused_; }

 private:
  static int open(AVFormatContext* format, AVIOContext** input, const char* url, int flags,
                  AVDictionary** settings);

  std::string url_;
  bool other_hosts_;
  std::vector<std::string> hosts_;  // the source's, and where it was redirected to
  std::string refused_;
};

}  // namespace kinora
