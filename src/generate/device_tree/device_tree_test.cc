#include "generate/device_tree/device_tree.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "attention/cuda/device_test_support.h"
#include "attention/policies/dense.h"
#include "generate/draft_case.h"
#include "generate/draft_files.h"
#include "generate/draft_model.h"
#include "memory/flat_memory.h"
#include "model/reference_case.h"
#include "model/weights/safetensors.h"
#include "model/weights/safetensors_writer.h"
#include "support/random_data.h"
#include "support/temp_dir.h"

namespace kinora {
namespace {

using testing::DraftFiles;
using testing::DraftForm;

struct TreeCase {
  std::string name;
  std::string directory;  // of the target
  DraftForm form = DraftForm::sparrow;
  int64_t own = 0;  // tokens of the draft's own vocabulary
};

void narrow(NamedTensors& tensors) {
  for (auto& [name, tensor] : tensors) {
    if (tensor.dtype() == DType::f32) {
      tensor = testing::tensor_of(testing::floats_of(tensor), tensor.shape(), DType::bf16,
                                  Device::cpu());
    }
  }
}

// A small model with its weights in bf16, as GPUs run them.
class NarrowModel {
 public:
  explicit NarrowModel(const std::string& directory) {
    for (const auto& file : std::filesystem::directory_iterator(directory)) {
      std::filesystem::copy(file.path(), there_.path());
    }
    NamedTensors tensors;
    const TensorFiles files = TensorFiles::open(real_files(), directory);
    for (const std::string& name : files.names()) tensors.emplace_back(name, files.tensor(name));
    narrow(tensors);
    write_safetensors(real_files(), there_.file("model.safetensors"), tensors);
  }
  const std::string& directory() const { return there_.path(); }

 private:
  testing::TempDir there_;
};

// A draft that has read some text, on one GPU.
class Reader {
 public:
  Reader(Random& random, const Context& context, const TreeCase& one)
      : context_(context),
        narrow_(one.directory),
        target_(load_model(context, real_files(), narrow_.directory())),
        files_(random, one.directory, one.own, one.form),
        model_(context, real_files(), written(), *target_),
        memory_(model_.rows(), context.device) {}

  // Random tokens with random states before them; the last ones wait for a tree.
  void read(Random& random, int64_t count) {
    ids_ = testing::random_ids(random, count, target_->decoder().vocabulary());
    Tensor states(DType::f32, {count, model_.hidden_size()});
    for (int64_t i = 0; i < states.elements(); ++i) {
      states.data<float>()[i] = static_cast<float>(random.normal());
    }
    states_ = states.to(context_.device);
    const int64_t most = std::min<int64_t>(TreeStart::most, count);
    const int64_t run_now = count - 1 - random.below(most);
    if (run_now > 0) run(std::span(ids_).first(run_now), rows_of_states(0, run_now));
    ids_.erase(ids_.begin(), ids_.begin() + run_now);
    states_ = rows_of_states(run_now, count - run_now);
    positions_.clear();
    for (size_t i = 0; i < ids_.size(); ++i) {
      const auto at = static_cast<int32_t>(rows() + static_cast<int64_t>(i));
      positions_.push_back({at, at, at});
    }
  }
  DraftTree grow(const TreeShape& shape, int64_t deepest) {
    const int64_t before = rows();
    GrownTree grown = model_.grow(shape, deepest,
                                  {memory_, ids_, positions_, [&](TensorView out) {
                                     copy_bytes(out.raw(), context_.device, states_.view().raw(),
                                                context_.device, static_cast<size_t>(out.bytes()));
                                   }});
    EXPECT_EQ(rows(), before + std::ssize(ids_)) << "the text has rows, the tree has none left";
    read_newest_again(newest_state());
    return std::move(grown.tree);
  }

  // What may follow a path of guesses, one token at a time; with `noise` states are moved by as
  // much as rounding to bf16 moves them on the way.
  std::vector<Guess> after(const std::vector<int32_t>& path, int64_t count,
                           Random* noise = nullptr) {
    const auto moved = [&](const Tensor& rows) { return noise ? shaken(*noise, rows) : rows; };
    if (noise != nullptr) read_newest_again(moved(newest_state()));
    const MemoryMark mark = memory_.mark();
    const Tensor state = state_, normed = normed_;
    for (const int32_t id : path) run({&id, 1}, moved(state_));
    std::vector<Guess> guesses = model_.next(moved(normed_), count)[0];
    memory_.rewind(mark);
    state_ = state;
    normed_ = normed;
    if (noise != nullptr) read_newest_again(newest_state());
    return guesses;
  }

  const DraftModel& model() const { return model_; }
  int64_t rows() const { return memory_.token_count(); }
  int64_t vocabulary() const { return target_->decoder().vocabulary(); }

 private:
  const std::string& written() {
    narrow(files_.tensors);
    return files_.write();
  }
  Tensor rows_of_states(int64_t first, int64_t count) const {
    const std::vector<float> all = testing::floats_of(states_);
    const auto begin = all.begin() + first * model_.hidden_size();
    return testing::tensor_of({begin, begin + count * model_.hidden_size()},
                              {count, model_.hidden_size()}, DType::f32, context_.device);
  }
  Tensor newest_state() const { return rows_of_states(std::ssize(ids_) - 1, 1); }
  // The newest token, over the rows that the others got: this is where paths go on from.
  void read_newest_again(const Tensor& state) {
    memory_.rewind({rows() - 1, {rows() - 1}, nullptr});
    run(std::span(ids_).last(1), state);
  }
  Tensor shaken(Random& random, const Tensor& rows) const {
    std::vector<float> values = testing::floats_of(rows);
    for (float& value : values) value *= 1 + static_cast<float>(random.uniform(-0x1p-8, 0x1p-8));
    return testing::tensor_of(values, rows.shape(), rows.dtype(), context_.device);
  }
  void run(std::span<const int32_t> ids, const Tensor& states) {
    Sequence sequence;
    model_.join(ids, states, sequence);
    for (size_t i = 0; i < ids.size(); ++i) {
      const auto at = static_cast<int32_t>(rows() + static_cast<int64_t>(i));
      sequence.tokens.emplace_back();
      sequence.tokens.back().position = {at, at, at};
    }
    sequence.memory = &memory_;
    sequence.attention = &attention_;
    sequence.states = {0};
    Forwarded result = model_.forward(sequence);
    std::vector<float> rows = testing::floats_of(result.states[0]);
    rows.erase(rows.begin(), rows.end() - model_.hidden_size());
    state_ = testing::tensor_of(rows, {1, model_.hidden_size()}, DType::f32, context_.device);
    normed_ = std::move(result.hidden);
  }

  Context context_;
  NarrowModel narrow_;
  std::unique_ptr<Model> target_;
  DraftFiles files_;
  DraftModel model_;
  FlatMemory memory_;
  DenseAttention attention_;
  std::vector<int32_t> ids_;  // that have no rows yet, and …
  std::vector<Position> positions_;
  Tensor states_;          // … what comes before them
  Tensor state_, normed_;  // of the newest token
};

std::vector<int32_t> path_to(const DraftTree& tree, int32_t node) {
  std::vector<int32_t> path;
  for (; node >= 0; node = tree.nodes()[static_cast<size_t>(node)].parent) {
    path.insert(path.begin(), tree.nodes()[static_cast<size_t>(node)].token);
  }
  return path;
}

constexpr int64_t ranked = 256;  // as far as guesses are ordered; a smaller vocabulary has fewer

const Guess* find(const std::vector<Guess>& guesses, int32_t token) {
  for (const Guess& guess : guesses) {
    if (guess.token == token) return &guess;
  }
  return nullptr;
}

// How far the likeliest guesses after a path move when states do so by a rounding step. Random
// weights make some paths far more sensitive than others.
double sensitivity(Reader& reader, Random& random, const std::vector<int32_t>& path,
                   const std::vector<Guess>& guesses) {
  double most = 0;
  for (int draw = 0; draw < 4; ++draw) {
    const std::vector<Guess> moved = reader.after(path, ranked, &random);
    for (size_t i = 0; i < std::min<size_t>(32, guesses.size()); ++i) {
      const Guess* same = find(moved, guesses[i].token);
      if (same == nullptr) continue;
      most = std::max(most, std::abs(double{same->log_probability} - guesses[i].log_probability));
    }
  }
  return most;
}

// The followers of a node are those that the draft means, but for what bf16 rounds away: every
// layer rounds some ten times, and the tree and the reference each do so in their own order.
void expect_followers(Reader& reader, Random& random, const DraftTree& tree, int32_t parent,
                      std::span<const DraftTree::Node> nodes, int64_t width) {
  const std::vector<int32_t> path = path_to(tree, parent);
  const std::vector<Guess> expected = reader.after(path, ranked);
  const double allowed = 0.05 + 10 * sensitivity(reader, random, path, expected);
  const double above =
      parent < 0 ? 0 : double{tree.nodes()[static_cast<size_t>(parent)].confidence};
  ASSERT_EQ(std::ssize(nodes), width);
  for (size_t i = 0; i < nodes.size(); ++i) {
    const double own = double{nodes[i].confidence} - above;
    EXPECT_NEAR(own, double{expected[i].log_probability}, allowed) << "place " << i;
    const Guess* same = find(expected, nodes[i].token);
    if (same != nullptr) {
      EXPECT_NEAR(own, double{same->log_probability}, allowed) << "token " << nodes[i].token;
    } else {
      EXPECT_LE(own, double{expected.back().log_probability} + allowed)
          << "token " << nodes[i].token << " is none of the likeliest";
    }
  }
}

void expect_tree(Reader& reader, Random& random, const DraftTree& tree, const TreeShape& shape,
                 int64_t deepest) {
  const std::vector<DraftTree::Node>& nodes = tree.nodes();
  const int64_t levels = std::min(shape.depth, deepest - 1), width = shape.width;
  ASSERT_EQ(std::ssize(nodes), width + levels * width * width);
  // The same tree, as the host would have grown it with these guesses.
  DraftTree again;
  auto next = nodes.begin();
  const auto add = [&](int32_t parent) {
    std::vector<Guess> guesses;
    const double above = parent < 0 ? 0 : double{nodes[static_cast<size_t>(parent)].confidence};
    for (int64_t i = 0; i < width; ++i, ++next) {
      EXPECT_EQ(next->parent, parent);
      EXPECT_LT(next->token, reader.vocabulary());
      guesses.push_back({next->token, static_cast<float>(double{next->confidence} - above)});
    }
    expect_followers(reader, random, tree, parent, {next - width, next}, width);
    again.add(parent, guesses);
  };
  add(-1);
  for (int64_t level = 0; level < levels; ++level) {
    for (const int32_t parent : again.frontier(width)) add(parent);
  }
}

class DeviceTree : public ::testing::TestWithParam<TreeCase> {};

TEST_P(DeviceTree, IsTheOneThatTheDraftMeans) {
  KINORA_FRESH_RANDOM(random);
  const ThreadPool pool(2);
  int grown = 0;
  for (const Device device : testing::all_devices(DType::bf16)) {
    if (device.is_cpu()) continue;
    Reader reader(random, Context(pool, device), GetParam());
    for (int round = 0; round < 3; ++round) {
      const int64_t width = 1 + random.below(8);
      const TreeShape shape{64, 1 + random.below(std::min<int64_t>(5, 64 / width)), width};
      // The first grows by launches, the others are replayed.
      for (int turn = 0; turn < 3; ++turn) {
        reader.read(random, 1 + random.below(30));
        ASSERT_TRUE(reader.model().grows(shape));
        const int64_t deepest = 1 + random.below(7);
        const DraftTree tree = reader.grow(shape, deepest);
        ASSERT_NO_FATAL_FAILURE(expect_tree(reader, random, tree, shape, deepest))
            << "depth " << shape.depth << ", width " << width << ", turn " << turn;
        ++grown;
      }
    }
    // More tokens than a captured step takes, or none to go on from.
    EXPECT_FALSE(reader.model().grows({64, 9, 8}));
    EXPECT_FALSE(reader.model().grows({64, 0, 8}));
  }
  if (grown == 0) GTEST_SKIP() << "needs a GPU";
}

// On a CPU the host is as fast as what it would wait for.
TEST(DeviceTreeOnCpu, IsGrownLevelByLevel) {
  KINORA_FRESH_RANDOM(random);
  const ThreadPool pool(1);
  Reader reader(random, Context(pool), {"", testing::model_directory("qwen2_tied")});
  EXPECT_FALSE(reader.model().grows({30, 4, 8}));
}

std::vector<TreeCase> cases() {
  const std::string tied = testing::model_directory("qwen2_tied");
  return {{"qwen2_tied", tied},
          {"llama3", testing::model_directory("llama3")},
          {"qwen3", testing::model_directory("qwen3")},
          {"own_head", tied, DraftForm::sparrow, 200},
          {"eagle", tied, DraftForm::eagle},
          {"eagle3", tied, DraftForm::eagle3},
          {"eagle3_own_head", tied, DraftForm::eagle3, 150}};
}

INSTANTIATE_TEST_SUITE_P(Drafts, DeviceTree, ::testing::ValuesIn(cases()),
                         [](const auto& one) { return one.param.name; });

}  // namespace
}  // namespace kinora
