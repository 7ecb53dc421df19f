// The attention policy of a session, by the name that a person gave.
#pragma once

#include <memory>

#include <kinora/session.h>

#include "attention/policies/head_table.h"
#include "engine/engine_state.h"

namespace kinora {

// What a table must have been made for to serve this model.
TableShape expected_table(const ModelInfo& info);

// `frame_tokens` is the number of tokens of one frame of the session's video, for patterns that
// follow frames. Throws a usage error for an unknown name, and not_found, with the command that
// makes one, when the policy needs a table and there is none.
std::unique_ptr<Attention> choose_attention(const EngineState& engine,
                                            const SessionOptions& options, int64_t frame_tokens);

}  // namespace kinora
