#include "eval/page.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "base/error.h"
#include "draw/data_url.h"
#include "draw/markup.h"
#include "draw/png_file.h"
#include "video/video.h"

namespace kinora {
namespace {

constexpr int64_t frames_shown = 3;
constexpr double longest_side = 160;

FrameSize thumbnail_of(FrameSize source) {
  const double share =
      longest_side / static_cast<double>(std::max<int64_t>({1, source.width, source.height}));
  const auto scaled = [&](int64_t length) {
    return std::max<int64_t>(1, std::llround(std::min(1.0, share) * static_cast<double>(length)));
  };
  return {scaled(source.width), scaled(source.height)};
}

// Where the answer can be seen or, where nobody says, evenly over the part that was asked about.
FrameChoice choice_of(const EvalItem& item, double duration) {
  double start = std::max(0.0, item.frames.start);
  double end = std::min(duration, item.frames.end);
  if (!item.times.empty()) {
    start = std::clamp(item.times.front().start, 0.0, duration);
    end = std::clamp(item.times.front().end, start, duration);
  }
  std::vector<double> times;
  for (int64_t i = 0; i < frames_shown; ++i) {
    const double part = (static_cast<double>(i) + 0.5) / static_cast<double>(frames_shown);
    times.push_back(start + part * (end - start));
  }
  return FrameChoice::at_times(std::move(times));
}

std::vector<std::string> frames_of(const EvalItem& item, const CancelToken& cancel) {
  const auto part = std::find_if(item.parts.begin(), item.parts.end(),
                                 [](const EvalPart& one) { return !one.source.empty(); });
  std::vector<std::string> frames;
  if (part == item.parts.end()) return frames;
  OpenOptions open;
  open.cancel = cancel;
  open.index_cache = default_index_cache();
  const std::unique_ptr<Video> video = open_video(part->source, open);
  ReadOptions read;
  read.cancel = cancel;
  read.target_size = [](FrameSize source, int64_t) { return thumbnail_of(source); };
  const VideoInfo& info = video->info();
  const double last = video->times().empty() ? 0 : video->times().back();
  FrameStream stream =
      video->read(video->sample(info.still ? FrameChoice::all() : choice_of(item, last)), read);
  while (const auto group = stream.next()) {
    for (int64_t i = 0; i < group->frames(); ++i) {
      const ConstTensorView frame = ConstTensorView(group->pixels.view())[i];
      frames.push_back(encode_png(frame.data<uint8_t>(), static_cast<int>(group->width()),
                                  static_cast<int>(group->height()),
                                  static_cast<size_t>(frame.stride(0)), 9));
    }
  }
  return frames;
}

std::string wanted(const EvalItem& item) {
  if (!item.answers.empty()) return fmt::format("{}", fmt::join(item.answers, " / "));
  return fmt::format("{}", fmt::join(item.events, "; "));
}

void add_table(const ReportTable& table, std::string& out) {
  out += "<h2>" + escape_markup(table.title) + "</h2>\n<table><tr>";
  for (const std::string& column : table.columns) out += "<th>" + escape_markup(column) + "</th>";
  out += "</tr>\n";
  for (const auto& row : table.rows) {
    out += "<tr>";
    for (const std::string& cell : row) out += "<td>" + escape_markup(cell) + "</td>";
    out += "</tr>\n";
  }
  out += "</table>\n";
}

void add_mistake(const Mistake& mistake, std::string& out) {
  const EvalItem& item = *mistake.item;
  out += "<article><p class=\"where\">" + escape_markup(item.id);
  if (!item.type.empty()) out += ", " + escape_markup(item.type);
  out += ", " + escape_markup(mistake.policy) + "</p>\n<p>";
  for (const std::string& frame : mistake.frames) {
    out += "<img alt=\"a frame of the video\" src=\"" + png_data_url(frame) + "\">";
  }
  out += "</p>\n<p class=\"question\">" + escape_markup(item.question) + "</p>\n";
  if (!item.options.empty()) {
    out += "<p>" + escape_markup(fmt::format("{}", fmt::join(item.options, " · "))) + "</p>\n";
  }
  out += "<dl><dt>answer</dt><dd class=\"wrong\">" + escape_markup(mistake.answer) +
         "</dd><dt>right</dt><dd>" + escape_markup(wanted(item)) + "</dd>";
  if (mistake.score > 0) out += fmt::format("<dt>score</dt><dd>{:.2f}</dd>", mistake.score);
  out += "</dl></article>\n";
}

}  // namespace

std::vector<Mistake> find_mistakes(const EvalOutcome& outcome, const EvalData& data, size_t most,
                                   int64_t& all) {
  std::map<std::string, size_t> places;
  for (size_t i = 0; i < data.items.size(); ++i) places.emplace(data.items[i].id, i);
  std::vector<Mistake> mistakes;
  for (const EvalRecord& record : outcome.records) {
    const auto place = places.find(record.id);
    if (record.score >= 1 || place == places.end()) continue;
    mistakes.push_back(
        {&data.items[place->second], record.policy, record.answer, record.score, {}});
  }
  std::stable_sort(mistakes.begin(), mistakes.end(),
                   [](const Mistake& a, const Mistake& b) { return a.item->line < b.item->line; });
  all = std::ssize(mistakes);
  if (mistakes.size() > most) mistakes.resize(most);
  return mistakes;
}

void add_frames(std::vector<Mistake>& mistakes, const CancelToken& cancel) {
  std::map<const EvalItem*, std::vector<std::string>> known;
  for (Mistake& mistake : mistakes) {
    const auto [place, fresh] = known.try_emplace(mistake.item);
    if (fresh) {
      try {
        place->second = frames_of(*mistake.item, cancel);
      } catch (const Error& error) {
        if (error.kind() == ErrorKind::cancelled) throw;
      }
    }
    mistake.frames = place->second;
  }
}

std::string as_html(const EvalPage& page) {
  std::string out =
      "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>" +
      escape_markup(page.title) +
      "</title><style>body{font:16px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:60rem;"
      "padding:0 1rem;color:#1c2430}table{border-collapse:collapse;margin:1rem 0;display:block;"
      "overflow-x:auto}"
      "th,td{padding:.3rem .8rem;border-bottom:1px solid #d8dee6;text-align:right}"
      "th:first-child,td:first-child{text-align:left}tr:last-child td{font-weight:600}"
      "article{border-top:1px solid #d8dee6;padding:.5rem 0}article p{margin:.3rem 0}"
      "img{margin-right:.5rem;border-radius:3px}.question{font-weight:600}"
      ".where,footer{color:#5a6676;font-size:.9rem}dl{display:grid;grid-template-columns:5rem 1fr;"
      "margin:.3rem 0}dd{margin:0}.wrong{color:#a62b1f}code{white-space:pre-wrap;"
      "overflow-wrap:anywhere}</style>\n<h1>" +
      escape_markup(page.title) + "</h1>\n";
  for (const ReportTable& table : page.tables) add_table(table, out);
  out +=
      fmt::format("<h2>Wrong answers: {}</h2>\n", std::ssize(page.mistakes) + page.more_mistakes);
  if (page.mistakes.empty()) out += "<p>None.</p>\n";
  for (const Mistake& mistake : page.mistakes) add_mistake(mistake, out);
  if (page.more_mistakes > 0) out += fmt::format("<p>… and {} more.</p>\n", page.more_mistakes);
  out += fmt::format("<h2>Could not be asked: {}</h2>\n", page.problems.size());
  if (page.problems.empty()) {
    out += "<p>Every question was asked.</p>\n";
  } else {
    out += "<ul>";
    for (const std::string& problem : page.problems) {
      out += "<li>" + escape_markup(problem) + "</li>\n";
    }
    out += "</ul>\n";
  }
  return out + "<footer><p>" + escape_markup(page.version) + ", " + escape_markup(page.date) +
         "</p><p><code>" + escape_markup(page.command) + "</code></p></footer></html>\n";
}

}  // namespace kinora
