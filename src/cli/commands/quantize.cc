#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "base/context.h"
#include "base/error.h"
#include "base/file.h"
#include "base/threads.h"
#include "cli/checks.h"
#include "cli/command_line.h"
#include "cli/model_name.h"
#include "cli/terminal/output.h"
#include "cli/terminal/terminal.h"
#include "model/quantize/quantize_directory.h"

namespace kinora::cli {
namespace {

struct QuantizeFlags {
  std::string model, output, sample;
  bool int4 = false, int8 = false, fp8 = false;
  bool plain = false, json = false, quiet = false;
  int threads = 0;
  QuantizeOptions options;
};

int run_quantize(QuantizeFlags& flags, const CancelToken& cancel) {
  if (flags.int4 + flags.int8 + flags.fp8 != 1) {
    throw Error(ErrorKind::usage, "give one of --int4, --int8 and --fp8");
  }
  QuantizeOptions& options = flags.options;
  options.kind = flags.int4 ? PackedKind::int4 : flags.int8 ? PackedKind::int8 : PackedKind::fp8;
  options.search = !flags.plain;
  if (!flags.sample.empty()) options.sample = real_files().read(flags.sample, int64_t{64} << 20);
  const std::string directory = find_model(flags.model);
  const ThreadPool pool(flags.threads);
  TerminalProgress progress(flags.quiet || flags.json);
  const QuantizeResult result = quantize_directory(Context(pool), real_files(), directory,
                                                   flags.output, options, &progress, cancel);
  progress.clear();
  if (flags.json) {
    const nlohmann::json out = {{"directory", flags.output},
                                {"kind", packed_kind_name(options.kind)},
                                {"layers", result.layers},
                                {"bytes_before", result.bytes_before},
                                {"bytes_after", result.bytes_after},
                                {"relative_error", result.error},
                                {"sample_tokens", result.sampled_tokens}};
    fmt::print("{}\n", json_text(out));
    return 0;
  }
  fmt::print("{}\n", flags.output);
  if (!flags.quiet) {
    remark("{} layers in {}, {} instead of {}; the weights changed by {:.2f} %\n", result.layers,
           packed_kind_name(options.kind), human_bytes(result.bytes_after),
           human_bytes(result.bytes_before), 100 * result.error);
  }
  return 0;
}

}  // namespace

void add_quantize(CommandLine& line) {
  auto flags = std::make_shared<QuantizeFlags>();
  CLI::App* command =
      line.app.add_subcommand("quantize", "Write a model with its weights in 4 or 8 bits");
  command->add_option("model", flags->model, "The model's directory or name, in 16 bits")
      ->required()
      ->type_name("DIR");
  command->add_option("-o,--output", flags->output, "The directory to write; must not exist yet")
      ->required()
      ->type_name("DIR");
  command->add_flag("--int4", flags->int4, "4 bits, whole numbers: the smallest and fastest");
  command->add_flag("--int8", flags->int8, "8 bits, whole numbers");
  command->add_flag("--fp8", flags->fp8, "8 bits, floating point (e4m3), for GPUs that have it");
  command->add_flag("--head", flags->options.head,
                    "The output head too, in 8 bits: faster still where the vocabulary is large");
  command
      ->add_option("--sample", flags->sample,
                   "A text such as the model will read: what its inputs look like decides how "
                   "weights are scaled before they are rounded, and in 4 bits how they make up for "
                   "each other's errors")
      ->type_name("FILE");
  command->add_option("--sample-tokens", flags->options.sample_tokens, "How much of it is read")
      ->capture_default_str()
      ->check(whole(100, 1 << 20));
  command
      ->add_option("--group", flags->options.group,
                   "Inputs that share a scale in 4 bits; smaller ones where it does not divide")
      ->capture_default_str()
      ->check(whole(32, 1 << 16));
  command->add_flag("--plain", flags->plain, "Do not search for the best scale of every group");
  command->add_option("--threads", flags->threads, "CPU threads; 0: all")->check(threads());
  command->add_flag("--json", flags->json, "Print one JSON object");
  command->add_flag("-q,--quiet", flags->quiet, "No progress, no summary");
  command->footer(
      "Examples:\n"
      "  kinora quantize Qwen/Qwen2.5-VL-3B-Instruct -o qwen-int4 --int4 --sample text.txt\n"
      "  kinora quantize DIR -o DIR-int8 --int8\n\n"
      "The result is a directory as any other (-m), in the format of compressed-tensors, which "
      "transformers\nand vLLM read too. Vision towers and embeddings stay as they are, heads "
      "without --head.");
  command->callback([flags, &line] {
    line.action = [flags, &line] { return run_quantize(*flags, line.interrupts.token()); };
  });
}

}  // namespace kinora::cli
