#include "bench/head_mix.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "attention/policies/sparse_policy.h"
#include "base/error.h"

namespace kinora::cli {

std::vector<std::string> mix_candidates(int64_t frame_tokens) {
  const auto stride = [&](int64_t parts) { return std::max<int64_t>(1, frame_tokens / parts); };
  std::vector<std::string> items = {"none/dense"};
  for (const int local : {512, 2048, 8192, 16384, 32768, 49152, 65536, 98304}) {
    items.push_back(fmt::format("none/a-shape:sink=128,local={}", local));
  }
  for (const int64_t parts : {1, 16, 32}) {
    for (const int local : {512, 2048}) {
      items.push_back(
          fmt::format("none/grid:lines=v,stride={},sink=128,local={}", stride(parts), local));
    }
  }
  for (const auto& [parts, phases] : {std::pair{1, 4}, {1, 8}, {2, 6}, {2, 8}, {4, 6}, {4, 8}}) {
    items.push_back(fmt::format("none/grid:lines=s,stride={},phases={},sink=128,local=512",
                                stride(parts), phases));
  }
  for (const int slashes : {512, 1024, 2048, 4096, 8192, 16384}) {
    items.push_back(fmt::format("none/vertical-slash:verticals=500,slashes={}", slashes));
  }
  return items;
}

HeadChoice parse_mixed_head(const std::string& item, int32_t frame_stride) {
  const size_t slash = item.find('/');
  if (slash == std::string::npos) {
    throw Error(ErrorKind::usage, "a head of a mix is BOUNDARY/PATTERN, such as both/a-shape; '" +
                                      item + "' has no boundary");
  }
  const std::string name = item.substr(0, slash);
  const auto words = boundary_words();
  const auto word = std::ranges::find(words, name, &std::pair<std::string, Boundary>::first);
  if (word == words.end()) {
    throw Error(ErrorKind::usage, "'" + item + "': no modality boundary is called '" + name +
                                      "'; there are none, key, query and both");
  }
  HeadChoice choice;
  choice.boundary = word->second;
  choice.patterns.push_back({{}, {}, parse_pattern(item.substr(slash + 1), frame_stride)});
  return choice;
}

std::shared_ptr<const HeadTable> mixed_table(const TableShape& shape,
                                             std::span<const std::string> items,
                                             int32_t frame_stride) {
  if (items.empty()) throw Error(ErrorKind::usage, "a mix of heads holds none");
  auto table = std::make_shared<HeadTable>();
  table->shape = shape;
  std::vector<HeadChoice> choices;
  for (const std::string& item : items) choices.push_back(parse_mixed_head(item, frame_stride));
  for (int layer = 0; layer < shape.layers; ++layer) {
    for (int head = 0; head < shape.heads; ++head) {
      table->heads.emplace_back(choices[static_cast<size_t>(head) % choices.size()]);
    }
  }
  return table;
}

}  // namespace kinora::cli
