// What all sessions share: one loaded model, the device it runs on and the threads it may use.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include <kinora/engine.h>

#include "base/context.h"
#include "base/file.h"
#include "base/threads.h"
#include "engine/memory_budget.h"
#include "model/model.h"

namespace kinora {

// What is to be done for a question.
struct Workload {
  int64_t tokens = 0;  // through the decoder
  int64_t visual_tokens = 0;
  double rows = 0;    // that a token attends to, on average
  double pixels = 0;  // of decoded pictures
};

struct EngineState {
  EngineState(const EngineOptions& options, const FileSystem& files);
  // Around a model that is made and not loaded.
  using MakeModel = std::function<std::unique_ptr<Model>(const Context&)>;
  EngineState(const std::string& device, int thread_count, const MakeModel& make);

  // A guess from the number of operations and how fast this machine multiplies (measured once).
  double expected_seconds(const Workload& work) const;

  std::string directory;  // of the model
  ThreadPool threads;
  Context context;
  std::unique_ptr<Model> model;
  double load_seconds = 0;
  bool native_bf16 = false;
  mutable MemoryBudget rows;  // of all sessions; has a lock of its own

 private:
  mutable std::once_flag measured_;
  mutable double multiply_rate_ = 0;  // operations a second
};

}  // namespace kinora
