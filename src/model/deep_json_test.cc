// Every JSON file of a model directory, nested more deeply than calls can be.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "base/error.h"
#include "base/file.h"
#include "base/threads.h"
#include "model/model.h"
#include "support/temp_dir.h"

namespace kinora {
namespace {

TEST(DeepJson, IsRefusedInEveryFile) {
  namespace fs = std::filesystem;
  const fs::path models = fs::path(KINORA_FIXTURES) / "models";
  const std::string lists = std::string(250'000, '[') + std::string(250'000, ']');
  ThreadPool pool(2);
  const Context context(pool);
  int tried = 0;
  for (const char* model : {"qwen2_5_vl_tied_new", "qwen2_5_vl_tied_v5", "qwen2_5_vl_untied_old",
                            "qwen3_vl_tied", "llava_onevision_old", "qwen3_w4"}) {
    const testing::TempDir folder;
    for (const fs::directory_entry& entry : fs::directory_iterator(models / model)) {
      fs::create_symlink(fs::canonical(entry.path()),
                         fs::path(folder.path()) / entry.path().filename());
    }
    // Files that a model may have besides.
    real_files().write(folder.file("special_tokens_map.json"), "{}");
    if (std::string(model).starts_with("qwen") &&
        fs::exists(folder.file("preprocessor_config.json"))) {
      real_files().write(folder.file("video_preprocessor_config.json"), "{}");
    }
    EXPECT_NO_THROW(load_model(context, real_files(), folder.path()));
    for (const std::string& name : real_files().list(folder.path())) {
      // LLaVA's says nothing that the older files beside it do not say.
      const bool read =
          name != "processor_config.json" || model != std::string("llava_onevision_old");
      if (!name.ends_with(".json") || !read) continue;
      const std::string path = folder.file(name);
      SCOPED_TRACE(path);
      const std::string content = real_files().read(path);
      for (const std::string key : {"eos_token_id", "normalizer", "pre_tokenizer", "decoder",
                                    "post_processor", "chat_template", "size", "x"}) {
        fs::remove(path);
        real_files().write(path, "{\"" + key + "\": " + lists + (content == "{}" ? "" : ",") +
                                     content.substr(content.find('{') + 1));
        ++tried;
        try {
          load_model(context, real_files(), folder.path());
          ADD_FAILURE() << key << " is accepted";
        } catch (const Error& error) {
          EXPECT_EQ(error.kind(), ErrorKind::bad_input) << error.what();
          EXPECT_NE(std::string(error.what()).find(name), std::string::npos) << error.what();
        }
      }
      real_files().write(path, content);
    }
  }
  EXPECT_GT(tried, 250);
}

}  // namespace
}  // namespace kinora
