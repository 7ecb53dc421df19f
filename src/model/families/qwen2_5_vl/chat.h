// The chat form of Qwen2.5-VL.
#pragma once

#include <string_view>

#include "model/chat/chat_form.h"

namespace kinora {

ChatForm qwen2_5_vl_chat(std::string_view published);

}  // namespace kinora
