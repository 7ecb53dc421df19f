// Which tokens of a session are frames: runs of visual tokens that have one time. Memories that
// choose what is read choose by frames, and place what they read as if nothing had been between.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "memory/memory.h"

namespace kinora {

struct Frame {
  int32_t begin = 0;   // tokens [begin, end)
  int32_t end = 0;     // by ordinal
  int32_t run = 0;     // the first token of the unbroken run of visual tokens that it is part of
  int64_t before = 0;  // visual tokens in front of it
  // Positions in time of the first and of the last token: looking at tokens all over a long video
  // takes longer than looking at its frames.
  int32_t first_time = 0;
  int32_t last_time = 0;

  int32_t tokens() const { return end - begin; }
};

class FrameTable {
 public:
  // Forgets all tokens from `first` on, and takes in those that the memory now has in [first, end).
  void update(const Memory& memory, int64_t first, int64_t end);

  std::span<const Frame> frames() const { return frames_; }
  // Those that end at this token or before.
  std::span<const Frame> frames_before(int64_t token) const;
  // Ordinals of tokens that are text, increasing.
  std::span<const int32_t> text() const { return text_; }
  int64_t visual_tokens() const;
  // The first token of the run that a visual token is part of; −1 for text.
  int32_t run_of(int32_t token) const;

 private:
  std::vector<Frame> frames_;
  std::vector<int32_t> text_;
};

// Positions for some tokens, by increasing ordinal, as if the tokens that are left out before
// `next` had never been: they end right before `next`, which stays where it is. Frames keep the
// distance that they have to the frame before them, and where rows and columns of a picture have
// positions of their own, these move with the beginning of their video.
std::vector<Position> near_positions(const Memory& memory, const FrameTable& frames,
                                     std::span<const int32_t> tokens, int32_t next);
// The same for a caller who has looked the tokens up.
std::vector<Position> near_positions(const Memory& memory, const FrameTable& frames,
                                     std::span<const int32_t> tokens,
                                     std::span<const TokenInfo> known, int32_t next);
// What a memory knows of some tokens.
std::vector<TokenInfo> look_up(const ThreadPool& threads, const Memory& memory,
                               std::span<const int32_t> tokens);

}  // namespace kinora
