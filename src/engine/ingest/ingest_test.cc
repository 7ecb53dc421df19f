// Taking in: frames that come in any portions become units, units become tokens, with and without
// a known end.
#include "engine/ingest/ingest.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "base/error.h"
#include "engine/ingest/open_unit_stream.h"
#include "support/film.h"
#include "support/random_data.h"
#include "support/temp_dir.h"

namespace kinora {
namespace {

// Frames [first, first + count), each filled with its number.
FrameGroup numbered(int64_t first, int64_t count, int64_t height = 3, int64_t width = 5) {
  FrameGroup group;
  group.pixels = Tensor(DType::u8, {count, height, width, 3});
  for (int64_t i = 0; i < count; ++i) {
    const TensorView frame = group.pixels.view()[i];
    std::fill_n(reinterpret_cast<uint8_t*>(frame.raw()), frame.bytes(),
                static_cast<uint8_t>(first + i));
    group.times.push_back(0.5 * static_cast<double>(first + i));
    group.index.push_back(10 * (first + i));
  }
  return group;
}

TEST(UnitAssembler, FramesInAnyPortionsBecomeWholeUnitsInOrder) {
  KINORA_FRESH_RANDOM(random);
  for (int round = 0; round < 300; ++round) {
    const int64_t total = random.below(130), per_unit = 1 + random.below(4);
    const int64_t per_group = 1 + random.below(17);
    UnitAssembler assembler(per_unit, per_group);
    std::vector<Units> runs;
    const auto take = [&] {
      while (std::optional<Units> units = assembler.next()) runs.push_back(std::move(*units));
    };
    for (int64_t begin = 0; begin < total;) {
      const int64_t count = std::min(total - begin, random.below(20));
      assembler.add(numbered(begin, count));
      begin += count;
      if (random.below(2) == 0) take();
    }
    take();
    for (const Units& units : runs) {
      EXPECT_FALSE(units.last);  // nobody has said so
      EXPECT_EQ(units.frames.frames(), whole_units(per_group, per_unit));
    }
    assembler.end();
    take();
    ASSERT_FALSE(runs.empty());
    int64_t frame = 0, unit = 0;
    for (const Units& units : runs) {
      EXPECT_EQ(units.first, unit);
      EXPECT_EQ(units.last, &units == &runs.back());
      const auto count = static_cast<int64_t>(units.frames.times.size());
      EXPECT_EQ(units.frames.frames(), count);
      if (!units.last) {
        EXPECT_EQ(count, units.count * per_unit);
      }
      EXPECT_EQ(units.count, (count + per_unit - 1) / per_unit);
      ASSERT_EQ(units.times.size(), static_cast<size_t>(units.count));
      for (int64_t i = 0; i < count; ++i, ++frame) {
        const ConstTensorView pixels = units.frames.pixels.view()[i];
        for (int64_t k = 0; k < pixels.elements(); ++k) {
          ASSERT_EQ(static_cast<int64_t>(pixels.raw()[k]), frame % 256);
        }
        EXPECT_EQ(units.frames.index[static_cast<size_t>(i)], 10 * frame);
        EXPECT_EQ(units.frames.times[static_cast<size_t>(i)], 0.5 * static_cast<double>(frame));
        if (i % per_unit == 0) {
          EXPECT_EQ(units.times[static_cast<size_t>(i / per_unit)],
                    units.frames.times[static_cast<size_t>(i)]);
        }
      }
      unit += units.count;
    }
    EXPECT_EQ(frame, total);
    EXPECT_FALSE(assembler.next());
  }
}

// A source whose frames come when the test says so.
class Camera {
 public:
  explicit Camera(VisualPlan plan) : plan_(std::move(plan)) {}

  void come(int64_t units) { add({units, false, nullptr}); }
  void end(int64_t units = 0) { add({units, true, nullptr}); }
  void fail(std::exception_ptr error) { add({0, false, std::move(error)}); }

  IngestItem item() {
    return {plan_, 0, {}, [this](ReadOptions options) -> std::unique_ptr<UnitSource> {
              return std::make_unique<Film>(*this, options.cancel);
            }};
  }

 private:
  struct Event {
    int64_t units = 0;
    bool last = false;
    std::exception_ptr error;
  };
  void add(Event event) {
    const std::lock_guard lock(mutex_);
    events_.push_back(std::move(event));
    changed_.notify_all();
  }

  class Film final : public UnitSource {
   public:
    Film(Camera& camera, CancelToken cancel) : camera_(camera), cancel_(std::move(cancel)) {}
    std::optional<Units> next() override {
      if (ended_) return std::nullopt;
      std::unique_lock lock(camera_.mutex_);
      while (camera_.events_.empty()) {
        cancel_.check();
        camera_.changed_.wait_for(lock, std::chrono::milliseconds(5));
      }
      const Event event = camera_.events_.front();
      camera_.events_.pop_front();
      if (event.error) std::rethrow_exception(event.error);
      Units units;
      units.first = done_;
      units.count = event.units;
      const VisualPlan& plan = camera_.plan_;
      if (event.units > 0) {
        units.frames = numbered(done_ * plan.frames_per_unit, event.units * plan.frames_per_unit,
                                plan.frame_size.height, plan.frame_size.width);
      }
      for (int64_t i = 0; i < event.units; ++i) {
        units.times.push_back(static_cast<double>(done_ + i));
      }
      units.last = ended_ = event.last;
      done_ += event.units;
      return units;
    }
    ReadReport report() const override {
      ReadReport report;
      report.delivered = done_;
      return report;
    }

   private:
    Camera& camera_;
    const CancelToken cancel_;
    int64_t done_ = 0;
    bool ended_ = false;
  };

  const VisualPlan plan_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Event> events_;
};

class SilentProgress final : public Progress {
 public:
  void update(std::string_view, int64_t, int64_t) override {}
};

class IngestTest : public ::testing::TestWithParam<const char*> {
 protected:
  VisualPlan plan() const {
    VisualPlan plan = engine_->model->plan_visual({Modality::video, {80, 60}, 8, 1}, {});
    plan.units = 0;
    return plan;
  }

  const std::shared_ptr<const EngineState> engine_ = EngineAccess::state(
      Engine({.model = std::string(KINORA_FIXTURES) + "/models/" + GetParam()}));
  SilentProgress progress_;
  SpanRecorder spans_;
};

TEST_P(IngestTest, WhatComesWithoutAnEndIsTakenAsItComes) {
  EXPECT_EQ(plan().trailing_tokens, std::string(GetParam()) == "llava_onevision_new" ? 1 : 0);
  Camera camera(plan());
  const auto ingest = make_ingest(*engine_, {camera.item()}, {}, progress_, spans_);
  EXPECT_FALSE(ingest->ready());
  camera.come(2);
  std::optional<TokenGroup> group = ingest->next({});
  ASSERT_TRUE(group);
  EXPECT_EQ(group->first, 0);
  EXPECT_EQ(group->count, 2);
  EXPECT_EQ(group->tokens.size(0), 2 * plan().tokens_per_unit);
  EXPECT_EQ(static_cast<int64_t>(group->frames.size()), 2 * plan().frames_per_unit);
  EXPECT_FALSE(ingest->ready());
  camera.come(1);
  while (!(group = ingest->ready())) std::this_thread::yield();
  EXPECT_EQ(group->first, 2);
  EXPECT_FALSE(group->last);
  // Waiting ends when the caller has had enough, and what comes later is not lost.
  CancelToken impatient;
  impatient.cancel();
  EXPECT_THROW(ingest->next(impatient), Error);
  camera.end();
  group = ingest->next({});
  ASSERT_TRUE(group);
  EXPECT_EQ(group->count, 0);
  EXPECT_TRUE(group->last);
  EXPECT_EQ(group->tokens.defined(), plan().trailing_tokens > 0);
  if (group->tokens.defined()) {
    EXPECT_EQ(group->tokens.size(0), plan().trailing_tokens);
  }
  group = ingest->next({});
  ASSERT_TRUE(group && group->report);
  EXPECT_EQ(group->report->delivered, 3);
  EXPECT_FALSE(ingest->next({}));
}

void append(std::vector<float>& values, const Tensor& tokens) {
  const Tensor here = tokens.to(Device::cpu());
  values.insert(values.end(), here.data<float>(), here.data<float>() + here.elements());
}

TEST_P(IngestTest, TokensDoNotDependOnTheGroupsTheyComeIn) {
  const VisualPlan shape = plan();
  const auto read = [&](const std::vector<int64_t>& portions, bool end_alone) {
    Camera camera(shape);
    const auto ingest = make_ingest(*engine_, {camera.item()}, {}, progress_, spans_);
    for (size_t i = 0; i < portions.size(); ++i) {
      if (i + 1 < portions.size() || end_alone) {
        camera.come(portions[i]);
      } else {
        camera.end(portions[i]);
      }
    }
    if (end_alone) camera.end();
    std::vector<float> values;
    while (const std::optional<TokenGroup> group = ingest->next({})) {
      if (!group->tokens.defined()) continue;
      append(values, group->tokens);
    }
    return values;
  };
  const std::vector<float> expected = read({6}, false);
  EXPECT_EQ(expected.size(),
            static_cast<size_t>((6 * shape.tokens_per_unit + shape.trailing_tokens) *
                                engine_->model->decoder().hidden_size()));
  for (const bool alone : {false, true}) {
    const std::vector<float> values = read({1, 3, 2}, alone);
    ASSERT_EQ(values.size(), expected.size());
    for (size_t i = 0; i < values.size(); ++i) ASSERT_NEAR(values[i], expected[i], 1e-5) << i;
  }
}

TEST_P(IngestTest, FilesGiveTheFramesThatWereSampledInOrder) {
  KINORA_FRESH_RANDOM(random);
  const testing::TempDir directory;
  std::vector<VisualInput> inputs;
  for (const int frames : {7, 4}) {
    VisualRequest request;
    request.source = testing::write_film(directory.file(std::to_string(frames)), random, frames);
    request.frames = FrameChoice::all();
    inputs.push_back(open_visual(*engine_->model, request, {}));
  }
  std::vector<std::vector<float>> values;
  for (const bool overlap : {true, false}) {
    for (const int64_t frames_per_group : {1, 3, 16}) {
      std::vector<IngestItem> items;
      for (VisualInput& input : inputs) items.push_back(ingest_item(input, frames_per_group));
      const auto ingest = make_ingest(*engine_, std::move(items), {overlap, 1}, progress_, spans_);
      values.emplace_back();
      for (const VisualInput& input : inputs) {
        const VisualPlan& wanted = input.plan;
        std::vector<SampledFrame> frames;
        std::optional<TokenGroup> group;
        for (int64_t unit = 0; unit < wanted.units; unit += group->count) {
          group = ingest->next({});
          ASSERT_TRUE(group && !group->report);
          EXPECT_EQ(group->first, unit);
          EXPECT_EQ(group->last, unit + group->count == wanted.units);
          EXPECT_LE(group->count * wanted.frames_per_unit,
                    whole_units(frames_per_group, wanted.frames_per_unit));
          EXPECT_EQ(group->times.size(), static_cast<size_t>(group->count));
          EXPECT_EQ(group->tokens.size(0), group->count * wanted.tokens_per_unit +
                                               (group->last ? wanted.trailing_tokens : 0));
          frames.insert(frames.end(), group->frames.begin(), group->frames.end());
          append(values.back(), group->tokens);
        }
        EXPECT_EQ(frames, input.samples);
        group = ingest->next({});
        ASSERT_TRUE(group && group->report);
        EXPECT_EQ(group->report->delivered, static_cast<int64_t>(input.samples.size()));
      }
      EXPECT_FALSE(ingest->next({}));
      ASSERT_EQ(values.back().size(), values.front().size());
      for (size_t i = 0; i < values.back().size(); ++i) {
        ASSERT_NEAR(values.back()[i], values.front()[i], 1e-5) << frames_per_group;
      }
    }
  }
}

TEST_P(IngestTest, AFailureComesAfterWhatCameBeforeIt) {
  Camera camera(plan());
  const auto ingest = make_ingest(*engine_, {camera.item()}, {}, progress_, spans_);
  camera.come(1);
  camera.fail(std::make_exception_ptr(Error(ErrorKind::network, "the camera is gone")));
  EXPECT_TRUE(ingest->next({}));
  EXPECT_THROW(ingest->next({}), Error);
  EXPECT_THROW(ingest->ready(), Error);
}

TEST_P(IngestTest, EndsAtAnyTime) {
  for (int units = 0; units < 6; ++units) {
    Camera camera(plan());
    const auto ingest = make_ingest(*engine_, {camera.item()}, {}, progress_, spans_);
    for (int i = 0; i < units; ++i) camera.come(1);
    if (units > 2) {
      EXPECT_TRUE(ingest->next({}));
    }
  }  // while it waits for the camera, or for room in a queue
}

INSTANTIATE_TEST_SUITE_P(Families, IngestTest,
                         ::testing::Values("qwen2_5_vl_tied_new", "llava_onevision_new"));

}  // namespace
}  // namespace kinora
