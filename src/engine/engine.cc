#include "engine/engine.h"

#include <chrono>

#include "base/error.h"

namespace kinora {
namespace {

// The CUDA backend has no ops yet, so `auto` is the CPU and asking for a GPU is refused by name.
Device choose_device(const std::string& name) {
  if (name == "auto") return Device::cpu();
  const Device device = parse_device(name);
  if (!device.is_cpu()) {
    throw Error(ErrorKind::unsupported,
                "models do not run on " + to_string(device) + " yet; use --device cpu");
  }
  return device;
}

}  // namespace

Engine::Engine(const EngineOptions& options, const FileSystem& files)
    : threads_(options.threads), context_(threads_, choose_device(options.device)) {
  const auto begin = std::chrono::steady_clock::now();
  model_ = load_model(context_, files, options.model, {.check_finite = options.check_finite});
  load_seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

std::shared_ptr<const Engine> Engine::open(const EngineOptions& options, const FileSystem& files) {
  if (options.threads < 0) {
    throw Error(ErrorKind::usage,
                "threads is " + std::to_string(options.threads) + ", but must be 0 or larger");
  }
  return std::make_shared<const Engine>(options, files);
}

}  // namespace kinora
