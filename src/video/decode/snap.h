// Samples moved to frames that cost less to decode: a keyframe near by, else a frame soon after
// one. Used where a choice of frames allows it (FrameChoice::snap).
#pragma once

#include <vector>

#include "video/index/index.h"
#include "video/sampling.h"

namespace kinora {

// Each sample takes the frame within `choice.snap` seconds of its own, and within the part of the
// video that was chosen, for which the fewest further pictures must be decoded; of equal ones the
// nearest, and of two equally near the earlier. No two samples take one frame, unless they wanted
// the same: none goes as far as the frame that the next one wants, nor back to what the one before
// took.
std::vector<SampledFrame> snap_samples(const VideoIndex& index, const FrameChoice& choice,
                                       std::vector<SampledFrame> samples);

}  // namespace kinora
