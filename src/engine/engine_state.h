// What all sessions share: one loaded model, the device it runs on and the threads it may use.
#pragma once

#include <memory>
#include <string>

#include <kinora/engine.h>

#include "base/context.h"
#include "base/file.h"
#include "base/threads.h"
#include "model/model.h"

namespace kinora {

struct EngineState {
  EngineState(const EngineOptions& options, const FileSystem& files);

  std::string directory;  // of the model
  ThreadPool threads;
  Context context;
  std::unique_ptr<Model> model;
  double load_seconds = 0;
};

}  // namespace kinora
