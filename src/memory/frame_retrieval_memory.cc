// Frames found by their mean key (ReKV): in every layer the question's queries, added up, meet the
// mean of each frame's keys, all as they were before they were turned, all heads joined. The frames
// with the largest products are read.
#include <algorithm>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "base/files/byte_stream.h"
#include "base/own_copy.h"
#include "memory/partial/partial_memory.h"
#include "memory/policies.h"
#include "memory/row_ops/mean_rows.h"
#include "memory/row_ops/sort_more.h"
#include "memory/row_ops/vectors.h"

namespace kinora {
namespace {

// Frames of a layer with the means of their keys, in blocks that forks share.
class FrameKeys {
 public:
  explicit FrameKeys(size_t width) : width_(width) {}

  size_t size() const { return size_; }
  const Frame& frame(size_t i) const { return blocks_[i / most]->frames[i % most]; }
  const float* mean(size_t i) const { return blocks_[i / most]->means.data() + i % most * width_; }

  void add(const Frame& frame, const float* mean) {
    blocks_.resize((size_ + most - 1) / most);
    if (size_ % most == 0) blocks_.push_back(std::make_shared<Block>());
    Block& last = own_copy(blocks_.back());
    last.frames.resize(size_ % most);
    last.frames.push_back(frame);
    last.means.resize(size_ % most * width_);
    last.means.insert(last.means.end(), mean, mean + width_);
    ++size_;
  }
  void forget_last() { --size_; }

 private:
  static constexpr size_t most = 256;
  struct Block {
    std::vector<Frame> frames;
    std::vector<float> means;  // [frames, width]
  };
  size_t width_;
  size_t size_ = 0;
  std::vector<std::shared_ptr<Block>> blocks_;
};

class BestFrames final : public RowChooser {
 public:
  BestFrames(int64_t most, const RowLayout& layout)
      : most_(most),
        kv_heads_(layout.kv_heads),
        head_size_(layout.head_size),
        layers_(static_cast<size_t>(layout.layers), FrameKeys(width())) {}

  bool needs_queries() const override { return true; }
  bool learns() const override { return true; }

  void learn(const Context& context, int layer, const StoredRows& rows) override {
    FrameKeys& known = layers_[static_cast<size_t>(layer)];
    const auto frames = rows.frames().frames_before(rows.first_token());
    // A frame that came in two groups is looked at again.
    while (known.size() > 0 && (known.size() > frames.size() || known.frame(known.size() - 1).end !=
                                                                    frames[known.size() - 1].end)) {
      known.forget_last();
    }
    if (known.size() == frames.size()) return;
    const auto fresh = frames.subspan(known.size());
    const int64_t first = rows.row_of(fresh.front().begin);
    std::vector<int32_t> places(static_cast<size_t>(rows.row_of(fresh.back().end) - first));
    std::iota(places.begin(), places.end(), static_cast<int32_t>(first));
    // Means of all between the frames' beginnings and ends; every second one is between two frames.
    std::vector<int32_t> bounds;
    for (const Frame& frame : fresh) {
      const auto [begin, end] = rows.rows_of(frame);
      bounds.push_back(static_cast<int32_t>(begin - first));
      bounds.push_back(static_cast<int32_t>(end - first));
    }
    std::vector<float> means(bounds.size() * width());
    if (!places.empty()) {
      const Tensor keys = rows.plain_keys_there(context, places)
                              .reshaped({std::ssize(places), static_cast<int64_t>(width())});
      means = mean_rows(context, keys, bounds);
    }
    for (size_t i = 0; i < fresh.size(); ++i) known.add(fresh[i], means.data() + 2 * i * width());
  }

  FrameRows choose(const Context& context, int layer, const StoredRows& rows,
                   const QueryView& queries) override {
    learn(context, layer, rows);
    const FrameKeys& known = layers_[static_cast<size_t>(layer)];
    const std::vector<float> question = question_of(context, rows.memory(), queries);
    std::vector<float> scores(known.size());
    context.threads->parallel_for(std::ssize(scores), 1024, [&](int64_t begin, int64_t end) {
      for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
        scores[i] = dot(question.data(), known.mean(i), question.size());
      }
    });
    std::vector<size_t> order(scores.size());
    std::iota(order.begin(), order.end(), size_t{0});
    const auto better = [&](size_t a, size_t b) {  // of equal ones the earlier
      return scores[a] > scores[b] || (scores[a] == scores[b] && a < b);
    };
    size_t sorted = 0;  // of `order`: most frames are never looked at
    std::vector<std::pair<int64_t, int64_t>> ranges;
    int64_t room = most_;
    for (size_t i = 0; i < order.size() && room > 0; ++i) {
      if (i == sorted) sorted = sort_more(order, sorted, better);
      const auto [begin, end] = rows.rows_of(known.frame(order[i]));
      if (end - begin > room && !ranges.empty()) break;
      ranges.push_back({begin, std::min(end, begin + room)});
      room -= ranges.back().second - begin;
    }
    std::sort(ranges.begin(), ranges.end());
    FrameRows chosen;
    for (const auto& [begin, end] : ranges) {
      for (int64_t row = begin; row < end; ++row) chosen.rows.push_back(static_cast<int32_t>(row));
    }
    return chosen;
  }

  // What is known follows from the rows, so that coming back means to forget.
  void restore(const std::shared_ptr<const void>&, int64_t tokens) override {
    for (FrameKeys& known : layers_) {
      while (known.size() > 0 && known.frame(known.size() - 1).end > tokens) known.forget_last();
    }
  }
  void write(const std::shared_ptr<const void>&, int64_t tokens,
             ArchiveWriter& out) const override {
    ByteWriter bytes;
    for (const FrameKeys& known : layers_) {
      std::vector<float> means;
      for (size_t i = 0; i < known.size() && known.frame(i).end <= tokens; ++i) {
        means.insert(means.end(), known.mean(i), known.mean(i) + width());
      }
      bytes.put_all(means);
    }
    out.add("frame keys", bytes.bytes());
  }
  void read(const Context&, const Archive& in, const FrameTable& frames) override {
    const std::string bytes = in.read("frame keys");
    ByteReader from(bytes, in.path());
    for (FrameKeys& known : layers_) {
      const std::vector<float> means = from.all<float>();
      const size_t count = means.size() / width();
      if (count * width() != means.size() || count > frames.frames().size()) {
        from.refuse("holds means of other frames");
      }
      known = FrameKeys(width());
      for (size_t i = 0; i < count; ++i) {
        known.add(frames.frames()[i], means.data() + i * width());
      }
    }
    from.end();
  }
  std::unique_ptr<RowChooser> clone() const override { return std::make_unique<BestFrames>(*this); }
  MemoryBytes bytes() const override {
    size_t frames = 0;
    for (const FrameKeys& known : layers_) frames += known.size();
    return {.host = static_cast<int64_t>(frames * width() * sizeof(float))};
  }

 private:
  size_t width() const { return static_cast<size_t>(kv_heads_ * head_size_); }

  // Over all tokens and over the heads that share a kv head; [kv heads × head size].
  std::vector<float> question_of(const Context& context, const Memory& memory,
                                 const QueryView& queries) const {
    const std::vector<float> plain = plain_queries(context, memory, queries);
    const auto heads = queries.queries.size(1), share = heads / kv_heads_;
    std::vector<double> sum(width());
    const float* from = plain.data();
    for (int64_t token = 0; token < queries.queries.size(0); ++token) {
      for (int64_t head = 0; head < heads; ++head, from += head_size_) {
        double* to = sum.data() + head / share * head_size_;
        for (int64_t i = 0; i < head_size_; ++i) to[i] += double{from[i]};
      }
    }
    return {sum.begin(), sum.end()};
  }

  int64_t most_;
  int64_t kv_heads_;
  int64_t head_size_;
  std::vector<FrameKeys> layers_;
};

}  // namespace

MemoryPolicy frame_retrieval_policy() {
  Settings<PartialOptions> settings(PartialOptions{.positions = Placing::consecutive});
  add_rows(settings);
  add_window(settings);
  add_positions(settings);
  add_tiers(settings);
  MemoryPolicy policy;
  policy.info = {"frame-retrieval",
                 "a question reads the frames whose mean keys are nearest to it, in every layer",
                 settings.info()};
  policy.make = [settings](std::span<const GivenSetting> given, const MemoryOptions& options) {
    const PartialOptions chosen = settings.read(given);
    return std::make_unique<PartialMemory>(
        rows_of(options, chosen), std::make_unique<BestFrames>(chosen.rows, options.layout),
        chosen);
  };
  return policy;
}

}  // namespace kinora
