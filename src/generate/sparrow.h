// Drafts with a small model of any kind that is fed the target's states (draft_model.h): a tree of
// guesses that grows where it is confident. It keeps K/V rows of text only, however long the video
// is; they are cut back when the text is, shared with forks, and saved (sparrow_saved.cc). Belongs
// to one session.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "attention/policies/dense.h"
#include "generate/draft_model.h"
#include "generate/draft_pace.h"
#include "generate/drafter.h"
#include "memory/memory.h"

namespace kinora {

struct SparrowOptions {
  TreeShape shape;
  bool adapt = true;  // draft as much as pays, at most the shape; else always the whole shape
  std::string from;   // the draft's directory; empty: the one that came with the model
};

class SparrowDrafter final : public Drafter {
 public:
  explicit SparrowDrafter(std::shared_ptr<const DraftModel> model,
                          const SparrowOptions& options = {});
  ~SparrowDrafter() override;

  std::string_view kind() const override { return model_->feed().kind; }
  std::vector<int> states() const override { return model_->feed().layers; }
  void read(const ReadText& text) override;
  Draft propose(std::span<const int32_t> text, int64_t most, int64_t deepest) override;
  void learn(const CheckedDraft& checked) override;
  double plain_seconds() const override { return pace_.costs().pass(1); }
  std::unique_ptr<Drafter> fork() override;
  void save(int64_t tokens, ArchiveWriter& out) override;
  void load(const Archive& in, std::span<const int32_t> ids,
            std::span<const TokenInfo> tokens) override;

  // For tests: text tokens that have a row, and ends up to which text can be cut back unnoticed.
  int64_t rows() const { return memory_->token_count(); }
  int64_t ends() const { return std::ssize(edges_); }

 private:
  // What the draft is told of text tokens [first, first + count).
  struct Piece {
    int64_t first = 0;
    Tensor states;      // [count or more, hidden]
    int64_t count = 0;  // of them
    int64_t end() const { return first + count; }
  };

  void cut_rows(int64_t end);
  void cut(int64_t end);
  void start_at(int64_t first);
  int64_t known_end() const { return pieces_.empty() ? begin_ + rows() : pieces_.back().end(); }
  void add_states(int64_t first, Tensor states, int64_t count);
  void states_before(int64_t first, TensorView out) const;
  void forget_states();
  void run_rows(int64_t count, bool last);
  void run_rows_until(int64_t end);
  void catch_up(std::span<const int32_t> text);
  void make_rows(int64_t without);
  Draft grow_there(int64_t most, int64_t deepest);
  Draft grow(int64_t most, int64_t deepest);  // level by level
  DraftPace::Level run_level(const DraftTree& tree, std::span<const int32_t> frontier);

  Context context_;
  std::shared_ptr<const DraftModel> model_;
  SparrowOptions options_;
  std::unique_ptr<Memory> memory_;
  DenseAttention attention_;
  DraftPace pace_;

  const int64_t least_;              // the first text token that may have a row
  int64_t begin_ = 0;                // the first that has one
  std::vector<int32_t> ids_;         // of text tokens from there on, the rows' before the others'
  std::vector<Position> positions_;  // of the same
  std::vector<Piece> pieces_;        // states that rows still have to be made from
  std::map<int64_t, Tensor> edges_;  // state [1, hidden] of the last token before such an end
  std::deque<int64_t> answer_ends_;  // those in answers, the newest last
  Tensor newest_state_;              // ŝ and the normed output of the newest row, [1, hidden]
  Tensor newest_normed_;
  Tensor node_states_;  // ŝ of the nodes that the tree went on from
  int64_t used_slots_ = 0;
  int64_t chain_rows_ = 0;      // of the tree under way, while it is a chain
  std::vector<int32_t> slots_;  // node → row of node_states_, −1: none
  int64_t text_count_ = 0;      // of the proposal under way
};

}  // namespace kinora
