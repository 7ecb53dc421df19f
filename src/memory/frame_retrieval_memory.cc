// Frames found by their mean key (ReKV): in every layer the question's queries, added up, meet the
// mean of each frame's keys, all as they were before they were turned, all heads joined. The frames
// with the largest products are read.
#include <algorithm>
#include <memory>
#include <numeric>
#include <vector>

#include "base/files/byte_stream.h"
#include "memory/partial/partial_memory.h"
#include "memory/policies.h"

namespace kinora {
namespace {

// Mean keys of a layer's frames, in their order.
struct FrameKeys {
  std::vector<Frame> frames;
  std::vector<float> means;  // [frames, width]

  void cut(size_t count, size_t width) {
    frames.resize(count);
    means.resize(count * width);
  }
};

class BestFrames final : public RowChooser {
 public:
  BestFrames(int64_t most, const RowLayout& layout)
      : most_(most),
        kv_heads_(layout.kv_heads),
        head_size_(layout.head_size),
        layers_(static_cast<size_t>(layout.layers)) {}

  bool needs_queries() const override { return true; }
  bool learns() const override { return true; }

  void learn(const Context& context, int layer, const StoredRows& rows) override {
    FrameKeys& known = layers_[static_cast<size_t>(layer)];
    const auto frames = rows.frames().frames_before(rows.first_token());
    // A frame that came in two groups is looked at again.
    while (!known.frames.empty() &&
           (known.frames.size() > frames.size() ||
            known.frames.back().end != frames[known.frames.size() - 1].end)) {
      known.cut(known.frames.size() - 1, width());
    }
    if (known.frames.size() == frames.size()) return;
    const auto fresh = frames.subspan(known.frames.size());
    const int64_t first = rows.row_of(fresh.front().begin);
    std::vector<int32_t> places(static_cast<size_t>(rows.row_of(fresh.back().end) - first));
    std::iota(places.begin(), places.end(), static_cast<int32_t>(first));
    const std::vector<float> keys = rows.plain_keys(context, places);
    std::vector<double> sum(width());
    for (const Frame& frame : fresh) {
      const auto [begin, end] = rows.rows_of(frame);
      std::fill(sum.begin(), sum.end(), 0.0);
      for (int64_t row = begin; row < end; ++row) {
        const float* key = keys.data() + static_cast<size_t>(row - first) * width();
        for (size_t i = 0; i < sum.size(); ++i) sum[i] += double{key[i]};
      }
      const auto count = static_cast<double>(std::max<int64_t>(1, end - begin));
      for (const double value : sum) known.means.push_back(static_cast<float>(value / count));
      known.frames.push_back(frame);
    }
  }

  FrameRows choose(const Context& context, int layer, const StoredRows& rows,
                   const QueryView& queries) override {
    learn(context, layer, rows);
    const FrameKeys& known = layers_[static_cast<size_t>(layer)];
    const std::vector<double> question = question_of(context, rows.memory(), queries);
    std::vector<double> scores(known.frames.size());
    for (size_t frame = 0; frame < scores.size(); ++frame) {
      const float* mean = known.means.data() + frame * width();
      for (size_t i = 0; i < width(); ++i) scores[frame] += question[i] * double{mean[i]};
    }
    std::vector<size_t> order(scores.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return scores[a] > scores[b]; });
    FrameRows chosen;
    int64_t room = most_;
    for (size_t i = 0; i < order.size() && room > 0; ++i) {
      const auto [begin, end] = rows.rows_of(known.frames[order[i]]);
      if (end - begin > room && !chosen.rows.empty()) break;
      const int64_t last = std::min(end, begin + room);
      for (int64_t row = begin; row < last; ++row) chosen.rows.push_back(static_cast<int32_t>(row));
      room -= last - begin;
    }
    std::sort(chosen.rows.begin(), chosen.rows.end());
    return chosen;
  }

  // What is known follows from the rows, so that coming back means to forget.
  void restore(const std::shared_ptr<const void>&, int64_t tokens) override {
    for (FrameKeys& known : layers_) {
      while (!known.frames.empty() && known.frames.back().end > tokens) {
        known.cut(known.frames.size() - 1, width());
      }
    }
  }
  void write(const std::shared_ptr<const void>&, int64_t tokens,
             ArchiveWriter& out) const override {
    ByteWriter bytes;
    for (const FrameKeys& known : layers_) {
      FrameKeys then = known;
      while (!then.frames.empty() && then.frames.back().end > tokens) {
        then.cut(then.frames.size() - 1, width());
      }
      bytes.put_all(then.means);
    }
    out.add("frame keys", bytes.bytes());
  }
  void read(const Archive& in, const FrameTable& frames) override {
    const std::string bytes = in.read("frame keys");
    ByteReader from(bytes, in.path());
    for (FrameKeys& known : layers_) {
      known.means = from.all<float>();
      const size_t count = known.means.size() / width();
      if (count * width() != known.means.size() || count > frames.frames().size()) {
        from.refuse("holds means of other frames");
      }
      const auto first = frames.frames().first(count);
      known.frames.assign(first.begin(), first.end());
    }
    from.end();
  }
  std::unique_ptr<RowChooser> clone() const override { return std::make_unique<BestFrames>(*this); }
  MemoryBytes bytes() const override {
    size_t floats = 0;
    for (const FrameKeys& known : layers_) floats += known.means.size();
    return {.host = static_cast<int64_t>(floats * sizeof(float))};
  }

 private:
  size_t width() const { return static_cast<size_t>(kv_heads_ * head_size_); }

  // Over all tokens and over the heads that share a kv head; [kv heads × head size].
  std::vector<double> question_of(const Context& context, const Memory& memory,
                                  const QueryView& queries) const {
    const std::vector<float> plain = plain_queries(context, memory, queries);
    const auto heads = queries.queries.size(1), share = heads / kv_heads_;
    std::vector<double> sum(width());
    for (size_t i = 0; i < plain.size(); ++i) {
      const auto place = static_cast<int64_t>(i) % (heads * head_size_);
      const int64_t head = place / head_size_ / share;
      sum[static_cast<size_t>(head * head_size_ + place % head_size_)] += double{plain[i]};
    }
    return sum;
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
