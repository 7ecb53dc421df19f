// Which pattern every head of a model uses: what `kinora tune` writes (kinora-attention.json) and
// the policy mminference reads. The file format is described in docs/methods/attention-table.md.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "attention/plan/region.h"
#include "attention/policies/pattern.h"
#include "base/file.h"

namespace kinora {

// The pattern of one region of a boundary.
struct RegionPattern {
  std::optional<Modality> query;  // set for query and both boundaries
  std::optional<Modality> key;    // set for key and both boundaries
  PatternSpec spec;
};

struct HeadChoice {
  Boundary boundary = Boundary::none;
  std::vector<RegionPattern> patterns;
  double recall = 0;  // share of the last group's attention that it captured
  double error = 0;   // of the last group's output, relative
  // What it costs on the sample, relative to dense attention.
  double flops = 0;    // computed
  double index = 0;    // FLOPs besides, for finding lines
  double time = 0;     // of running and finding lines, as the counted work tells it
  double seconds = 0;  // instead of these, by a clock, in tables of earlier searches
};

// The pattern of a region. A modality that the sample did not show takes the nearest one it did:
// pictures and videos stand for each other, then anything.
const PatternSpec& pattern_for(const HeadChoice& choice, const Region& region);

// "query: text a-shape 128/1024, video grid …"
std::string to_string(const HeadChoice& choice);

struct TableShape {
  std::string model;  // name and family, as the caller tells models apart
  int layers = 0;
  int heads = 0;  // 0 in what is expected: not known yet, checked when heads are seen
  int kv_heads = 0;
  int head_size = 0;
  bool operator==(const TableShape&) const = default;
};

// What a search was begun with, as its caller tells searches apart.
struct SearchOrigin {
  std::string budget;  // as it was given
  std::string sample;  // a key of what is read, and of what of it is searched
  bool operator==(const SearchOrigin&) const = default;
};

struct HeadTable {
  TableShape shape;
  int64_t sample_tokens = 0;
  double budget = 0;          // of a head, relative to dense attention
  std::string budget_unit;    // what it is counted in (search/search_cost.h); empty: seconds
  double budget_seconds = 0;  // by a clock, in tables of earlier searches
  std::vector<std::optional<HeadChoice>> heads;  // [layers × heads]; empty while a search runs
  std::optional<SearchOrigin> origin;  // of one that may go on; none in the tables that are used

  std::optional<HeadChoice>& at(int layer, int head);
  const std::optional<HeadChoice>& at(int layer, int head) const;
  bool complete() const;
};

std::string to_json(const HeadTable& table);
// Throws a bad_input error that names the file and the place.
HeadTable parse_head_table(std::string_view json, const std::string& path);

// Where a model's table is looked for, in this order: its own directory, then the user's data
// directory ($XDG_DATA_HOME or ~/.local/share).
std::vector<std::string> head_table_places(const std::string& model_directory);

// Reads and checks a table; a table of another model or an unfinished one is refused.
HeadTable load_head_table(const FileSystem& files, const std::string& path,
                          const TableShape& expected);

}  // namespace kinora
