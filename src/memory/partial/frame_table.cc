#include "memory/partial/frame_table.h"

#include <algorithm>
#include <cmath>

#include "base/threads.h"

namespace kinora {
namespace {

bool same_time(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

}  // namespace

void FrameTable::update(const Memory& memory, int64_t first, int64_t end) {
  while (!frames_.empty() && frames_.back().end > first) {
    Frame& last = frames_.back();
    last.end = static_cast<int32_t>(std::min<int64_t>(last.end, first));
    if (last.end <= last.begin) {
      frames_.pop_back();
    } else {
      last.last_time = memory.token(last.end - 1).position[0];
      break;
    }
  }
  while (!text_.empty() && text_.back() >= first) text_.pop_back();
  for (int64_t i = first; i < end; ++i) {
    const TokenInfo& token = memory.token(i);
    const auto ordinal = static_cast<int32_t>(i);
    if (token.modality == Modality::text) {
      text_.push_back(ordinal);
      continue;
    }
    const bool follows = !frames_.empty() && frames_.back().end == ordinal;
    if (follows && same_time(memory.token(i - 1).time, token.time)) {
      ++frames_.back().end;
      frames_.back().last_time = token.position[0];
    } else {
      const int32_t run = follows ? frames_.back().run : ordinal, time = token.position[0];
      frames_.push_back({ordinal, ordinal + 1, run, visual_tokens(), time, time});
    }
  }
}

int64_t FrameTable::visual_tokens() const {
  return frames_.empty() ? 0 : frames_.back().before + frames_.back().tokens();
}

std::span<const Frame> FrameTable::frames_before(int64_t token) const {
  const auto past = std::partition_point(frames_.begin(), frames_.end(),
                                         [&](const Frame& frame) { return frame.end <= token; });
  return std::span(frames_).first(static_cast<size_t>(past - frames_.begin()));
}

int32_t FrameTable::run_of(int32_t token) const {
  const auto past = std::partition_point(frames_.begin(), frames_.end(),
                                         [&](const Frame& frame) { return frame.begin <= token; });
  if (past == frames_.begin() || (past - 1)->end <= token) return -1;
  return (past - 1)->run;
}

std::vector<TokenInfo> look_up(const ThreadPool& threads, const Memory& memory,
                               std::span<const int32_t> tokens) {
  std::vector<TokenInfo> known(tokens.size());
  threads.parallel_for(std::ssize(tokens), 1024, [&](int64_t begin, int64_t end) {
    // Tokens of a long video lie far apart: all are on their way before the first is needed.
    const auto first = static_cast<size_t>(begin), past = static_cast<size_t>(end);
    for (size_t i = first; i < past; ++i) __builtin_prefetch(&memory.token(tokens[i]));
    for (size_t i = first; i < past; ++i) known[i] = memory.token(tokens[i]);
  });
  return known;
}

std::vector<Position> near_positions(const Memory& memory, const FrameTable& frames,
                                     std::span<const int32_t> tokens, int32_t next) {
  std::vector<TokenInfo> known;
  known.reserve(tokens.size());
  for (const int32_t token : tokens) known.push_back(memory.token(token));
  return near_positions(memory, frames, tokens, known, next);
}

namespace {

// The first of the frames that ends behind a token, of which it is known that frames [at, …) do.
// Frames of a video are alike, so that a look at two of them tells where it is: a search would go
// through the frames of hours.
size_t first_behind(std::span<const Frame> frames, size_t at, int32_t token) {
  const auto behind = [&](size_t frame) { return frames[frame].end > token; };
  if (at == 0 || !behind(at - 1)) return at;
  --at;
  if (at == 0 || !behind(at - 1)) return at;
  const int32_t step = frames[at].begin - frames[at - 1].begin;
  const auto back = static_cast<size_t>((frames[at].end - 1 - token) / step);
  const size_t guess = at - std::min(at, back);
  if (behind(guess) && (guess == 0 || !behind(guess - 1))) return guess;
  const auto first = frames.begin(), last = first + static_cast<int64_t>(at);
  return static_cast<size_t>(
      std::partition_point(first, last, [&](const Frame& any) { return any.end <= token; }) -
      first);
}

}  // namespace

std::vector<Position> near_positions(const Memory& memory, const FrameTable& frames,
                                     std::span<const int32_t> tokens,
                                     std::span<const TokenInfo> known, int32_t next) {
  const auto time_of = [&](int32_t token) { return memory.token(token).position[0]; };
  std::vector<Position> placed(tokens.size());
  const int32_t readers_run = frames.run_of(next);
  int32_t run = readers_run;
  size_t run_end = tokens.size();  // tokens [i + 1, run_end) are the run under way
  int32_t after = next;            // what was placed last …
  int32_t after_time = run >= 0 ? time_of(next) : 0;  // … its time, where it is of a run …
  int32_t shift = 0;                                  // … and how far it moved
  // The first frame that is left of a run stands where the run began.
  const auto leave_run = [&](size_t first) {
    shift += after_time - time_of(run);
    after = run;
    const int32_t moved = run == readers_run ? 0 : shift;
    for (size_t i = first; i < run_end; ++i) {
      const Position& old = known[i].position;
      placed[i][1] = old[1] + moved;
      placed[i][2] = old[2] + moved;
    }
  };
  const auto all = frames.frames();
  auto at = static_cast<size_t>(
      std::partition_point(all.begin(), all.end(),
                           [&](const Frame& frame) { return frame.begin < next; }) -
      all.begin());                    // frames [at, …) end behind the token
  const Frame* placed_last = nullptr;  // the frame of what was placed last …
  bool one_time = false;               // … which stands at one time from its beginning to there
  for (size_t i = tokens.size(); i-- > 0;) {
    const int32_t token = tokens[i], time = known[i].position[0];
    at = first_behind(all, at, token);
    const bool visual = at < all.size() && all[at].begin <= token;
    const int32_t its_run = visual ? all[at].run : -1;
    if (its_run >= 0 && its_run == run) {
      // Tokens of a frame that has one time stay together.
      if (placed_last != &all[at] || !one_time) {
        int32_t earlier = after;  // the last token of the frame in front of what was placed last …
        int32_t its_time = after_time;
        if (placed_last != nullptr && one_time) {
          earlier = placed_last->begin - 1;
          its_time = placed_last[-1].last_time;
        }
        // … or of an earlier one, where several stand at one time.
        while (earlier > token && its_time == after_time) its_time = time_of(--earlier);
        shift += its_time - time;
      }
    } else {
      if (run >= 0) leave_run(i + 1);
      shift += time_of(after - 1) - time;
      run = its_run;
      run_end = i + 1;
    }
    after = token;
    after_time = time;
    const Frame* frame = visual ? &all[at] : nullptr;
    if (frame != nullptr && (frame != placed_last || !one_time)) {
      one_time = frame->first_time == time;
    }
    placed_last = frame;
    const Position& old = known[i].position;
    placed[i] = {old[0] + shift, old[1] + shift, old[2] + shift};
  }
  if (run >= 0) leave_run(0);
  return placed;
}

}  // namespace kinora
