#include "attention/attention_dtype.h"

#include "attention/cuda/fp8/runner_fp8.h"
#include "base/error.h"

namespace kinora {

const std::vector<std::string>& attention_dtype_names() {
  static const std::vector<std::string> names{"bf16", "fp8"};
  return names;
}

AttentionDtype attention_dtype_of(const std::string& name) {
  if (name == "bf16") return AttentionDtype::bf16;
  if (name == "fp8") return AttentionDtype::fp8;
  throw Error(ErrorKind::usage, "attention does not multiply in '" + name + "': give bf16 or fp8");
}

bool has_fp8_attention(Device device) {
  return !device.is_cpu() && fp8_attention::runs_on(device.index);
}

}  // namespace kinora
