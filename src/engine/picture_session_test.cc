// Pictures that join a conversation later. Some models look closer at a single picture: when a
// second one comes, the first is seen as Hugging Face sees it in the whole conversation, whatever
// the way that led there.
#include <gtest/gtest.h>
#include <kinora/session.h>

#include "base/error.h"
#include "engine/session_state.h"
#include "support/film.h"
#include "support/random_data.h"
#include "support/temp_dir.h"

namespace kinora {
namespace {

constexpr auto text = Modality::text, visual = Modality::image;
const std::string models = KINORA_FIXTURES "/models/";

class PictureSession : public ::testing::Test {
 protected:
  PictureSession() {
    Random random(11);
    film_ = testing::write_film(directory_.file("film"), random, 4);
    for (const char* name : {"a.ppm", "b.ppm", "c.ppm"}) {
      Tensor pixels(DType::u8, Shape{90, 170, 3});
      for (int64_t i = 0; i < pixels.elements(); ++i) {
        pixels.data<uint8_t>()[i] = static_cast<uint8_t>(random.below(256));
      }
      pictures_.push_back(directory_.file(name));
      testing::write_picture(pictures_.back(), pixels);
    }
  }

  std::unique_ptr<SessionState> session(const Engine& engine) const {
    SessionOptions options;
    options.decode_threads = 1;
    return std::make_unique<SessionState>(EngineAccess::state(engine), options);
  }
  static void add(SessionState& session, const std::string& source) {
    session.add({source, {}, 1, {}, "", false, {}}, {});
  }
  static Answer ask(SessionState& session, const std::vector<ContentPart>& parts) {
    GenerateOptions options;
    options.max_tokens = 8;
    options.ignore_stop_tokens = true;
    return session.ask(parts, options, nullptr, {});
  }
  static void expect_same(const Answer& one, const Answer& other) {
    EXPECT_EQ(one.prompt_ids, other.prompt_ids);
    EXPECT_EQ(one.ids, other.ids);
  }

  testing::TempDir directory_;
  std::string film_;
  std::vector<std::string> pictures_;
  const Engine llava_{{.model = models + "llava_onevision_new", .device = "cpu"}};
};

TEST_F(PictureSession, EveryWayToTheSamePicturesGivesTheSameTokens) {
  auto grown = session(llava_);
  add(*grown, pictures_[0]);
  const Answer first = ask(*grown, {{visual, ""}, {text, "What is it?"}});
  const int64_t alone = grown->inputs()[0].plan.tokens();
  add(*grown, pictures_[1]);
  EXPECT_LT(grown->inputs()[0].plan.tokens(), alone) << "one tile, as beside others";
  EXPECT_EQ(grown->inputs()[0].plan.tokens(), grown->inputs()[1].plan.tokens());
  const Answer second = ask(*grown, {{visual, ""}, {text, "And this?"}});
  EXPECT_EQ(second.frames, 2) << "the first is looked at again";
  add(*grown, pictures_[2]);
  const Answer third = ask(*grown, {{visual, ""}, {text, "And that?"}});
  EXPECT_EQ(third.frames, 1) << "two or three make no difference";

  const std::vector<Turn> one = {{"user", {{visual, ""}, {text, "What is it?"}}},
                                 {"assistant", {{text, first.text}}}};
  std::vector<Turn> two = one;
  two.push_back({"user", {{visual, ""}, {text, "And this?"}}});
  two.push_back({"assistant", {{text, second.text}}});

  auto at_once = session(llava_);
  for (int i = 0; i < 2; ++i) add(*at_once, pictures_[static_cast<size_t>(i)]);
  at_once->adopt(one);
  expect_same(ask(*at_once, {{visual, ""}, {text, "And this?"}}), second);

  auto all = session(llava_);
  for (const std::string& picture : pictures_) add(*all, picture);
  all->adopt(two);
  expect_same(ask(*all, {{visual, ""}, {text, "And that?"}}), third);

  // In a fork of a session that had read the first one by itself.
  auto base = session(llava_);
  add(*base, pictures_[0]);
  base->prepare({{visual, ""}}, {});
  auto fork = base->fork();
  fork->adopt(one);
  add(*fork, pictures_[1]);
  expect_same(ask(*fork, {{visual, ""}, {text, "And this?"}}), second);
  expect_same(ask(*base->fork(), {{visual, ""}, {text, "What is it?"}}), first);

  // After the conversation was forgotten and the picture kept.
  auto cleared = session(llava_);
  add(*cleared, pictures_[0]);
  ask(*cleared, {{visual, ""}, {text, "Which colour?"}});
  cleared->clear();
  add(*cleared, pictures_[1]);
  auto fresh = session(llava_);
  for (int i = 0; i < 2; ++i) add(*fresh, pictures_[static_cast<size_t>(i)]);
  expect_same(ask(*cleared, {{visual, ""}, {visual, ""}, {text, "Which is larger?"}}),
              ask(*fresh, {{visual, ""}, {visual, ""}, {text, "Which is larger?"}}));
}

TEST_F(PictureSession, AVideoBeforeThemIsNotReadAgain) {
  auto grown = session(llava_);
  add(*grown, film_);
  const Answer first = ask(*grown, {{visual, ""}, {text, "What is it?"}});
  add(*grown, pictures_[0]);
  const Answer second = ask(*grown, {{visual, ""}, {text, "Is it this?"}});
  add(*grown, pictures_[1]);
  const Answer third = ask(*grown, {{visual, ""}, {text, "Or this?"}});
  EXPECT_EQ(third.frames, 2);
  auto at_once = session(llava_);
  add(*at_once, film_);
  for (int i = 0; i < 2; ++i) add(*at_once, pictures_[static_cast<size_t>(i)]);
  at_once->adopt({{"user", {{visual, ""}, {text, "What is it?"}}},
                  {"assistant", {{text, first.text}}},
                  {"user", {{visual, ""}, {text, "Is it this?"}}},
                  {"assistant", {{text, second.text}}}});
  expect_same(ask(*at_once, {{visual, ""}, {text, "Or this?"}}), third);
}

TEST_F(PictureSession, OtherModelsReadOnlyWhatIsNew) {
  const Engine qwen({.model = models + "qwen2_5_vl_tied_new", .device = "cpu"});
  auto grown = session(qwen);
  add(*grown, pictures_[0]);
  ask(*grown, {{visual, ""}, {text, "What is it?"}});
  add(*grown, pictures_[1]);
  EXPECT_EQ(ask(*grown, {{visual, ""}, {text, "And this?"}}).frames, 1);
}

TEST_F(PictureSession, ASavedPictureIsNotReadAsAnother) {
  const std::string file = directory_.file("a.kinora");
  Session saving(llava_);
  saving.add(pictures_[0]);
  saving.save(file);
  Session reopened = Session::reopen(llava_, file);
  try {
    reopened.add(pictures_[1]);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::unsupported);
    EXPECT_NE(std::string(error.what()).find("index both together"), std::string::npos);
  }
  EXPECT_EQ(reopened.inputs().size(), 1u);
  AnswerOptions few;
  few.max_tokens = 4;
  EXPECT_EQ(reopened.ask("What is it?", few).ids, saving.ask("What is it?", few).ids);
}

}  // namespace
}  // namespace kinora
