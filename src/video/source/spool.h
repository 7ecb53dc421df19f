// Pipes and downloads kept in a temporary file, so that they can be indexed and decoded in parallel
// like any other. The file has no name and is gone with its last user, even after a crash.
#pragma once

#include <string>

#include "video/source/demuxer.h"
#include "video/video.h"

namespace kinora {

// Reads the descriptor to its end. Throws network when the writer is silent for too long and
// resource beyond limits.max_spool_bytes.
Origin spool_pipe(int descriptor, const std::string& name, const OpenOptions& options);

// Downloads a file. A playlist is not kept: its own address comes back.
Origin spool_url(const std::string& url, const OpenOptions& options);

}  // namespace kinora
