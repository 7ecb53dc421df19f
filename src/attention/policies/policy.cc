#include "attention/policies/policy.h"

#include "attention/policies/all.h"
#include "attention/policies/sparse_policy.h"
#include "base/error.h"

namespace kinora {
namespace {

// What may follow any policy, and what it is where no number is given.
struct Modifiers {
  int64_t delta = 16;
};

Settings<Modifiers> modifiers() {
  Settings<Modifiers> settings;
  settings.count(
      "delta", &Modifiers::delta, {},
      "every Nth token is also computed exactly, and its error taken from those after it");
  return settings;
}

// "name:key=value,key=value+delta=16" taken apart.
struct Request {
  const AttentionPolicy& policy;
  std::vector<GivenSetting> settings;
  int64_t delta_stride = 0;
};

Request take_apart(std::string_view text) {
  int64_t delta_stride = 0;
  const size_t plus = text.find('+');
  if (plus != std::string_view::npos) {
    const std::string_view rest = text.substr(plus + 1);
    if (rest.find('=') == std::string_view::npos && rest != "delta") {
      throw Error(ErrorKind::usage,
                  "only +delta or +delta=N may follow a policy, not " + in_quotes(rest));
    }
    const auto given = rest == "delta" ? std::vector<GivenSetting>() : split_settings(rest, ',');
    delta_stride = modifiers().read(given).delta;
    text = text.substr(0, plus);
  }
  PolicyText parts = split_policy(text);
  return {find_policy(parts.name, attention_policies()), std::move(parts.settings), delta_stride};
}

std::unique_ptr<Attention> make(const Request& request, const AttentionOptions& given) {
  AttentionOptions options = given;
  if (request.delta_stride > 0) options.sparse.delta_stride = request.delta_stride;
  if (request.policy.needs_table && !options.table) {
    throw Error(ErrorKind::not_found,
                "it needs a table of the model's heads, and there is none; make one by tuning the "
                "model on a video of yours",
                ErrorHint::make_head_table);
  }
  return request.policy.make(request.settings, options);
}

// All but what depends on the model.
void check(std::string_view text) {
  const Request request = take_apart(text);
  request.policy.check(request.settings);
  if (!request.policy.needs_table) make(request, {});
}

}  // namespace

Settings<SparseOptions> shared_sparse_settings() {
  Settings<SparseOptions> settings;
  settings
      .count("last", &SparseOptions::dense_last, {},
             "tokens at the end of a group that read everything if they are text")
      .count("least", &SparseOptions::least_queries, {2},
             "groups of fewer tokens read everything, such as a short question by itself")
      .count("dense-layers", &SparseOptions::dense_layers, {},
             "the first N layers read everything");
  return settings;
}

std::vector<std::pair<std::string, Boundary>> boundary_words() {
  std::vector<std::pair<std::string, Boundary>> words;
  for (const Boundary boundary : {Boundary::none, Boundary::key, Boundary::query, Boundary::both}) {
    words.emplace_back(boundary_name(boundary), boundary);
  }
  return words;
}

const PolicyPoint& attention_point() {
  static const PolicyPoint point{
      .name = "attention",
      .summary = "which rows of memory a token reads while a prompt is read",
      .form = "NAME[:key=value,…][+delta[=N]]",
      .initial = "dense",
      .policies = infos_of(attention_policies()),
      .modifiers = modifiers().info(),
      .check = check};
  return point;
}

const AttentionPolicy& find_attention(std::string_view text) {
  return in_words("attention", text, [&] { return std::cref(take_apart(text).policy); });
}

std::unique_ptr<Attention> make_attention(std::string_view text, const AttentionOptions& options) {
  return in_words("attention", text, [&] { return make(take_apart(text), options); });
}

}  // namespace kinora
