// Memories as clients use them: saved, asked about without the video, there after a restart.
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "server/service.h"
#include "server/test_client.h"
#include "server/test_media.h"
#include "support/temp_dir.h"

namespace kinora::server {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

class MemoriesOfAService : public ::testing::Test {
 protected:
  MemoriesOfAService() {
    options_.model = "tiny";
    options_.http.spool_directory = options_.media.directory = directory_.path();
    options_.media.roots = {directory_.path()};
    options_.library = directory_.file("videos");
    options_.memories = directory_.file("memories");
    options_.max_row_bytes = 64 << 20;
    options_.on_saved = [this](const MemoryFile& file) { told_.push_back(file.path); };
    start();
  }
  void start() {
    static const Engine engine(
        {.model = KINORA_FIXTURES "/models/qwen2_5_vl_tied_new", .device = "cpu", .threads = 2});
    service_ = nullptr;
    service_ = std::make_unique<Service>(engine, session_, options_);
  }
  TestReply ask(const std::string& method, const std::string& target,
                const std::string& body = "") const {
    TestClient client(service_->port());
    return client.ask(method, target, body);
  }
  std::string upload() const {
    return ask("POST", "/v1/videos?name=film.mkv", film_bytes(8)).json()["id"];
  }
  json save(const json& body) const {
    const TestReply reply = ask("POST", "/v1/memories", body.dump());
    EXPECT_EQ(reply.status, 201) << reply.body;
    return reply.json();
  }
  TestReply question(const std::string& uuid, const std::string& system = "") const {
    json messages = json::array();
    if (!system.empty()) messages.push_back({{"role", "system"}, {"content", system}});
    messages.push_back({{"role", "user"},
                        {"content",
                         {{{"type", "video_url"}, {"uuid", uuid}},
                          {{"type", "text"}, {"text", "What happens?"}}}}});
    const json body = {{"temperature", 0}, {"max_tokens", 8}, {"messages", messages}};
    return ask("POST", "/v1/chat/completions", body.dump());
  }
  static std::string text_of(const TestReply& reply) {
    EXPECT_EQ(reply.status, 200) << reply.body;
    return reply.json()["choices"][0]["message"]["content"];
  }

  testing::TempDir directory_;
  ServiceOptions options_;
  SessionOptions session_;
  std::vector<std::string> told_;
  std::unique_ptr<Service> service_;
};

TEST_F(MemoriesOfAService, AnswerAsTheVideoDoesAndStay) {
  const std::string video = upload();
  const std::string said = text_of(question(video));
  const json memory = save({{"video", video}, {"name", "talk"}});
  const std::string id = memory["id"];
  EXPECT_EQ(memory["name"], "talk");
  EXPECT_EQ(memory["inputs"].size(), 1u);
  EXPECT_GT(memory["tokens"], 0);
  EXPECT_EQ(told_.size(), 1u);
  const TestReply reply = question(id);
  EXPECT_EQ(text_of(reply), said);
  const json usage = reply.json()["usage"]["prompt_tokens_details"];
  EXPECT_GE(usage["cached_tokens"], usage["visual_tokens"]) << "something was read again";
  EXPECT_FALSE(reply.json()["choices"][0]["evidence"].empty());

  // Without the video, and after a restart; a conversation goes on.
  EXPECT_EQ(ask("DELETE", "/v1/videos/" + video).status, 200);
  start();
  EXPECT_EQ(ask("GET", "/v1/memories").json()["data"].size(), 1u);
  EXPECT_EQ(ask("GET", "/v1/memories/" + id).json()["name"], "talk");
  EXPECT_EQ(text_of(question(id)), said);
  EXPECT_EQ(text_of(question(id)), said);

  EXPECT_EQ(ask("DELETE", "/v1/memories/" + id).status, 200);
  EXPECT_EQ(question(id).status, 404);
  EXPECT_EQ(ask("DELETE", "/v1/memories/" + id).status, 404);
  start();
  EXPECT_TRUE(ask("GET", "/v1/memories").json()["data"].empty());
}

TEST_F(MemoriesOfAService, KeepTheSystemPromptThatTheyWereReadWith) {
  const std::string video = upload();
  const std::string said = text_of(question(video, "Be brief."));
  const std::string id = save({{"video", video}, {"system", "Be brief."}})["id"];
  EXPECT_EQ(ask("GET", "/v1/memories/" + id).json()["system"], "Be brief.");
  EXPECT_EQ(text_of(question(id)), said);
  EXPECT_EQ(text_of(question(id, "Be brief.")), said);
  EXPECT_EQ(question(id, "Be long.").status, 400);
}

TEST_F(MemoriesOfAService, AreMadeOfStreams) {
  const std::string path = directory_.file("film.mkv");
  std::ofstream(path, std::ios::binary) << film_bytes(8);
  const TestReply started = ask("POST", "/v1/streams", json{{"url", path}, {"speed", 1000}}.dump());
  ASSERT_EQ(started.status, 201) << started.body;
  const std::string stream = started.json()["id"];
  TestReply answer = question(stream);
  for (int tries = 0; answer.status == 409 && tries < 2000; ++tries) {  // no frame yet
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    answer = question(stream);
  }
  text_of(answer);
  const std::string id = save({{"stream", stream}})["id"];
  EXPECT_EQ(ask("DELETE", "/v1/streams/" + stream).status, 200);
  start();
  EXPECT_EQ(ask("GET", "/v1/memories/" + id).json()["name"], "film.mkv");
  text_of(question(id));
}

TEST_F(MemoriesOfAService, ComeFromFilesAndGoToFiles) {
  const std::string id = save({{"video", upload()}})["id"];
  const std::string said = text_of(question(id));
  const TestReply content = ask("GET", "/v1/memories/" + id + "/content");
  EXPECT_EQ(content.status, 200);
  std::ofstream(directory_.file("talk.kinora"), std::ios::binary) << content.body;
  const std::string again = save({{"url", "file://" + directory_.file("talk.kinora")}})["id"];
  EXPECT_NE(again, id);
  EXPECT_EQ(text_of(question(again)), said);
  std::ofstream(directory_.file("half.kinora"), std::ios::binary)
      << content.body.substr(0, content.body.size() / 2);
  for (const char* wrong : {"half.kinora", "none.kinora"}) {
    const TestReply reply =
        ask("POST", "/v1/memories", json{{"url", "file://" + directory_.file(wrong)}}.dump());
    EXPECT_TRUE(reply.status == 400 || reply.status == 403) << reply.body;
  }
}

TEST_F(MemoriesOfAService, AreWholeOrNotThere) {
  const std::string id = save({{"video", upload()}})["id"];
  // As a server leaves it that is killed while it writes.
  fs::create_directories(options_.memories + "/memory-half");
  std::ofstream(options_.memories + "/memory-half/memory.kinora.part") << "half";
  start();
  EXPECT_EQ(ask("GET", "/v1/memories").json()["data"].size(), 1u);
  EXPECT_FALSE(fs::exists(options_.memories + "/memory-half"));
  text_of(question(id));
}

TEST_F(MemoriesOfAService, AreLeftAloneWhereTheirDescriptionNestsTooDeeply) {
  const std::string id = save({{"video", upload()}})["id"];
  const std::string about = options_.memories + "/" + id + "/about.json";
  json said = json::parse(std::ifstream(about));
  said["more"] = json::parse(std::string(100, '[') + std::string(100, ']'));
  std::ofstream(about) << said;
  start();
  EXPECT_TRUE(ask("GET", "/v1/memories").json()["data"].empty());
  EXPECT_TRUE(fs::exists(about)) << "for someone to look at";
}

// Rows that a question chooses are read from the file when they are wanted, and once.
TEST_F(MemoriesOfAService, TellHowManyOfTheRowsThatAreWantedAreThere) {
  session_.memory = "mosaic:rows=16,cluster=4";
  start();
  const auto metric = [&](const std::string& name) {
    std::istringstream lines(ask("GET", "/metrics").body);
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with(name + " ")) return std::stod(line.substr(name.size() + 1));
    }
    ADD_FAILURE() << name << " is missing";
    return 0.0;
  };
  const std::string id = save({{"video", upload()}})["id"];
  start();
  const std::string said = text_of(question(id));
  const double wanted = metric("kinora_rows_wanted_bytes_total");
  const double late = metric("kinora_rows_late_bytes_total");
  EXPECT_GT(late, 0) << "nothing was read from the file";
  EXPECT_GE(wanted, late);
  EXPECT_DOUBLE_EQ(metric("kinora_rows_hit_rate"), (wanted - late) / wanted);
  EXPECT_EQ(text_of(question(id)), said);
  EXPECT_GT(metric("kinora_rows_wanted_bytes_total"), wanted);
  EXPECT_EQ(metric("kinora_rows_late_bytes_total"), late) << "the same rows were read again";
}

TEST_F(MemoriesOfAService, RefuseByNameWhatTheyDoNotHonour) {
  const auto refused = [&](const json& body, int status, const std::string& code) {
    const TestReply reply = ask("POST", "/v1/memories", body.dump());
    EXPECT_EQ(reply.status, status) << reply.body;
    EXPECT_EQ(reply.json()["error"]["code"], code) << reply.body;
  };
  const std::string video = upload();
  refused(json::object(), 400, "invalid_value");
  refused({{"video", video}, {"stream", "stream-1"}}, 400, "invalid_value");
  refused({{"video", "video-1"}}, 404, "video_not_found");
  refused({{"stream", "stream-1"}}, 404, "stream_not_found");
  refused({{"stream", "stream-1"}, {"system", "x"}}, 400, "invalid_value");
  refused({{"video", video}, {"nam", "x"}}, 400, "unknown_field");
  refused({{"url", "/etc/passwd"}}, 403, "media_not_allowed");
  refused({{"url", "data:video/mp4;base64,AAAA"}}, 400, "invalid_media");
  const std::string id = save({{"video", video}})["id"];
  json body = {{"messages",
                {{{"role", "user"},
                  {"content",
                   {{{"type", "text"}, {"text", "Look:"}},
                    {{"type", "video_url"}, {"uuid", id}},
                    {{"type", "text"}, {"text", "?"}}}}}}}};
  EXPECT_EQ(ask("POST", "/v1/chat/completions", body.dump()).status, 400) << "text before it";
  body["mm_processor_kwargs"] = {{"fps", 1}};
  EXPECT_EQ(ask("POST", "/v1/chat/completions", body.dump()).json()["error"]["param"],
            "mm_processor_kwargs");
}

}  // namespace
}  // namespace kinora::server
