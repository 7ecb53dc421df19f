#include "generate/pruned.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "attention/cuda/device_test_support.h"
#include "generate/draft_case.h"
#include "generate/path_model.h"
#include "generate/policies.h"
#include "memory/policies.h"
#include "model/decoder/input_rows.h"
#include "model/reference_case.h"
#include "support/random_data.h"

namespace kinora {
namespace {

using testing::model_directory;
using testing::Outcome;
using testing::PathDecoder;
using testing::PathModel;
using testing::random_ids;
using testing::Talk;

// The same choice, spelled out.
std::set<int32_t> slow_choice(int64_t rows, std::vector<float> mass, int64_t count) {
  std::vector<int32_t> left(static_cast<size_t>(rows));
  std::iota(left.begin(), left.end(), 0);
  std::set<int32_t> chosen;
  while (!mass.empty() && std::ssize(chosen) < (count + 1) / 2) {
    const auto best = std::max_element(left.begin(), left.end(), [&](int32_t a, int32_t b) {
      return mass[static_cast<size_t>(a)] < mass[static_cast<size_t>(b)];
    });
    chosen.insert(*best);
    left.erase(best);
  }
  const int64_t others = count - std::ssize(chosen);
  for (int64_t i = 0; i < others; ++i) {  // the middle of each of so many equal stretches
    const double middle = (static_cast<double>(i) + 0.5) * static_cast<double>(left.size()) /
                          static_cast<double>(others);
    chosen.insert(left[static_cast<size_t>(middle + 1e-9)]);
  }
  return chosen;
}

TEST(PrunedDraft, KeepsWhatIsLookedAtAndTheRestEvenly) {
  KINORA_FRESH_RANDOM(random);
  for (int round = 0; round < 200; ++round) {
    const int64_t rows =
        round < 6 ? std::vector<int64_t>{1, 2, 63, 65, 127, 129}[round] : 1 + random.below(300);
    const int64_t count = round % 4 == 0 ? rows : 1 + random.below(rows);
    std::vector<float> mass;
    for (int64_t i = 0; i < rows && round % 3 > 0; ++i) {  // with equal ones
      mass.push_back(static_cast<float>(random.below(round % 3 == 1 ? 5 : 1000)));
    }
    const std::vector<int32_t> chosen = choose_draft_rows(rows, mass, count);
    EXPECT_TRUE(std::is_sorted(chosen.begin(), chosen.end()));
    EXPECT_EQ(std::ssize(chosen), count);
    EXPECT_EQ(std::set<int32_t>(chosen.begin(), chosen.end()), slow_choice(rows, mass, count));
  }
}

// Looks on at a drafter, and at what became of its proposals.
class Watched : public Drafter {
 public:
  explicit Watched(const PrunedOptions& chosen) : options(chosen), inner(chosen) {}

  void start(const DraftTarget& target) override {
    inner.start(target);
    started(target);
  }
  RowMass* mass() override { return watching = inner.mass(); }
  Draft propose(std::span<const int32_t> text, int64_t most, int64_t deepest) override {
    before(text);
    const Draft draft = inner.propose(text, most, deepest);
    proposed(text, most, deepest, draft);
    return draft;
  }
  void learn(const CheckedDraft& checked) override { inner.learn(checked); }

  PrunedOptions options;
  PrunedDrafter inner;
  RowMass* watching = nullptr;

 protected:
  virtual void started(const DraftTarget&) {}
  virtual void before(std::span<const int32_t>) {}
  virtual void proposed(std::span<const int32_t> text, int64_t most, int64_t deepest,
                        const Draft& draft) = 0;
};

// The tree that follows from the whole text, computed anew.
class PathWatched final : public Watched {
 public:
  PathWatched(const Context& context, const PathDecoder& decoder, const PrunedOptions& chosen)
      : Watched(chosen), context_(context), decoder_(decoder) {}

  int64_t checked = 0;

 protected:
  void proposed(std::span<const int32_t> text, int64_t most, int64_t deepest,
                const Draft& draft) override {
    if (inner.memory() == nullptr) {
      EXPECT_TRUE(draft.ids.empty());
      EXPECT_EQ(options.by, DraftRows::attention);  // the answer's first token is read plainly
      return;
    }
    DraftTree tree;
    const auto followers = [&](int32_t node) {
      std::vector<int32_t> ids;
      for (; node >= 0; node = tree.nodes()[static_cast<size_t>(node)].parent) {
        ids.push_back(tree.nodes()[static_cast<size_t>(node)].token);
      }
      ids.insert(ids.end(), text.rbegin(), text.rend());
      uint64_t state = 0;
      for (int32_t i = 0; i < std::ssize(ids); ++i) {
        state = PathDecoder::next_state(state, ids[ids.size() - 1 - static_cast<size_t>(i)], i);
      }
      const std::vector<float> logits = decoder_.logits_after(state);
      return likeliest(context_, ConstTensorView::of(logits.data(), {1, std::ssize(logits)}),
                       options.shape.width)[0];
    };
    tree.add(-1, followers(-1));
    for (int64_t level = 0; level < std::min(options.shape.depth, deepest - 1); ++level) {
      for (const int32_t node : tree.frontier(options.shape.width)) tree.add(node, followers(node));
    }
    const Draft expected = tree.best(tree.ranked(), std::min(most, options.shape.total - 1));
    EXPECT_EQ(draft.ids, expected.ids);
    EXPECT_EQ(draft.parents, expected.parents);
    checked += std::ssize(draft.ids);
  }

 private:
  Context context_;
  const PathDecoder& decoder_;
};

PrunedOptions random_options(Random& random) {
  PrunedOptions options;
  options.keep = random.below(3) == 0 ? 1 : 0.01 + 0.9 * random.uniform();
  options.by = random.below(2) == 0 ? DraftRows::attention : DraftRows::even;
  options.shape = {2 + random.below(40), random.below(5), 1 + random.below(4)};
  options.adapt = false;
  return options;
}

// A row that was lost, copied twice or left behind by a guess, or a wrong position, would change
// every guess after it.
TEST(PrunedDraft, FollowsTheTextWhateverIsUndone) {
  KINORA_FRESH_RANDOM(random);
  const ThreadPool pool(1);
  const Context context(pool);
  int64_t checked = 0;
  for (int round = 0; round < 30; ++round) {
    PathModel model(2 + random.below(40));
    const auto runner = model.decoder().runner(context);
    const auto drafter =
        std::make_shared<PathWatched>(context, model.path(), random_options(random));
    Talk talk(context, model), plain(context, model);
    std::vector<std::pair<Talk::Point, Talk::Point>> points;
    for (int turn = 0; turn < 8; ++turn) {
      points.emplace_back(talk.here(), plain.here());
      if (random.uniform() < 0.4) {
        points.resize(static_cast<size_t>(1 + random.below(std::ssize(points))));
        talk.go_back(points.back().first);
        plain.go_back(points.back().second);
      }
      const std::vector<int32_t> ids =
          random_ids(random, 1 + random.below(70), model.decoder().vocabulary());
      std::vector<Modality> modalities(ids.size(), Modality::text);
      for (size_t i = 0; i + 1 < ids.size(); ++i) {
        if (random.uniform() < 0.6) modalities[i] = Modality::video;
      }
      const auto read = [&](Talk& to) {
        Sequence sequence = to.read(ids);
        for (size_t i = 0; i < ids.size(); ++i) sequence.tokens[i].modality = modalities[i];
        return runner->forward(sequence).hidden;
      };
      GenerateOptions options;
      options.max_tokens = 1 + random.below(25);
      options.ignore_stop_tokens = true;
      options.sampling.temperature = random.below(2) == 0 ? 0 : 1.5 * random.uniform();
      options.sampling.seed = random.next();
      const auto answer = [&](Talk& by, std::shared_ptr<Drafter> with) {
        const Tensor hidden = read(by);
        Generation generation(by.state(), options, std::move(with));
        return by.outcome(generate(context, *runner, generation, model.decoder(), hidden, nullptr),
                          "");
      };
      const Outcome drafted = answer(talk, drafter), expected = answer(plain, nullptr);
      testing::expect_same(drafted, expected);
      if (drafter->options.shape.width == 1 && options.sampling.temperature == 0) {
        EXPECT_EQ(drafted.generated.draft.right, drafted.generated.draft.drafted);
      }
      if (random.uniform() < 0.3) {  // an answer that nobody waits for
        points.emplace_back(talk.here(), plain.here());
        const Tensor hidden = read(talk);
        Generation left(talk.state(), options, drafter);
        left.start(context, model.decoder().logits(context, hidden));
        Generation* one = &left;
        for (int64_t i = random.below(4); i > 0 && !left.done(); --i) {
          EXPECT_FALSE(step(context, *runner, model.decoder(), {&one, 1})[0]);
        }
        talk.go_back(points.back().first);
        plain.go_back(points.back().second);
      }
    }
    checked += drafter->checked;
  }
  EXPECT_GT(checked, 1000);
}

// Answers of several conversations, step by step together.
TEST(PrunedDraft, WorksBesideOthers) {
  KINORA_FRESH_RANDOM(random);
  const ThreadPool pool(1);
  const Context context(pool);
  PathModel model(30);
  const auto runner = model.decoder().runner(context);
  GenerateOptions options;
  options.max_tokens = 40;
  options.ignore_stop_tokens = true;
  std::vector<Outcome> expected;
  std::vector<std::unique_ptr<Talk>> talks;
  std::vector<std::unique_ptr<Generation>> generations;
  for (int i = 0; i < 6; ++i) {
    const std::vector<int32_t> ids = random_ids(random, 3 + random.below(50), 30);
    expected.push_back(Talk(context, model).ask(*runner, ids, options));
    talks.push_back(std::make_unique<Talk>(context, model));
    const Tensor hidden = runner->forward(talks.back()->read(ids)).hidden;
    std::shared_ptr<Drafter> drafter;
    if (i % 3 > 0) drafter = std::make_shared<PrunedDrafter>(random_options(random));
    generations.push_back(
        std::make_unique<Generation>(talks.back()->state(), options, std::move(drafter)));
    generations.back()->start(context, model.decoder().logits(context, hidden));
  }
  for (std::vector<Generation*> left;;) {
    left.clear();
    for (const auto& one : generations) {
      if (!one->done()) left.push_back(one.get());
    }
    if (left.empty()) break;
    for (const auto& failure : step(context, *runner, model.decoder(), left)) {
      ASSERT_FALSE(failure);
    }
  }
  for (size_t i = 0; i < talks.size(); ++i) {
    generations[i]->take_text();
    expected[i].streamed.clear();
    testing::expect_same(talks[i]->outcome(generations[i]->result(), ""), expected[i]);
  }
}

// Where even guesses that all come true would not pay, nothing is copied, watched or guessed.
TEST(PrunedDraft, RestsWhereItCannotPay) {
  KINORA_FRESH_RANDOM(random);
  const ThreadPool pool(1);
  const Context context(pool);
  PathModel model(20);
  const auto runner = model.decoder().runner(context);
  GenerateOptions options;
  options.max_tokens = 30;
  options.ignore_stop_tokens = true;
  const std::vector<int32_t> ids = random_ids(random, 200, 20);
  for (const double keep : {1.0, 0.05}) {  // of a prompt that is all text
    PrunedOptions chosen;
    chosen.keep = keep;
    const auto drafter = std::make_shared<PrunedDrafter>(chosen);
    const Outcome outcome = Talk(context, model).ask(*runner, ids, options, drafter);
    EXPECT_EQ(outcome.generated.draft.drafted, 0);
    EXPECT_EQ(drafter->memory(), nullptr);
    EXPECT_EQ(drafter->mass(), nullptr);
  }
}

// A prompt with random rows as frames between two texts, over any memory.
class Film {
 public:
  Film(const Context& context, const Model& model, std::unique_ptr<Memory> rows)
      : memory(std::move(rows)), context_(context), model_(model), positions_(model.positions()) {}

  // The last hidden row.
  Tensor read(Random& random, DecoderRunner& runner, RowMass* mass = nullptr) {
    add_text(random_ids(random, 1 + random.below(9), vocabulary()));
    const int64_t frames = 1 + random.below(12), each = 1 + random.below(9);
    Tensor rows(DType::f32, {frames * each, model_.decoder().hidden_size()});
    for (int64_t i = 0; i < rows.elements(); ++i) {
      rows.data<float>()[i] = static_cast<float>(0.3 * random.normal());
    }
    std::vector<TokenInfo> tokens;
    positions_->text(frames * each, tokens);
    for (size_t i = 0; i < tokens.size(); ++i) {
      tokens[i].modality = Modality::video;
      tokens[i].time = 0.5 * std::floor(static_cast<double>(i) / static_cast<double>(each));
    }
    embeddings.push_back(rows.to(context_.device));
    all.insert(all.end(), tokens.begin(), tokens.end());
    run(runner, *memory, 0);
    for (int layer = 0; ragged != nullptr && layer < memory->layout().layers; ++layer) {
      std::vector<int32_t> kept;
      const double share = random.uniform();
      for (size_t i = 0; i < all.size(); ++i) {
        if (all[i].modality == Modality::text || random.uniform() < share) {
          kept.push_back(static_cast<int32_t>(i));
        }
      }
      ragged->retain(layer, kept);
    }
    const size_t before = all.size();
    add_text(random_ids(random, 2 + random.below(9), vocabulary()));
    return run(runner, *memory, before, mass);
  }
  void add_text(const std::vector<int32_t>& ids) {
    embeddings.push_back(model_.decoder().embed(context_, ids));
    positions_->text(std::ssize(ids), all);
    history_.insert(history_.end(), ids.begin(), ids.end());
  }
  // Tokens from `first` on as one group; they are the last pieces.
  Tensor run(DecoderRunner& runner, Memory& into, size_t first, RowMass* mass = nullptr) {
    Sequence group;
    group.tokens.assign(all.begin() + static_cast<int64_t>(first), all.end());
    std::vector<Tensor> pieces;
    int64_t rows = 0;
    for (size_t i = embeddings.size(); i > 0 && rows < group.count(); --i) {
      pieces.insert(pieces.begin(), embeddings[i - 1]);
      rows += embeddings[i - 1].size(0);
    }
    set_input_rows(context_, pieces, model_.decoder().hidden_size(), group);
    group.memory = &into;
    group.attention = &attention_;
    group.mass = mass;
    group.mass_rows = mass != nullptr ? 1 : 0;
    return runner.forward(group).hidden;
  }
  int64_t vocabulary() const { return model_.decoder().vocabulary(); }
  GenerationState state(RowMass* mass = nullptr) {
    return {model_, *memory, attention_, *positions_, history_, mass};
  }

  std::unique_ptr<Memory> memory;
  FlatMemory* ragged = nullptr;  // this memory, where each layer is to lose other rows
  std::vector<Tensor> embeddings;
  std::vector<TokenInfo> all;

 private:
  Context context_;
  const Model& model_;
  std::unique_ptr<PositionCounter> positions_;
  std::vector<int32_t> history_;
  DenseAttention attention_;
};

// Two tokens whose logits are nearer than this may change places by rounding. In f32 the logits of
// these small models are right to about 1e-5. Rows in 8 bits are copied bit by bit; but the rows of
// guesses, and those that a test computes anew, may round to the next of 127 steps here and there.
float tie_of(DType rows) { return rows == DType::f32 ? 1e-3f : 0.1f; }

// Compares chains with those of the model over a memory that has read everything and then lost the
// rows that the draft must not have.
class FilmWatched final : public Watched {
 public:
  FilmWatched(const Context& context, const Model& model, DecoderRunner& runner, const Film& film,
              const PrunedOptions& chosen, const RowMass* shared)
      : Watched(chosen),
        context_(context),
        model_(model),
        runner_(runner),
        film_(film),
        shared_(shared),
        prompt_(film.all.size()) {}

  int64_t checked = 0;

 protected:
  void before(std::span<const int32_t>) override {
    const RowMass* mass = shared_ != nullptr ? shared_ : std::exchange(watching, nullptr);
    if (mass != nullptr && inner.memory() == nullptr) mass_ = mass->values(context_);
  }
  void proposed(std::span<const int32_t> text, int64_t, int64_t deepest,
                const Draft& draft) override {
    if (inner.memory() == nullptr) {
      EXPECT_TRUE(draft.ids.empty());
      return;
    }
    ASSERT_EQ(std::ssize(draft.ids), std::min(options.shape.depth + 1, deepest));
    // All that the model has read, in one group.
    Film again(context_, model_, nullptr);
    again.embeddings = film_.embeddings;
    again.all = film_.all;
    const auto answered = static_cast<size_t>(film_.memory->token_count()) - prompt_;
    const auto confirmed = text.subspan(text.size() - 1 - answered, answered);
    for (const int32_t id : confirmed) add(again, id);
    FlatMemory few(film_.memory->layout(), context_.device);
    again.run(runner_, few, 0);
    std::vector<int32_t> visual, kept;
    std::vector<float> mass;
    for (size_t i = 0; i < prompt_; ++i) {
      if (again.all[i].modality == Modality::text) continue;
      visual.push_back(static_cast<int32_t>(i));
      if (!mass_.empty() && options.by == DraftRows::attention) mass.push_back(mass_[i]);
    }
    const int64_t wanted =
        std::max<int64_t>(1, std::llround(options.keep * static_cast<double>(visual.size())));
    const std::set<int32_t> staying = slow_choice(std::ssize(visual), mass, wanted);
    for (size_t i = 0, at = 0; i < again.all.size(); ++i) {
      const bool text_row = again.all[i].modality == Modality::text;
      if (text_row || staying.contains(static_cast<int32_t>(at))) {
        kept.push_back(static_cast<int32_t>(i));
      }
      at += text_row ? 0 : 1;
    }
    for (int layer = 0; layer < few.layout().layers; ++layer) few.retain(layer, kept);
    EXPECT_EQ(inner.memory()->row_count(0), std::ssize(kept));
    int32_t newest = text.back();
    for (const int32_t guess : draft.ids) {
      const size_t first = again.all.size();
      add(again, newest);
      const Tensor hidden = again.run(runner_, few, first);
      const Tensor logits = model_.decoder().logits(context_, hidden);
      const std::vector<Candidate> best = top_k(context_, logits.view()[0], 2);
      if (best[0].value - best[1].value < tie_of(few.layout().dtype)) return;
      ++checked;
      ASSERT_EQ(guess, best[0].index);
      newest = guess;
    }
  }

 private:
  void add(Film& film, int32_t id) const {
    TokenInfo token;
    token.position = film.all.back().position;  // one axis like all others
    for (int32_t& axis : token.position) ++axis;
    film.embeddings.push_back(model_.decoder().embed(context_, std::vector<int32_t>{id}));
    film.all.push_back(token);
  }

  Context context_;
  const Model& model_;
  DecoderRunner& runner_;
  const Film& film_;
  const RowMass* shared_;
  const size_t prompt_;
  std::vector<float> mass_;
};

class PrunedDraftOfModel : public ::testing::TestWithParam<const char*> {
 protected:
  struct Loaded {
    Context context;
    std::unique_ptr<Model> model;
    std::unique_ptr<DecoderRunner> runner;

    std::unique_ptr<Memory> memory(const std::string& name, DType rows,
                                   const std::string& retain = "all") const {
      RowLayout layout = model->info().rows;
      layout.dtype = rows;
      return make_memory(name, {layout, context.device, parse_retention(retain)});
    }
  };
  std::vector<Loaded> everywhere() const {
    std::vector<Loaded> all;
    for (const Device device : testing::all_devices()) {
      LoadOptions exact;
      exact.gpu_exact = true;
      const Context context(pool_, device);
      all.push_back({context, load_model(context, real_files(), model_directory(GetParam()), exact),
                     nullptr});
      all.back().runner = all.back().model->decoder().runner(context);
    }
    return all;
  }
  // Of the first token that differs, if any does, the model must have been undecided.
  static void expect_same_answer(const Generated& actual, const Generated& expected,
                                 std::span<const TokenScores> scores, DType rows) {
    ASSERT_EQ(actual.ids.size(), expected.ids.size());
    const auto at = std::mismatch(actual.ids.begin(), actual.ids.end(), expected.ids.begin());
    if (at.first == actual.ids.end()) return;
    const TokenScores& here = scores[static_cast<size_t>(at.first - actual.ids.begin())];
    EXPECT_TRUE(undecided(here, rows));
  }
  static bool undecided(const TokenScores& at, DType rows) {
    return at.best[0].log_probability - at.best[1].log_probability < double{tie_of(rows)};
  }

  const ThreadPool pool_{1};
};

TEST_P(PrunedDraftOfModel, GuessesWhatTheModelSaysOverTheRowsThatStay) {
  KINORA_FRESH_RANDOM(random);
  for (const Loaded& target : everywhere()) {
    int64_t checked = 0;
    for (int round = 0; round < 8; ++round) {
      const DType rows = round % 4 == 3 ? DType::i8 : DType::f32;
      SCOPED_TRACE(round);
      Film film(target.context, *target.model, target.memory("flat", rows));
      PrunedOptions options = random_options(random);
      options.shape.width = 1;
      options.shape.total = 64;
      RowMass mass(target.context.device, {{0}, {1}}, target.model->info().heads);
      RowMass* const shared = round % 3 == 2 ? &mass : nullptr;
      const Tensor hidden = film.read(random, *target.runner, shared);
      const auto drafter = std::make_shared<FilmWatched>(target.context, *target.model,
                                                         *target.runner, film, options, shared);
      GenerateOptions asked;
      asked.max_tokens = 12;
      asked.ignore_stop_tokens = true;
      Generation generation(film.state(shared), asked, drafter);
      generate(target.context, *target.runner, generation, target.model->decoder(), hidden,
               nullptr);
      checked += drafter->checked;
    }
    EXPECT_GT(checked, 20);
  }
}

// With all rows every guess is the model's own choice, and with fewer the answer is the same.
TEST_P(PrunedDraftOfModel, ChangesNoAnswer) {
  KINORA_FRESH_RANDOM(random);
  const std::vector<std::string> memories{"flat",
                                          "flat",
                                          "flat",
                                          "sliding:rows=20",
                                          "uniform:16",
                                          "compact:rows=16",
                                          "mosaic:rows=16,cluster=4"};
  for (const Loaded& target : everywhere()) {
    for (size_t round = 0; round < memories.size(); ++round) {
      const std::string retain = round == 1 ? "key-norm:0.5" : "all";
      const DType rows = round % 2 == 0 ? DType::f32 : DType::i8;
      const uint64_t seed = random.next();
      GenerateOptions asked;
      asked.max_tokens = 24;
      asked.ignore_stop_tokens = true;
      asked.best_scores = 2;
      const auto answer = [&](std::shared_ptr<Drafter> drafter,
                              std::vector<TokenScores>* scores = nullptr) {
        Random same(seed);
        Film film(target.context, *target.model, target.memory(memories[round], rows, retain));
        if (round == 2) {
          auto ragged = std::make_unique<FlatMemory>(film.memory->layout(), target.context.device);
          film.ragged = ragged.get();
          film.memory = std::move(ragged);
        }
        const Tensor hidden = film.read(same, *target.runner);
        GenerateOptions options = asked;
        if (scores != nullptr) {
          options.on_scores = [scores](const TokenScores& one) { scores->push_back(one); };
        }
        Generation generation(film.state(), options, std::move(drafter));
        return generate(target.context, *target.runner, generation, target.model->decoder(), hidden,
                        nullptr);
      };
      SCOPED_TRACE(memories[round]);
      std::vector<TokenScores> scores;
      const Generated plain = answer(nullptr, &scores);
      for (int shape = 0; shape < 3; ++shape) {
        const Generated drafted = answer(std::make_shared<PrunedDrafter>(random_options(random)));
        EXPECT_GT(drafted.draft.drafted, 0);
        expect_same_answer(drafted, plain, scores, rows);
      }
      PrunedOptions whole;
      whole.keep = 1;
      whole.adapt = false;
      const Generated drafted = answer(std::make_shared<PrunedDrafter>(whole));
      expect_same_answer(drafted, plain, scores, rows);
      const bool decided = std::none_of(scores.begin(), scores.end(),
                                        [&](const auto& at) { return undecided(at, rows); });
      // Stand-ins of clusters are not copied.
      if (!decided || memories[round].starts_with("mosaic")) continue;
      EXPECT_EQ(drafted.draft.right, drafted.draft.drafted);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, PrunedDraftOfModel,
                         ::testing::Values("qwen2_tied", "llama3", "qwen3"),
                         [](const auto& model) { return std::string(model.param); });

TEST(PrunedDraft, IsMadeByName) {
  EXPECT_EQ(make_drafter("pruned")->kind(), "pruned");
  EXPECT_NO_THROW(make_drafter("pruned:0.25"));
  EXPECT_NO_THROW(make_drafter("pruned:keep=1,by=even,total=9,depth=2,width=3,adapt=0"));
  for (const std::string wrong :
       {"pruned:keep=0", "pruned:keep=1.5", "pruned:by=chance", "pruned:from=./draft"}) {
    EXPECT_THROW(make_drafter(wrong), Error) << wrong;
  }
}

}  // namespace
}  // namespace kinora
