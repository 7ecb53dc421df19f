#include "model/families/qwen3/qwen3.h"

#include "model/families/text_family.h"

namespace kinora {
namespace {

// Thoughts of answers before the last question are dropped; an answer after it keeps its thought,
// and the last one always has one. A thought that is closed before it begins makes the model answer
// at once.
constexpr std::string_view own_template =
    R"({% set last = namespace(question=messages | length - 1) %}
{% for m in messages %}
{% if m.role == 'user' %}
{% set last.question = loop.index0 %}
{% endif %}
{% endfor %}
{% for m in messages %}
<|im_start|>{{ m.role }}
{% if m.role == 'assistant' %}
{% set thought = '' %}
{% set said = m.content %}
{% if '</think>' in m.content %}
{% set thought = m.content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
{% set said = m.content.split('</think>')[-1].lstrip('\n') %}
{% endif %}
{% if loop.index0 > last.question and (loop.last or thought) %}
{{ '<think>\n' ~ thought.strip('\n') ~ '\n</think>\n\n' ~ said.lstrip('\n') }}
{%- else %}
{{ said }}
{%- endif %}
{% else %}
{{ m.content }}
{%- endif -%}
<|im_end|>
{% endfor %}
{% if add_generation_prompt %}
{{ '<|im_start|>assistant\n' }}
{%- if enable_thinking is defined and not enable_thinking %}
{{- '<think>\n\n</think>\n\n' }}
{%- endif %}
{%- endif %})";

}  // namespace

const Family& qwen3_family() {
  static const TextFamily family("qwen3", qwen3_decoder, own_template);
  return family;
}

}  // namespace kinora
