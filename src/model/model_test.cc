// Whole models against the reference cases: prompt, sizes, pixels, vision, positions, and the
// tokens that come out at the end.
#include "model/model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "base/error.h"
#include "model/decoder/input_rows.h"
#include "model/reference_case.h"

namespace kinora {
namespace {

using testing::CaseName;
using testing::ReferenceCase;
using testing::row_error;

constexpr double tolerance = 1e-4;

// The procedural pictures of tests/reference/README.md.
Tensor make_pixels(uint32_t seed, int64_t frames, int64_t height, int64_t width) {
  Tensor pixels(DType::u8, Shape{frames, height, width, 3});
  uint8_t* out = pixels.data<uint8_t>();
  for (uint32_t t = 0; t < frames; ++t) {
    for (uint32_t y = 0; y < height; ++y) {
      for (uint32_t x = 0; x < width; ++x) {
        for (uint32_t c = 0; c < 3; ++c) {
          const uint32_t wave =
              (x * (3 + seed % 5) + y * (2 + seed % 7) + t * 37 + c * 85 + seed * 101) % 512;
          const uint32_t ramp = wave < 256 ? wave : 511 - wave;
          uint32_t hash = x * 73856093u ^ y * 19349663u ^ (t + 1) * 83492791u ^
                          (c + 1) * 2654435761u ^ (seed + 1) * 40503u;
          hash ^= hash >> 13;
          hash *= 1540483477u;
          hash ^= hash >> 15;
          *out++ = static_cast<uint8_t>(ramp * 3 / 4 + hash % 64);
        }
      }
    }
  }
  return pixels;
}

struct Item {
  VisualPlan plan;
  FrameGroup frames;
  Tensor expected;  // visual tokens

  // Between the first and the last frame of a unit.
  double time_of(int64_t unit) const {
    const int64_t first = unit * plan.frames_per_unit;
    const int64_t last = std::min(first + plan.frames_per_unit, frames.frames()) - 1;
    return (frames.times[static_cast<size_t>(first)] + frames.times[static_cast<size_t>(last)]) / 2;
  }
};

// What stands at one visual slot of a prompt: an item, or one unit of it.
struct Slot {
  const Item* item = nullptr;
  int64_t first = 0;
  int64_t count = 0;

  bool last() const { return first + count == item->plan.units; }
  int64_t tokens() const {
    return count * item->plan.tokens_per_unit + (last() ? item->plan.trailing_tokens : 0);
  }
};

struct Prompt {
  std::vector<PromptRun> runs;
  std::vector<Slot> slots;
};

class ModelReferenceTest : public ::testing::TestWithParam<CaseName> {
 protected:
  ModelReferenceTest()
      : reference_(GetParam()),
        config_(testing::read_config(testing::model_directory(GetParam().model))),
        model_(load_model(context_, real_files(), testing::model_directory(GetParam().model))) {}

  Conversation conversation() const {
    Conversation result;
    for (const auto& message : reference_.json().at("messages")) {
      Turn turn;
      turn.role = message.at("role");
      const auto& content = message.at("content");
      if (content.is_string()) {
        turn.parts.push_back({Modality::text, content.get<std::string>()});
      } else {
        for (const auto& part : content) {
          const std::string type = part.at("type");
          if (type == "text") {
            turn.parts.push_back({Modality::text, part.at("text").get<std::string>()});
          } else {
            turn.parts.push_back({type == "image" ? Modality::image : Modality::video, ""});
          }
        }
      }
      result.turns.push_back(turn);
    }
    return result;
  }

  // The prompt with its items laid out as their plans want it.
  Prompt prompt(const std::vector<Item>& items) const {
    Prompt result;
    Conversation laid_out;
    size_t next = 0;
    for (const Turn& turn : conversation().turns) {
      laid_out.turns.push_back({turn.role, {}});
      auto& parts = laid_out.turns.back().parts;
      for (const ContentPart& part : turn.parts) {
        if (part.modality == Modality::text) {
          parts.push_back(part);
          continue;
        }
        const Item& item = items.at(next++);
        const int64_t step = item.plan.units_apart ? 1 : item.plan.units;
        for (int64_t unit = 0; unit < item.plan.units; unit += step) {
          parts.push_back(part);
          if (item.plan.units_apart) parts.back().time = item.time_of(unit);
          parts.back().continues = unit > 0;
          result.slots.push_back({&item, unit, step});
        }
      }
    }
    result.runs = model_->render(laid_out);
    return result;
  }

  // The visual items in the order of the conversation, decoded to the size that the plan asks for.
  std::vector<Item> items() const {
    std::vector<Item> result;
    size_t images = 0, videos = 0;
    for (const Turn& turn : conversation().turns) {
      for (const ContentPart& part : turn.parts) {
        if (part.modality == Modality::text) continue;
        const bool image = part.modality == Modality::image;
        const size_t number = image ? images++ : videos++;
        result.push_back(item(image, number));
      }
    }
    return result;
  }

  Item item(bool image, size_t number) const {
    const auto& entry = reference_.json().at(image ? "images" : "videos").at(number);
    Item result;
    VisualSource source;
    source.modality = image ? Modality::image : Modality::video;
    source.size = {entry.at("width"), entry.at("height")};
    source.frames = image ? 1 : entry.at("frames").get<int64_t>();
    source.sampled_fps = image ? 0 : entry.value("fps", 1.0);
    source.images_in_prompt = static_cast<int64_t>(reference_.json().at("images").size());
    result.plan = model_->plan_visual(source, {});
    const Tensor raw =
        make_pixels(entry.at("seed"), source.frames, source.size.height, source.size.width);
    const Size wanted = result.plan.frame_size;
    result.frames.pixels = Tensor(DType::u8, Shape{source.frames, wanted.height, wanted.width, 3});
    for (int64_t frame = 0; frame < source.frames; ++frame) {
      resize(context_, raw.view()[frame], result.plan.filter, result.frames.pixels.view()[frame]);
      result.frames.times.push_back(static_cast<double>(frame) /
                                    std::max(source.sampled_fps, 1e-3));
    }
    result.expected =
        reference_.tensor((image ? "vision.image." : "vision.video.") + std::to_string(number));
    return result;
  }

  Tensor encode(const Item& item) const {
    return model_->encode(context_, item.plan, item.frames, true);
  }

  ThreadPool pool_{2};
  Context context_{pool_};
  ReferenceCase reference_;
  ModelConfig config_;
  std::unique_ptr<Model> model_;
};

TEST_P(ModelReferenceTest, RendersThePrompt) {
  const std::vector<Item> visuals = items();
  const Prompt asked = prompt(visuals);
  std::vector<int32_t> ids;
  int next_visual = 0;
  for (const PromptRun& run : asked.runs) {
    if (run.visual < 0) {
      ids.insert(ids.end(), run.ids.begin(), run.ids.end());
      continue;
    }
    EXPECT_EQ(run.visual, next_visual++);
    const Slot& slot = asked.slots.at(static_cast<size_t>(run.visual));
    const bool image = slot.item->plan.source.modality == Modality::image;
    ids.insert(ids.end(), static_cast<size_t>(slot.tokens()),
               image ? config_.image_token : config_.video_token);
  }
  EXPECT_EQ(ids, reference_.ids());
}

TEST_P(ModelReferenceTest, VisionAgrees) {
  for (const Item& item : items()) {
    const Tensor tokens = encode(item);
    EXPECT_EQ(tokens.size(0), item.plan.tokens());
    EXPECT_LE(row_error(tokens, item.expected), tolerance);
  }
}

TEST_P(ModelReferenceTest, VisionInGroupsIsTheSame) {
  for (const Item& item : items()) {
    if (item.plan.units < 2) continue;
    const int64_t per_unit = item.plan.frames_per_unit;
    std::vector<float> joined;
    for (int64_t unit = 0; unit < item.plan.units; ++unit) {
      const int64_t begin = unit * per_unit;
      FrameGroup part;
      const int64_t count = std::min(per_unit, item.frames.frames() - begin);
      part.pixels = Tensor(DType::u8, Shape{count, item.frames.height(), item.frames.width(), 3});
      std::memcpy(part.pixels.data<uint8_t>(), item.frames.pixels.view().row<uint8_t>(begin),
                  static_cast<size_t>(part.pixels.bytes()));
      const Tensor tokens = model_->encode(context_, item.plan, part, unit + 1 == item.plan.units);
      joined.insert(joined.end(), tokens.data<float>(), tokens.data<float>() + tokens.elements());
    }
    ASSERT_EQ(static_cast<int64_t>(joined.size()), item.expected.elements());
    EXPECT_LE(row_error(ConstTensorView::of(joined.data(), item.expected.shape()), item.expected),
              tolerance);
  }
}

TEST_P(ModelReferenceTest, PositionsAreExact) {
  const std::vector<Item> visuals = items();
  const Prompt asked = prompt(visuals);
  for (const bool in_groups : {false, true}) {
    const std::unique_ptr<PositionCounter> counter = model_->positions();
    std::vector<TokenInfo> tokens;
    for (const PromptRun& run : asked.runs) {
      if (run.visual < 0) {
        counter->text(static_cast<int64_t>(run.ids.size()), tokens);
        continue;
      }
      const Slot& slot = asked.slots.at(static_cast<size_t>(run.visual));
      const VisualPlan& plan = slot.item->plan;
      std::vector<double> times(static_cast<size_t>(plan.units));
      for (int64_t unit = 0; unit < plan.units; ++unit) {
        times[static_cast<size_t>(unit)] = static_cast<double>(unit) * plan.seconds_per_unit;
      }
      const int64_t step = in_groups ? 1 : slot.count;
      for (int64_t unit = slot.first; unit < slot.first + slot.count; unit += step) {
        counter->visual(plan, unit, step, std::span(times).subspan(static_cast<size_t>(unit)),
                        unit + step == plan.units, tokens);
      }
    }
    const std::vector<TokenInfo> expected = reference_.tokens(config_);
    ASSERT_EQ(tokens.size(), expected.size());
    for (size_t i = 0; i < tokens.size(); ++i) {
      EXPECT_EQ(tokens[i].position, expected[i].position) << "token " << i;
      EXPECT_EQ(tokens[i].modality, expected[i].modality) << "token " << i;
      EXPECT_EQ(std::isnan(tokens[i].time), tokens[i].modality == Modality::text);
    }
    const auto count = static_cast<int64_t>(expected.size());
    EXPECT_EQ(counter->next(), count + reference_.rope_delta());
    const std::unique_ptr<PositionCounter> copy = counter->clone();
    std::vector<TokenInfo> more;
    copy->text(2, more);
    EXPECT_EQ(more[1].position[2], count + reference_.rope_delta() + 1);
    EXPECT_EQ(counter->next(), count + reference_.rope_delta());
  }
}

// Everything from messages and pixels to text.
TEST_P(ModelReferenceTest, GreedyTokensAreIdentical) {
  const std::vector<Item> visuals = items();
  const Prompt asked = prompt(visuals);
  const std::unique_ptr<PositionCounter> counter = model_->positions();
  FlatMemory memory(model_->info().rows);
  DenseAttention attention;
  const std::unique_ptr<DecoderRunner> runner = model_->decoder().runner(context_);
  Tensor hidden;
  for (const PromptRun& run : asked.runs) {
    Sequence group;
    group.memory = &memory;
    group.attention = &attention;
    if (run.visual < 0) {
      group.embeddings = model_->decoder().embed(context_, run.ids);
      counter->text(static_cast<int64_t>(run.ids.size()), group.tokens);
    } else {
      const Slot& slot = asked.slots.at(static_cast<size_t>(run.visual));
      const Tensor all = encode(*slot.item);
      Tensor rows(DType::f32, {slot.tokens(), all.size(1)});
      std::memcpy(rows.data<float>(),
                  all.view().row<float>(slot.first * slot.item->plan.tokens_per_unit),
                  static_cast<size_t>(rows.bytes()));
      set_input_rows(context_, std::span(&rows, 1), model_->decoder().hidden_size(), group);
      counter->visual(slot.item->plan, slot.first, slot.count, {}, slot.last(), group.tokens);
    }
    hidden = runner->forward(group).hidden;
  }
  const std::vector<int32_t> expected = reference_.greedy();
  EXPECT_EQ(testing::greedy_tokens(context_, model_->decoder(), *runner, memory, attention, hidden,
                                   static_cast<int32_t>(counter->next()), expected.size()),
            expected);
}

// What the engine relies on when it hands over frames.
TEST_P(ModelReferenceTest, RefusesFramesThatDoNotFitThePlan) {
  for (const Item& item : items()) {
    FrameGroup wrong = item.frames;
    wrong.pixels =
        Tensor::zeros(DType::u8, Shape{wrong.frames(), wrong.height() + 1, wrong.width(), 3});
    EXPECT_THROW(model_->encode(context_, item.plan, wrong, true), Error);
    EXPECT_THROW(model_->encode(context_, item.plan, {}, true), Error);
    if (item.frames.frames() % item.plan.frames_per_unit != 0) {
      EXPECT_THROW(model_->encode(context_, item.plan, item.frames, false), Error);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Fixtures, ModelReferenceTest, ::testing::ValuesIn(testing::find_cases()),
                         testing::case_label);

TEST(LoadModelTest, DescribesWhatItLoaded) {
  ThreadPool pool(2);
  const Context context(pool);
  const auto model =
      load_model(context, real_files(), testing::model_directory("qwen2_5_vl_untied_old") + "/");
  const ModelInfo& info = model->info();
  EXPECT_EQ(info.family, "qwen2_5_vl");
  EXPECT_EQ(info.name, "qwen2_5_vl_untied_old");
  EXPECT_EQ(info.weight_dtype, DType::bf16);
  EXPECT_EQ(info.weight_bytes, 2 * info.parameters);
  EXPECT_EQ(info.max_position, 4096);
  EXPECT_EQ(info.vocabulary, 1024);
  EXPECT_EQ(info.rows.layers, 3);
  EXPECT_EQ(info.rows.kv_heads, 2);
  EXPECT_EQ(info.rows.head_size, 16);
  EXPECT_TRUE(info.sees);
  EXPECT_EQ(info.stop_tokens, (std::vector<int32_t>{1002, 1000}));
  EXPECT_EQ(info.generation.temperature, 0);
}

TEST(LoadModelTest, TextModelsSayThatTheyCannotSee) {
  ThreadPool pool(2);
  const Context context(pool);
  const auto model = load_model(context, real_files(), testing::model_directory("llama3"));
  EXPECT_FALSE(model->info().sees);
  try {
    model->plan_visual({}, {});
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::unsupported);
    EXPECT_NE(std::string(error.what()).find("llama3"), std::string::npos);
  }
}

TEST(LoadModelTest, SaysWhatIsNotThere) {
  ThreadPool pool(2);
  const Context context(pool);
  for (const char* directory : {"/nonexistent", KINORA_FIXTURES}) {
    try {
      load_model(context, real_files(), directory);
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::not_found);
      EXPECT_NE(std::string(error.what()).find(directory), std::string::npos);
    }
  }
}

}  // namespace
}  // namespace kinora
