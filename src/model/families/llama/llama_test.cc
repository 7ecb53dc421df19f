#include "model/families/llama/llama.h"

#include <gtest/gtest.h>

#include "model/chat/chat_case.h"

namespace kinora {
namespace {

using testing::expect_published_text;

TEST(LlamaChatTest, GivesThePublishedText) {
  expect_published_text("llama3.json", ChatTemplate(llama_family().chat(), {}));
}

// The directory's template decides, not the family: Llama 3.0 writes no dates.
TEST(LlamaChatTest, ObeysTheDirectory) {
  const PublishedTemplate published{
      R"({% for m in messages %}{% if loop.first %}{{ bos_token }}{% endif -%}
<|start_header_id|>{{ m.role }}<|end_header_id|>

{{ m.content | trim }}<|eot_id|>{% endfor %}
{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %})",
      "chat_template.jinja",
      {{"bos_token", "<|begin_of_text|>"}}};
  expect_published_text("llama3_0.json", ChatTemplate(llama_family().chat(), published));
}

}  // namespace
}  // namespace kinora
