#include "engine/row_type.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "engine/engine_state.h"
#include "ops/packed_rows.h"

namespace kinora {

const std::vector<std::string>& row_type_names() {
  static const std::vector<std::string> names{"auto", "exact", "f32", "bf16", "f16", "int8", "fp8"};
  return names;
}

DType row_type_of(const EngineState& engine, const std::string& name) {
  const bool cpu = engine.context.device.is_cpu();
  if (name == "f32") return DType::f32;
  if (name == "bf16") return DType::bf16;
  for (const DType type : {DType::f16, DType::i8, DType::u8}) {
    if (name != row_type_name(type)) continue;
    if (cpu || type != DType::f16) return type;
    throw Error(ErrorKind::unsupported,
                fmt::format("rows in {} are kept on CPUs only: take f32, bf16, int8 or fp8", name),
                ErrorHint::use_cpu);
  }
  if (name != "auto" && name != "exact") {
    throw Error(ErrorKind::usage, fmt::format("unknown row type '{}': give {}", name,
                                              fmt::join(row_type_names(), ", ")));
  }
  const DType weights = engine.model->info().weight_dtype;
  const bool rounded =
      engine.activations == DType::bf16 || (cpu && engine.native_bf16 && weights == DType::bf16);
  if (rounded) return DType::bf16;
  if (name == "exact") return DType::f32;
  // What is computed from f16 weights may exceed what f16 holds.
  return weights == DType::bf16 ? DType::bf16 : DType::f32;
}

}  // namespace kinora
