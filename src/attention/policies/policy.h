// Attention policies by the names that people type: `--attention NAME`.
//
//   dense | mminference | momo | a-shape | tri-shape | sf-fixed | sf-strided | vertical-slash |
//   grid | mean-pool | oracle
//
// A name may carry settings and delta correction: "a-shape:sink=128,local=2048",
// "momo:k=64,exact=64,block=64", "grid:stride=64,lines=vs+delta", "grid+delta=32". All but dense
// know last=N: how many queries of text at the end of a group read everything.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "attention/attention.h"
#include "attention/policies/head_table.h"
#include "attention/policies/sparse_attention.h"

namespace kinora {

struct AttentionOptions {
  SparseOptions sparse;
  int32_t frame_stride = 64;               // tokens a frame, for patterns that follow frames
  std::shared_ptr<const HeadTable> table;  // mminference needs one
};

// Throws a usage error that lists what there is.
std::unique_ptr<Attention> make_attention(std::string_view text, const AttentionOptions& options);

std::vector<std::string_view> attention_names();

// Whether this policy reads a table (so that the caller knows to look for one).
bool needs_table(std::string_view text);

}  // namespace kinora
