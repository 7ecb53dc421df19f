// The chat template of LLaVA-OneVision: within a turn pictures come first, then videos, then every
// text on a line of its own.
#pragma once

#include "model/chat/chat_template.h"

namespace kinora {

inline constexpr ChatTraits llava_onevision_chat{.own_template = R"({% for m in messages -%}
<|im_start|>{{ m.role }}{{ ' ' }}
{%- for c in m.content if c.type == 'image' %}<image>{% endfor -%}
{%- for c in m.content if c.type == 'video' %}<video>{% endfor -%}
{%- for c in m.content if c.type == 'text' %}{{ '\n' ~ c.text }}{% endfor -%}
<|im_end|>
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %})",
                                                 .image = "<image>",
                                                 .video = "<video>"};

}  // namespace kinora
