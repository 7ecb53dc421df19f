// Whole questions about a video with a model of random weights: how well decoding on the CPU hides
// behind computing on a GPU, against the bound no overlap can beat. Used by cli/commands/bench.cc.
#pragma once

#include <kinora/engine.h>
#include <kinora/session.h>

#include <string>
#include <vector>

namespace kinora::cli {

struct OverlapSettings {
  std::string video;
  double fps = 1;
  double snap = 0;             // seconds that a frame may be away where another is cheaper
  int64_t pixels = 448 * 448;  // of a frame, about
  int64_t frames_per_group = 32;
  std::string tokens = "all";  // that reach the decoder
  std::string attention = "dense";
  int64_t answer_tokens = 64;
  int decode_threads = 0;
};

struct OverlapRun {
  std::string tokens;
  std::string attention;
  std::string retain;
  double snap = 0;
  bool overlap = true;
  double open = 0;  // index included
  Answer answer;
  InputInfo input;
  double first_group = 0;    // until the first group was decoded
  double last_group = 0;     // of vision and prefill for the last group of frames
  double after_prefill = 0;  // from then to the first token: the question itself
  int64_t gpu_peak_bytes = 0;

  double first_token() const { return open + answer.timings.first_token; }
  double complete() const { return open + answer.timings.total; }
};

OverlapRun run_question(const Engine& engine, const OverlapSettings& settings,
                        const std::string& retain, bool overlap);

// Runs a few groups, the last one as long as in the whole video, so that everything that happens
// once in the life of a program (choosing kernels, growing pools) has happened.
void warm_up(const Engine& engine, const OverlapSettings& settings, const std::string& retain);

// Equation 3 of QuickVideo, index and question included, from a run whose stages stood apart:
// max(decode + last group's compute, compute + first group's decode) + index. The time of the
// first group is taken from an overlapped run.
double overlap_bound(const OverlapRun& apart, const OverlapRun& overlapped);

}  // namespace kinora::cli
