#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include <kinora/engine.h>

#include "cli/bundled.h"
#include "cli/command_line.h"
#include "cli/model_name.h"
#include "cli/terminal/output.h"
#include "cli/terminal/terminal.h"
#include "memory/memory.h"

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

int info(InfoFlags& flags) {
  flags.engine.device = "cpu";  // nothing is computed
  flags.engine.model = find_model(flags.engine.model);
  const Engine engine(flags.engine);
  const ModelDescription model = engine.describe();
  const std::string note = bundled_note(flags.engine.model);
  const RowLayout packed{static_cast<int>(model.layers), static_cast<int>(model.kv_heads),
                         static_cast<int>(model.head_size), DType::i8};
  if (flags.json) {
    const nlohmann::json out = {
        {"family", model.family},
        {"name", model_title(flags.engine.model)},
        {"parameters", model.parameters},
        {"weight_bytes", model.weight_bytes},
        {"weight_type", model.weight_type},
        {"stored_bytes", model.stored_bytes},
        {"quantization", model.quantization},
        {"vocabulary", model.vocabulary},
        {"max_position", model.max_position},
        {"layers", model.layers},
        {"kv_heads", model.kv_heads},
        {"head_size", model.head_size},
        {"hidden_size", model.hidden_size},
        {"row_bytes_per_token", model.row_bytes_per_token},
        {"row_bytes_per_token_8_bits", packed.bytes_per_token()},
        {"sees", model.sees},
        {"stop_tokens", model.stop_tokens},
        {"load_seconds", model.load_seconds},
        {"warnings", note.empty() ? nlohmann::json::array() : nlohmann::json::array({note})}};
    fmt::print("{}\n", json_text(out));
    return 0;
  }
  const auto row = [](const char* name, const std::string& value) {
    fmt::print("{:<16}{}\n", name, value);
  };
  row("model", fmt::format("{} ({})", model_title(flags.engine.model), model.family));
  row("parameters",
      fmt::format("{}, {} in {}", human_count(model.parameters), human_bytes(model.weight_bytes),
                  model.quantization.empty() ? model.weight_type : "memory"));
  if (!model.quantization.empty()) {
    row("stored as", fmt::format("{}: {} in the files; a GPU widens them to 16 bits",
                                 model.quantization, human_bytes(model.stored_bytes)));
  }
  row("decoder", fmt::format("{} layers, hidden {}, {} key/value heads of {}", model.layers,
                             model.hidden_size, model.kv_heads, model.head_size));
  row("vocabulary", fmt::format("{} tokens", model.vocabulary));
  row("positions", fmt::format("up to {}", model.max_position));
  row("memory",
      fmt::format("{} of keys and values a token, {} in 8 bits",
                  human_bytes(model.row_bytes_per_token), human_bytes(packed.bytes_per_token())));
  if (model.sees) {
    row("video", model.default_fps > 0
                     ? fmt::format("{} frames a second, at most {}", model.default_fps,
                                   model.default_max_frames)
                     : fmt::format("{} frames, evenly spread", model.default_max_frames));
    const VisualCost cost = engine.visual_cost(1920, 1080, model.default_max_frames, 2.0);
    row("", fmt::format("a 1920×1080 video at that limit: {}×{}, {} tokens", cost.width,
                        cost.height, cost.tokens));
  } else {
    row("video", "none: a text model");
  }
  row("loaded in", human_seconds(model.load_seconds));
  if (!note.empty()) row("note", note);
  return 0;
}

}  // namespace

void add_info(CommandLine& line) {
  auto flags = std::make_shared<InfoFlags>();
  CLI::App* command = line.app.add_subcommand("info", "Describe a model");
  command
      ->add_option("model", flags->engine.model,
                   "A model's name or directory; without it the one that questions use")
      ->type_name("MODEL");
  command->add_flag("--check-weights", flags->engine.check_weights,
                    "Read every weight and refuse NaN and infinity");
  command->add_flag("--json", flags->json, "Print one JSON object");
  command->footer(
      "Examples:\n"
      "  kinora info Qwen2.5-VL-3B-Instruct\n"
      "  kinora info Qwen/Qwen2.5-VL-3B-Instruct --check-weights --json");
  command->callback([flags, &line] { line.action = [flags] { return info(*flags); }; });
}

}  // namespace kinora::cli
