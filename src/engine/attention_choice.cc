#include "engine/attention_choice.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "attention/policies/dense.h"
#include "attention/policies/policy.h"
#include "base/error.h"

namespace kinora {

std::shared_ptr<const HeadTable> find_head_table(const EngineState& engine) {
  const std::vector<std::string> places = head_table_places(engine.directory);
  for (const std::string& place : places) {
    if (!real_files().is_file(place)) continue;
    return std::make_shared<const HeadTable>(
        load_head_table(real_files(), place, expected_table(engine.model->info())));
  }
  throw Error(ErrorKind::not_found,
              fmt::format("this attention needs a table of the model's heads, and there is none at "
                          "{}; make one by tuning the model on a video of yours",
                          fmt::join(places, " or ")),
              ErrorHint::make_head_table);
}

namespace {

AttentionOptions options_of(const EngineState& engine, const SessionOptions& options,
                            int64_t frame_tokens) {
  AttentionOptions chosen;
  if (options.dense_below) chosen.sparse.dense_below = *options.dense_below;
  if (frame_tokens > 0) chosen.frame_stride = static_cast<int32_t>(frame_tokens);
  if (find_attention(options.attention).needs_table) chosen.table = find_head_table(engine);
  return chosen;
}

}  // namespace

TableShape expected_table(const ModelInfo& info) {
  TableShape shape;
  // A directory may be renamed; the number of parameters tells models of one family apart.
  shape.model = fmt::format("{} {}", info.family, info.parameters);
  shape.layers = info.rows.layers;
  shape.kv_heads = info.rows.kv_heads;
  shape.head_size = info.rows.head_size;
  return shape;
}

std::unique_ptr<Attention> choose_attention(const EngineState& engine,
                                            const SessionOptions& options, int64_t frame_tokens) {
  const AttentionPolicy& policy = find_attention(options.attention);
  const AttentionDtype dtype = attention_dtype_of(options.attention_dtype);
  if (dtype == AttentionDtype::fp8 && !has_fp8_attention(engine.context.device)) {
    throw Error(ErrorKind::unsupported,
                fmt::format("attention in fp8 needs a Hopper GPU, and this runs on {}; use bf16",
                            to_string(engine.context.device)));
  }
  if (!engine.context.device.is_cpu() && !policy.runs_on_gpu) {
    if (options.dense_on_gpu) return std::make_unique<DenseAttention>(dtype);
    throw Error(ErrorKind::unsupported,
                fmt::format("the attention '{}' does not run on {} yet; use dense attention or the "
                            "device cpu",
                            options.attention, to_string(engine.context.device)),
                ErrorHint::dense_or_cpu);
  }
  AttentionOptions chosen = options_of(engine, options, frame_tokens);
  chosen.sparse.dtype = dtype;
  return make_attention(options.attention, chosen);
}

std::unique_ptr<Attention> choose_cpu_attention(const EngineState& engine,
                                                const SessionOptions& options,
                                                int64_t frame_tokens) {
  return make_attention(options.attention, options_of(engine, options, frame_tokens));
}

}  // namespace kinora
