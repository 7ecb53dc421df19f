"""Chat templates of the families, shortened to what kinora supports (no tools).

Each gives the same text as the published template for the messages of chat.py; `chat.py` compares
the Qwen2.5-VL one with the published file where that lies at hand.
"""

QWEN2_5_VL = (
    "{% for m in messages %}"
    "{% if loop.first and m.role != 'system' %}<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n{% endif %}"
    "<|im_start|>{{ m.role }}\n"
    "{% if m.content is string %}{{ m.content }}{% else %}{% for c in m.content %}"
    "{% if c.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif c.type == 'video' %}<|vision_start|><|video_pad|><|vision_end|>"
    "{% elif c.type == 'text' %}{{ c.text }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

# No system turn unless the conversation begins with one.
QWEN3_VL = (
    "{% for m in messages %}{% if loop.first or m.role != 'system' %}"
    "<|im_start|>{{ m.role }}\n"
    "{% if m.content is string %}{{ m.content }}{% else %}{% for c in m.content %}"
    "{% if c.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif c.type == 'video' %}<|vision_start|><|video_pad|><|vision_end|>"
    "{% elif c.type == 'text' %}{{ c.text }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n"
    "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

# Pictures first, then videos, then every text on a line of its own; no line end after <|im_end|>.
LLAVA_ONEVISION = (
    "{% for m in messages %}<|im_start|>{{ m.role }} "
    "{% for c in m.content if c.type == 'image' %}<image>{% endfor %}"
    "{% for c in m.content if c.type == 'video' %}<video>{% endfor %}"
    "{% for c in m.content if c.type == 'text' %}{{ '\n' + c.text }}{% endfor %}"
    "<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

QWEN2 = (
    "{% if messages[0].role != 'system' %}"
    "{{ '<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n' }}"
    "{% endif %}"
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

# Thoughts of earlier answers are dropped; an answer after the last question keeps (or gets) its <think> block.
QWEN3 = (
    "{% set ns = namespace(last=messages|length - 1) %}"
    "{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{% if m.role == 'assistant' %}"
    "{% set thought = '' %}{% set said = m.content %}"
    "{% if '</think>' in m.content %}"
    "{% set thought = m.content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}"
    "{% set said = m.content.split('</think>')[-1].lstrip('\n') %}{% endif %}"
    "{% if loop.index0 > ns.last and (loop.last or thought) %}"
    "{{ '<think>\n' + thought.strip('\n') + '\n</think>\n\n' + said.lstrip('\n') }}"
    "{% else %}{{ said }}{% endif %}"
    "{% else %}{{ m.content }}{% endif %}"
    "{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% if enable_thinking is defined and not enable_thinking %}{{ '<think>\n\n</think>\n\n' }}{% endif %}{% endif %}"
)

# Llama 3.1 and later: a system turn with dates always comes first.
LLAMA3 = (
    "{{ bos_token }}"
    "{% set date = date_string if date_string is defined else '26 Jul 2024' %}"
    "{% set system = messages[0].content|trim if messages[0].role == 'system' else '' %}"
    "{{ '<|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\nToday Date: '"
    " + date + '\n\n' + system + '<|eot_id|>' }}"
    "{% for m in messages %}{% if not (loop.first and m.role == 'system') %}"
    "{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' + m.content|trim + '<|eot_id|>' }}"
    "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)

# Llama 3.0: no dates, no system turn unless given.
LLAMA3_0 = (
    "{% for m in messages %}"
    "{% if loop.first %}{{ bos_token }}{% endif %}"
    "{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' + m.content|trim + '<|eot_id|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
