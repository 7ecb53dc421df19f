// Whatever is drafted, an answer is that of one token at a time, and so is all that it leaves.
#include "generate/generation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <set>

#include "base/error.h"
#include "generate/draft_case.h"
#include "generate/ngram.h"
#include "generate/path_model.h"
#include "memory/policies.h"
#include "support/random_data.h"

namespace kinora {
namespace {

using testing::Outcome;
using testing::ScriptedDrafter;
using testing::Talk;

// A model with other limits.
class ChangedModel final : public Model {
 public:
  ChangedModel(const Model& inner, ModelInfo info) : inner_(inner), info_(std::move(info)) {}

  const ModelInfo& info() const override { return info_; }
  const Tokenizer& tokenizer() const override { return inner_.tokenizer(); }
  const Decoder& decoder() const override { return inner_.decoder(); }
  std::vector<PromptRun> render(const Conversation& conversation) const override {
    return inner_.render(conversation);
  }
  VisualPlan plan_visual(const VisualSource& source, const VisualLimits& limits) const override {
    return inner_.plan_visual(source, limits);
  }
  Tensor encode(const Context& context, const VisualPlan& plan, const FrameGroup& frames,
                bool last) const override {
    return inner_.encode(context, plan, frames, last);
  }
  std::unique_ptr<PositionCounter> positions() const override { return inner_.positions(); }
  std::vector<int64_t> choose_frames(int64_t total, double fps,
                                     const FrameWish& wish) const override {
    return inner_.choose_frames(total, fps, wish);
  }
  double default_fps() const override { return inner_.default_fps(); }
  int64_t default_max_frames() const override { return inner_.default_max_frames(); }

 private:
  const Model& inner_;
  ModelInfo info_;
};

// What will be said after a history of `base` tokens, as a drafter that knows it sees it.
struct Truth {
  std::vector<int32_t> ids;
  size_t base = 0;

  // What follows the text, up to this many tokens.
  std::vector<int32_t> after(std::span<const int32_t> text, int64_t most) const {
    const size_t at = text.size() - base;
    EXPECT_TRUE(std::equal(text.begin() + static_cast<int64_t>(base), text.end(), ids.begin()));
    const size_t count = std::min(ids.size() - at, static_cast<size_t>(most));
    const auto begin = ids.begin() + static_cast<int64_t>(at);
    return {begin, begin + static_cast<int64_t>(count)};
  }
};

struct Kind {
  std::string name;
  std::function<std::unique_ptr<Drafter>()> make;
};

std::vector<Kind> all_kinds(const Truth& truth, Random& random, int64_t vocabulary) {
  const auto scripted = [](ScriptedDrafter::Propose propose, std::vector<int> states = {}) {
    return [propose = std::move(propose), states = std::move(states)] {
      return std::make_unique<ScriptedDrafter>(propose, states);
    };
  };
  std::vector<Kind> kinds;
  kinds.push_back({"the truth", scripted([=](auto text, int64_t most, int64_t deepest) {
                     return testing::chain(truth.after(text, std::min(most, deepest)));
                   })});
  kinds.push_back({"parts of the truth", scripted(
                                             [=, &random](auto text, int64_t most, int64_t) {
                                               const int64_t length = random.below(5);
                                               return testing::chain(
                                                   truth.after(text, std::min(most, length)));
                                             },
                                             {1})});
  kinds.push_back({"garbage", scripted([=, &random](auto text, int64_t most, int64_t deepest) {
                     const int64_t length = std::min({most, deepest, 1 + random.below(9)});
                     std::vector<int32_t> ids = testing::random_ids(random, length, vocabulary);
                     const auto next = truth.after(text, 1);
                     if (!next.empty() && ids[0] == next[0]) {
                       ids[0] = static_cast<int32_t>((ids[0] + 1) % vocabulary);
                     }
                     return testing::chain(ids);
                   })});
  kinds.push_back({"trees", scripted(
                                [=, &random](auto text, int64_t most, int64_t deepest) {
                                  return testing::random_tree(
                                      random, truth.after(text, deepest),
                                      1 + random.below(std::min<int64_t>(most, 24)), deepest,
                                      vocabulary);
                                },
                                {0, 1})});
  for (const bool adapt : {false, true}) {
    kinds.push_back({adapt ? "n-grams as they pay" : "n-grams", [adapt] {
                       return std::make_unique<NgramDrafter>(NgramOptions{.adapt = adapt});
                     }});
  }
  return kinds;
}

// A way in which an answer ends.
struct Ending {
  StopReason reason;
  ModelInfo info;
  GenerateOptions options;
};

std::vector<Ending> all_endings(const Model& model, const Outcome& whole, int64_t question,
                                const GenerateOptions& options, Random& random) {
  const auto count = static_cast<int64_t>(whole.generated.ids.size());
  std::vector<Ending> endings;
  for (const int64_t most : {int64_t{0}, int64_t{1}, 2 + random.below(count - 2)}) {
    Ending ending{StopReason::max_tokens, model.info(), options};
    ending.options.max_tokens = most;
    endings.push_back(ending);
  }
  {
    // Any token of the answer, where it comes first.
    const std::set<int32_t> said(whole.generated.ids.begin(), whole.generated.ids.end());
    Ending ending{StopReason::stop_token, model.info(), options};
    ending.options.ignore_stop_tokens = false;
    ending.info.stop_tokens = {
        *std::next(said.begin(), random.below(static_cast<int64_t>(said.size())))};
    endings.push_back(ending);
  }
  {
    const std::string& text = whole.generated.text;
    const int64_t from = random.below(static_cast<int64_t>(text.size()) / 2);
    Ending ending{StopReason::stop_string, model.info(), options};
    ending.options.stop = {
        "never said, not once",
        text.substr(static_cast<size_t>(from), static_cast<size_t>(1 + random.below(4)))};
    endings.push_back(ending);
  }
  {
    Ending ending{StopReason::context_full, model.info(), options};
    ending.info.max_position = question + random.below(count - 1);
    endings.push_back(ending);
  }
  return endings;
}

// As many tokens as passes and right guesses say: one at the start, one for every pass, one for
// every guess; a stop token is not shown.
void expect_counts(const Generated& generated) {
  const int64_t hidden = generated.reason == StopReason::stop_token ? 1 : 0;
  if (generated.ids.empty() && hidden == 0) return;
  EXPECT_EQ(static_cast<int64_t>(generated.ids.size()) + hidden,
            1 + generated.draft.passes + generated.draft.right);
  EXPECT_LE(generated.draft.right, generated.draft.drafted);
}

// Every kind of draft, every ending, and another question after it.
void expect_one_token_at_a_time(const Context& context, const Model& model, Random& random,
                                const SamplingOptions& sampling, int64_t length) {
  const std::unique_ptr<DecoderRunner> runner = model.decoder().runner(context);
  const int64_t vocabulary = model.decoder().vocabulary();
  const auto question = testing::random_ids(random, 1 + random.below(30), vocabulary);
  const auto more = testing::random_ids(random, 1 + random.below(9), vocabulary);
  GenerateOptions options;
  options.sampling = sampling;
  options.max_tokens = length;
  options.ignore_stop_tokens = true;
  const Outcome whole = Talk(context, model).ask(*runner, question, options);
  ASSERT_EQ(static_cast<int64_t>(whole.generated.ids.size()), length);
  ASSERT_GT(whole.generated.text.size(), 4u);
  const Truth truth{whole.generated.ids, question.size()};
  GenerateOptions after = options;
  after.max_tokens = 6;

  for (const Ending& ending :
       all_endings(model, whole, static_cast<int64_t>(question.size()), options, random)) {
    SCOPED_TRACE(stop_reason_name(ending.reason));
    const ChangedModel limited(model, ending.info);
    const bool goes_on = ending.reason != StopReason::context_full;
    Talk plain(context, limited);
    const Outcome expected = plain.ask(*runner, question, ending.options);
    ASSERT_EQ(stop_reason_name(expected.generated.reason), stop_reason_name(ending.reason));
    EXPECT_EQ(expected.generated.draft.drafted, 0);
    expect_counts(expected.generated);
    const Outcome next = goes_on ? plain.ask(*runner, more, after) : Outcome();
    for (const Kind& kind : all_kinds(truth, random, vocabulary)) {
      SCOPED_TRACE(kind.name);
      Talk talk(context, limited);
      const Outcome actual = talk.ask(*runner, question, ending.options, kind.make());
      expect_same(actual, expected);
      expect_counts(actual.generated);
      if (kind.name == "garbage") {
        EXPECT_EQ(actual.generated.draft.right, 0);
      }
      if (goes_on) expect_same(talk.ask(*runner, more, after), next);
    }
  }
}

const SamplingOptions samplings[] = {
    {},
    {.repetition_penalty = 1.3},
    {.temperature = 1, .seed = 1},
    {.temperature = 1.5, .top_k = 5, .top_p = 0.9, .repetition_penalty = 1.2, .seed = 2}};

TEST(Generation, DraftsChangeNothing) {
  KINORA_FRESH_RANDOM(random);
  const ThreadPool pool(2);
  const testing::PathModel model(12);
  for (int round = 0; round < 30; ++round) {
    for (SamplingOptions sampling : samplings) {
      SCOPED_TRACE("round " + std::to_string(round) + ", temperature " +
                   std::to_string(sampling.temperature));
      sampling.seed = random.next();
      expect_one_token_at_a_time(Context(pool), model, random, sampling, 6 + random.below(60));
    }
  }
}

// A memory that reads only what is near its reader has no last position.
TEST(Generation, PositionsMayPassTheLastWhereRowsAreReadNear) {
  KINORA_FRESH_RANDOM(random);
  const ThreadPool pool(1);
  const Context context(pool);
  const testing::PathModel model(12);
  const auto runner = model.decoder().runner(context);
  const auto question = testing::random_ids(random, 5, 12);
  GenerateOptions options;
  options.max_tokens = 30;
  options.ignore_stop_tokens = true;
  ModelInfo info = model.info();
  info.max_position = 9;
  const ChangedModel limited(model, info);
  EXPECT_EQ(Talk(context, limited).ask(*runner, question, options).generated.reason,
            StopReason::context_full);

  const auto memory = make_memory("sliding:rows=8", {info.rows, Device::cpu(), {}});
  ASSERT_TRUE(memory->reads_near());
  DenseAttention attention;
  const auto positions = limited.positions();
  std::vector<int32_t> history = question;
  Sequence sequence;
  sequence.ids = question;
  positions->text(5, sequence.tokens);
  sequence.memory = memory.get();
  sequence.attention = &attention;
  const Tensor hidden = runner->forward(sequence).hidden;
  Generation generation({limited, *memory, attention, *positions, history}, options, nullptr);
  const Generated generated =
      generate(context, *runner, generation, model.decoder(), hidden, [](std::string_view) {});
  EXPECT_EQ(generated.reason, StopReason::max_tokens);
  EXPECT_EQ(generated.ids, Talk(context, model).ask(*runner, question, options).generated.ids);
}

TEST(Generation, SaysHowDraftingWent) {
  KINORA_FRESH_RANDOM(random);
  const ThreadPool pool(2);
  const Context context(pool);
  const testing::PathModel model(12);
  const auto runner = model.decoder().runner(context);
  const auto question = testing::random_ids(random, 5, 12);
  GenerateOptions options;
  options.max_tokens = 100;
  const Truth truth{Talk(context, model).ask(*runner, question, options).generated.ids,
                    question.size()};
  for (const int64_t length : {1, 2, 7, 63, 100}) {
    for (const int64_t answer : {1, 2, 9, 64, 99}) {
      for (const bool right : {true, false}) {
        SCOPED_TRACE(std::to_string(length) + " drafted of " + std::to_string(answer));
        DraftReport expected;
        for (int64_t tokens = 1; tokens < answer;) {
          const int64_t drafted = std::min({length, int64_t{63}, answer - tokens - 1});
          ++expected.passes;
          expected.drafted += drafted;
          expected.right += right ? drafted : 0;
          tokens += 1 + (right ? drafted : 0);
        }
        options.max_tokens = answer;
        const Outcome outcome =
            Talk(context, model)
                .ask(*runner, question, options,
                     std::make_unique<ScriptedDrafter>(
                         [&](auto text, int64_t most, int64_t deepest) {
                           auto ids = truth.after(text, std::min({length, most, deepest}));
                           if (!right) ids[0] = (ids[0] + 1) % 12;
                           return testing::chain(ids);
                         }));
        EXPECT_EQ(outcome.generated.draft.passes, expected.passes);
        EXPECT_EQ(outcome.generated.draft.drafted, expected.drafted);
        EXPECT_EQ(outcome.generated.draft.right, expected.right);
      }
    }
  }
}

TEST(Generation, AnswersThatStepTogetherAreEachTheirOwn) {
  KINORA_FRESH_RANDOM(random);
  const ThreadPool pool(2);
  const Context context(pool);
  testing::PathModel model(12);
  const auto runner = model.decoder().runner(context);
  struct Answering {
    std::unique_ptr<Talk> talk;
    std::unique_ptr<Generation> generation;
    Outcome expected;
    std::string streamed;
  };
  std::vector<Answering> answering;
  for (int i = 0; i < 12; ++i) {
    const auto question = testing::random_ids(random, 1 + random.below(20), 12);
    GenerateOptions options;
    options.sampling = samplings[i % 4];
    options.max_tokens = 1 + random.below(50);
    options.ignore_stop_tokens = true;
    Answering one{std::make_unique<Talk>(context, model), nullptr, {}, ""};
    one.expected = Talk(context, model).ask(*runner, question, options);
    const Truth truth{one.expected.generated.ids, question.size()};
    const std::vector<Kind> kinds = all_kinds(truth, random, 12);
    const Tensor hidden = runner->forward(one.talk->read(question)).hidden;
    one.generation = std::make_unique<Generation>(
        one.talk->state(), options,
        i % 6 == 5 ? nullptr : kinds[static_cast<size_t>(i % 6)].make());
    Tensor logits = model.decoder().logits(context, hidden);
    one.generation->start(context, logits);
    answering.push_back(std::move(one));
  }
  // Now and then one of them fails; its memory is then as before the step, and it can go on.
  for (int turn = 0; turn < 2000; ++turn) {
    std::vector<Generation*> generations;
    std::vector<Answering*> owners;
    for (Answering& one : answering) {
      if (one.generation->done()) continue;
      generations.push_back(one.generation.get());
      owners.push_back(&one);
    }
    if (generations.empty()) break;
    const auto victim = static_cast<size_t>(random.below(2 * static_cast<int64_t>(owners.size())));
    const Memory* unlucky = victim < owners.size() ? &owners[victim]->talk->memory() : nullptr;
    model.path().on_sequence = [&](const Sequence& sequence) {
      if (sequence.memory == unlucky) throw Error(ErrorKind::resource, "no room");
    };
    const int64_t before = unlucky != nullptr ? unlucky->token_count() : 0;
    const auto failures = step(context, *runner, model.decoder(), generations);
    ASSERT_EQ(failures.size(), generations.size());
    for (size_t i = 0; i < owners.size(); ++i) {
      EXPECT_EQ(failures[i] != nullptr, i == victim);
      owners[i]->streamed += generations[i]->take_text();
    }
    if (unlucky != nullptr) {
      EXPECT_EQ(unlucky->token_count(), before);
    }
  }
  for (Answering& one : answering) {
    ASSERT_TRUE(one.generation->done());
    one.streamed += one.generation->take_text();
    expect_same(one.talk->outcome(one.generation->result(), one.streamed), one.expected);
  }
}

TEST(Generation, ANegativeLengthIsRefusedAndACancelledStepIsNotMade) {
  const ThreadPool pool(2);
  const Context context(pool);
  const testing::PathModel model(12);
  const auto runner = model.decoder().runner(context);
  Talk talk(context, model);
  GenerateOptions options;
  options.max_tokens = -1;
  EXPECT_THROW(Generation(talk.state(), options), Error);
  options.max_tokens = 100;
  const Tensor hidden = runner->forward(talk.read(std::vector<int32_t>{1, 2, 3})).hidden;
  Generation generation(talk.state(), options);
  Tensor logits = model.decoder().logits(context, hidden);
  generation.start(context, logits);
  options.cancel.cancel();
  Generation* const one = &generation;
  const auto failures = step(context, *runner, model.decoder(), {&one, 1});
  ASSERT_TRUE(failures.at(0));
  EXPECT_THROW(std::rethrow_exception(failures[0]), Error);
  EXPECT_EQ(talk.memory().token_count(), 3);
  EXPECT_EQ(talk.history().size(), 3u);
}

TEST(Generation, ADrafterThatFailsLeavesNothingBehind) {
  const ThreadPool pool(2);
  const Context context(pool);
  const testing::PathModel model(12);
  const auto runner = model.decoder().runner(context);
  const std::vector<int32_t> question{1, 2, 3};
  GenerateOptions options;
  options.max_tokens = 9;
  Talk plain(context, model);
  const Outcome expected = plain.ask(*runner, question, options);

  Talk talk(context, model);
  const Tensor hidden = runner->forward(talk.read(question)).hidden;
  int calls = 0;
  Generation generation(
      talk.state(), options,
      std::make_unique<ScriptedDrafter>([&](std::span<const int32_t> text, int64_t, int64_t) {
        EXPECT_EQ(text.size(), talk.history().size());
        if (++calls % 2 == 1) throw Error(ErrorKind::resource, "no draft today");
        return Draft();
      }));
  Tensor logits = model.decoder().logits(context, hidden);
  generation.start(context, logits);
  Generation* const one = &generation;
  std::string streamed;
  while (!generation.done()) {
    const std::vector<int32_t> history = talk.history();
    const auto failures = step(context, *runner, model.decoder(), {&one, 1});
    EXPECT_EQ(failures.at(0) != nullptr, calls % 2 == 1);
    if (failures.at(0)) {
      EXPECT_EQ(talk.history(), history);
    }
    streamed += generation.take_text();
    ASSERT_LT(calls, 100);
  }
  streamed += generation.take_text();
  expect_same(talk.outcome(generation.result(), streamed), expected);
}

// The answer ends in the middle of a character, and what stands for the rest of it is the stop.
TEST(Generation, AStopStringThatTheLastCharacterCompletesIsTheReason) {
  const ThreadPool pool(2);
  const Context context(pool);
  std::vector<int32_t> halves;
  for (const char* character : {"\u20ac", "\u2603", "\U0001F980", "\U00012000"}) {
    halves = testing::PathModel(1).tokenizer().encode(character);
    if (halves.size() > 1) break;
  }
  ASSERT_GT(halves.size(), 1u);
  const testing::PathModel model(int64_t{halves[0]} + 1);
  for (const bool stops : {false, true}) {
    Talk talk(context, model);
    GenerateOptions options;
    options.max_tokens = 1;
    options.sampling.temperature = 0;
    options.stop = {stops ? "\uFFFD" : "another"};
    Generation generation(talk.state(), options);
    Tensor logits = Tensor::zeros(DType::f32, {1, model.info().vocabulary});
    logits.data<float>()[halves[0]] = 1;
    generation.start(context, logits);
    ASSERT_TRUE(generation.done());
    EXPECT_EQ(generation.take_text(), stops ? "" : "\uFFFD");
    EXPECT_EQ(generation.result().reason, stops ? StopReason::stop_string : StopReason::max_tokens);
  }
}

struct Place {
  std::string model;
  Device device;
};
void PrintTo(const Place& place, std::ostream* out) {
  *out << place.model << " on " << to_string(place.device);
}

std::vector<Place> places() {
  std::vector<Device> devices{Device::cpu()};
  for (size_t i = 0; i < cuda_devices().size(); ++i) {
    devices.push_back(Device::cuda(static_cast<int>(i)));
  }
  std::vector<Place> places;
  for (const Device& device : devices) {
    for (const char* model : {"qwen2_tied", "qwen2_5_vl_tied_new", "llama3"}) {
      places.push_back({model, device});
    }
  }
  return places;
}

class GenerationOnFixtures : public ::testing::TestWithParam<Place> {};

// The questions are always the same: where two logits of a small random model are nearly equal,
// rounding, which depends on the number of rows, would decide.
TEST_P(GenerationOnFixtures, DraftsChangeNothing) {
  Random random(20);
  const ThreadPool pool(2);
  const Context context(pool, GetParam().device);
  LoadOptions load;
  load.gpu_exact = true;
  const auto model = load_model(context, real_files(),
                                std::string(KINORA_FIXTURES) + "/models/" + GetParam().model, load);
  for (const SamplingOptions& sampling : samplings) {
    SCOPED_TRACE("temperature " + std::to_string(sampling.temperature));
    expect_one_token_at_a_time(context, *model, random, sampling, 40);
  }
}

// What an answer's tokens looked at: rejected ones do not count.
TEST_P(GenerationOnFixtures, DraftsDoNotChangeTheMassOfRows) {
  Random random(21);
  const ThreadPool pool(2);
  const Context context(pool, GetParam().device);
  LoadOptions load;
  load.gpu_exact = true;
  const auto model = load_model(context, real_files(),
                                std::string(KINORA_FIXTURES) + "/models/" + GetParam().model, load);
  const int64_t vocabulary = model->info().vocabulary;
  const auto runner = model->decoder().runner(context);
  const std::vector<int32_t> question = testing::random_ids(random, 30, vocabulary);
  GenerateOptions options;
  options.max_tokens = 25;
  options.ignore_stop_tokens = true;
  std::vector<int32_t> answer;
  const auto ask = [&](std::unique_ptr<Drafter> drafter) {
    Talk talk(context, *model);
    RowMass mass(context.device, {{0}, {1, 0b10}}, model->info().heads);
    Sequence prompt = talk.read(question);
    prompt.mass = &mass;
    prompt.mass_rows = 1;
    const Tensor hidden = runner->forward(prompt).hidden;
    GenerationState state = talk.state();
    state.mass = &mass;
    Generation generation(state, options, std::move(drafter));
    answer = generate(context, *runner, generation, model->decoder(), hidden, nullptr).ids;
    EXPECT_EQ(mass.rows(), talk.memory().token_count());
    return mass.values(context);
  };
  const std::vector<float> plain = ask(nullptr);
  const std::vector<int32_t> truth = answer;
  const auto known = [&](std::span<const int32_t> text, int64_t, int64_t deepest) {
    const auto said = text.size() - question.size();
    return testing::random_tree(random, std::span(truth).subspan(said), 12, deepest, vocabulary);
  };
  const std::vector<float> drafted = ask(std::make_unique<ScriptedDrafter>(known));
  ASSERT_EQ(answer, truth);
  ASSERT_EQ(drafted.size(), plain.size());
  double total = 0;
  for (size_t i = 0; i < plain.size(); ++i) {
    EXPECT_NEAR(drafted[i], plain[i], 2e-3 * (1 + plain[i])) << "row " << i;
    total += double{plain[i]};
  }
  // Every token but the last one gives each head's attention once; so does the question's last.
  EXPECT_NEAR(total, 25.0 * static_cast<double>(model->info().heads + 1), 0.1);
}

INSTANTIATE_TEST_SUITE_P(Devices, GenerationOnFixtures, ::testing::ValuesIn(places()),
                         [](const auto& test) {
                           std::string label = to_string(test.param.device);
                           std::erase(label, ':');
                           return test.param.model + "__" + label;
                         });

}  // namespace
}  // namespace kinora
