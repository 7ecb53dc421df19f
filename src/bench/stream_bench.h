// A stream of frames into a memory, and questions about it, with a model of random weights: how
// fast frames are taken in, how soon an answer begins, and where rows are meanwhile. Used by
// cli/commands/bench_stream.cc.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/context.h"
#include "memory/memory.h"
#include "model/model.h"

namespace kinora::cli {

struct StreamSettings {
  int64_t frames = 1800;  // of the stream
  double fps = 0.5;
  int64_t side = 448;             // pixels
  int64_t frames_per_group = 16;  // taken in together
  int64_t question_tokens = 32;
  int64_t answer_tokens = 16;
  int64_t questions = 5;  // at each moment
  int64_t moments = 4;    // at which questions are asked: the last at the end, each at twice the
                          // frames of the one before
  std::string file;       // the memory is saved here in the end and opened again; empty: not
};

// What a saved memory costs and saves. Every time the file is read from the disk anew.
struct ReopenedFigure {
  int64_t bytes = 0;
  double save_seconds = 0;
  std::vector<double> open_seconds;
  std::vector<double> first_token;  // from opening on
  int64_t read_bytes = 0;           // of rows, by the last question
  bool same = true;                 // the answers began as those of the memory that was saved
};

// Questions after some frames.
struct StreamMoment {
  int64_t frames = 0;
  int64_t rows = 0;                 // of a layer
  std::vector<double> first_token;  // seconds, nothing else going on
  double token_seconds = 0;         // of the answer's later tokens, on average
  MemoryBytes bytes;
  FetchCounts fetched;  // of all questions
};

struct StreamFigure {
  std::string memory;
  double vision_seconds = 0;
  double prefill_seconds = 0;
  std::vector<StreamMoment> moments;
  // While an answer is given: a group of frames and a few tokens in turns.
  double busy_frames_per_second = 0;
  // Of a question that comes when a group has just begun, so that it waits for all of it.
  std::vector<double> busy_first_token;
  ReopenedFigure reopened;

  double frames_per_second(const StreamSettings& settings) const {
    return static_cast<double>(settings.frames) / (vision_seconds + prefill_seconds);
  }
};

// Scenes of a few to some hundred frames, each a still texture with something that moves and light
// that flickers; some come back later. Pixels follow from the seed and the frame.
Tensor stream_pixels(int64_t first, int64_t count, int64_t side, double fps);

StreamFigure bench_stream(const Context& context, const Model& model, const std::string& memory,
                          const StreamSettings& settings);

// Bytes per second at which a GPU collects runs of `run` rows from the host's memory.
double gather_bandwidth(const Context& context, const RowLayout& layout, int64_t rows, int64_t run);

}  // namespace kinora::cli
