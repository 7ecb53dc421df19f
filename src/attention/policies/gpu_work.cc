#include "attention/policies/gpu_work.h"

#include "base/buffer.h"

namespace kinora {
namespace {

// More than a prompt's layers and groups leave behind between two reports; beyond it the oldest,
// long done, are settled.
constexpr size_t most_pieces = 4096;

std::unique_ptr<GpuEvent> moment(const Context& context) {
  auto event = std::make_unique<GpuEvent>(context.device, true);
  event->record(context);
  return event;
}

void add(AttentionReport& to, const AttentionReport& from) {
  to.pairs += from.pairs;
  to.index_seconds += from.index_seconds;
  to.run_seconds += from.run_seconds;
  for (const auto& [label, part] : from.parts) {
    AttentionReport::Part& target = to.parts[label];
    target.heads += part.heads;
    target.pairs += part.pairs;
    target.seconds += part.seconds;
  }
}

}  // namespace

void GpuWork::begin(const Context& context, std::string label, int64_t heads) {
  if (pieces_.size() >= most_pieces) settle_first(settled_);
  Piece piece;
  piece.label = std::move(label);
  piece.heads = heads;
  piece.begin = moment(context);
  pieces_.push_back(std::move(piece));
}

void GpuWork::planned(const Context& context) { pieces_.back().planned = moment(context); }

void GpuWork::end(const Context& context, int64_t pairs) {
  pieces_.back().pairs = pairs;
  pieces_.back().end = moment(context);
}

void GpuWork::settle_first(AttentionReport& report) {
  const Piece piece = std::move(pieces_.front());
  pieces_.pop_front();
  if (!piece.planned || !piece.end) return;  // an error came between
  int64_t pairs = piece.pairs;
  const double run = piece.end->seconds_since(*piece.planned);
  const double index = piece.planned->seconds_since(*piece.begin);
  if (piece.counted.defined()) {
    int64_t counted = 0;
    copy_bytes(&counted, Device::cpu(), piece.counted.view().raw(), piece.counted.device(),
               sizeof(counted));
    pairs += counted;
  }
  report.index_seconds += index;
  report.run_seconds += run;
  report.pairs += pairs;
  AttentionReport::Part& part = report.parts[piece.label];
  part.heads += piece.heads;
  part.pairs += pairs;
  part.seconds += run;
}

void GpuWork::settle(AttentionReport& report) {
  while (!pieces_.empty()) settle_first(settled_);
  add(report, settled_);
  settled_ = {};
}

}  // namespace kinora
