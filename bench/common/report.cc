#include "common/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace kinora::bench {
namespace {

nlohmann::json summary_json(const Summary& summary) {
  return {{"median", summary.median}, {"low", summary.low}, {"high", summary.high}};
}

}  // namespace

std::string Report::as_text() const {
  std::string text = title_ + "\n";
  for (const Note& note : notes_) text += fmt::format("  {}: {}\n", note.key, note.value);
  size_t width = 10;
  for (const ReportRow& row : rows_) width = std::max(width, row.name.size());
  for (const ReportRow& row : rows_) {
    const Summary value = row.value.summary();
    text += fmt::format("  {:{}}  {:8.1f} {} [{:.1f}, {:.1f}]", row.name, width, value.median,
                        row.unit, value.low, value.high);
    if (!row.share.empty()) {
      const Summary share = row.share.summary();
      text += fmt::format("   {:.0f}% of the ceiling [{:.0f}, {:.0f}]", share.median * 100,
                          share.low * 100, share.high * 100);
    }
    text += "\n";
  }
  return text;
}

std::string Report::as_json() const {
  nlohmann::json document{{"title", title_}};
  for (const Note& note : notes_) document[note.key] = note.value;
  for (const ReportRow& row : rows_) {
    nlohmann::json entry{{"name", row.name}, {"unit", row.unit}};
    entry["value"] = summary_json(row.value.summary());
    if (!row.share.empty()) entry["share"] = summary_json(row.share.summary());
    document["rows"].push_back(entry);
  }
  return document.dump(2);
}

}  // namespace kinora::bench
