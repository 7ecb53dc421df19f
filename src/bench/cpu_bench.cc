#include "bench/cpu_bench.h"

#include <algorithm>
#include <atomic>
#include <chrono>

#include "attention/policies/policy.h"
#include "bench/median_seconds.h"
#include "bench/random_rows.h"
#include "memory/flat_memory.h"
#include "model/decoder/transformer_decoder.h"
#include "model/families/families.h"
#include "model/weights/random_weights.h"
#include "ops/matmul.h"

namespace kinora::cli {
namespace {

constexpr int64_t group = 2048;           // tokens prefilled together
constexpr int64_t head_rows = 8192;       // of the output head that are made
constexpr int64_t read_words = 32 << 20;  // of eight bytes

int64_t layer_parameters(const DecoderConfig& d) {
  return 2 * d.hidden * d.head_size * (d.heads + d.kv_heads) + 3 * d.hidden * d.intermediate;
}

RowLayout layout_of(const DecoderConfig& d, DType rows) {
  return {static_cast<int>(d.layers), static_cast<int>(d.kv_heads), static_cast<int>(d.head_size),
          rows};
}

Sequence tokens_at(int64_t begin, int64_t count) {
  Sequence sequence;
  sequence.tokens.resize(static_cast<size_t>(count));
  for (size_t i = 0; i < sequence.tokens.size(); ++i) {
    const auto position = static_cast<int32_t>(begin) + static_cast<int32_t>(i);
    sequence.tokens[i].position = {position, position, position};
    sequence.tokens[i].modality = Modality::video;
  }
  return sequence;
}

}  // namespace

CpuBench::CpuBench(const Context& context, const ModelShape& shape, int64_t layers,
                   std::optional<PackedKind> packed, DType rows)
    : context_(context),
      packed_(packed),
      rows_(rows),
      whole_(family_of(shape.config).read(shape.config).decoder),
      part_(whole_) {
  part_.layers = std::min(layers, whole_.layers);
  part_.vocabulary = std::min(head_rows, whole_.vocabulary);
  decoder_ = std::make_shared<TransformerDecoder>(
      context, part_, random_decoder(context, part_, DType::bf16, packed));
}

double CpuBench::scale() const {
  return static_cast<double>(whole_.layers) / static_cast<double>(part_.layers);
}

CpuCeilings CpuBench::ceilings() const {
  CpuCeilings best;
  constexpr int64_t rows = 512, width = 2048;
  const Tensor a = random_tensor(context_, DType::f32, {rows, width}, 1.0f, 1);
  const Tensor weight = random_tensor(context_, DType::bf16, {width, width}, 1.0f, 2);
  Tensor out(DType::f32, {rows, width});
  const double product = median_seconds(context_, 5, [&] { matmul(context_, a, weight, out); });
  best.multiply_rate = 2.0 * rows * width * width / product;

  const std::vector<uint64_t> words(static_cast<size_t>(read_words), 1);
  std::atomic<uint64_t> sum = 0;
  const double reading = median_seconds(context_, 3, [&] {
    context_.threads->parallel_for(read_words, read_words / 64, [&](int64_t begin, int64_t end) {
      uint64_t part[8] = {};
      for (int64_t i = begin; i + 8 <= end; i += 8) {
        for (int64_t j = 0; j < 8; ++j) part[j] += words[static_cast<size_t>(i + j)];
      }
      for (const uint64_t one : part) sum += one;
    });
  });
  best.read_bandwidth = 8.0 * static_cast<double>(read_words) / reading;
  return best;
}

CpuFigure CpuBench::prefill(int64_t tokens) const {
  const std::unique_ptr<Attention> attention = make_attention("dense", {});
  const std::unique_ptr<DecoderRunner> runner = decoder_->runner(context_);
  const auto run = [&](int64_t count) {
    FlatMemory memory(layout_of(part_, rows_), context_.device);
    const auto begun = std::chrono::steady_clock::now();
    for (int64_t begin = 0; begin < count; begin += group) {
      const int64_t some = std::min(group, count - begin);
      Sequence sequence = tokens_at(begin, some);
      sequence.embeddings = random_tensor(context_, DType::f32, {some, part_.hidden}, 1.0f, 7);
      sequence.memory = &memory;
      sequence.attention = attention.get();
      runner->forward(sequence);
    }
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
  };
  run(std::min<int64_t>(tokens, 64));  // memory is taken and threads are woken once
  const auto n = static_cast<double>(tokens);
  const auto width = static_cast<double>(whole_.heads * whole_.head_size);
  CpuFigure figure;
  figure.tokens = tokens;
  figure.seconds = run(tokens) * scale();
  figure.operations = static_cast<double>(whole_.layers) *
                      (2 * n * static_cast<double>(layer_parameters(whole_)) + 2 * n * n * width);
  return figure;
}

CpuFigure CpuBench::decode(int64_t rows) const {
  FlatMemory memory(layout_of(part_, rows_), context_.device);
  const std::vector<TokenInfo> old = tokens_at(0, rows).tokens;
  memory.begin(context_, {.tokens = old});
  for (int layer = 0; layer < static_cast<int>(part_.layers); ++layer) {
    fill_rows(context_, memory.append(layer), static_cast<uint64_t>(layer));
  }
  const MemoryMark before = memory.mark();
  const std::unique_ptr<Attention> attention = make_attention("dense", {});
  const std::unique_ptr<DecoderRunner> runner = decoder_->runner(context_);
  Tensor hidden;
  const double layers = median_seconds(context_, 8, [&] {
    Sequence token = tokens_at(rows, 1);
    token.ids = {1};
    token.memory = &memory;
    token.attention = attention.get();
    hidden = runner->forward(token).hidden;
    memory.rewind(before);
  });
  const double head = median_seconds(context_, 8, [&] { decoder_->logits(context_, hidden); });
  const double words =
      static_cast<double>(whole_.vocabulary) / static_cast<double>(part_.vocabulary);
  CpuFigure figure;
  figure.tokens = rows;
  figure.seconds = layers * scale() + head * words;
  figure.step_bytes =
      bytes_of_weight(packed_) * static_cast<double>(whole_.layers * layer_parameters(whole_)) +
      2 * static_cast<double>(whole_.vocabulary * whole_.hidden) +
      static_cast<double>(memory.bytes().total()) * scale();
  return figure;
}

}  // namespace kinora::cli
