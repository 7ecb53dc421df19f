#include "cli/error_text.h"

#include <string_view>

namespace kinora::cli {
namespace {

std::string_view flags_for(ErrorHint hint) {
  switch (hint) {
    case ErrorHint::none:
      return "";
    case ErrorHint::use_cpu:
      return "--device cpu";
    case ErrorHint::dense_or_cpu:
      return "--attention dense, --device cpu";
    case ErrorHint::set_frame_rate:
      return "--fps";
    case ErrorHint::fewer_frames:
      return "--fps, --frames, --start, --end, --max-pixels";
    case ErrorHint::shorter_part:
      return "--start, --end";
    case ErrorHint::not_strict:
      return "leave out --strict";
    case ErrorHint::make_head_table:
      return "kinora tune --model DIR --sample VIDEO";
  }
  return "";
}

}  // namespace

std::string error_text(const Error& error) {
  std::string text = error.what();
  const std::string_view flags = flags_for(error.hint());
  if (!flags.empty()) text.append(" (").append(flags).append(")");
  return text;
}

}  // namespace kinora::cli
