#include "model/chat/chat_template.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "base/file.h"
#include "model/chat/chat_case.h"
#include "model/chat/published_template.h"
#include "model/families/families.h"
#include "support/temp_dir.h"

namespace kinora {
namespace {

using nlohmann::json;
using testing::conversation_of;
using testing::rendered;

const std::string fixtures = KINORA_FIXTURES;

// Each model directory's own template leads to the form that gives its cases' text.
TEST(ChatTemplateTest, IsChosenByTheDirectory) {
  const FileSystem& files = real_files();
  int compared = 0;
  for (const std::string& name : files.list(fixtures + "/cases")) {
    const std::string directory = fixtures + "/models/" + name;
    const PublishedTemplate published = read_chat_template(files, directory);
    EXPECT_FALSE(published.text.empty());
    const json config = json::parse(files.read(directory + "/config.json"));
    const Family* family = find_family(config["model_type"].get<std::string>());
    ASSERT_NE(family, nullptr);
    const ChatTemplate chat(family->chat(), published);
    for (const std::string& file : files.list(fixtures + "/cases/" + name)) {
      if (!file.ends_with(".json")) continue;
      SCOPED_TRACE(name + "/" + file);
      const json one = json::parse(files.read(fixtures + "/cases/" + name + "/" + file));
      EXPECT_EQ(rendered(chat, conversation_of(one["messages"], true)),
                one["text"].get<std::string>());
      ++compared;
    }
  }
  EXPECT_GE(compared, 30);
}

constexpr ChatTraits reads{.own_template = "x"};
constexpr ChatTraits sees{.own_template =
                              "{% for m in messages %}{% for c in m.content %}"
                              "{% if c.type == 'image' %}<image>{% elif c.type == 'video' %}<video>"
                              "{% else %}{{ c.text }}{% endif %}{% endfor %}|{% endfor %}",
                          .image = "<image>",
                          .video = "<video>"};

TEST(ChatTemplateTest, RefusesWhatAModelCannotRead) {
  for (const ChatTraits& traits : {reads, sees}) {
    const ChatTemplate chat(traits, {});
    EXPECT_THROW(chat.render({}, {}), Error);
    EXPECT_THROW(chat.render({{{"tool", {{Modality::text, "x"}}}}, true}, {}), Error);
    EXPECT_THROW(chat.render({{{"user", {{Modality::audio, ""}}}}, true}, {}), Error);
  }
  for (const Modality modality : {Modality::image, Modality::video}) {
    const Conversation looking{{{"user", {{modality, ""}}}}, true};
    EXPECT_THROW(ChatTemplate(reads, {}).render(looking, {}), Error);
    EXPECT_EQ(ChatTemplate(sees, {}).render(looking, {}).size(), 2u);
  }
}

// Every family refuses pictures or sees them, as it says.
TEST(ChatTemplateTest, FamiliesReadWhatTheySay) {
  for (const Family* family : families()) {
    const ChatTemplate chat(family->chat(), {});
    EXPECT_EQ(chat.placeholder(Modality::image).empty(), !family->sees()) << family->model_type();
    EXPECT_THROW(chat.render({{{"user", {{Modality::audio, ""}}}}, true}, {}), Error);
    const Conversation looking{{{"user", {{Modality::image, ""}}}}, true};
    if (family->sees()) {
      EXPECT_NO_THROW(chat.render(looking, {})) << family->model_type();
    } else {
      EXPECT_THROW(chat.render(looking, {}), Error) << family->model_type();
    }
  }
}

// Pictures and videos are counted apart, and what a person typed is no place for either.
TEST(ChatTemplateTest, TypedPlaceholdersAreText) {
  const ChatTemplate chat(sees, {});
  const Conversation conversation{{{"user",
                                    {{Modality::text, "<image> \uFDD00\uFDD1 <video>"},
                                     {Modality::video, ""},
                                     {Modality::image, ""},
                                     {Modality::text, "<image>"},
                                     {Modality::image, ""}}}},
                                  true};
  const std::vector<ChatPiece> expected{
      {"<image> \uFDD00\uFDD1 <video>", -1}, {"", 0}, {"", 1}, {"<image>", -1}, {"", 2}, {"|", -1}};
  EXPECT_EQ(chat.render(conversation, {}), expected);
}

TEST(ChatTemplateTest, RefusesATemplateThatLosesPictures) {
  const PublishedTemplate published{"{% if false %}<image>{% endif %}text", "the file", {}};
  const ChatTemplate chat(sees, published);
  EXPECT_EQ(chat.render({{{"user", {{Modality::text, "x"}}}}, true}, {}).size(), 1u);
  try {
    chat.render({{{"user", {{Modality::image, ""}}}}, true}, {});
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::unsupported);
    EXPECT_NE(std::string(error.what()).find("the file"), std::string::npos);
  }
}

// A text decoder's template, left over in the directory of a model that sees, is not taken.
TEST(ChatTemplateTest, ATemplateWithoutPicturesIsNotThatOfAModelThatSees) {
  const PublishedTemplate published{"{{ messages[0].content + '' }}", "the file", {}};
  const Conversation looking{{{"user", {{Modality::image, ""}}}}, true};
  EXPECT_EQ(ChatTemplate(sees, published).render(looking, {}).size(), 2u);
}

TEST(ChatTemplateTest, SaysWhatTheTemplateRefuses) {
  const PublishedTemplate published{"a\n{{ raise_exception('No ' ~ bos_token) }}",
                                    "x/chat_template.jinja",
                                    {{"bos_token", "<s>"}}};
  try {
    ChatTemplate(reads, published).render(testing::greeting(), {});
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    EXPECT_STREQ(error.what(),
                 "the model's chat template refuses the conversation: No <s> "
                 "(x/chat_template.jinja, line 2)");
  }
  EXPECT_THROW(ChatTemplate(reads, {"{% if %}", "x", {}}), Error);
}

TEST(PublishedTemplateTest, IsFoundWhereverTheDirectoryKeepsIt) {
  FileSystem& files = real_files();
  const testing::TempDir folder;
  const auto text = [&] { return read_chat_template(files, folder.path()).text; };
  EXPECT_EQ(text(), "");
  const std::string config = folder.file("tokenizer_config.json");
  files.write(config, R"({"chat_template": "one", "bos_token": {"content": "<s>"},
                          "eos_token": "</s>", "pad_token": null,
                          "extra_special_tokens": {"image_token": "<i>"}})");
  files.write(folder.file("special_tokens_map.json"), R"({"eos_token": "x", "unk_token": "<u>"})");
  EXPECT_EQ(text(), "one");
  const std::vector<std::pair<std::string, std::string>> tokens{
      {"bos_token", "<s>"}, {"eos_token", "</s>"}, {"image_token", "<i>"}, {"unk_token", "<u>"}};
  EXPECT_EQ(read_chat_template(files, folder.path()).tokens, tokens);
  files.write(config, R"({"chat_template": [{"name": "tools", "template": "x"}, 3,
                          {"name": "default", "template": "two"}]})");
  EXPECT_EQ(text(), "two");
  files.write(config, R"({"chat_template": [{"name": "tools", "template": "x"}]})");
  EXPECT_THROW(text(), Error);
  files.write(folder.file("chat_template.json"), R"({"chat_template": "three"})");
  EXPECT_EQ(text(), "three");
  files.write(folder.file("chat_template.jinja"), "four");
  EXPECT_EQ(text(), "four");
  files.write(folder.file("chat_template.json"), "{");
  EXPECT_EQ(text(), "four");
  std::filesystem::remove(folder.file("chat_template.jinja"));
  EXPECT_THROW(text(), Error);
}

}  // namespace
}  // namespace kinora
