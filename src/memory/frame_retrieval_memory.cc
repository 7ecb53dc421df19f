// Frames found by their mean key (ReKV): in every layer the question's queries, added up, meet the
// mean of each frame's keys, all as they were before they were turned, all heads joined. The frames
// with the largest products are read.
#include <algorithm>
#include <array>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "base/files/byte_stream.h"
#include "memory/partial/partial_memory.h"
#include "memory/policies.h"

namespace kinora {
namespace {

// A frame with the mean of its keys, which forks share.
struct FrameKey {
  Frame frame;
  std::shared_ptr<const std::vector<float>> mean;
};

// Eight sums side by side, which compilers put into vectors.
double dot(const std::vector<double>& a, const std::vector<float>& b) {
  std::array<double, 8> sums{};
  size_t i = 0;
  for (; i + sums.size() <= a.size(); i += sums.size()) {
    for (size_t k = 0; k < sums.size(); ++k) sums[k] += a[i + k] * double{b[i + k]};
  }
  double sum = std::accumulate(sums.begin(), sums.end(), 0.0);
  for (; i < a.size(); ++i) sum += a[i] * double{b[i]};
  return sum;
}

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
    std::vector<FrameKey>& known = layers_[static_cast<size_t>(layer)];
    const auto frames = rows.frames().frames_before(rows.first_token());
    // A frame that came in two groups is looked at again.
    while (!known.empty() && (known.size() > frames.size() ||
                              known.back().frame.end != frames[known.size() - 1].end)) {
      known.pop_back();
    }
    if (known.size() == frames.size()) return;
    const auto fresh = frames.subspan(known.size());
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
      std::vector<float> mean;
      for (const double value : sum) mean.push_back(static_cast<float>(value / count));
      known.push_back({frame, std::make_shared<const std::vector<float>>(std::move(mean))});
    }
  }

  FrameRows choose(const Context& context, int layer, const StoredRows& rows,
                   const QueryView& queries) override {
    learn(context, layer, rows);
    const std::vector<FrameKey>& known = layers_[static_cast<size_t>(layer)];
    const std::vector<double> question = question_of(context, rows.memory(), queries);
    std::vector<double> scores;
    for (const FrameKey& key : known) scores.push_back(dot(question, *key.mean));
    std::vector<size_t> order(scores.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return scores[a] > scores[b]; });
    std::vector<std::pair<int64_t, int64_t>> ranges;
    int64_t room = most_;
    for (size_t i = 0; i < order.size() && room > 0; ++i) {
      const auto [begin, end] = rows.rows_of(known[order[i]].frame);
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
    for (std::vector<FrameKey>& known : layers_) {
      while (!known.empty() && known.back().frame.end > tokens) known.pop_back();
    }
  }
  void write(const std::shared_ptr<const void>&, int64_t tokens,
             ArchiveWriter& out) const override {
    ByteWriter bytes;
    for (const std::vector<FrameKey>& known : layers_) {
      std::vector<float> means;
      for (const FrameKey& key : known) {
        if (key.frame.end > tokens) break;
        means.insert(means.end(), key.mean->begin(), key.mean->end());
      }
      bytes.put_all(means);
    }
    out.add("frame keys", bytes.bytes());
  }
  void read(const Context&, const Archive& in, const FrameTable& frames) override {
    const std::string bytes = in.read("frame keys");
    ByteReader from(bytes, in.path());
    for (std::vector<FrameKey>& known : layers_) {
      const std::vector<float> means = from.all<float>();
      const size_t count = means.size() / width();
      if (count * width() != means.size() || count > frames.frames().size()) {
        from.refuse("holds means of other frames");
      }
      known.clear();
      for (size_t i = 0; i < count; ++i) {
        const auto mean = means.begin() + static_cast<int64_t>(i * width());
        known.push_back({frames.frames()[i], std::make_shared<const std::vector<float>>(
                                                 mean, mean + static_cast<int64_t>(width()))});
      }
    }
    from.end();
  }
  std::unique_ptr<RowChooser> clone() const override { return std::make_unique<BestFrames>(*this); }
  MemoryBytes bytes() const override {
    size_t frames = 0;
    for (const std::vector<FrameKey>& known : layers_) frames += known.size();
    return {.host = static_cast<int64_t>(frames * width() * sizeof(float))};
  }

 private:
  size_t width() const { return static_cast<size_t>(kv_heads_ * head_size_); }

  // Over all tokens and over the heads that share a kv head; [kv heads × head size].
  std::vector<double> question_of(const Context& context, const Memory& memory,
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
    return sum;
  }

  int64_t most_;
  int64_t kv_heads_;
  int64_t head_size_;
  std::vector<std::vector<FrameKey>> layers_;  // frames in their order
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
