#include "eval/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "eval/score.h"

namespace kinora {
namespace {

struct Tally {
  double score = 0;
  int64_t count = 0;
  std::vector<double> seconds;

  void add(const EvalRecord& record) {
    score += record.score;
    ++count;
    seconds.push_back(record.seconds);
  }
};

std::string percent(double share) { return fmt::format("{:.1f}", 100 * share); }

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<int64_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::vector<std::string> tally_cells(const Tally& tally) {
  const ConfidenceInterval interval = wilson_interval(tally.score, tally.count);
  return {fmt::format("{}", tally.count),
          percent(tally.score / static_cast<double>(std::max<int64_t>(1, tally.count))),
          fmt::format("{}–{}", percent(interval.low), percent(interval.high)),
          fmt::format("{:.3f}", median(tally.seconds))};
}

ReportTable accuracy_table(const EvalOutcome& outcome, const std::string& policy) {
  // By type and number of frames; the empty type collects all.
  std::map<std::pair<std::string, int64_t>, Tally> tallies;
  Tally all;
  for (const EvalRecord& record : outcome.records) {
    if (record.policy != policy) continue;
    tallies[{record.type, record.length}].add(record);
    all.add(record);
  }
  ReportTable table{"Accuracy, " + policy,
                    {"type", "length", "questions", "right, %", "95 % interval", "answer, s"},
                    {}};
  const auto row = [&](const std::string& type, const std::string& frames, const Tally& tally) {
    std::vector<std::string> cells{type, frames};
    for (std::string& cell : tally_cells(tally)) cells.push_back(std::move(cell));
    table.rows.push_back(std::move(cells));
  };
  for (const auto& [key, tally] : tallies) row(key.first, std::to_string(key.second), tally);
  row("all", "", all);
  return table;
}

// By number of frames or length: what one prefill of a video costs.
ReportTable cost_table(const EvalOutcome& outcome, const std::vector<std::string>& policies) {
  struct Sums {
    std::vector<double> tokens, seconds;
    double share = 0;
    double rows = 0;
  };
  ReportTable table{"Cost of a prefill",
                    {"policy", "length", "videos", "tokens", "seconds", "attention FLOPs, %",
                     "keys and values, MiB"},
                    {}};
  for (const std::string& policy : policies) {
    std::map<int64_t, Sums> lengths;
    for (const EvalRecord& record : outcome.records) {
      if (record.policy != policy || record.prefill <= 0) continue;
      Sums& sums = lengths[record.length];
      sums.tokens.push_back(static_cast<double>(record.tokens));
      sums.seconds.push_back(record.prefill);
      sums.share += record.share;
      sums.rows += static_cast<double>(record.row_bytes);
    }
    for (const auto& [length, sums] : lengths) {
      const auto count = static_cast<double>(sums.seconds.size());
      table.rows.push_back(
          {policy, std::to_string(length), std::to_string(sums.seconds.size()),
           fmt::format("{:.0f}", median(sums.tokens)), fmt::format("{:.2f}", median(sums.seconds)),
           percent(sums.share / count), fmt::format("{:.1f}", sums.rows / count / 1048576)});
    }
  }
  return table;
}

ReportTable comparison_table(const EvalOutcome& outcome, const std::string& first,
                             const std::string& second) {
  std::map<std::string, std::pair<const EvalRecord*, const EvalRecord*>> pairs;
  for (const EvalRecord& record : outcome.records) {
    if (record.policy == first) pairs[record.id].first = &record;
    if (record.policy == second) pairs[record.id].second = &record;
  }
  struct Pair {
    Tally one, two;
    int64_t only_one = 0, only_two = 0, same = 0;
  };
  std::map<std::string, Pair> types;
  for (const auto& [id, pair] : pairs) {
    const auto [one, two] = pair;
    if (one == nullptr || two == nullptr) continue;
    for (const std::string& type : {one->type, std::string("all")}) {
      Pair& sum = types[type];
      sum.one.add(*one);
      sum.two.add(*two);
      sum.only_one += one->score > two->score;
      sum.only_two += two->score > one->score;
      sum.same += one->answer == two->answer;
    }
  }
  ReportTable table{first + " against " + second + ", the same questions",
                    {"type", "pairs", first + ", %", second + ", %", "better by first",
                     "better by second", "same text, %", "probability of chance"},
                    {}};
  for (const auto& [type, pair] : types) {
    const auto count = static_cast<double>(pair.one.count);
    table.rows.push_back({type, std::to_string(pair.one.count), percent(pair.one.score / count),
                          percent(pair.two.score / count), std::to_string(pair.only_one),
                          std::to_string(pair.only_two),
                          percent(static_cast<double>(pair.same) / count),
                          fmt::format("{:.3f}", paired_probability(pair.only_one, pair.only_two))});
  }
  return table;
}

}  // namespace

std::vector<ReportTable> report_tables(const EvalOutcome& outcome,
                                       const std::vector<std::string>& policies) {
  std::vector<ReportTable> tables;
  for (const std::string& policy : policies) tables.push_back(accuracy_table(outcome, policy));
  tables.push_back(cost_table(outcome, policies));
  for (size_t i = 1; i < policies.size(); ++i) {
    tables.push_back(comparison_table(outcome, policies[0], policies[i]));
  }
  return tables;
}

ReportTable evidence_table(const EvalOutcome& outcome, const std::vector<std::string>& policies) {
  struct Sums {
    int64_t count = 0, right = 0;
    double found = 0, found_of_right = 0, guessed = 0, length = 0;

    void add(const EvalRecord& record) {
      const EvidenceScore& evidence = record.evidence;
      ++count;
      found += evidence.found;
      guessed += evidence.guessed;
      length += evidence.length;
      if (record.score < 1) return;
      ++right;
      found_of_right += evidence.found;
    }
  };
  ReportTable table{"Times that answers name",
                    {"policy", "facts", "length", "questions", "named, %", "95 % interval",
                     "of right answers, %", "uniform guess, %", "span, % of the video"},
                    {}};
  for (const std::string& policy : policies) {
    std::map<std::pair<bool, int64_t>, Sums> groups;  // −1: all lengths
    for (const EvalRecord& record : outcome.records) {
      if (record.policy != policy || !record.evidence.judged) continue;
      for (const int64_t length : {record.length, int64_t{-1}}) {
        groups[{record.evidence.several, length}].add(record);
      }
    }
    for (const auto& [key, sums] : groups) {
      const auto count = static_cast<double>(sums.count);
      const ConfidenceInterval interval = wilson_interval(sums.found, sums.count);
      table.rows.push_back(
          {policy, key.first ? "several, recall" : "one",
           key.second < 0 ? "all" : std::to_string(key.second), std::to_string(sums.count),
           percent(sums.found / count),
           fmt::format("{}–{}", percent(interval.low), percent(interval.high)),
           sums.right > 0 ? percent(sums.found_of_right / static_cast<double>(sums.right)) : "–",
           percent(sums.guessed / count), percent(sums.length / count)});
    }
  }
  return table;
}

ReportTable recall_table(const std::vector<Judgement>& judgements, int64_t tokens) {
  ReportTable table{fmt::format("Attention captured, {} tokens", tokens),
                    {"policy", "recall, %", "output error, %", "attention FLOPs, %",
                     "attention time, % of dense", "of it index, % of dense"},
                    {}};
  for (const Judgement& judgement : judgements) {
    table.rows.push_back({judgement.policy, fmt::format("{:.2f}", 100 * judgement.recall),
                          fmt::format("{:.2f}", 100 * judgement.error), percent(judgement.share),
                          percent(judgement.time), percent(judgement.index)});
  }
  return table;
}

std::vector<ReportTable> sparsity_tables(const SparsityStudy& study) {
  const std::vector<HeadSparsity> heads = study.heads();
  std::map<Modality, std::vector<double>> all;
  std::map<int, std::map<Modality, std::vector<double>>> layers;
  for (const HeadSparsity& head : heads) {
    all[head.modality].push_back(head.share);
    layers[head.layer][head.modality].push_back(head.share);
  }
  ReportTable needed{"Keys that hold 95 % of a query's attention, % of those it sees",
                     {"layer", "queries", "heads", "mean", "least", "most", "heads below 2 %"},
                     {}};
  const auto add = [&](const std::string& layer, Modality modality, std::vector<double> shares) {
    std::sort(shares.begin(), shares.end());
    double sum = 0;
    for (const double share : shares) sum += share;
    const auto few = std::count_if(shares.begin(), shares.end(), [](double s) { return s < 0.02; });
    needed.rows.push_back({layer, std::string(modality_name(modality)),
                           std::to_string(shares.size()),
                           fmt::format("{:.2f}", 100 * sum / static_cast<double>(shares.size())),
                           fmt::format("{:.2f}", 100 * shares.front()),
                           fmt::format("{:.2f}", 100 * shares.back()), std::to_string(few)});
  };
  for (const auto& [layer, by_modality] : layers) {
    for (const auto& [modality, shares] : by_modality) add(std::to_string(layer), modality, shares);
  }
  for (const auto& [modality, shares] : all) add("all", modality, shares);
  ReportTable reuse{"Attention found along lines from elsewhere",
                    {"lines of", "read by", "from", "recall, %", "keys, %"},
                    {}};
  for (const LineReuse& line : study.reuse()) {
    reuse.rows.push_back({std::string(modality_name(line.made)),
                          std::string(modality_name(line.used)),
                          line.other_prompt ? "another prompt" : "the same group",
                          fmt::format("{:.2f}", 100 * line.recall), percent(line.keys)});
  }
  return {needed, reuse};
}

std::string as_markdown(const std::vector<ReportTable>& tables, const std::string& title) {
  std::string out = "# " + title + "\n";
  for (const ReportTable& table : tables) {
    out += "\n## " + table.title + "\n\n|";
    for (const std::string& column : table.columns) out += " " + column + " |";
    out += "\n|";
    for (size_t i = 0; i < table.columns.size(); ++i) out += "---|";
    out += "\n";
    for (const auto& row : table.rows) {
      out += "|";
      for (std::string cell : row) {
        std::replace(cell.begin(), cell.end(), '|', '/');
        out += " " + cell + " |";
      }
      out += "\n";
    }
  }
  return out;
}

}  // namespace kinora
