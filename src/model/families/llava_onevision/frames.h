// Which frames of a video LLaVA-OneVision and LLaVA-Video look at: presentation indices. Used by
// the family's choose_frames.
#pragma once

#include <cstdint>
#include <vector>

namespace kinora {

// LLaVA-OneVision: `count` frames, from the first to the last.
std::vector<int64_t> llava_uniform_frames(int64_t total, int64_t count);
// LLaVA-Video: one frame per second, or `count` evenly spread ones if that would exceed `count`.
std::vector<int64_t> llava_video_frames(int64_t total, double fps, int64_t count);

}  // namespace kinora
