#include "cli/trace_file.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "draw/timeline.h"

namespace kinora::cli {
namespace {

void check_directory(const std::string& path) {
  const std::string parent = std::filesystem::path(path).parent_path().string();
  if (path.empty() || parent.empty() || real_files().is_directory(parent)) return;
  throw Error(ErrorKind::not_found, "cannot write " + path + ": there is no directory " + parent);
}

std::string stage_of(const Span& span) { return span.name.substr(0, span.name.find(' ')); }

// Lanes in the order of the road, whatever finished first.
int rank(const Span& span) {
  const std::string stages[] = {"decode", "vision", "prefill", "generate"};
  return static_cast<int>(std::find(stages, std::end(stages), stage_of(span)) - stages);
}

std::vector<Span> in_order(std::vector<Span> spans) {
  std::stable_sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) {
    return std::tuple(rank(a), a.lane.size(), a.lane, a.begin) <
           std::tuple(rank(b), b.lane.size(), b.lane, b.begin);
  });
  return spans;
}

}  // namespace

TraceFile::TraceFile(std::string trace, std::string timeline)
    : trace_(std::move(trace)), timeline_(std::move(timeline)) {
  if (!timeline_.empty()) check_timeline_path(timeline_);
  check_directory(trace_);
  check_directory(timeline_);
}

void TraceFile::add(const std::vector<Span>& spans, double offset) {
  for (Span span : spans) {
    span.begin += offset;
    span.end += offset;
    spans_.push_back(std::move(span));
  }
}

void TraceFile::write(const std::string& title) const {
  if (!trace_.empty()) real_files().write(trace_, trace_json(spans_));
  if (timeline_.empty()) return;
  std::vector<TimelineBar> bars;
  for (const Span& span : in_order(spans_)) {
    bars.push_back({span.lane, span.name, span.begin, span.end});
  }
  write_timeline(timeline_, bars, title);
}

std::string trace_json(const std::vector<Span>& spans) {
  nlohmann::json events = nlohmann::json::array();
  std::map<std::string, int> lanes;
  events.push_back(
      {{"ph", "M"}, {"pid", 1}, {"name", "process_name"}, {"args", {{"name", "kinora"}}}});
  for (const Span& span : in_order(spans)) {
    const int lane = static_cast<int>(lanes.size()) + 1;
    const auto [known, is_new] = lanes.emplace(span.lane, lane);
    if (is_new) {
      events.push_back({{"ph", "M"},
                        {"pid", 1},
                        {"tid", lane},
                        {"name", "thread_name"},
                        {"args", {{"name", span.lane}}}});
    }
    events.push_back({{"ph", "X"},
                      {"pid", 1},
                      {"tid", known->second},
                      {"cat", stage_of(span)},
                      {"name", span.name},
                      {"ts", span.begin * 1e6},
                      {"dur", (span.end - span.begin) * 1e6}});
  }
  return nlohmann::json{{"traceEvents", events}, {"displayTimeUnit", "ms"}}.dump(1) + "\n";
}

}  // namespace kinora::cli
