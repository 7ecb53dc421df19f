// The chat template of Qwen3-VL, and the times of frames that its processor writes into it.
#pragma once

#include <vector>

#include "model/chat/chat_template.h"
#include "model/model.h"

namespace kinora {

// Only a first turn may be the system's; there is none by default.
inline constexpr ChatTraits qwen3_vl_chat{.own_template = R"({% for m in messages %}
{% if m.role != 'system' or loop.first %}
<|im_start|>{{ m.role }}
{% for c in m.content %}
{%- if c.type == 'image' -%}
<|vision_start|><|image_pad|><|vision_end|>
{%- elif c.type == 'video' -%}
<|vision_start|><|video_pad|><|vision_end|>
{%- else -%}
{{ c.text }}
{%- endif -%}
{%- endfor -%}
<|im_end|>
{% endif %}
{% endfor %}
{% if add_generation_prompt %}
{{ '<|im_start|>assistant\n' }}
{%- endif %})",
                                          .image = "<|image_pad|>",
                                          .video = "<|video_pad|>"};

// Puts "<T seconds>" before every unit of a video that has a time. `form` decides what is left of
// the markers around the whole video: nothing, or both once more.
void write_unit_times(const Conversation& conversation, VideoPromptForm form,
                      std::vector<ChatPiece>& pieces);

}  // namespace kinora
