// Decoding steps on a GPU: a few newest tokens of one or many sequences through all layers as one
// captured graph. What changes from step to step (tokens, positions, which rows each sequence reads
// and how many there are) is read on the device, so a graph serves every sequence that comes along.
#pragma once

#include <bit>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "model/decoder/decoder.h"
#include "model/decoder/layers.h"

namespace kinora {

class DecoderSteps {
 public:
  virtual ~DecoderSteps() = default;

  // A sequence whose memory has begun the group.
  struct Step {
    const Sequence* sequence = nullptr;
    std::span<const Position> positions;
    Forwarded* result = nullptr;
  };
  // False, with nothing done, if the steps cannot be captured: too many tokens, tokens with deep
  // rows, an attention that does not read everything, or a memory that wants to see the queries.
  virtual bool run(const Context& context, std::span<const Step> steps) = 0;
  // How often a captured graph was launched, for tests.
  virtual int64_t launched() const = 0;
};

// Graphs are captured for these numbers of tokens; others are padded to the next, which costs less
// than a graph for each number.
inline int64_t captured_tokens(int64_t count) {
  if (count <= 8) return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(count)));
  return count <= 16 ? (count + 3) / 4 * 4 : (count + 15) / 16 * 16;
}
// Tools that watch single launches see no graphs with KINORA_LAUNCHES=plain.
bool replays_graphs();

// Throws unsupported in a build without CUDA. Arguments passed by reference must outlive the steps.
std::unique_ptr<DecoderSteps> make_decoder_steps(const DecoderLayers& layers,
                                                 std::span<const double> frequencies);

}  // namespace kinora
