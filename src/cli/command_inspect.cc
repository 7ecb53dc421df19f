#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "attention/head_view.h"
#include "attention/policies/policy.h"
#include "attention/search/metrics.h"
#include "base/error.h"
#include "cli/attention_picture.h"
#include "cli/bundled.h"
#include "cli/checks.h"
#include "cli/command_line.h"
#include "cli/model_name.h"
#include "cli/policies.h"
#include "cli/sample_prefill.h"
#include "cli/terminal.h"
#include "draw/contact_sheet.h"
#include "draw/png_file.h"
#include "engine/attention_choice.h"

namespace kinora::cli {
namespace {

struct InspectFlags {
  SampleFlags sample;
  std::string attention = "momo";
  int layer = 0;
  std::optional<int> head;
  std::string output = "attention";
  int side = 256;
  bool json = false;
};

// Thrown through the decoder once the wanted layer has been seen.
struct LayerSeen {};

// Dense attention up to the wanted layer, whose heads are measured instead of run.
class InspectAttention final : public Attention {
 public:
  InspectAttention(const InspectFlags& flags, std::unique_ptr<Attention> policy, Progress& progress)
      : flags_(flags), policy_(std::move(policy)), progress_(progress) {}

  std::string_view name() const override { return "inspect"; }
  void attend(const Context& context, int layer, const QueryView& queries, const RowsView& rows,
              float scale, TensorView out) override {
    if (layer < flags_.layer) {
      dense_.attend(context, layer, queries, rows, scale, out);
      return;
    }
    measure(context, queries, rows, scale);
    throw LayerSeen();
  }

  const std::vector<HeadPicture>& pictures() const { return pictures_; }
  const std::vector<Modality>& modalities() const { return modalities_; }

 private:
  void measure(const Context& context, const QueryView& queries, const RowsView& rows,
               float scale) {
    const auto heads = static_cast<int>(queries.queries.size(1));
    if (flags_.head && (*flags_.head < 0 || *flags_.head >= heads)) {
      throw Error(ErrorKind::usage,
                  fmt::format("head {} of {}; heads count from 0", *flags_.head, heads));
    }
    modalities_.assign(rows.modalities.begin(), rows.modalities.end());
    std::vector<LabelledPlan> plans;
    if (Planner* planner = policy_->planner()) {
      plans = planner->plans(context, flags_.layer, queries, rows, scale);
    } else {
      plans.push_back({"dense", dense_plan(queries, rows)});
    }
    // Cells of at least one unit of 32 rows.
    const int side = static_cast<int>(std::clamp<int64_t>(rows.count() / 32, 1, flags_.side));
    const int first = flags_.head.value_or(0);
    const int end = flags_.head ? first + 1 : heads;
    for (int head = first; head < end; ++head) {
      progress_.update("measuring", head - first, end - first);
      pictures_.push_back(measure_head(context, queries, rows, scale, plans, head, side));
    }
  }

  static HeadPicture measure_head(const Context& context, const QueryView& queries,
                                  const RowsView& rows, float scale,
                                  const std::vector<LabelledPlan>& plans, int head, int side) {
    HeadPicture picture;
    picture.head = head;
    const HeadViews view = view_head(queries, rows, head);
    picture.attention = attention_map(context, view.queries, view.rows, scale, side);
    for (const LabelledPlan& labelled : plans) {
      const Plan one = only_head(labelled.plan, head);
      if (one.tiles.empty()) continue;
      picture.pattern = labelled.label;
      picture.coverage = coverage_map(one, view.queries, view.rows, 0, side);
      picture.recall = captured_mass(context, one, view.queries, view.rows, scale);
      picture.share = static_cast<double>(attended_pairs(one, view.queries, view.rows)) /
                      static_cast<double>(dense_pairs(1, view.queries, view.rows));
    }
    return picture;
  }

  // The tiles of one head as a plan of a single head.
  static Plan only_head(const Plan& plan, int head) {
    Plan one = plan;
    one.heads = one.kv_heads = 1;
    std::erase_if(one.tiles, [&](const Tile& tile) {
      return head < tile.head || head >= tile.head + tile.heads;
    });
    for (Tile& tile : one.tiles) {
      tile.head = 0;
      tile.heads = 1;
    }
    return one;
  }

  const InspectFlags& flags_;
  std::unique_ptr<Attention> policy_;
  Progress& progress_;
  DenseAttention dense_;
  std::vector<HeadPicture> pictures_;
  std::vector<Modality> modalities_;
};

int inspect(InspectFlags& flags, const CancelToken& cancel) {
  check_policy("--attention", attention_point(), flags.attention);
  TerminalProgress progress(flags.json);
  progress.update("loading", 0, 0);
  // Rows are looked at where the CPU reads them.
  if (flags.sample.engine.device == "auto") flags.sample.engine.device = "cpu";
  flags.sample.engine.model = find_model(flags.sample.engine.model);
  for (std::string& source : flags.sample.sources) source = input_or_demo(source);
  const auto engine = std::make_shared<const EngineState>(flags.sample.engine, real_files());
  const ModelInfo& info = engine->model->info();
  if (flags.layer < 0 || flags.layer >= info.rows.layers) {
    throw Error(ErrorKind::usage,
                fmt::format("layer {} of {}; layers count from 0", flags.layer, info.rows.layers));
  }
  Sample sample(*engine, flags.sample, progress, cancel);
  AttentionOptions options;
  options.sparse.dense_below = 0;
  options.frame_stride = sample.frame_stride();
  if (find_attention(flags.attention).needs_table) options.table = find_head_table(*engine);
  InspectAttention attention(flags, make_attention(flags.attention, options), progress);
  try {
    sample.prefill(attention);
  } catch (const LayerSeen&) {
  }
  progress.clear();

  const std::string title = fmt::format("{}, layer {}, {} tokens, {}", info.name, flags.layer,
                                        sample.tokens(), flags.attention);
  std::vector<std::string> pngs;
  if (attention.pictures().size() == 1) {
    const HeadPicture& picture = attention.pictures().front();
    const int cell = std::max(1, 512 / picture.attention.side);
    const Image image = draw_head(picture, attention.modalities(), cell);
    write_png(flags.output + ".png", image);
    pngs.push_back(encode_png(image));
  } else {
    std::vector<Image> images;
    for (const HeadPicture& picture : attention.pictures()) {
      const int side = picture.attention.side;  // the line of text above needs some 200 pixels
      const int cell = (200 + side - 1) / side;
      images.push_back(draw_head(picture, attention.modalities(), cell));
    }
    ContactSheet sheet(static_cast<int64_t>(images.size()), images.front().width(),
                       images.front().height(), title);
    for (size_t i = 0; i < images.size(); ++i) {
      sheet.add(images[i].row(0), static_cast<size_t>(images[i].width()) * 3,
                fmt::format("head {}", attention.pictures()[i].head));
    }
    write_png(flags.output + ".png", sheet.image());
    pngs.push_back(encode_png(sheet.image()));
  }
  real_files().write(flags.output + ".html",
                     head_page(title, attention.pictures(), pngs, attention.modalities()));

  nlohmann::json out = {{"layer", flags.layer},
                        {"tokens", sample.tokens()},
                        {"picture", flags.output + ".png"},
                        {"page", flags.output + ".html"}};
  size_t widest = 0;
  for (const HeadPicture& picture : attention.pictures()) {
    widest = std::max(widest, picture.pattern.size());
  }
  for (const HeadPicture& picture : attention.pictures()) {
    out["heads"].push_back({{"head", picture.head},
                            {"pattern", picture.pattern},
                            {"recall", picture.recall},
                            {"share_of_flops", picture.share}});
    if (!flags.json) {
      fmt::print("head {:<3} {:<{}}  recall {:.4f}  {:5.1f} % of the FLOPs\n", picture.head,
                 picture.pattern, widest, picture.recall, 100 * picture.share);
    }
  }
  if (flags.json) {
    fmt::print("{}\n", out.dump(2));
  } else {
    fmt::print("{}.png, {}.html\n", flags.output, flags.output);
  }
  return 0;
}

}  // namespace

void add_inspect(CommandLine& line) {
  auto flags = std::make_shared<InspectFlags>();
  CLI::App* command = line.app.add_subcommand("inspect", "Look inside a model at work");
  command->require_subcommand(1);
  command->footer(
      "Examples:\n"
      "  kinora inspect attention demo --layer 3");
  CLI::App* attention = command->add_subcommand(
      "attention", "Draw where heads attend and what a sparse policy computes of it");
  attention
      ->add_option("input", flags->sample.sources,
                   "Videos or pictures, - for a pipe; 'demo' is the clip that comes with kinora")
      ->required()
      ->expected(1, -1)
      ->type_name("VIDEO…");
  flags->sample.add_to(*attention);
  attention->add_option("--layer", flags->layer, "Layer, from 0")
      ->capture_default_str()
      ->check(whole(0));
  attention->add_option("--head", flags->head, "Head, from 0; without it a sheet of all heads")
      ->check(whole(0));
  attention
      ->add_option("--attention", flags->attention,
                   "Policy to show: " + policy_names(attention_point()))
      ->capture_default_str();
  attention->add_option("-o,--output", flags->output, "Writes OUTPUT.png and OUTPUT.html")
      ->capture_default_str();
  attention->add_option("--cells", flags->side, "Most cells along a side of a map")
      ->capture_default_str()
      ->check(whole(8, 1024));
  attention->add_flag("--json", flags->json, "Print one JSON object");
  attention->footer(
      "Examples:\n"
      "  kinora inspect attention demo --layer 3\n"
      "  kinora inspect attention talk.mp4 -m DIR --layer 12 --head 3 --attention grid\n"
      "  kinora inspect attention talk.mp4 -m DIR --layer 12 -o layer12");
  attention->callback([flags, &line] {
    line.action = [flags, &line] { return inspect(*flags, line.interrupts.token()); };
  });
}

}  // namespace kinora::cli
