// What all sessions share: one loaded model, the device it runs on and the threads it may use.
// Thread-safe; a session keeps its engine alive.
#pragma once

#include <memory>
#include <string>

#include "base/context.h"
#include "base/file.h"
#include "base/threads.h"
#include "model/model.h"

namespace kinora {

struct EngineOptions {
  std::string model;            // a directory as Hugging Face publishes it
  std::string device = "auto";  // auto, cpu, cuda, cuda:N
  int threads = 0;              // 0: every core
  bool check_finite = false;    // read all weights and refuse NaN and infinity
};

class Engine {
 public:
  static std::shared_ptr<const Engine> open(const EngineOptions& options,
                                            const FileSystem& files = real_files());

  const Context& context() const { return context_; }
  const ThreadPool& threads() const { return threads_; }
  const Model& model() const { return *model_; }
  double load_seconds() const { return load_seconds_; }

  Engine(const EngineOptions& options, const FileSystem& files);

 private:
  ThreadPool threads_;
  Context context_;
  std::unique_ptr<Model> model_;
  double load_seconds_ = 0;
};

}  // namespace kinora
