// Who worked when: bars on lanes along one axis of time. What `--timeline` draws.
#pragma once

#include <string>
#include <vector>

#include "draw/canvas.h"

namespace kinora {

struct TimelineBar {
  std::string lane;   // lanes stand in the order of their first bar
  std::string label;  // shown by a browser when the pointer rests on the bar
  double begin = 0;   // seconds
  double end = 0;
};

// Lanes whose names begin with the same word share a colour.
Chart timeline_chart(std::vector<TimelineBar> bars, std::string title, int width = 1200);

// By the ending of the path: .png or .svg; a usage error for any other.
void write_timeline(const std::string& path, const std::vector<TimelineBar>& bars,
                    const std::string& title);
// Only the check: throws the usage error before any work is done.
void check_timeline_path(const std::string& path);

}  // namespace kinora
