// The attention policy of a session, by the name that a person gave.
#pragma once

#include <memory>

#include <kinora/session.h>

#include "attention/policies/head_table.h"
#include "engine/engine_state.h"

namespace kinora {

// What a table must have been made for in order to fit this model.
TableShape expected_table(const ModelInfo& info);

// The table of the model's heads, from its directory or the user's data directory. Throws not_found
// when there is none.
std::shared_ptr<const HeadTable> find_head_table(const EngineState& engine);

// `frame_tokens` is the number of tokens of one frame of the session's video, for patterns that
// follow frames. Throws a usage error for an unknown name, and not_found when the policy needs a
// table and there is none.
std::unique_ptr<Attention> choose_attention(const EngineState& engine,
                                            const SessionOptions& options, int64_t frame_tokens);

// The same to plan and run on the CPU, whatever the engine's device: what judges and shows policies
// uses it.
std::unique_ptr<Attention> choose_cpu_attention(const EngineState& engine,
                                                const SessionOptions& options,
                                                int64_t frame_tokens);

}  // namespace kinora
