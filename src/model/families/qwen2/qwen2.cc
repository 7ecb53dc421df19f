#include "model/families/qwen2/qwen2.h"

#include "model/families/text_family.h"

namespace kinora {
namespace {

// That of Qwen2.5.
constexpr std::string_view own_template = R"({% for m in messages %}
{% if loop.first and m.role != 'system' %}
<|im_start|>system
You are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>
{% endif %}
<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor %}
{% if add_generation_prompt %}
{{ '<|im_start|>assistant\n' }}
{%- endif %})";

}  // namespace

const Family& qwen2_family() {
  static const TextFamily family("qwen2", qwen2_decoder, own_template);
  return family;
}

}  // namespace kinora
