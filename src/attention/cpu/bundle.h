// Tiles that run together because they read much the same keys, such as the tiles of one head that
// follow one another: a key that several of them read is loaded and packed once, and every tile
// still computes with its own keys only. Made in runner.cc, run in runner_cpu.cc. Private to
// attention/.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "attention/plan/plan.h"

namespace kinora::attention_cpu {

// Most rows, (query, head), that run together.
constexpr int64_t job_rows = 256;
// Rows of a bundle's tile begin at a multiple of this many.
constexpr int64_t bundle_rows = 32;

struct Bundle {
  // Places [begin, end) of the joint list.
  struct Stretch {
    int64_t begin = 0;
    int64_t end = 0;
    bool masked = false;
  };
  struct Member {
    int64_t tile = 0;
    std::vector<Stretch> stretches;  // what it reads, increasing
    int64_t keys = 0;                // of all stretches
  };
  std::vector<Segment> list;  // what any of the tiles reads, once
  int64_t length = 0;         // of the list
  bool masked = false;        // whether any stretch is
  std::vector<Member> members;
};

// Rows that a tile takes in a bundle.
inline int64_t rows_in_bundle(const Tile& tile) {
  return (tile.queries() * tile.heads + bundle_rows - 1) / bundle_rows * bundle_rows;
}

// Tiles [begin, end) of a plan, of one kv head and pass, as a bundle; none where running them one
// by one is expected to be as fast, or where a tile reads a key twice.
std::optional<Bundle> bundle_tiles(const Plan& plan, int64_t begin, int64_t end);

}  // namespace kinora::attention_cpu
