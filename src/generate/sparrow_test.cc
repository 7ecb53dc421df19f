#include "generate/sparrow.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "attention/cuda/device_test_support.h"
#include "base/error.h"
#include "base/files/archive.h"
#include "generate/draft_case.h"
#include "generate/draft_files.h"
#include "generate/policies.h"
#include "model/reference_case.h"
#include "support/random_data.h"

namespace kinora {
namespace {

using testing::DraftFiles;
using testing::DraftForm;
using testing::model_directory;
using testing::Outcome;
using testing::Talk;

struct Pair {
  std::string name;
  std::string directory;  // of the target
  DraftForm form = DraftForm::sparrow;
};

class Sparrow : public ::testing::TestWithParam<Pair> {
 protected:
  std::shared_ptr<const DraftModel> random_draft(Random& random, int64_t own = 0) {
    files_.push_back(std::make_unique<DraftFiles>(random, directory_, own, GetParam().form));
    return std::make_shared<DraftModel>(context_, real_files(), files_.back()->write(), *target_);
  }
  Tensor random_states(Random& random, int64_t count) const {
    Tensor states(DType::f32, {count, target_->decoder().hidden_size()});
    for (int64_t i = 0; i < states.elements(); ++i) {
      states.data<float>()[i] = static_cast<float>(random.normal());
    }
    return states;
  }
  // Of every layer that the draft is fed.
  std::vector<Tensor> random_layers(Random& random, const DraftModel& model, int64_t count) const {
    std::vector<Tensor> layers;
    for (size_t i = 0; i < model.feed().layers.size(); ++i) {
      layers.push_back(random_states(random, count));
    }
    return layers;
  }
  std::vector<int32_t> random_ids(Random& random, int64_t count) const {
    return testing::random_ids(random, count, target_->decoder().vocabulary());
  }

  const std::string directory_ = GetParam().directory;
  const ThreadPool pool_{1};
  const Context context_{pool_};
  const std::unique_ptr<Model> target_ = load_model(context_, real_files(), directory_);
  std::vector<std::unique_ptr<DraftFiles>> files_;
};

std::vector<TokenInfo> text_tokens(int64_t first, int64_t count) {
  std::vector<TokenInfo> tokens(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    tokens[static_cast<size_t>(i)].position.fill(static_cast<int32_t>(first + i));
  }
  return tokens;
}

std::vector<Tensor> rows_of(std::span<const Tensor> layers, int64_t begin, int64_t count) {
  std::vector<Tensor> rows;
  for (const Tensor& layer : layers) {
    rows.emplace_back(DType::f32, Shape{count, layer.size(1)});
    std::copy_n(layer.view().row<float>(begin), count * layer.size(1), rows.back().data<float>());
  }
  return rows;
}

// What may follow a path, computed anew from the first token on, one row at a time.
class SlowDraft {
 public:
  SlowDraft(const DraftModel& model, std::vector<int32_t> text, std::vector<Tensor> states)
      : model_(model), text_(std::move(text)), states_(std::move(states)) {}

  std::vector<Guess> after(const std::vector<int32_t>& path, int64_t count) const {
    FlatMemory memory(model_.rows());
    DenseAttention attention;
    Tensor before = Tensor::zeros(DType::f32, {1, model_.hidden_size()});
    Forwarded result;
    const auto known = static_cast<int64_t>(text_.size());
    const int64_t first = model_.feed().first_row ? 0 : 1;
    if (first == 1) before = model_.state(rows_of(states_, 0, 1));
    for (int64_t i = first; i < known + std::ssize(path); ++i) {
      const int32_t id =
          i < known ? text_[static_cast<size_t>(i)] : path[static_cast<size_t>(i - known)];
      Sequence sequence;
      model_.join({&id, 1}, before, sequence);
      sequence.tokens = text_tokens(i, 1);
      sequence.memory = &memory;
      sequence.attention = &attention;
      sequence.states = {0};
      result = model_.forward(sequence);
      before = i + 1 < known ? model_.state(rows_of(states_, i, 1)) : result.states[0];
    }
    return model_.next(result.hidden, count)[0];
  }

 private:
  const DraftModel& model_;
  std::vector<int32_t> text_;
  std::vector<Tensor> states_;  // of all but the last token of the text
};

// The drafted paths' confidences and those that the slow draft would have kept, both sorted.
void expect_best_paths(const Draft& draft, const SlowDraft& slow, const TreeShape& shape,
                       int64_t most, int64_t deepest) {
  DraftTree tree;
  tree.add(-1, slow.after({}, shape.width));
  const auto path_of = [&](int32_t node) {
    std::vector<int32_t> path;
    for (; node >= 0; node = tree.nodes()[static_cast<size_t>(node)].parent) {
      path.insert(path.begin(), tree.nodes()[static_cast<size_t>(node)].token);
    }
    return path;
  };
  for (int64_t level = 0; level < std::min(shape.depth, deepest - 1); ++level) {
    for (const int32_t node : tree.frontier(shape.width)) {
      tree.add(node, slow.after(path_of(node), shape.width));
    }
  }
  std::vector<double> expected;
  for (const int32_t node : tree.ranked()) {
    expected.push_back(double{tree.nodes()[static_cast<size_t>(node)].confidence});
  }
  expected.resize(
      static_cast<size_t>(std::min<int64_t>({std::ssize(expected), shape.total - 1, most})));
  std::vector<double> actual;
  for (size_t i = 0; i < draft.ids.size(); ++i) {
    std::vector<int32_t> path;
    for (auto at = static_cast<int32_t>(i); at >= 0; at = draft.parents[static_cast<size_t>(at)]) {
      path.insert(path.begin(), draft.ids[static_cast<size_t>(at)]);
    }
    for (int32_t node = 0; node < std::ssize(tree.nodes()); ++node) {
      if (path_of(node) != path) continue;
      actual.push_back(double{tree.nodes()[static_cast<size_t>(node)].confidence});
    }
  }
  std::sort(actual.rbegin(), actual.rend());
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(actual[i], expected[i], 2e-3);
}

TEST_P(Sparrow, GrowsTheTreeThatTheDraftModelMeans) {
  KINORA_FRESH_RANDOM(random);
  for (int round = 0; round < 3; ++round) {
    const auto model = random_draft(random, round == 1 ? 200 : 0);
    SparrowOptions options;
    options.adapt = false;
    options.shape = {2 + random.below(30), random.below(4), 1 + random.below(4)};
    SparrowDrafter drafter(model, options);
    // Two readings, then steps whose guesses are partly right.
    std::vector<int32_t> text = random_ids(random, 9);
    std::vector<Tensor> states = random_layers(random, *model, 64);
    const int64_t first = round == 2 ? 1 : 5;
    drafter.read(
        {0, std::span(text).first(first), text_tokens(0, first), rows_of(states, 0, first)});
    drafter.read({first, std::span(text).subspan(first), text_tokens(first, 9 - first),
                  rows_of(states, first, 9 - first)});
    for (int step = 0; step < 3; ++step) {
      text.push_back(random_ids(random, 1)[0]);
      const int64_t most = 1 + random.below(40), deepest = 1 + random.below(6);
      const Draft draft = drafter.propose(text, most, deepest);
      ASSERT_LE(std::ssize(draft.ids), most);
      expect_best_paths(draft, SlowDraft(*model, text, states), options.shape, most, deepest);
      // None of the tree's, and none of a first token without a row.
      EXPECT_EQ(drafter.rows(), std::ssize(text) - (model->feed().first_row ? 0 : 1));
      // A random path of the draft is right; the target's states of it come back.
      std::vector<int32_t> right;
      int32_t at = -1;
      for (size_t i = 0; i < draft.ids.size(); ++i) {
        if (draft.parents[i] != at || random.uniform() < 0.3) continue;
        at = static_cast<int32_t>(i);
        right.push_back(at);
      }
      const std::vector<Tensor> checked = random_layers(random, *model, 1 + std::ssize(draft.ids));
      drafter.learn({right, checked});
      const auto keep = [&](int64_t row) {
        for (size_t i = 0; i < states.size(); ++i) {
          std::copy_n(checked[i].view().row<float>(row), states[i].size(1),
                      states[i].view().row<float>(std::ssize(text) - 1));
        }
      };
      keep(0);
      for (const int32_t place : right) {
        text.push_back(draft.ids[static_cast<size_t>(place)]);
        keep(1 + place);
      }
    }
  }
}

TEST_P(Sparrow, LongAnswersDoNotPileUp) {
  KINORA_FRESH_RANDOM(random);
  const auto model = random_draft(random);
  SparrowOptions options;
  options.adapt = false;
  options.shape = {2, 0, 1};
  SparrowDrafter drafter(model, options);
  std::vector<int32_t> text = random_ids(random, 9);
  drafter.read({0, text, text_tokens(0, 9), random_layers(random, *model, 9)});
  const int64_t prompts = drafter.ends();
  for (int step = 0; step < 150; ++step) {
    text.push_back(random_ids(random, 1)[0]);
    const Draft draft = drafter.propose(text, 1, 1);
    ASSERT_EQ(draft.ids.size(), 1u);
    drafter.learn({{}, random_layers(random, *model, 2)});
    EXPECT_LE(drafter.ends(), prompts + 64);
  }
}

TEST_P(Sparrow, TextThatIsCutBackIsForgotten) {
  KINORA_FRESH_RANDOM(random);
  const auto model = random_draft(random);
  SparrowOptions options;
  options.adapt = false;
  options.shape = {12, 2, 3};
  const std::vector<int32_t> first = random_ids(random, 700), second = random_ids(random, 20);
  const std::vector<Tensor> states = random_layers(random, *model, 700);
  const std::vector<Tensor> others = random_layers(random, *model, 20);
  SparrowDrafter drafter(model, options), fresh(model, options);
  const auto read = [](SparrowDrafter& to, int64_t at, std::span<const int32_t> ids,
                       const std::vector<Tensor>& from) {
    to.read({at, ids, text_tokens(at, std::ssize(ids)), from});
  };
  const std::vector<Tensor> begin = rows_of(states, 0, 600), rest = rows_of(states, 600, 100);
  for (SparrowDrafter* one : {&drafter, &fresh}) {
    read(*one, 0, std::span(first).first(600), begin);
  }
  // An answer goes on after more text; then all of it is undone.
  read(drafter, 600, std::span(first).subspan(600), rest);
  std::vector<int32_t> text = first;
  text.push_back(3);
  drafter.propose(text, 63, 8);
  drafter.learn({{}, random_layers(random, *model, 12)});
  read(drafter, 600, second, others);
  read(fresh, 600, second, others);
  text.resize(600);
  text.insert(text.end(), second.begin(), second.end());
  text.push_back(11);
  const Draft actual = drafter.propose(text, 63, 8), expected = fresh.propose(text, 63, 8);
  EXPECT_EQ(actual.ids, expected.ids);
  EXPECT_EQ(actual.parents, expected.parents);
  EXPECT_EQ(drafter.rows(), model->feed().first_row ? 621 : 620);
  // Text that nobody showed it: it goes on from the newest token.
  text = random_ids(random, 50);
  EXPECT_FALSE(drafter.propose(text, 63, 8).ids.empty());
  EXPECT_EQ(drafter.rows(), 1);
  // One token alone: nothing to go on from where the first has no row.
  text.resize(1);
  EXPECT_EQ(drafter.propose(text, 63, 8).ids.empty(), !model->feed().first_row);
}

// Another session goes on from what was read, here or from a file; each is on its own from then on.
TEST_P(Sparrow, ForksAndSavedOnesKnowTheText) {
  KINORA_FRESH_RANDOM(random);
  const auto model = random_draft(random);
  SparrowOptions options;
  options.adapt = false;
  options.shape = {12, 2, 3};
  constexpr int64_t known = 600, own = 20;
  const int64_t first_row = model->feed().first_row ? 0 : 1;
  const std::vector<int32_t> text = random_ids(random, known);
  const std::vector<int32_t> question = random_ids(random, own), other = random_ids(random, own);
  const std::vector<Tensor> states = random_layers(random, *model, known);
  const std::vector<Tensor> asked = random_layers(random, *model, own);
  SparrowDrafter drafter(model, options);
  drafter.read({0, text, text_tokens(0, known), states});

  const auto fork = drafter.fork();
  const testing::TempDir directory;
  const std::string path = directory.file("draft.kinora");
  ArchiveWriter out(path);
  drafter.save(known, out);
  out.commit();
  const auto file = Archive::open(path);
  SparrowDrafter reopened(model, options);
  reopened.load(*file, text, text_tokens(0, known));
  EXPECT_EQ(reopened.rows(), known - first_row);

  // What each proposes after a question about the text.
  const auto proposed = [&](Drafter& to, const std::vector<int32_t>& about) {
    to.read({known, about, text_tokens(known, own), asked});
    std::vector<int32_t> all = text;
    all.insert(all.end(), about.begin(), about.end());
    all.push_back(11);
    return to.propose(all, 63, 8);
  };
  SparrowDrafter whole(model, options);
  whole.read({0, text, text_tokens(0, known), states});
  const Draft expected = proposed(whole, question);
  proposed(*fork, other);  // does not disturb the others
  for (Drafter* one :
       {static_cast<Drafter*>(&drafter), fork.get(), static_cast<Drafter*>(&reopened)}) {
    const Draft draft = proposed(*one, question);
    EXPECT_EQ(draft.ids, expected.ids);
    EXPECT_EQ(draft.parents, expected.parents);
  }
  EXPECT_EQ(reopened.rows(), known + own + 1 - first_row);

  // Saved again with a question behind it, of which nothing is kept.
  const std::string again = directory.file("again.kinora");
  ArchiveWriter more(again);
  reopened.save(known, more);
  more.commit();
  EXPECT_EQ(Archive::open(again)->read("draft"), file->read("draft"));
  EXPECT_EQ(Archive::open(again)->read("draft/keys"), file->read("draft/keys"));
}

TEST_P(Sparrow, SavedRowsOfOthersAreNotUsed) {
  KINORA_FRESH_RANDOM(random);
  const auto model = random_draft(random), stranger = random_draft(random);
  constexpr int64_t known = 40;
  const std::vector<int32_t> text = random_ids(random, known);
  SparrowDrafter drafter(model);
  drafter.read({0, text, text_tokens(0, known), random_layers(random, *model, known)});
  const testing::TempDir directory;
  const std::string path = directory.file("draft.kinora");
  const auto write = [&](int64_t tokens) {
    ArchiveWriter out(path);
    out.add("other", "something");
    drafter.save(tokens, out);
    out.commit();
  };
  const auto load = [&](const std::shared_ptr<const DraftModel>& by, int64_t tokens) {
    SparrowDrafter fresh(by);
    fresh.load(*Archive::open(path), std::span(text).first(static_cast<size_t>(tokens)),
               text_tokens(0, tokens));
    return fresh.rows();
  };
  for (const int64_t unread : {int64_t{0}, known + 1}) {  // nothing to say of it
    write(unread);
    EXPECT_FALSE(Archive::open(path)->has("draft"));
    EXPECT_EQ(load(model, known), 0);
  }
  write(known);
  EXPECT_GT(load(model, known), 0);
  EXPECT_EQ(load(stranger, known), 0);
  EXPECT_THROW(load(model, known - 1), Error);  // of another text
  const std::string whole = real_files().read(path);
  for (const char* name : {"draft", "draft/keys", "draft/values"}) {
    const ArchiveSection section = Archive::open(path)->section(name);
    std::string damaged = whole;
    const auto at = static_cast<size_t>(section.offset + random.below(section.bytes));
    damaged[at] = static_cast<char>(damaged[at] ^ 4);
    real_files().write(path, damaged);
    EXPECT_THROW(load(model, known), Error) << name;
    real_files().write(path, whole);
  }
  // Whole by its checksums, but with fewer rows than it says, or without them.
  const auto file = Archive::open(path);
  for (const bool keys : {true, false}) {
    const std::string bad = directory.file("bad.kinora");
    ArchiveWriter out(bad);
    out.add("draft", file->read("draft"));
    if (keys) out.add("draft/keys", file->read("draft/keys").substr(1));
    out.add("draft/values", file->read("draft/values"));
    out.commit();
    SparrowDrafter fresh(model);
    EXPECT_THROW(fresh.load(*Archive::open(bad), text, text_tokens(0, known)), Error);
    EXPECT_EQ(fresh.rows(), 0);
  }
}

// Byte for byte, whatever the tree: at T = 0, and with a seed at any other temperature.
TEST_P(Sparrow, ChangesNoAnswer) {
  KINORA_FRESH_RANDOM(random);
  const auto runner = target_->decoder().runner(context_);
  for (const bool sampled : {false, true}) {
    const auto model = random_draft(random, random.below(3) == 0 ? 300 : 0);
    const std::vector<int32_t> question = random_ids(random, 3 + random.below(20));
    GenerateOptions options;
    options.max_tokens = 30;
    options.ignore_stop_tokens = true;
    options.sampling.seed = random.next();
    if (sampled) {
      options.sampling.temperature = 0.5;
      options.sampling.top_k = 20;
      options.sampling.top_p = 0.9;
      options.sampling.min_p = 0.01;
      options.sampling.repetition_penalty = 1.1;
    }
    const Outcome plain = Talk(context_, *target_).ask(*runner, question, options);
    for (const TreeShape shape :
         {TreeShape{}, TreeShape{48, 5, 10}, TreeShape{6, 4, 1},
          TreeShape{2 + random.below(62), random.below(5), 1 + random.below(8)}}) {
      for (const bool adapt : {false, true}) {
        const Outcome drafted =
            Talk(context_, *target_)
                .ask(*runner, question, options,
                     std::make_unique<SparrowDrafter>(model, SparrowOptions{shape, adapt, ""}));
        expect_same(drafted, plain);
        if (!adapt) {
          EXPECT_GT(drafted.generated.draft.drafted, 0);
        }
      }
    }
  }
}

std::vector<Pair> pairs() {
  const std::string deep = std::string(KINORA_FIXTURES) + "/drafts/published/target";
  std::vector<Pair> all;
  for (const char* name : {"qwen2_tied", "llama3", "qwen3"}) {
    all.push_back({name, model_directory(name)});
  }
  for (const char* name : {"qwen2_tied", "qwen3"}) {
    all.push_back({std::string("eagle_") + name, model_directory(name), DraftForm::eagle});
  }
  all.push_back({"eagle3_qwen2_tied", model_directory("qwen2_tied"), DraftForm::eagle3});
  all.push_back({"eagle3_deep", deep, DraftForm::eagle3});
  return all;
}

INSTANTIATE_TEST_SUITE_P(Models, Sparrow, ::testing::ValuesIn(pairs()),
                         [](const auto& pair) { return pair.param.name; });

TEST(SparrowPolicy, IsMadeByNameAndByDirectory) {
  Random random(3);
  const ThreadPool pool(1);
  const Context context(pool);
  const std::string directory = model_directory("qwen2_tied");
  const auto target = load_model(context, real_files(), directory);
  DraftFiles files(random, directory);
  const std::string written = files.write();
  std::vector<std::string> asked;
  const OpenDraft open = [&](const std::string& from) -> std::shared_ptr<const DraftModel> {
    asked.push_back(from);
    if (from.empty()) return nullptr;
    return std::make_shared<DraftModel>(context, real_files(), from, *target);
  };
  const std::vector<int32_t> text{1, 2, 3};
  EXPECT_EQ(make_drafter("sparrow:total=5,depth=2,adapt=0,from=" + written, open)
                ->propose(text, 63, 63)
                .ids.size(),
            4u);
  EXPECT_FALSE(make_drafter(written, open)->propose(text, 63, 63).ids.empty());
  EXPECT_EQ(asked, (std::vector<std::string>{written, written}));
  EXPECT_TRUE(make_drafter("auto", open)->propose(text, 63, 63).ids.empty());
  const auto problem = [&](const std::string& name) -> std::string {
    try {
      make_drafter(name, open);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(problem("sparrow").find("came without a draft"), std::string::npos);
  EXPECT_NE(problem("sparrow:total=1").find("total"), std::string::npos);
  EXPECT_NE(problem("./absent").find("absent"), std::string::npos);
  // One that came with the model is used where it could pay.
  for (const Device device : testing::all_devices()) {
    const Context there(pool, device);
    const auto small = load_model(there, real_files(), directory);
    const OpenDraft gift = [&](const std::string&) -> std::shared_ptr<const DraftModel> {
      return std::make_shared<DraftModel>(there, real_files(), written, *small);
    };
    EXPECT_EQ(gift("")->could_pay(), device.is_cpu());
    EXPECT_EQ(make_drafter("auto", gift)->propose(text, 63, 63).ids.empty(), !device.is_cpu());
    EXPECT_FALSE(make_drafter("sparrow:adapt=0", gift)->propose(text, 63, 63).ids.empty());
  }
  // One that is damaged is passed over, unless it was asked for.
  const OpenDraft damaged = [](const std::string&) -> std::shared_ptr<const DraftModel> {
    throw Error(ErrorKind::bad_input, "half a file");
  };
  EXPECT_TRUE(make_drafter("auto", damaged)->propose(text, 63, 63).ids.empty());
  EXPECT_THROW(make_drafter("sparrow", damaged), Error);
}

}  // namespace
}  // namespace kinora
