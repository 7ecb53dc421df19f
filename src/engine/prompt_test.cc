// Prompts are planned from plain values; no model takes part.
#include "engine/prompt.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "model/sequential_positions.h"
#include "support/random_data.h"

namespace kinora {
namespace {

// A video that is looked at once a second, in units of two frames and three tokens.
VisualLook film(int64_t frames) {
  VisualLook look;
  look.plan.source = {Modality::video, {8, 8}, frames, 1};
  look.plan.frames_per_unit = 2;
  look.plan.tokens_per_unit = 3;
  look.plan.trailing_tokens = 1;
  look.plan.units = (frames + 1) / 2;
  for (int64_t i = 0; i < frames; ++i) look.samples.push_back({i, static_cast<double>(i)});
  return look;
}

VisualInput input_of(const VisualLook& look, std::vector<Subtitle> subtitles = {}) {
  VisualInput input;
  static_cast<VisualLook&>(input) = look;
  input.subtitles = std::move(subtitles);
  return input;
}

TEST(PromptTest, SubtitlesCutAVideoBeforeTheFramesThatFollowThem) {
  const VisualLook look = film(10);  // units begin at 0, 2, 4, 6, 8
  std::vector<VisualSegment> segments;
  const auto parts = lay_out(
      look, {{0, 1, "first"}, {2.5, 3, "in between"}, {3.5, 9, "again"}, {3700, 3701, "late"}}, 7,
      segments);
  ASSERT_EQ(parts.size(), 5u);
  EXPECT_EQ(parts[0].text, "[0:00] first\n");
  EXPECT_EQ(parts[1].modality, Modality::video);
  EXPECT_EQ(parts[2].text, "[0:02] in between\n[0:03] again\n");
  EXPECT_EQ(parts[3].modality, Modality::video);
  EXPECT_EQ(parts[4].text, "[1:01:40] late\n");
  ASSERT_EQ(segments.size(), 2u);
  EXPECT_EQ(segments[0].input, 7u);
  EXPECT_EQ(segments[0].first, 0);
  EXPECT_EQ(segments[0].count, 2);
  EXPECT_EQ(segments[1].first, 2);
  EXPECT_EQ(segments[1].count, 3);
}

TEST(PromptTest, AnInputThatGrewIsShownWhole) {
  for (const bool apart : {false, true}) {
    VisualLook look = film(4);
    look.plan.units_apart = apart;
    Asked asked;
    const VisualInput picture = input_of(film(1));
    const std::vector<VisualInput> inputs{input_of(look), picture};
    const Looks looks{&inputs[0], &inputs[1]};
    asked.conversation.turns.push_back({"system", {{Modality::text, "Be brief."}}});
    const Prompt prompt = lay_out_question(
        asked, {{Modality::video, ""}, {Modality::video, ""}, {Modality::text, "What?"}}, inputs,
        looks);
    asked = {prompt.conversation, prompt.segments, 2};
    VisualLook grown = film(10);
    grown.plan.units_apart = apart;
    lay_out_anew(asked, grown);
    const size_t parts = apart ? 5 : 1;
    ASSERT_EQ(asked.segments.size(), parts + 1);
    EXPECT_EQ(asked.segments[parts - 1].first + asked.segments[parts - 1].count, 5);
    EXPECT_EQ(asked.segments.back().input, 1u);
    const std::vector<ContentPart>& content = asked.conversation.turns[1].parts;
    ASSERT_EQ(content.size(), parts + 2);
    EXPECT_EQ(content.back().text, "What?");
    if (apart) {
      EXPECT_EQ(content[4].time, 8.5);
      EXPECT_TRUE(content[4].continues);
      EXPECT_FALSE(content[0].continues);
    }
  }
  Asked nothing;
  lay_out_anew(nothing, film(4));
  EXPECT_TRUE(nothing.segments.empty());
}

TEST(PromptTest, SegmentsCoverEveryUnitOnceWhateverTheSubtitles) {
  KINORA_FRESH_RANDOM(random);
  for (int round = 0; round < 300; ++round) {
    const VisualLook look = film(1 + random.below(65));
    std::vector<Subtitle> subtitles;
    double time = -3;
    for (int64_t i = random.below(12); i > 0; --i) {
      time += random.uniform(0, 9);
      subtitles.push_back({time, time + 1, "x"});
    }
    std::vector<VisualSegment> segments;
    const auto parts = lay_out(look, subtitles, 0, segments);
    int64_t unit = 0;
    for (const VisualSegment& segment : segments) {
      EXPECT_EQ(segment.first, unit);
      EXPECT_GT(segment.count, 0);
      unit += segment.count;
    }
    EXPECT_EQ(unit, look.plan.units);
    for (size_t i = 1; i < parts.size(); ++i) EXPECT_NE(parts[i].modality, parts[i - 1].modality);
    const auto visual = std::count_if(parts.begin(), parts.end(), [](const ContentPart& part) {
      return part.modality == Modality::video;
    });
    EXPECT_EQ(static_cast<size_t>(visual), segments.size());
  }
}

TEST(PromptTest, AQuestionTakesTheNewInputsInOrder) {
  const VisualLook seen = film(4), fresh = film(6);
  std::vector<VisualInput> inputs;
  inputs.push_back(input_of(seen));
  inputs.push_back(input_of(fresh, {{3, 4, "words"}}));
  const Looks looks{&inputs[0], &inputs[1]};
  Asked asked;
  asked.conversation.turns = {{"user", {{Modality::video, ""}, {Modality::text, "What?"}}},
                              {"assistant", {{Modality::text, "That."}}}};
  asked.segments = {{0, 0, 2}};
  asked.inputs = 1;
  const ContentPart video{Modality::video, ""}, text{Modality::text, "And this?"};
  const Prompt prompt = lay_out_question(asked, {text, video}, inputs, looks);
  ASSERT_EQ(prompt.conversation.turns.size(), 3u);
  EXPECT_EQ(prompt.conversation.turns[2].parts.size(), 4u);  // text, frames, words, frames
  ASSERT_EQ(prompt.segments.size(), 3u);
  EXPECT_EQ(prompt.segments[1].input, 1u);
  EXPECT_EQ(prompt.segments[1].count, 2);
  EXPECT_EQ(prompt.segments[2].first, 2);

  const auto refused = [&](const std::vector<ContentPart>& parts) {
    EXPECT_THROW(lay_out_question(asked, parts, inputs, looks), Error);
  };
  refused({text});
  refused({video, video, text});
  refused({video});
  refused({video, {Modality::text, " \t\n"}});
}

PromptRun words(std::vector<int32_t> ids) { return {std::move(ids), -1}; }
PromptRun slot(int visual) { return {{}, visual}; }

TEST(PromptTest, WhatIsInMemoryIsKeptAsFarAsThePromptContinuesIt) {
  Transcript said;
  std::vector<size_t> places{0};
  const auto mark = [&] { places.push_back(said.here().items); };
  said.add(words({1, 2}));
  said.add(slot(0));
  mark();
  said.add(words({3, 4}));
  mark();
  said.add(words({5}));
  const auto kept = [&](const std::vector<PromptRun>& runs, bool afresh = false) {
    return find_kept(flatten(runs), said, places, afresh);
  };
  // As it is.
  KeptItems found = kept({words({1, 2}), slot(0), words({3, 4, 5, 6})});
  EXPECT_FALSE(found.place);
  EXPECT_EQ(found.items, 6u);
  // The end of the question, the end of the video, nothing.
  found = kept({words({1, 2}), slot(0), words({3, 4, 9})});
  EXPECT_EQ(found.place, 2u);
  EXPECT_EQ(found.items, 5u);
  found = kept({words({1, 2}), slot(0), words({3, 9})});
  EXPECT_EQ(found.place, 1u);
  EXPECT_EQ(found.items, 3u);
  found = kept({words({1, 2}), slot(1)});
  EXPECT_EQ(found.place, 0u);
  EXPECT_EQ(found.items, 0u);
  // The last token is always computed anew: its hidden row is needed.
  EXPECT_EQ(kept({words({1, 2}), slot(0), words({3, 4, 5})}).place, 2u);
  EXPECT_EQ(kept({words({1, 2}), slot(0), words({3, 4, 5, 6})}, true).place, 0u);
}

TEST(PromptTest, TokensAreCountedFromWhereMemoryEnds) {
  const VisualLook look = film(9);  // five units, the last of one frame
  Prompt prompt;
  prompt.segments = {{0, 0, 2}, {0, 2, 3}};
  prompt.runs = {words({1, 2, 3}), slot(0), words({4, 5}), slot(1), words({6, 7, 8, 9})};
  const int64_t all = 3 + 6 + 2 + 10 + 4;  // a closing token after the last unit
  const auto positions = sequential_positions();
  for (size_t items = 0; items < 11; ++items) {
    Prompt part = prompt;
    keep_items(part, items);
    count_tokens(part, *positions, {&look});
    const int64_t text_left = static_cast<int64_t>(
        items < 4 ? 9 - std::min<size_t>(3, items) : (items < 7 ? 10 - items : 11 - items));
    EXPECT_EQ(part.text_tokens, text_left) << items;
    const int64_t visual_left = items < 4 ? 16 : items < 7 ? 10 : 0;
    EXPECT_EQ(part.tokens, text_left + visual_left) << items;
    EXPECT_EQ(part.end, part.tokens) << items;
  }
  count_tokens(prompt, *positions, {&look});
  EXPECT_EQ(prompt.tokens, all);
  EXPECT_EQ(positions->next(), 0);  // nothing was done

  // An open video is closed before the words that follow it.
  Prompt open;
  open.runs = {words({1}), slot(0), words({2, 3})};
  open.segments = {{0, 0, 5}};
  open.closes_video = true;
  keep_items(open, 2);
  count_tokens(open, *positions, {&look});
  EXPECT_EQ(open.tokens, 3);
}

}  // namespace
}  // namespace kinora
