// Drafts as others publish them (tests/fixtures/drafts/published), against what a slow reference in
// double precision says of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "generate/draft_case.h"
#include "generate/sparrow.h"
#include "model/reference_case.h"
#include "ops/op_test_support.h"

namespace kinora {
namespace {

using testing::Outcome;
using testing::Talk;

const std::string folder = std::string(KINORA_FIXTURES) + "/drafts/published/";

// A draft, its target and its case.
struct Published {
  Published(const Context& on, const std::string& name)
      : context(on),
        target(load_model(context, real_files(), folder + "target", exact())),
        draft(std::make_shared<const DraftModel>(context, real_files(), folder + name, *target)),
        made(SafetensorsFile::open(real_files(), folder + name + "/case.safetensors")),
        text(ids("text")),
        path(ids("path")) {}

  static LoadOptions exact() {
    LoadOptions options;
    options.gpu_exact = true;
    return options;
  }
  std::vector<int32_t> ids(const std::string& name) const {
    const Tensor tensor = made.tensor(name);
    return {tensor.data<int32_t>(), tensor.data<int32_t>() + tensor.elements()};
  }
  // The target's rows of all but the last token of the text.
  std::vector<Tensor> read() const {
    FlatMemory memory(f32_rows(target->info().rows), context.device);
    DenseAttention attention;
    Sequence sequence;
    sequence.ids.assign(text.begin(), text.end() - 1);
    target->positions()->text(std::ssize(sequence.ids), sequence.tokens);
    sequence.memory = &memory;
    sequence.attention = &attention;
    sequence.states = draft->feed().layers;
    return target->decoder().runner(context)->forward(sequence).states;
  }
  static RowLayout f32_rows(RowLayout layout) {
    layout.dtype = DType::f32;
    return layout;
  }

  Context context;
  std::unique_ptr<Model> target;
  std::shared_ptr<const DraftModel> draft;
  SafetensorsFile made;
  std::vector<int32_t> text, path;
};

std::vector<TokenInfo> text_tokens(int64_t first, int64_t count) {
  std::vector<TokenInfo> tokens(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    tokens[static_cast<size_t>(i)].position.fill(static_cast<int32_t>(first + i));
  }
  return tokens;
}

// Every path of a tree, from its first token on.
std::set<std::vector<int32_t>> paths_of(const Draft& draft) {
  std::set<std::vector<int32_t>> paths;
  for (size_t i = 0; i < draft.ids.size(); ++i) {
    std::vector<int32_t> path;
    for (auto at = static_cast<int32_t>(i); at >= 0; at = draft.parents[static_cast<size_t>(at)]) {
      path.insert(path.begin(), draft.ids[static_cast<size_t>(at)]);
    }
    paths.insert(path);
  }
  return paths;
}

class PublishedDrafts : public ::testing::TestWithParam<std::string> {};

TEST_P(PublishedDrafts, SayWhatTheReferenceSays) {
  testing::for_each_context([](const Context& context) {
    const Published published(context, GetParam());
    const DraftModel& draft = *published.draft;
    const int64_t text = std::ssize(published.text);
    Tensor states = draft.state(published.read());
    FlatMemory memory(draft.rows(), context.device);
    DenseAttention attention;
    // The text together, then a chain of guesses one by one.
    std::vector<int32_t> ids(published.text.begin() + 1, published.text.end());
    const Tensor expected = published.made.tensor("log_probabilities");
    for (int64_t step = 0; step < expected.size(0); ++step) {
      Sequence sequence;
      draft.join(ids, states, sequence);
      sequence.tokens = text_tokens(step == 0 ? 1 : text + step - 1, std::ssize(ids));
      sequence.memory = &memory;
      sequence.attention = &attention;
      sequence.states = {0};
      const Forwarded result = draft.forward(sequence);
      const float* wanted = expected.view().row<float>(step);
      // A layer may lose 1e-4 of its output, as those of a model may, and that is a part of the
      // largest logit, not of each: the least likely token tells how large they are.
      const float allowed = -1e-4f * *std::min_element(wanted, wanted + expected.size(1));
      const auto guesses = draft.next(result.hidden, 50);
      ASSERT_EQ(guesses[0].size(), 50u);
      for (const Guess& guess : guesses[0]) {
        EXPECT_NEAR(guess.log_probability, wanted[guess.token], allowed) << GetParam() << step;
      }
      EXPECT_EQ(guesses[0][0].token, std::max_element(wanted, wanted + expected.size(1)) - wanted);
      if (step == std::ssize(published.path)) break;
      ids = {published.path[static_cast<size_t>(step)]};
      const int64_t last = result.states[0].size(0) - 1;
      states = Tensor(DType::f32, {1, draft.hidden_size()}, context.device);
      copy_bytes(states.view().raw(), context.device, result.states[0].view().rows(last, 1).raw(),
                 context.device, static_cast<size_t>(states.bytes()));
    }
  });
}

TEST_P(PublishedDrafts, GrowTheReferencesTree) {
  testing::for_each_context([](const Context& context) {
    const Published published(context, GetParam());
    SparrowOptions options;
    options.adapt = false;
    options.shape = {15, 3, 4};
    SparrowDrafter drafter(published.draft, options);
    const auto known = std::span(published.text).first(published.text.size() - 1);
    drafter.read({0, known, text_tokens(0, std::ssize(known)), published.read()});
    const Draft draft = drafter.propose(published.text, 63, 63);
    EXPECT_EQ(paths_of(draft),
              paths_of({published.ids("tree_ids"), published.ids("tree_parents")}));
  });
}

// The draft's target reads the question and answers, with and without it.
TEST_P(PublishedDrafts, ChangeNoAnswer) {
  testing::for_each_context([](const Context& context) {
    const Published published(context, GetParam());
    const Model& target = *published.target;
    const auto runner = target.decoder().runner(context);
    GenerateOptions options;
    options.max_tokens = 40;
    options.ignore_stop_tokens = true;
    const Outcome plain = Talk(context, target).ask(*runner, published.text, options);
    for (const TreeShape shape : {TreeShape{}, TreeShape{6, 4, 1}, TreeShape{48, 5, 10}}) {
      const Outcome drafted = Talk(context, target)
                                  .ask(*runner, published.text, options,
                                       std::make_unique<SparrowDrafter>(
                                           published.draft, SparrowOptions{shape, false, ""}));
      expect_same(drafted, plain);
      EXPECT_GT(drafted.generated.draft.drafted, 0);
      EXPECT_EQ(drafted.generated.draft.kind, GetParam() == "eagle" ? "EAGLE" : "EAGLE-3");
    }
  });
}

INSTANTIATE_TEST_SUITE_P(All, PublishedDrafts,
                         ::testing::Values("eagle", "eagle3", "eagle3_narrow"),
                         [](const auto& name) { return name.param; });

}  // namespace
}  // namespace kinora
