// The chat form of LLaVA-OneVision.
#pragma once

#include <string_view>

#include "model/chat/chat_form.h"

namespace kinora {

ChatForm llava_onevision_chat(std::string_view published);

}  // namespace kinora
