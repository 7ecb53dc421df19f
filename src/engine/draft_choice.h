// The drafter of a session, by the name that a person gave. Drafts with weights are loaded once for
// all sessions of an engine.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "generate/draft_model.h"
#include "generate/drafter.h"

namespace kinora {

struct EngineState;

// The drafts of an engine's model that were asked for so far.
class DraftShelf {
 public:
  // Without a directory the one that came with the model; null if none did. Throws what is wrong
  // with it.
  std::shared_ptr<const DraftModel> open(const EngineState& engine, const std::string& directory);

 private:
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<const DraftModel>> drafts_;
};

// Throws a usage error for an unknown name.
std::shared_ptr<Drafter> choose_drafter(const EngineState& engine, const std::string& name);

}  // namespace kinora
