#include "model/families/llama/llama.h"

#include "model/families/text_family.h"

namespace kinora {
namespace {

// That of Llama 3.1 and later: a system turn with dates comes first.
constexpr std::string_view own_template = R"({{ bos_token | default('<|begin_of_text|>') }}
{%- set turns = messages %}
{%- set system = '' %}
{%- if messages[0].role == 'system' %}
{%- set system = messages[0].content | trim %}
{%- set turns = messages[1:] %}
{%- endif -%}
<|start_header_id|>system<|end_header_id|>

Cutting Knowledge Date: December 2023
Today Date: {{ date_string | default('26 Jul 2024') }}

{{ system }}<|eot_id|>
{%- for m in turns -%}
<|start_header_id|>{{ m.role }}<|end_header_id|>

{{ m.content | trim }}<|eot_id|>
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %})";

}  // namespace

const Family& llama_family() {
  static const TextFamily family("llama", llama_decoder, own_template);
  return family;
}

}  // namespace kinora
