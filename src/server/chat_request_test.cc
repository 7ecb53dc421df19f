#include "server/chat_request.h"

#include <gtest/gtest.h>

#include "server/api_error.h"

namespace kinora::server {
namespace {

using nlohmann::json;

LookWish look_of(const json& processor, const json& video) {
  const json body = {{"messages", {{{"role", "user"}, {"content", "?"}}}},
                     {"mm_processor_kwargs", processor},
                     {"media_io_kwargs", {{"video", video}}}};
  return read_chat_request(body).look;
}

std::string refused(const std::function<void()>& work) {
  try {
    work();
  } catch (const ApiError& error) {
    return error.param;
  }
  return "nothing was refused";
}

TEST(Looking, ChoosesFramesOfVideos) {
  using Way = FrameChoice::Way;
  EXPECT_EQ(input_options(look_of({}, {}), {}).frames.way, Way::model);
  const InputOptions rate = input_options(look_of({{"fps", 2.5}, {"max_pixels", 1000}}, {}), {});
  EXPECT_EQ(rate.frames, FrameChoice::rate(2.5));
  EXPECT_EQ(rate.max_pixels, 1000);
  EXPECT_EQ(input_options(look_of({}, {{"num_frames", 7}}), {}).frames, FrameChoice::evenly(7));
  EXPECT_EQ(input_options(look_of({}, {{"fps", 3}}), {}).frames, FrameChoice::rate(3));
  EXPECT_EQ(refused([] {
              input_options(look_of({}, {{"fps", 3}, {"num_frames", 7}}), {});
            }),
            "media_io_kwargs.video.num_frames");
  EXPECT_EQ(refused([] {
              input_options(look_of({}, {{"frames_indices", {0, 5}}}), {});
            }),
            "media_io_kwargs.video.frames_indices");
  EXPECT_EQ(refused([] {
              input_options(look_of({}, {{"duration", 5}}), {});
            }),
            "media_io_kwargs.video.duration");
}

TEST(Looking, KnowsWhereReadyFramesStood) {
  const auto rate = [](const json& video, int64_t frames) {
    return input_options(look_of({}, video), frames).folder_fps;
  };
  EXPECT_EQ(rate({}, 4), 1);
  EXPECT_EQ(rate({{"fps", 2}}, 4), 2);
  EXPECT_EQ(rate({{"fps", 30}, {"frames_indices", {0, 15, 30, 45}}, {"total_num_frames", 60}}, 4),
            2);
  EXPECT_EQ(rate({{"duration", 8}}, 4), 0.5);
  EXPECT_DOUBLE_EQ(rate({{"fps", 30}, {"frames_indices", {0, 14, 29, 43}}}, 4), 30 * 3 / 43.0)
      << "spread evenly and rounded";
  EXPECT_EQ(rate({{"fps", 30}, {"frames_indices", {7}}}, 1), 30);
  for (const json& uneven : {json{0, 1, 30, 31}, json{5, 5, 5, 5}, json{9, 6, 3, 0}}) {
    EXPECT_EQ(refused([&] {
                rate({{"fps", 30}, {"frames_indices", uneven}}, 4);
              }),
              "media_io_kwargs.video.frames_indices")
        << uneven;
  }
  EXPECT_EQ(refused([&] {
              rate({{"frames_indices", {0, 1}}}, 4);
            }),
            "media_io_kwargs.video.frames_indices");
}

TEST(Looking, ChoosesAmongReadyFramesOnlyWhenTold) {
  EXPECT_EQ(input_options(look_of({}, {}), 8).frames, FrameChoice::all());
  EXPECT_EQ(refused([] {
              input_options(look_of({{"num_frames", 4}}, {}), 8);
            }),
            "media_io_kwargs.video.do_sample_frames");
  EXPECT_EQ(input_options(look_of({{"num_frames", 4}, {"do_sample_frames", true}}, {}), 8).frames,
            FrameChoice::evenly(4));
}

TEST(ChatRequest, ReadsTurnsAndMedia) {
  const json body = {
      {"messages",
       {{{"role", "developer"}, {"content", "Be brief."}},
        {{"role", "user"},
         {"content",
          {{{"type", "text"}, {"text", "one"}},
           {{"type", "video_url"}, {"video_url", {{"url", "data:x"}}}, {"uuid", "film"}},
           {{"type", "input_video"}, {"input_video", {{"data", "AAAA"}}}},
           {{"type", "image_url"}, {"image_url", {{"url", "data:y"}, {"detail", "auto"}}}}}}},
        {{"role", "assistant"}, {"content", {{{"type", "text"}, {"text", "two"}}}}},
        {{"role", "user"}, {"content", "three"}}}},
      {"seed", -3},
      {"stop", "end"}};
  const AnswerWish wish = read_chat_request(body);
  ASSERT_EQ(wish.turns.size(), 4);
  EXPECT_EQ(wish.turns[0].role, "system");
  ASSERT_EQ(wish.turns[1].parts.size(), 4);
  EXPECT_EQ(wish.turns[1].parts[1].modality, Modality::video);
  EXPECT_EQ(wish.turns[1].parts[3].modality, Modality::image);
  ASSERT_EQ(wish.media.size(), 3);
  EXPECT_EQ(wish.media[0].uuid, "film");
  EXPECT_EQ(wish.media[1].base64, "AAAA");
  EXPECT_EQ(wish.media[2].param, "messages[1].content[3].image_url.url");
  EXPECT_EQ(wish.stop, std::vector<std::string>{"end"});
  EXPECT_TRUE(wish.seed);
}

}  // namespace
}  // namespace kinora::server
