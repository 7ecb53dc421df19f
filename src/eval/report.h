// Tables of an evaluation: share of right answers by type and length with its 95 % interval, and,
// for two policies, how they differ on the same questions. As Markdown;
// page.h makes a page of them.
#pragma once

#include <string>
#include <vector>

#include "eval/recall/judge.h"
#include "eval/recall/sparsity.h"
#include "eval/run.h"

namespace kinora {

struct ReportTable {
  std::string title;
  std::vector<std::string> columns;
  std::vector<std::vector<std::string>> rows;
};

std::vector<ReportTable> report_tables(const EvalOutcome& outcome,
                                       const std::vector<std::string>& policies);

// How well the times that answers name fit the facts; for runs that judged them.
ReportTable evidence_table(const EvalOutcome& outcome, const std::vector<std::string>& policies);

// What `kinora eval --recall` measured.
ReportTable recall_table(const std::vector<Judgement>& judgements, int64_t tokens);

// What `kinora eval --sparsity` measured.
std::vector<ReportTable> sparsity_tables(const SparsityStudy& study);

std::string as_markdown(const std::vector<ReportTable>& tables, const std::string& title);

}  // namespace kinora
