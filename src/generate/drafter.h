// Guesses of the next tokens, which one pass of the model checks together. A wrong guess costs only
// time: what the model would not have said is thrown away.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/context.h"
#include "base/tensor.h"
#include "memory/token_info.h"

namespace kinora {

class Archive;
class ArchiveWriter;
class DecoderRunner;
class Memory;
class Model;
class PositionCounter;
class RowMass;

// Drafted tokens as a tree under the last certain token.
struct Draft {
  std::vector<int32_t> ids;
  std::vector<int32_t> parents;  // the place of each one's parent, before it; −1: the certain token
};

// Text of a prompt that has come into memory.
struct ReadText {
  int64_t first = 0;  // of all text tokens so far; what was known from there on is void
  std::span<const int32_t> ids;
  std::span<const TokenInfo> tokens;
  std::span<const Tensor> states;  // of the wanted layers, f32 [ids, hidden]
};

// The model in the middle of an answer, for drafters that run it themselves. They read its memory
// and never change it.
struct DraftTarget {
  Context context;
  DecoderRunner& runner;
  const Model& model;
  Memory& memory;
  const PositionCounter& positions;  // the next one is the newest token's
  const RowMass* mass = nullptr;     // the answer's attention so far, where it is added up
};

// What became of a proposal.
struct CheckedDraft {
  std::span<const int32_t> right;  // the places in it that were right, in order
  std::span<const Tensor> states;  // the wanted layers' rows [1 + drafted, hidden] of the tokens
                                   // that were checked
  bool usual = true;               // the pass took what such passes take
};

// Belongs to one session and lives as long, so that it may keep what it knows of the text.
class Drafter {
 public:
  virtual ~Drafter() = default;

  // What reports call it; empty: nothing worth a word.
  virtual std::string_view kind() const { return ""; }

  // Layers whose output the drafter learns from; none for most.
  virtual std::vector<int> states() const { return {}; }

  // Called for all text of prompts if any states are wanted.
  virtual void read(const ReadText& text) { (void)text; }

  // An answer begins: before its first proposal. The target stays what it is until the last one.
  virtual void start(const DraftTarget& target) { (void)target; }
  // Where the attention of the pass under way is added up; asked for if nothing was proposed and
  // nobody else wants it.
  virtual RowMass* mass() { return nullptr; }

  // At most `most` tokens that may follow. `text` is every text token so far; the last one is the
  // newest token of the answer, not yet in memory. Chains no longer than `deepest`.
  virtual Draft propose(std::span<const int32_t> text, int64_t most, int64_t deepest) = 0;

  // What became of the last proposal.
  virtual void learn(const CheckedDraft& checked) { (void)checked; }

  // Seconds that a pass over one token takes, for a drafter that measures it; else 0.
  virtual double plain_seconds() const { return 0; }

  // Another one that knows the text as this one does, for a session that goes on from here. Null:
  // one that begins anew knows as much.
  virtual std::unique_ptr<Drafter> fork() { return nullptr; }
  // What it knows of the first `tokens` text tokens, to be kept with a session's memory.
  virtual void save(int64_t tokens, ArchiveWriter& out) { (void)tokens, (void)out; }
  // A drafter that has read nothing goes on from that. `ids` and `tokens` are the text that was
  // saved. What is not there, or was written by another draft, leaves it as it is.
  virtual void load(const Archive& in, std::span<const int32_t> ids,
                    std::span<const TokenInfo> tokens) {
    (void)in, (void)ids, (void)tokens;
  }
};

// No guesses: one token per pass.
class NoDrafter final : public Drafter {
 public:
  Draft propose(std::span<const int32_t>, int64_t, int64_t) override { return {}; }
};

}  // namespace kinora
