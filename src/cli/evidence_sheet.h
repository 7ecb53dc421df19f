// The frames that an answer rests on, as one picture: `ask --evidence FILE` and `/evidence FILE` in
// `chat`.
#pragma once

#include <kinora/session.h>

#include <string>
#include <vector>

#include "base/cancel.h"

namespace kinora::cli {

// "[00:12:31-00:12:40] [00:15:02-00:15:04]"; with several inputs each after the name of its own.
// Empty where there is nothing to say.
std::string evidence_text(const std::vector<EvidenceSpan>& evidence,
                          const std::vector<InputInfo>& inputs);

// Reads the looked-at frames within the spans again and draws them in order, span by span. Throws a
// usage error where there are none, or where the input cannot be read twice.
void draw_evidence(const std::string& path, const std::vector<EvidenceSpan>& evidence,
                   const std::vector<InputInfo>& inputs, const CancelToken& cancel);

}  // namespace kinora::cli
