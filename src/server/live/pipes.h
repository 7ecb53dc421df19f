// Where the bytes of a stream come from when it is not simply opened: a pipe that a client pushes
// into, or that libcurl writes what it fetches into. FFmpeg only ever reads the pipe. Used by
// service_streams.cc.
#pragma once

#include <memory>
#include <string>

#include "server/live/live_stream.h"
#include "server/live/push_feed.h"
#include "server/media/media.h"

namespace kinora::server {

// Sets what the source opens, and what belongs to it.
std::shared_ptr<PushFeed> push_into(StreamSource& source);
void fetch_into(StreamSource& source, const std::shared_ptr<MediaFetcher>& fetcher,
                const std::string& url);

}  // namespace kinora::server
