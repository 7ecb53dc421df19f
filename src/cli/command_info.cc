#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/command_line.h"
#include "cli/terminal.h"
#include "engine/engine.h"

namespace kinora::cli {
namespace {

struct InfoFlags {
  EngineOptions engine;
  bool json = false;
};

std::string human_count(int64_t count) {
  if (count >= 1'000'000'000)
    return fmt::format("{:.2f} billion", static_cast<double>(count) / 1e9);
  if (count >= 1'000'000) return fmt::format("{:.1f} million", static_cast<double>(count) / 1e6);
  return fmt::format("{}", count);
}

int info(const InfoFlags& flags) {
  const auto engine = Engine::open(flags.engine);
  const Model& model = engine->model();
  const ModelInfo& info = model.info();
  RowLayout rows = info.rows;
  rows.dtype = info.weight_dtype == DType::f32 ? DType::f32 : DType::bf16;
  if (flags.json) {
    const nlohmann::json out = {{"family", info.family},
                                {"name", info.name},
                                {"parameters", info.parameters},
                                {"weight_bytes", info.weight_bytes},
                                {"weight_dtype", dtype_name(info.weight_dtype)},
                                {"vocabulary", info.vocabulary},
                                {"max_position", info.max_position},
                                {"layers", rows.layers},
                                {"kv_heads", rows.kv_heads},
                                {"head_size", rows.head_size},
                                {"hidden_size", model.decoder().hidden_size()},
                                {"row_bytes_per_token", rows.bytes_per_token()},
                                {"sees", info.sees},
                                {"stop_tokens", info.stop_tokens},
                                {"load_seconds", engine->load_seconds()}};
    fmt::print("{}\n", out.dump(2));
    return 0;
  }
  const auto row = [](const char* name, const std::string& value) {
    fmt::print("{:<16}{}\n", name, value);
  };
  row("model", fmt::format("{} ({})", info.name, info.family));
  row("parameters", fmt::format("{}, {} in {}", human_count(info.parameters),
                                human_bytes(info.weight_bytes), dtype_name(info.weight_dtype)));
  row("decoder", fmt::format("{} layers, hidden {}, {} key/value heads of {}", rows.layers,
                             model.decoder().hidden_size(), rows.kv_heads, rows.head_size));
  row("vocabulary", fmt::format("{} tokens", info.vocabulary));
  row("positions", fmt::format("up to {}", info.max_position));
  row("memory", fmt::format("{} of keys and values a token", human_bytes(rows.bytes_per_token())));
  if (info.sees) {
    row("video", model.default_fps() > 0
                     ? fmt::format("{} frames a second, at most {}", model.default_fps(),
                                   model.default_max_frames())
                     : fmt::format("{} frames, evenly spread", model.default_max_frames()));
    const VisualPlan plan =
        model.plan_visual({Modality::video, {1920, 1080}, model.default_max_frames(), 2.0}, {});
    row("", fmt::format("a 1920×1080 video at that limit: {}×{}, {} tokens", plan.frame_size.width,
                        plan.frame_size.height, plan.tokens()));
  } else {
    row("video", "none: a text model");
  }
  row("loaded in", human_seconds(engine->load_seconds()));
  return 0;
}

}  // namespace

void add_info(CommandLine& line) {
  auto flags = std::make_shared<InfoFlags>();
  CLI::App* command = line.app.add_subcommand("info", "Describe a model directory");
  command->add_option("model", flags->engine.model, "Model directory, as Hugging Face publishes it")
      ->required()
      ->type_name("DIR");
  command->add_flag("--check-weights", flags->engine.check_finite,
                    "Read every weight and refuse NaN and infinity");
  command->add_flag("--json", flags->json, "Print one JSON object");
  command->callback([flags, &line] { line.action = [flags] { return info(*flags); }; });
}

}  // namespace kinora::cli
