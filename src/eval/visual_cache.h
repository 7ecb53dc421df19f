// A model that remembers, on disk, the visual tokens of frames it has seen: the second policy of a
// comparison, and the next run, skip the vision tower. Tokens are found by the decoded pixels
// themselves, so neither a renamed video nor another sampling can give the wrong ones.
// Used by `kinora eval`.
#pragma once

#include <memory>
#include <string>

#include "eval/token_folder.h"
#include "model/model.h"

namespace kinora {

// What tells the weights of a model directory from others: places, sizes and times of its files. A
// table of the heads does not count: it has no part in visual tokens.
std::string weights_identity(const std::string& directory);

// `identity` keeps models apart that share the folder.
std::unique_ptr<Model> with_visual_cache(std::unique_ptr<Model> model,
                                         std::shared_ptr<TokenFolder> folder,
                                         const std::string& identity);

// $XDG_CACHE_HOME/kinora/visual, else ~/.cache/kinora/visual; empty without a home.
std::string default_visual_cache();

}  // namespace kinora
