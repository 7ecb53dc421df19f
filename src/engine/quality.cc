#include <kinora/quality.h>

#include <algorithm>

#include "base/error.h"
#include "base/policy/names.h"

namespace kinora {

const std::vector<Quality>& qualities() {
  static const std::vector<Quality> known = {
      {"exact", "nothing is approximated; keys and values stay as computed", "dense", "all", "all",
       "exact", 1, 1, 0, false},
      {"balanced",
       "long prompts read keys sparsely (momo); products in bf16 where the CPU has them", "momo",
       "all", "all", "auto", 1, 1, 0, true},
      {"fast",
       "the same; frames that are cheap to decode, a third of their tokens: what is new in them",
       "momo", "novel:0.35", "all", "auto", 1, 1, 0.5, true},
  };
  return known;
}

const Quality& find_quality(const std::string& name) {
  const std::vector<Quality>& known = qualities();
  const auto found = std::find_if(known.begin(), known.end(),
                                  [&](const Quality& quality) { return quality.name == name; });
  if (found != known.end()) return *found;
  std::vector<std::string> names;
  for (const Quality& quality : known) names.push_back(quality.name);
  throw Error(ErrorKind::usage,
              "no quality is called " + in_quotes(name) + "; " + suggest_name(name, names));
}

void apply_quality(const Quality& quality, EngineOptions& engine, SessionOptions& session) {
  engine.native_bf16 = quality.native_bf16;
  session.attention = quality.attention;
  session.dense_on_gpu = true;
  session.tokens = quality.tokens;
  session.retain = quality.retain;
  session.row_type = quality.rows;
  session.frame_share = quality.frame_share;
  session.pixel_share = quality.pixel_share;
  session.snap_share = quality.snap_share;
}

}  // namespace kinora
