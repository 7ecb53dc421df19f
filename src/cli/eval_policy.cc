#include "cli/eval_policy.h"

#include <kinora/quality.h>

#include "attention/attention_dtype.h"
#include "attention/policies/policy.h"
#include "engine/row_type.h"
#include "engine/tokens/tokens.h"
#include "generate/policies.h"
#include "memory/policies.h"
#include "memory/retention/retention.h"

namespace kinora::cli {
namespace {

struct Choice {
  SessionOptions session;
  EngineOptions engine;
  int64_t dense_below = SparseOptions().dense_below;
};

Settings<Choice> settings() {
  const auto session = [](auto field) {
    return [field](auto& choice) -> auto& { return choice.session.*field; };
  };
  const auto check = [](const PolicyPoint& point) {
    return
        [&point](std::string_view text) { in_words(point.name, text, [&] { point.check(text); }); };
  };
  std::vector<std::pair<std::string, std::string>> row_types;
  for (const std::string& type : row_type_names()) row_types.emplace_back(type, type);
  std::vector<std::pair<std::string, std::string>> dtypes;
  for (const std::string& type : attention_dtype_names()) dtypes.emplace_back(type, type);

  Settings<Choice> all;
  all.text("attention", session(&SessionOptions::attention), "an attention policy",
           "which rows a token reads; may stand without its key", check(attention_point()))
      .bare();
  all.text("tokens", session(&SessionOptions::tokens), "a tokens policy",
           "which visual tokens reach the decoder", check(tokens_point()));
  all.text("retain", session(&SessionOptions::retain), "a retention policy",
           "what a group of frames leaves in memory", check(retention_point()))
      .text("memory", session(&SessionOptions::memory), "a memory policy",
            "how rows are organised and which of them a question reads", check(memory_point()))
      .text("draft", session(&SessionOptions::draft), "a draft policy",
            "what proposes tokens that the model verifies together", check(draft_point()))
      .count("dense-below", &Choice::dense_below, {},
             "rows under which sparse attention runs densely")
      .choice("attention-dtype", session(&SessionOptions::attention_dtype), dtypes,
              "what attention multiplies in while prefilling on a Hopper GPU")
      .choice("rows", session(&SessionOptions::row_type), row_types, "type of keys and values")
      .count("group", session(&SessionOptions::frames_per_group), {1},
             "frames that are prefilled together")
      .share("frames", session(&SessionOptions::frame_share), "of the frames that the model takes")
      .share("pixels", session(&SessionOptions::pixel_share), "of their pixels")
      .add(
          "snap", "none, or a share above 0 and at most 1",
          "of the distance between frames that each may be away where it is cheaper to decode",
          [](Choice& choice, std::string_view text) {
            const auto value = text == "none" ? std::optional(0.0) : read_share(text);
            if (value) choice.session.snap_share = *value;
            return value.has_value();
          },
          [](const Choice& choice) {
            return choice.session.snap_share > 0 ? share_text(choice.session.snap_share) : "none";
          })
      .add(
          "quality", "exact, balanced or fast", "a preset, in a run of its own",
          [](Choice& choice, std::string_view name) {
            apply_quality(find_quality(std::string(name)), choice.engine, choice.session);
            return true;
          },
          [](const Choice&) { return std::string("exact"); });
  return all;
}

}  // namespace

EvalPolicy parse_eval_policy(const std::string& text, EngineOptions& engine) {
  return in_words("policy", text, [&] {
    const Settings<Choice> known = settings();
    Choice initial = known.initial();
    initial.engine = engine;
    const Choice choice = known.read(split_settings(text, ';'), initial);
    engine = choice.engine;
    EvalPolicy policy{text, choice.session};
    policy.session.dense_below = choice.dense_below;
    return policy;
  });
}

std::vector<SettingInfo> eval_policy_settings() { return settings().info(); }

}  // namespace kinora::cli
