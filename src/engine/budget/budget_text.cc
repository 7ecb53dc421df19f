#include "engine/budget/budget_text.h"

#include <fmt/format.h>

#include <cmath>

namespace kinora {
namespace {

struct SizeUnit {
  const char* name;
  int64_t bytes;
  int digits;  // shown after the point
};
constexpr SizeUnit size_units[] = {
    {"GiB", int64_t{1} << 30, 2}, {"MiB", int64_t{1} << 20, 1}, {"KiB", 1 << 10, 1}};

std::string limit_text(const BudgetRequest& request, Limit limit) {
  switch (limit) {
    case Limit::bytes:
      return size_text(request.max_bytes) + " of memory";
    case Limit::row_bytes:
      return size_text(request.max_row_bytes) + " of memory for keys and values";
    case Limit::tokens:
      return fmt::format("{} tokens of context", request.max_tokens);
    case Limit::none:
      break;
  }
  return "no limit";
}

}  // namespace

std::string size_text(int64_t bytes) {
  for (const SizeUnit& unit : size_units) {
    if (bytes < unit.bytes) continue;
    const double parts = std::pow(10, unit.digits);
    const double size =
        std::ceil(static_cast<double>(bytes) / static_cast<double>(unit.bytes) * parts) / parts;
    return fmt::format("{:.{}f} {}", size, unit.digits, unit.name);
  }
  return fmt::format("{} bytes", bytes);
}

Error refusal(const BudgetRequest& request, const BudgetPlan& plan) {
  const Cost& wanted = plan.wanted;
  const std::string needs = fmt::format(
      "this question needs {} frames, {} tokens and {} of memory, more than the budget of {}",
      wanted.frames, wanted.context, size_text(wanted.bytes()), limit_text(request, plan.exceeded));
  const std::string smallest = plan.exceeded == Limit::tokens
                                   ? fmt::format("{} tokens", plan.smallest_limit)
                                   : size_text(plan.smallest_limit);
  if (request.strict) {
    return Error(ErrorKind::resource,
                 fmt::format("{}; a budget of {} would do, and a session that is not strict would "
                             "look at fewer frames",
                             needs, smallest),
                 ErrorHint::not_strict);
  }
  const std::string frames =
      plan.cost.frames < wanted.frames ? fmt::format(", for {} frames", plan.cost.frames) : "";
  const char* other = request.tokens_before > 0 ? ", or clear the conversation" : "";
  return Error(ErrorKind::resource,
               fmt::format("{}; the smallest that works is {}{}: raise the budget{}", needs,
                           smallest, frames, other));
}

std::string share_change(const BudgetRequest& request, const BudgetPlan& plan) {
  Retention less = request.retention;
  less.ratio = plan.share;
  return fmt::format("to keep within {}, {} of every group of frames stays in memory instead of {}",
                     limit_text(request, plan.share_limit), to_string(less),
                     request.retention.ratio);
}

std::string frames_change(const BudgetRequest& request, const BudgetPlan& plan,
                          const std::string& source, const std::vector<SampledFrame>& frames,
                          size_t wanted) {
  const double length = frames.back().time - frames.front().time;
  const double rate = length > 0 ? static_cast<double>(frames.size() - 1) / length : 0.0;
  return fmt::format("to keep within {}, {} of {} frames of {} are looked at ({:.3g} a second)",
                     limit_text(request, plan.frames_limit), frames.size(), wanted, source, rate);
}

}  // namespace kinora
