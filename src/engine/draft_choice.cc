#include "engine/draft_choice.h"

#include "engine/engine_state.h"
#include "generate/policies.h"

namespace kinora {

std::shared_ptr<const DraftModel> DraftShelf::open(const EngineState& engine,
                                                   const std::string& directory) {
  std::string path = directory;
  if (path.empty()) {
    if (engine.directory.empty()) return nullptr;  // of random weights
    path = join_path(engine.directory, "draft");
    if (!real_files().is_directory(path)) return nullptr;
  }
  const std::lock_guard lock(mutex_);
  std::shared_ptr<const DraftModel>& draft = drafts_[path];
  if (draft == nullptr) {
    draft = std::make_shared<const DraftModel>(engine.context, real_files(), path, *engine.model);
  }
  return draft;
}

std::shared_ptr<Drafter> choose_drafter(const EngineState& engine, const std::string& name) {
  return make_drafter(
      name, [&](const std::string& directory) { return engine.drafts.open(engine, directory); });
}

}  // namespace kinora
