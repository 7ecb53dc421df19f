#include "model/chat/chat_form.h"

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
TEST(ChatFormTest, IsChosenByTheDirectory) {
  const FileSystem& files = real_files();
  int compared = 0;
  for (const std::string& name : files.list(fixtures + "/cases")) {
    const std::string directory = fixtures + "/models/" + name;
    const std::string published = read_chat_template(files, directory);
    EXPECT_FALSE(published.empty());
    const json config = json::parse(files.read(directory + "/config.json"));
    const Family* family = find_family(config["model_type"].get<std::string>());
    ASSERT_NE(family, nullptr);
    const ChatForm chat = family->chat(published);
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

TEST(ChatFormTest, RefusesWhatAModelCannotRead) {
  const auto write = [](const Conversation&, const ChatOptions&, ChatWriter& out) { out << "x"; };
  const ChatForm reads(write);
  const ChatForm sees(write, {"<image>", "<video>"});
  for (const ChatForm& chat : {reads, sees}) {
    EXPECT_THROW(chat.render({}, {}), Error);
    EXPECT_THROW(chat.render({{{"tool", {{Modality::text, "x"}}}}, true}, {}), Error);
    EXPECT_THROW(chat.render({{{"user", {{Modality::audio, ""}}}}, true}, {}), Error);
  }
  for (const Modality modality : {Modality::image, Modality::video}) {
    const Conversation looking{{{"user", {{modality, ""}}}}, true};
    EXPECT_THROW(reads.render(looking, {}), Error);
    EXPECT_EQ(sees.render(looking, {}).size(), 1u);
  }
}

// Every family refuses pictures or sees them, as it says.
TEST(ChatFormTest, FamiliesReadWhatTheySay) {
  for (const Family* family : families()) {
    const ChatForm chat = family->chat("");
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

TEST(PublishedTemplateTest, IsFoundWhereverTheDirectoryKeepsIt) {
  FileSystem& files = real_files();
  const testing::TempDir folder;
  EXPECT_EQ(read_chat_template(files, folder.path()), "");
  const std::string config = folder.file("tokenizer_config.json");
  files.write(config, R"({"chat_template": "one"})");
  EXPECT_EQ(read_chat_template(files, folder.path()), "one");
  files.write(config, R"({"chat_template": [{"name": "tools", "template": "x"}, 3,
                          {"name": "default", "template": "two"}]})");
  EXPECT_EQ(read_chat_template(files, folder.path()), "two");
  files.write(folder.file("chat_template.json"), R"({"chat_template": "three"})");
  EXPECT_EQ(read_chat_template(files, folder.path()), "three");
  files.write(folder.file("chat_template.jinja"), "four");
  EXPECT_EQ(read_chat_template(files, folder.path()), "four");
  files.write(folder.file("chat_template.json"), "{");
  EXPECT_EQ(read_chat_template(files, folder.path()), "four");
  std::filesystem::remove(folder.file("chat_template.jinja"));
  EXPECT_THROW(read_chat_template(files, folder.path()), Error);
}

}  // namespace
}  // namespace kinora
