#include "model/decoder/batch_runner.h"

#include <algorithm>
#include <utility>

#include "attention/observer.h"
#include "attention/plan/plan.h"
#include "attention/row_sets.h"
#include "base/error.h"
#include "base/gpu.h"
#include "model/decoder/rotary.h"
#include "model/decoder/steps.h"
#include "ops/elementwise.h"
#include "ops/gather.h"

namespace kinora {

namespace {

// Space for more tokens than decoding steps have is given back: while pictures are looked at,
// nobody needs it.
constexpr int64_t kept_tokens = 256;

}  // namespace

Forwarded DecoderRunner::forward(const Sequence& sequence) {
  std::vector<Forwarded> results = forward(std::span(&sequence, 1));
  if (results[0].failure) std::rethrow_exception(results[0].failure);
  return std::move(results[0]);
}

struct BatchRunner::Place {
  const Sequence* sequence = nullptr;
  Forwarded* result = nullptr;
  int64_t first = 0;  // row of the batch
  MemoryMark before;
  std::vector<Position> positions;
  std::vector<int32_t> deep_rows;  // of the batch, where its deep rows are added
  Tensor deep;                     // [deep_rows, levels × hidden]
  QueryView queries;               // of the layer under way, and what they read
  std::vector<RowSet> sets;

  int64_t count() const { return sequence->count(); }
  bool failed() const { return result->failure != nullptr; }
  // Does its part of the work; a failure ends this sequence alone.
  template <typename Work>
  void attempt(const Work& work) {
    if (failed()) return;
    try {
      sequence->cancel.check();
      work();
    } catch (...) {
      result->failure = std::current_exception();
    }
  }
};

struct BatchRunner::Run {
  std::vector<Place>& places;
  int64_t tokens = 0;
  RopeTable rope;
};

BatchRunner::BatchRunner(const Context& context, const TransformerDecoder& decoder,
                         const DecoderLayers& layers, std::span<const double> frequencies)
    : context_(context), decoder_(decoder), layers_(layers), frequencies_(frequencies) {
  if (!context.device.is_cpu()) steps_ = make_decoder_steps(layers, frequencies);
}

BatchRunner::~BatchRunner() = default;

void BatchRunner::check_deep(const Sequence& sequence) const {
  const DeepRows& deep = sequence.deep;
  const int64_t hidden = layers_.config().hidden;
  const auto count = static_cast<int64_t>(deep.tokens.size());
  // The last layer is computed for few rows only, so nothing can be added after it.
  if (!deep.values.defined() || deep.values.dtype() != DType::f32 || deep.values.rank() != 2 ||
      deep.values.size(0) != count || deep.values.size(1) < hidden ||
      deep.values.size(1) % hidden != 0 || deep.values.size(1) / hidden >= layers_.count()) {
    throw Error(ErrorKind::internal,
                "deep rows are whole levels, one for each of the first layers");
  }
  for (size_t i = 0; i < deep.tokens.size(); ++i) {
    if (deep.tokens[i] < (i == 0 ? 0 : deep.tokens[i - 1] + 1) ||
        deep.tokens[i] >= sequence.count()) {
      throw Error(ErrorKind::internal, "deep rows belong to tokens that there are, in order");
    }
  }
}

void BatchRunner::check(const Sequence& sequence) const {
  const DecoderConfig& config = layers_.config();
  const int64_t tokens = sequence.count();
  const bool embedded = sequence.embeddings.defined();
  if (sequence.memory == nullptr || sequence.attention == nullptr) {
    throw Error(ErrorKind::internal, "a sequence has a memory and an attention");
  }
  if (tokens == 0 || (embedded ? !(sequence.embeddings.shape() == Shape{tokens, config.hidden}) ||
                                     sequence.embeddings.dtype() != DType::f32
                               : static_cast<int64_t>(sequence.ids.size()) != tokens)) {
    throw Error(ErrorKind::internal, "a group has one f32 embedding or one id for each token");
  }
  const Tensor& beside = sequence.beside;
  if (beside.defined() != config.beside ||
      (config.beside &&
       (!(beside.shape() == Shape{tokens, config.hidden}) || beside.dtype() != DType::f32))) {
    throw Error(ErrorKind::internal, "a group has f32 rows beside where the config wants them");
  }
  if (!sequence.deep.tokens.empty()) check_deep(sequence);
  if (!embedded) check_tokens(sequence.ids, config.vocabulary);
  if (sequence.hidden_rows < 0 || sequence.hidden_rows > tokens) {
    throw Error(ErrorKind::internal, "more hidden rows are wanted than the group has tokens");
  }
  for (size_t i = 0; i < sequence.states.size(); ++i) {
    if (sequence.states[i] < (i == 0 ? 0 : sequence.states[i - 1] + 1) ||
        sequence.states[i] >= layers_.count()) {
      throw Error(ErrorKind::internal, "states are wanted of layers that there are, in order");
    }
  }
  for (size_t i = 0; i < sequence.state_rows.size(); ++i) {
    if (sequence.state_rows[i] < (i == 0 ? 0 : sequence.state_rows[i - 1] + 1) ||
        sequence.state_rows[i] >= tokens) {
      throw Error(ErrorKind::internal, "states are wanted of tokens that there are, in order");
    }
  }
  if (sequence.mass != nullptr) {
    const std::vector<LayerHeads>& wanted = sequence.mass->layers();
    if (wanted.empty() || wanted.back().layer >= layers_.count() || sequence.probes > 0 ||
        sequence.mass_rows < 0 || sequence.mass_rows > tokens ||
        (sequence.mass_count() < tokens && !sequence.parents.empty()) ||
        sequence.mass->device() != context_.device) {
      throw Error(ErrorKind::internal,
                  "the mass of rows is wanted of layers or tokens that there are not");
    }
  }
  const RowLayout& rows = sequence.memory->layout();
  if (rows.layers != config.layers || rows.kv_heads != config.kv_heads ||
      rows.head_size != config.head_size) {
    throw Error(ErrorKind::internal, "the memory was made for another model");
  }
}

std::vector<Forwarded> BatchRunner::forward(std::span<const Sequence> batch) {
  std::vector<Forwarded> results(batch.size());
  std::vector<Place> places;
  places.reserve(batch.size());
  for (size_t i = 0; i < batch.size(); ++i) {
    const Sequence& sequence = batch[i];
    Place& place = places.emplace_back();
    place.sequence = &sequence;
    place.result = &results[i];
    place.attempt([&] {
      check(sequence);
      place.before = sequence.memory->mark();
    });
    if (place.failed()) places.pop_back();
  }
  const auto undo = [&](const Place& place) { place.sequence->memory->rewind(place.before); };
  try {
    std::vector<DecoderSteps::Step> steps;
    for (Place& place : places) {
      place.attempt([&] {
        const Sequence& sequence = *place.sequence;
        MemoryGroup group{sequence.tokens, sequence.parents, sequence.probes};
        if (sequence.embeddings.defined()) group.embeddings = sequence.embeddings;
        const auto given = sequence.memory->begin(context_, group);
        place.positions.assign(given.begin(), given.end());
        if (sequence.mass != nullptr) sequence.mass->begin(context_, sequence.memory->queries());
        steps.push_back({&sequence, place.positions, place.result});
      });
    }
    if (!steps.empty() && (steps_ == nullptr || !steps_->run(context_, steps))) {
      forward_general(places);
      if (space_.hidden.size(0) > kept_tokens) space_ = {};
    }
  } catch (...) {
    for (const Place& place : places) undo(place);
    if (places.size() > 1) throw;
    places[0].result->failure = std::current_exception();
    return results;
  }
  for (Place& place : places) {
    if (!place.failed()) continue;
    undo(place);
    place.result->hidden = Tensor();
    place.result->states.clear();
  }
  return results;
}

void BatchRunner::embed(Run& run) {
  std::vector<int32_t> ids;
  for (const Place& place : run.places) {
    if (place.sequence->embeddings.defined()) continue;
    ids.insert(ids.end(), place.sequence->ids.begin(), place.sequence->ids.end());
  }
  const Tensor embedded = ids.empty() ? Tensor() : decoder_.embed(context_, ids);
  int64_t next = 0;
  for (const Place& place : run.places) {
    const int64_t count = place.count();
    Tensor given;
    ConstTensorView source;
    if (place.sequence->embeddings.defined()) {
      given = place.sequence->embeddings.to(context_.device);
      source = given;
    } else {
      source = embedded.view().rows(next, count);
      next += count;
    }
    copy_bytes(space_.hidden.view().rows(place.first, count).raw(), context_.device, source.raw(),
               context_.device, static_cast<size_t>(source.bytes()));
    if (!place.sequence->beside.defined()) continue;
    const Tensor beside = place.sequence->beside.to(context_.device);
    copy_bytes(space_.beside.view().rows(place.first, count).raw(), context_.device,
               beside.view().raw(), context_.device, static_cast<size_t>(beside.bytes()));
  }
}

void BatchRunner::forward_general(std::vector<Place>& places) {
  Run run{places, 0, {}};
  std::vector<Position> positions;
  for (Place& place : places) {
    place.first = run.tokens;
    run.tokens += place.count();
    positions.insert(positions.end(), place.positions.begin(), place.positions.end());
    positions.resize(static_cast<size_t>(run.tokens));  // of one that failed there are none
    const DeepRows& deep = place.sequence->deep;
    if (deep.tokens.empty()) continue;
    place.deep = deep.values.to(context_.device);
    for (const int32_t token : deep.tokens) {
      place.deep_rows.push_back(static_cast<int32_t>(place.first) + token);
    }
  }
  layers_.grow(context_, run.tokens, space_);
  space_.cancel = places.size() == 1 ? &places[0].sequence->cancel : nullptr;
  run.rope = rotary_table(context_, layers_.config().rope, frequencies_, positions);
  embed(run);
  for (int layer = 0; layer < layers_.count(); ++layer) {
    if (std::all_of(places.begin(), places.end(),
                    [](const Place& place) { return place.failed(); })) {
      return;
    }
    layers_.project(context_, layer, run.tokens, space_);
    layers_.norm_heads(context_, layer, layers_.qkv(space_, run.tokens));
    attend(run, layer);
    if (layer + 1 == layers_.count()) return finish_last(run, layer);
    const DecoderConfig& config = layers_.config();
    const TensorView mixed =
        layers_.mixed(space_, run.tokens).reshaped({run.tokens, config.heads * config.head_size});
    layers_.finish(context_, layer, mixed, space_.hidden.view().rows(0, run.tokens), space_);
    add_deep(run, layer);
    keep_states(run, layer);
  }
}

void BatchRunner::add_deep(Run& run, int layer) {
  const int64_t width = layers_.config().hidden;
  const TensorView hidden = space_.hidden.view().rows(0, run.tokens);
  for (const Place& place : run.places) {
    if (place.deep_rows.empty() || place.failed() || (layer + 1) * width > place.deep.size(1)) {
      continue;
    }
    add_rows(context_, place.deep.view().columns(layer * width, width), place.deep_rows, hidden);
  }
}

// Every sequence's queries are turned before the first output, which overwrites the projections.
void BatchRunner::attend(Run& run, int layer) {
  // Memories never share what they change, and steps are too small to be worth several threads.
  const bool side_by_side =
      context_.device.is_cpu() &&
      std::all_of(run.places.begin(), run.places.end(), [](const Place& place) {
        return place.count() == 1 && (place.failed() || place.sequence->memory->known_ahead());
      });
  const int64_t grain = side_by_side ? 2 : std::ssize(run.places);
  context_.threads->parallel_for(std::ssize(run.places), grain, [&](int64_t begin, int64_t end) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      Place& place = run.places[i];
      place.attempt([&] { read(run, layer, place); });
    }
  });
  together_.clear();
  for (Place& place : run.places) {
    place.attempt([&] { attend(run, layer, place); });
  }
  together_.run(context_, layers_.scale());
  for (Place& place : run.places) {
    place.attempt([&] { use(layer, place); });
  }
}

// The memory takes in the new rows and says what the queries read.
void BatchRunner::read(Run& run, int layer, Place& place) {
  const DecoderConfig& config = layers_.config();
  const int64_t first = place.first, count = place.count();
  Memory& memory = *place.sequence->memory;
  const TensorView qkv = layers_.qkv(space_, run.tokens).rows(first, count);
  const TensorView turned = layers_.queries(space_, run.tokens).rows(first, count);
  const NewRows rows = memory.append(layer);
  rope_split(context_, run.rope.cos.view().rows(first, count),
             run.rope.sin.view().rows(first, count), qkv, turned, rows.keys, rows.values);
  if (memory.key_form() == KeyForm::unrotated) {
    const ConstTensorView keys =
        qkv.columns(config.heads * config.head_size, config.kv_heads * config.head_size);
    store_rows(context_,
               ConstTensorView(keys.raw(), keys.dtype(), {count, config.kv_heads, config.head_size},
                               ConstTensorView::Strides{qkv.stride(0), config.head_size, 1},
                               keys.device()),
               rows.keys);
  }
  place.queries = memory.queries();
  place.queries.queries = turned;
  place.queries.cancel = &place.sequence->cancel;
  place.sets.clear();
  memory.read(context_, layer, place.queries, place.sets);
}

void BatchRunner::attend(Run& run, int layer, Place& place) {
  // First: attention then finds some of these rows in the cache.
  RowMass* mass = place.sequence->mass;
  if (mass != nullptr && mass->find(layer) != nullptr) {
    add_mass(context_, layer, place.queries, place.sets, layers_.scale(),
             place.sequence->mass_count(), *mass);
  }
  Attention& attention = *place.sequence->attention;
  const TensorView mixed = layers_.mixed(space_, run.tokens).rows(place.first, place.count());
  if (attention.reads_all() && StepAttention::takes(place.queries, place.sets)) {
    return together_.add(place.queries, place.sets, mixed);
  }
  attend_sets(attention, context_, layer, place.queries, place.sets, layers_.scale(), mixed);
}

// What looks at the layer's rows once attention has read them.
void BatchRunner::use(int layer, Place& place) {
  if (AttentionObserver* observer = place.sequence->observer; observer && observer->wants(layer)) {
    const int64_t shown = place.count() - place.sequence->probes;
    observer->see(context_, {layer, slice(place.queries, 0, shown), place.sets, layers_.scale()});
  }
  place.sequence->memory->after(context_, layer, place.queries);
}

void BatchRunner::keep_states(Run& run, int layer) {
  for (Place& place : run.places) {
    const std::vector<int>& wanted = place.sequence->states;
    if (place.failed() || !std::binary_search(wanted.begin(), wanted.end(), layer)) continue;
    const TensorView all = space_.hidden.view().rows(place.first, place.count());
    const std::vector<int32_t>& rows = place.sequence->state_rows;
    const int64_t count = rows.empty() ? place.count() : std::ssize(rows);
    Tensor state(DType::f32, {count, layers_.config().hidden}, context_.device);
    if (rows.empty()) {
      copy_bytes(state.view().raw(), context_.device, all.raw(), context_.device,
                 static_cast<size_t>(state.bytes()));
    } else {
      gather_rows(context_, all, rows, state);
    }
    place.result->states.push_back(std::move(state));
  }
}

// Of the last layer only the rows that somebody wants are worth computing.
void BatchRunner::finish_last(Run& run, int layer) {
  const DecoderConfig& config = layers_.config();
  const TensorView mixed =
      layers_.mixed(space_, run.tokens).reshaped({run.tokens, config.heads * config.head_size});
  const TensorView hidden = space_.hidden.view().rows(0, run.tokens);
  const bool all = std::any_of(run.places.begin(), run.places.end(), [&](const Place& place) {
    const std::vector<int>& wanted = place.sequence->states;
    return std::binary_search(wanted.begin(), wanted.end(), layer);
  });
  if (all) {
    layers_.finish(context_, layer, mixed, hidden, space_);
    keep_states(run, layer);
  }
  // One product for all sequences that want one row each, as decoding steps do; else one for each.
  int64_t rows = 0;
  for (const Place& place : run.places) rows += place.sequence->hidden_rows;
  const bool joined = !all && run.places.size() > 1 && rows == run.tokens;
  if (joined) layers_.finish(context_, layer, mixed, hidden, space_);
  for (Place& place : run.places) {
    const int64_t wanted = place.sequence->hidden_rows;
    const int64_t first = place.first + place.count() - wanted;
    place.result->hidden = Tensor(DType::f32, {wanted, config.hidden}, context_.device);
    if (wanted == 0 || place.failed()) continue;
    if (!all && !joined) {
      layers_.finish(context_, layer, mixed.rows(first, wanted), hidden.rows(first, wanted),
                     space_);
    }
    layers_.norm(context_, hidden.rows(first, wanted), place.result->hidden);
  }
}

}  // namespace kinora
