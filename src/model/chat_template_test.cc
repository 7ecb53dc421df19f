#include "model/chat_template.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "base/file.h"
#include "support/temp_dir.h"

namespace kinora {
namespace {

using nlohmann::json;

const std::string fixtures = KINORA_FIXTURES;

Conversation conversation_of(const json& messages, bool prompt) {
  Conversation conversation;
  conversation.add_generation_prompt = prompt;
  for (const json& message : messages) {
    Turn turn{message["role"], {}};
    if (message["content"].is_string()) {
      turn.parts.push_back({Modality::text, message["content"]});
    } else {
      for (const json& part : message["content"]) {
        if (part["type"] == "text") {
          turn.parts.push_back({Modality::text, part["text"]});
        } else {
          turn.parts.push_back({part["type"] == "image" ? Modality::image : Modality::video, ""});
        }
      }
    }
    conversation.turns.push_back(turn);
  }
  return conversation;
}

std::vector<Modality> visuals_of(const Conversation& conversation) {
  std::vector<Modality> visuals;
  for (const Turn& turn : conversation.turns)
    for (const ContentPart& part : turn.parts)
      if (part.modality != Modality::text) visuals.push_back(part.modality);
  return visuals;
}

std::string joined(const ChatTemplate& chat, const Conversation& conversation,
                   const ChatOptions& options) {
  const std::vector<Modality> visuals = visuals_of(conversation);
  std::vector<int> seen(visuals.size());
  std::string text;
  for (const ChatPiece& piece : chat.render(conversation, options)) {
    text += piece.text;
    if (piece.visual < 0) continue;
    EXPECT_TRUE(piece.text.empty());
    ++seen.at(static_cast<size_t>(piece.visual));
    text += chat.placeholder(visuals.at(static_cast<size_t>(piece.visual)));
  }
  EXPECT_EQ(seen, std::vector<int>(visuals.size(), 1));
  return text;
}

void compare_family(const std::string& file, const ChatTemplate& chat) {
  const json cases = json::parse(real_files().read(fixtures + "/chat/" + file));
  ASSERT_GE(cases.size(), 10u);
  for (const json& one : cases) {
    SCOPED_TRACE(file + " " + one["name"].get<std::string>() + " " + one["options"].dump());
    ChatOptions options;
    if (one["options"].contains("enable_thinking"))
      options.think = one["options"]["enable_thinking"];
    if (one["options"].contains("date_string")) options.date = one["options"]["date_string"];
    const Conversation conversation =
        conversation_of(one["messages"], one["add_generation_prompt"]);
    EXPECT_EQ(joined(chat, conversation, options), one["text"].get<std::string>());
  }
}

TEST(ChatTemplate, GivesTheTextOfEveryFamily) {
  compare_family("qwen2_5_vl.json", ChatTemplate::choose("qwen2_5_vl", ""));
  compare_family("llava_onevision.json", ChatTemplate::choose("llava_onevision", ""));
  compare_family("qwen2.json", ChatTemplate::choose("qwen2", ""));
  compare_family("qwen3.json", ChatTemplate::choose("qwen3", ""));
  compare_family("llama3.json", ChatTemplate::choose("llama", ""));
  compare_family("llama3_0.json", ChatTemplate(ChatFamily::llama3));
}

// Each model directory's own template leads to the family that gives its cases' text.
TEST(ChatTemplate, ChoosesByTheDirectory) {
  const FileSystem& files = real_files();
  int compared = 0;
  for (const std::string& name : files.list(fixtures + "/cases")) {
    const std::string directory = fixtures + "/models/" + name;
    const std::string published = read_chat_template(files, directory);
    EXPECT_FALSE(published.empty());
    const json config = json::parse(files.read(directory + "/config.json"));
    const ChatTemplate chat =
        ChatTemplate::choose(config["model_type"].get<std::string>(), published);
    for (const std::string& file : files.list(fixtures + "/cases/" + name)) {
      if (!file.ends_with(".json")) continue;
      SCOPED_TRACE(name + "/" + file);
      const json one = json::parse(files.read(fixtures + "/cases/" + name + "/" + file));
      EXPECT_EQ(joined(chat, conversation_of(one["messages"], true), {}),
                one["text"].get<std::string>());
      ++compared;
    }
  }
  EXPECT_GE(compared, 30);
}

TEST(ChatTemplate, IsFoundWhereverTheDirectoryKeepsIt) {
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

TEST(ChatTemplate, TellsVariantsApart) {
  const Conversation hello{{{"user", {{Modality::text, "Hi"}}}}, false};
  const auto text = [&](std::string_view type, std::string_view published) {
    return joined(ChatTemplate::choose(type, published), hello, {});
  };
  EXPECT_EQ(text("qwen2", "… You are a helpful assistant. …"),
            "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
            "<|im_start|>user\nHi<|im_end|>\n");
  EXPECT_EQ(text("qwen2", "{{ no default }}"), "<|im_start|>user\nHi<|im_end|>\n");
  EXPECT_EQ(text("llama", "{{ bos_token }}"),
            "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>");
  // A template that asks the clock does not give the published date.
  const std::string dated = text("llama", "strftime_now Cutting Knowledge Date");
  EXPECT_EQ(dated.find("26 Jul 2024"), dated.npos);
  EXPECT_NE(dated.find("Today Date: "), dated.npos);
}

TEST(ChatTemplate, RefusesWhatAFamilyCannotRead) {
  const ChatTemplate chat(ChatFamily::qwen2);
  EXPECT_THROW(chat.render({}, {}), Error);
  EXPECT_THROW(chat.render({{{"user", {{Modality::image, ""}}}}, true}, {}), Error);
  EXPECT_THROW(chat.render({{{"tool", {{Modality::text, "x"}}}}, true}, {}), Error);
  EXPECT_THROW(
      ChatTemplate(ChatFamily::qwen2_5_vl).render({{{"user", {{Modality::audio, ""}}}}, true}, {}),
      Error);
  EXPECT_THROW(ChatTemplate::choose("gpt2", ""), Error);
}

}  // namespace
}  // namespace kinora
