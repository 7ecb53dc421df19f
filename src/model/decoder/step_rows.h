// What the sequences of a decoding step read in every layer, as the device's tables tell it
// (attention/cuda/decode/decode_cuda.h). Sequences that read the same rows, such as conversations
// about one video, stand side by side, so that these rows can be told once. Used by steps_cuda.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "attention/cuda/device_rows.h"
#include "model/decoder/steps.h"

namespace kinora {

class StepRows {
 public:
  // Has every memory take in its new rows. A sequence that cannot gets its failure; its tokens are
  // computed and belong to nobody.
  StepRows(const Context& context, std::span<const DecoderSteps::Step> steps, int layers);

  // In the order of their tokens.
  std::span<const DecoderSteps::Step> steps() const { return steps_; }
  // Where the tokens of a sequence begin, by its place in what was given.
  std::span<const int64_t> first_tokens() const { return first_tokens_; }
  int64_t tokens() const { return tokens_; }
  int64_t most_tokens() const { return most_tokens_; }  // of a sequence
  int64_t all_rows() const { return all_rows_; }        // of the longest layer of each, summed up

  // Takes rows that several sequences read out of them and into groups.
  void share(int64_t row_bytes);
  int64_t groups() const { return static_cast<int64_t>(runs_.size()); }
  int64_t most_group_tokens() const { return most_group_tokens_; }

  // The tables of all layers, one after another, each padded with sequences that are not there.
  void write_whole(std::byte* to, int64_t sequences) const;  // with the rows of groups
  void write_rest(std::byte* to, int64_t sequences) const;   // without them
  void write_groups(std::byte* to, int64_t groups) const;

 private:
  std::vector<DecoderSteps::Step> steps_;
  std::vector<int64_t> first_tokens_;
  std::vector<std::vector<DeviceSequence>> sequences_;  // [sequence][layer]
  std::vector<SharedRun> runs_;
  std::vector<SharedTables> shared_;  // [layer]
  int64_t tokens_ = 0;
  int64_t most_tokens_ = 0;
  int64_t most_group_tokens_ = 0;
  int64_t all_rows_ = 0;
};

}  // namespace kinora
