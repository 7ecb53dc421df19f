// What all sessions share: one loaded model, the device it runs on and the threads it may use.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include <kinora/engine.h>

#include "base/context.h"
#include "base/file.h"
#include "base/threads.h"
#include "engine/budget/memory_budget.h"
#include "engine/draft_choice.h"
#include "engine/speed.h"
#include "model/model.h"

namespace kinora {

class Scheduler;

struct EngineState {
  EngineState(const EngineOptions& options, const FileSystem& files);
  // For a model that was generated rather than loaded.
  using MakeModel = std::function<std::unique_ptr<Model>(const Context&)>;
  EngineState(const std::string& device, int thread_count, const MakeModel& make);
  ~EngineState();

  // Of this model on this machine; how fast it multiplies is measured once.
  Speed speed() const;

  std::string directory;  // of the model
  ThreadPool threads;
  Context context;
  std::unique_ptr<Model> model;
  std::unique_ptr<Scheduler> scheduler;  // shares the model among sessions
  double load_seconds = 0;
  bool native_bf16 = false;
  DType activations = DType::f32;  // of the decoder; on a CPU before `native_bf16` rounds them
  mutable MemoryBudget rows;       // of all sessions; has a lock of its own
  mutable DraftShelf drafts;       // has a lock of its own

 private:
  mutable std::once_flag measured_;
  mutable double multiply_rate_ = 0;  // operations per second
};

// How the rest of kinora gets at what an Engine holds; users of the library cannot.
struct EngineAccess {
  static Engine make(std::shared_ptr<const EngineState> state) { return Engine(std::move(state)); }
  static const std::shared_ptr<const EngineState>& state(const Engine& engine) {
    return engine.state_;
  }
};

}  // namespace kinora
