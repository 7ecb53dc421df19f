// A session's memory as a file, and back. What is written is what was read of the inputs, up to the
// point where the first question would begin; what is not rows or frames is made anew when the file
// is opened, by walking along the prompt, and compared with what was written.
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/files/byte_stream.h"
#include "engine/attention_choice.h"
#include "engine/ingest/ingest.h"
#include "engine/saved/saved_about.h"
#include "engine/session_state.h"
#include "engine/session_stream.h"

namespace kinora {
namespace {

constexpr const char* items_section = "items";

Prompt laid_out(const Model& model, const Asked& asked, std::span<const VisualInput> inputs) {
  Looks looks;
  for (const VisualInput& input : inputs) looks.push_back(&input);
  // Any text will do: what stands before the end of the last input does not depend on it.
  std::vector<ContentPart> parts(inputs.size(), {Modality::video, ""});
  parts.push_back({Modality::text, "?"});
  Prompt prompt = lay_out_question(asked, parts, inputs, looks);
  prompt.runs = model.render(prompt.conversation);
  return prompt;
}

}  // namespace

Prompt SessionState::first_prompt() const {
  Asked nothing;
  if (!options_.system.empty()) {
    nothing.conversation.turns.push_back({"system", {{Modality::text, options_.system}}});
  }
  return laid_out(model(), nothing, inputs_);
}

SessionState::Place SessionState::last_read(const Prompt& prompt) const {
  const size_t common = transcript_.common(flatten(prompt.runs));
  const auto serves = [&](const Transcript::Point& said) {
    return said.items <= common && said.visuals == prompt.segments.size();
  };
  // Later ones have begun with the text of a question.
  for (const Place& place : places_) {
    if (serves(place.said)) return {place.mark, place.positions->clone(), place.said};
  }
  if (serves(transcript_.here())) return here();
  throw Error(ErrorKind::unsupported,
              "only what was read before the first question can be saved: give all inputs first, "
              "or save before asking");
}

SavedAbout SessionState::about() const {
  SavedAbout about;
  about.model = model().info().name;
  about.family = model().info().family;
  about.model_key = key_of_model(*engine_);
  if (!engine_->directory.empty()) {
    about.directory = std::filesystem::absolute(engine_->directory).lexically_normal().string();
  }
  about.system = options_.system;
  about.row_type = row_type_name(memory_->layout().dtype);
  about.memory = options_.memory;
  about.token_choice = to_string(tokens_);
  about.retain = to_string(retention_);
  about.attention = options_.attention;
  about.frames_per_group = options_.frames_per_group;
  about.max_group_tokens = options_.max_group_tokens;
  about.taken_in = source_ != nullptr && source_->as_it_came;
  about.closed = source_ == nullptr || source_->closed;
  about.written = std::time(nullptr);
  for (const VisualInput& input : inputs_) {
    // Some more, where what came next could not be read.
    const auto end = std::lower_bound(input.kept.begin(), input.kept.end(), input.plan.tokens());
    about.inputs.push_back({{input.samples, input.plan},
                            input.source,
                            input.video == nullptr ? input.content : key_of_source(input.source),
                            input.subtitles,
                            {input.kept.begin(), end}});
  }
  return about;
}

std::string SessionState::memory_key() const { return about().key(); }

MemoryFile SessionState::save(const std::string& path, const CancelToken& cancel) {
  if (inputs_.empty() || inputs_[0].plan.units == 0) {
    throw Error(ErrorKind::usage, "there is nothing to save: nothing has been looked at yet");
  }
  if (retention_.needs_question()) {
    throw Error(ErrorKind::unsupported,
                "attention-score keeps only what one question needs, which is not worth saving; "
                "keep rows by key-norm");
  }
  if (source_ == nullptr || !source_->as_it_came) prepare(cancel);
  const Prompt prompt = first_prompt();
  const Place place = last_read(prompt);
  const int64_t total = memory_->bytes().total();
  ArchiveWriter out(path, [&](int64_t bytes) {
    cancel.check();
    progress_->update("save", std::min(bytes, total), total);
  });
  SavedAbout about = this->about();
  about.tokens = place.mark.tokens;
  write_about(out, about);
  std::vector<int64_t> items = flatten(prompt.runs);
  items.resize(place.said.items);
  ByteWriter said;
  said.put_all(items);
  out.add(items_section, said.bytes());
  memory_->save(place.mark, out);
  drafter_->save(static_cast<int64_t>(place.said.text), out);
  out.commit();
  return about.describe(path, out.bytes());
}

TokenGroup SessionState::group_of(const VisualSegment& segment, const SavedAbout& about,
                                  int64_t ordinal) const {
  const SavedInput& input = about.inputs[segment.input];
  const VisualPlan& plan = input.plan;
  const int64_t unit = plan.tokens_per_unit, begin = segment.first * unit;
  TokenGroup group;
  group.first = segment.first;
  group.count = segment.count;
  group.last = about.closed && segment.first + segment.count == plan.units;
  const int64_t all = segment.count * unit + (group.last ? plan.trailing_tokens : 0);
  if (tokens_.prunes()) {
    const auto from = std::lower_bound(input.kept.begin(), input.kept.end(), begin);
    for (auto place = from; place != input.kept.end() && *place < begin + all; ++place) {
      group.kept.push_back(static_cast<int32_t>(*place - begin));
    }
  } else {
    if (all > memory_->token_count() - ordinal) {
      throw Error(ErrorKind::bad_input, fmt::format("it has {} tokens and not {}",
                                                    memory_->token_count(), ordinal + all));
    }
    group.kept.resize(static_cast<size_t>(all));
    std::iota(group.kept.begin(), group.kept.end(), 0);
  }
  // A unit of which nothing stayed has no token to give a time to.
  group.times.assign(static_cast<size_t>(segment.count), 0);
  for (const int32_t place : group.kept) {
    if (ordinal >= memory_->token_count()) break;
    const double time = memory_->token(ordinal++).time;
    if (place < segment.count * unit) group.times[static_cast<size_t>(place / unit)] = time;
  }
  return group;
}

void SessionState::replay(const Prompt& prompt, size_t items, const SavedAbout& about) {
  std::vector<TokenInfo> tokens;
  for (const PromptRun& run : prompt.runs) {
    if (items == 0) break;
    if (run.visual < 0) {
      PromptRun part = run;
      part.ids.resize(std::min(items, part.ids.size()));
      positions_->text(std::ssize(part.ids), tokens);
      transcript_.add(part);
      items -= part.ids.size();
      continue;
    }
    const VisualSegment& segment = prompt.segments[static_cast<size_t>(run.visual)];
    const int64_t ordinal = std::ssize(tokens);
    const std::vector<TokenInfo> placed =
        place(segment.input, group_of(segment, about, ordinal), ordinal);
    tokens.insert(tokens.end(), placed.begin(), placed.end());
    transcript_.add(run);
    --items;
  }
  const int64_t known = memory_->token_count();
  if (std::ssize(tokens) != known) {
    throw Error(ErrorKind::bad_input,
                fmt::format("it has {} tokens and not {}", known, tokens.size()));
  }
  for (int64_t i = 0; i < known; ++i) {
    const TokenInfo& token = tokens[static_cast<size_t>(i)];
    if (token.position == memory_->token(i).position &&
        token.modality == memory_->token(i).modality) {
      continue;
    }
    throw Error(ErrorKind::bad_input,
                fmt::format("its token {} stands at {} and not at {}", i,
                            memory_->token(i).position[0], token.position[0]));
  }
}

void SessionState::load(const std::shared_ptr<const Archive>& file) {
  const SavedAbout about = read_about(*file);
  for (const SavedInput& saved : about.inputs) {
    VisualInput input;
    static_cast<VisualLook&>(input) = saved;
    input.source = saved.source;
    input.content = saved.content;
    input.subtitles = saved.subtitles;
    input.read = true;  // all of it: see save()
    inputs_.push_back(std::move(input));
  }
  const Prompt prompt = first_prompt();
  const std::string said = file->read(items_section);
  ByteReader in(said, file->path());
  const auto items = in.all<int64_t>();
  in.end();
  const std::vector<int64_t> wanted = flatten(prompt.runs);
  if (items.size() >= wanted.size() || !std::equal(items.begin(), items.end(), wanted.begin())) {
    file->refuse(
        "was written with other words around the video than this kinora uses: make it "
        "again");
  }
  memory_->load(engine_->context, file, Loading::whole);
  if (!share_.resize(memory_->bytes().held())) {
    throw Error(
        ErrorKind::resource,
        file->path() + " needs more than the memory budget: raise it, or end other sessions");
  }
  try {
    replay(prompt, items.size(), about);
  } catch (const Error& error) {
    file->refuse(std::string("was written by another version: ") + error.what() +
                 "; make it again");
  }
  std::vector<TokenInfo> text;
  for (int64_t i = 0; i < memory_->token_count(); ++i) {
    if (memory_->token(i).modality == Modality::text) text.push_back(memory_->token(i));
  }
  drafter_->load(*file, transcript_.text(), text);
  attention_ = choose_attention(*engine_, options_, frame_tokens());
  source_ = std::make_unique<OpenSource>();
  source_->ended = true;
  source_->as_it_came = about.taken_in;
  source_->closed = about.closed;
  source_->place = places_.size();
  places_.push_back(here());
}

std::unique_ptr<SessionState> reopen_session(std::shared_ptr<const EngineState> engine,
                                             const std::string& path, const SessionOptions& options,
                                             const CancelToken& cancel) {
  cancel.check();
  const auto file = Archive::open(path);
  const SavedAbout about = read_about(*file);
  if (about.model_key != key_of_model(*engine)) {
    throw Error(ErrorKind::bad_input,
                path + " was made with the model " + about.model + ", and this is " +
                    (about.model == engine->model->info().name ? "another one of that name"
                                                               : engine->model->info().name) +
                    ": use that model, or make the file again");
  }
  SessionOptions as_saved = options;
  as_saved.system = about.system;
  as_saved.row_type = about.row_type;
  as_saved.memory = about.memory;
  as_saved.tokens = about.token_choice;
  as_saved.retain = about.retain;
  as_saved.attention = about.attention;
  as_saved.dense_on_gpu = true;  // rows are there; only what is added is prefilled
  as_saved.frames_per_group = about.frames_per_group;
  as_saved.max_group_tokens = about.max_group_tokens;
  auto state = std::make_unique<SessionState>(std::move(engine), as_saved);
  state->load(file);
  return state;
}

}  // namespace kinora
