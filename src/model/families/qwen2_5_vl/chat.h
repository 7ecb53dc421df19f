// The chat template of Qwen2.5-VL.
#pragma once

#include "model/chat/chat_template.h"

namespace kinora {

inline constexpr ChatTraits qwen2_5_vl_chat{.own_template = R"({% for m in messages %}
{% if loop.first and m.role != 'system' %}
<|im_start|>system
You are a helpful assistant.<|im_end|>
{% endif %}
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
{% endfor %}
{% if add_generation_prompt %}
{{ '<|im_start|>assistant\n' }}
{%- endif %})",
                                            .image = "<|image_pad|>",
                                            .video = "<|video_pad|>"};

}  // namespace kinora
