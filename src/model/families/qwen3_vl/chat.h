// The chat form of Qwen3-VL, and the times of frames that its processor writes into it.
#pragma once

#include <string_view>
#include <vector>

#include "model/chat/chat_form.h"
#include "model/model.h"

namespace kinora {

ChatForm qwen3_vl_chat(std::string_view published);

// Puts "<T seconds>" before every unit of a video that has a time. `form` decides what is left of
// the markers around the whole video: nothing, or both once more.
void write_unit_times(const Conversation& conversation, VideoPromptForm form,
                      std::vector<ChatPiece>& pieces);

}  // namespace kinora
