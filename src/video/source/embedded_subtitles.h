// Subtitles inside a video's container, for open_video.cc.
#pragma once

#include <string>
#include <vector>

#include "video/source/demuxer.h"
#include "video/source/subtitles.h"

namespace kinora {

std::vector<SubtitleTrack> list_subtitles(const AVFormatContext& format);

// The track of this language or, if it is empty, the one that a player would show. Throws bad_input
// where there is none and unsupported where it holds pictures.
const SubtitleTrack& choose_subtitles(const std::vector<SubtitleTrack>& tracks,
                                      const std::string& language, const std::string& name);

// Reads a track to its end. `offset` is the container time of the first frame.
std::vector<Subtitle> read_embedded_subtitles(Demuxer& demuxer, const SubtitleTrack& track,
                                              double offset, const std::string& name);

}  // namespace kinora
