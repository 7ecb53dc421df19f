#include "generate/draft_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <limits>

#include "base/error.h"
#include "generate/draft_files.h"
#include "model/reference_case.h"
#include "support/random_data.h"

namespace kinora {
namespace {

using testing::DraftFiles;
using testing::model_directory;

class DraftModels : public ::testing::Test {
 protected:
  std::shared_ptr<const DraftModel> open(const std::string& directory) {
    return std::make_shared<DraftModel>(context_, real_files(), directory, *target_);
  }
  // What is said about a draft that was spoilt after it was written.
  std::string refusal(const std::function<void(DraftFiles&)>& spoil,
                      const std::function<void(DraftFiles&)>& spoil_files = nullptr) {
    Random random(7);
    DraftFiles files(random, directory_, 40);
    spoil(files);
    files.write();
    if (spoil_files) spoil_files(files);
    try {
      open(files.directory());
    } catch (const Error& error) {
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
      return error.what();
    }
    return "";
  }

  const std::string directory_ = model_directory("qwen2_tied");
  const ThreadPool pool_{1};
  const Context context_{pool_};
  const std::unique_ptr<Model> target_ = load_model(context_, real_files(), directory_);
};

TEST_F(DraftModels, JoinEmbeddingsAndStates) {
  KINORA_FRESH_RANDOM(random);
  DraftFiles files(random, directory_);
  const auto draft = open(files.write());
  const int64_t hidden = draft->hidden_size();
  for (const int64_t count : {1, 2, 7, 65}) {
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < count; ++i) ids.push_back(static_cast<int32_t>(random.below(1024)));
    Tensor states(DType::f32, {count, hidden});
    for (int64_t i = 0; i < states.elements(); ++i) {
      states.data<float>()[i] = static_cast<float>(random.normal());
    }
    const Tensor embedded = target_->decoder().embed(context_, ids);
    Sequence sequence;
    draft->join(ids, states, sequence);
    const Tensor& joined = sequence.embeddings;
    const float* weight = files.tensor("fc.weight").data<float>();
    std::vector<double> expected;
    for (int64_t i = 0; i < count; ++i) {
      for (int64_t row = 0; row < hidden; ++row) {
        double sum = 0;
        for (int64_t k = 0; k < hidden; ++k) {
          sum += double{weight[row * 2 * hidden + k]} * double{embedded.view().row<float>(i)[k]};
          sum += double{weight[row * 2 * hidden + hidden + k]} *
                 double{states.view().row<float>(i)[k]};
        }
        expected.push_back(sum);
      }
    }
    const std::span<const float> actual(joined.data<float>(), expected.size());
    EXPECT_LT(testing::relative_error(actual, std::span<const double>(expected)), 1e-5);
  }
}

TEST_F(DraftModels, GuessInOrderWithLogProbabilities) {
  KINORA_FRESH_RANDOM(random);
  for (const int64_t own : {0, 100}) {
    DraftFiles files(random, directory_, own);
    const auto draft = open(files.write());
    Tensor normed(DType::f32, {3, draft->hidden_size()});
    for (int64_t i = 0; i < normed.elements(); ++i) {
      normed.data<float>()[i] = static_cast<float>(random.normal());
    }
    const Tensor logits = target_->decoder().logits(context_, normed);
    const auto guesses = draft->next(normed, 9);
    ASSERT_EQ(guesses.size(), 3u);
    for (int64_t row = 0; row < 3; ++row) {
      std::vector<double> values;  // by token of the target; −∞ where the draft cannot say it
      // What f32 may lose of a logit: five standard deviations, u √d ‖w ∘ h‖ each (as in
      // attention/test_support.h). Nothing where both sides take the same logits.
      std::vector<double> errors(1024, 0.0);
      constexpr double unit = 0x1p-24;
      if (own == 0) {
        const float* own_logits = logits.view().row<float>(row);
        values.assign(own_logits, own_logits + 1024);
      } else {
        values.assign(1024, -INFINITY);
        const Tensor& head = files.tensor("lm_head.weight");
        for (int64_t i = 0; i < own; ++i) {
          double sum = 0, squares = 0;
          for (int64_t k = 0; k < draft->hidden_size(); ++k) {
            const double product =
                double{head.view().row<float>(i)[k]} * double{normed.view().row<float>(row)[k]};
            sum += product;
            squares += product * product;
          }
          const auto token = static_cast<size_t>(files.tensor("d2t").data<int32_t>()[i]);
          values[token] = sum;
          errors[token] = 5 * unit * std::sqrt(static_cast<double>(draft->hidden_size()) * squares);
        }
      }
      double mass = 0;
      for (const double value : values) mass += std::exp(value);
      const auto& found = guesses[static_cast<size_t>(row)];
      ASSERT_EQ(found.size(), 9u);
      std::vector<double> sorted = values;
      std::sort(sorted.rbegin(), sorted.rend());
      // The logarithm of the sum moves by no more than its terms do; of its own it loses what n
      // terms of one sign, the exponentials and the roundings of the result lose.
      const double worst = *std::max_element(errors.begin(), errors.end());
      const double rest = 5 * unit *
                          (std::sqrt(1024.0) + 4 + std::abs(sorted[0]) +
                           2 * std::abs(std::log(mass)) + std::abs(sorted[8] - std::log(mass)));
      for (size_t i = 0; i < found.size(); ++i) {
        EXPECT_NEAR(found[i].log_probability, sorted[i] - std::log(mass), 2 * worst + rest);
        EXPECT_NEAR(values[static_cast<size_t>(found[i].token)], sorted[i], 2 * worst);
      }
    }
  }
}

// What training/draft says of the same text, positions of a video's three axes included.
TEST(DraftModel, SaysWhatTheTrainingCodeSays) {
  KINORA_FRESH_RANDOM(random);
  const ThreadPool pool(1);
  const Context context(pool);
  const std::string name = "qwen2_5_vl_tied_new";
  const auto target = load_model(context, real_files(), model_directory(name));
  const std::string directory = std::string(KINORA_FIXTURES) + "/drafts/" + name;
  const DraftModel draft(context, real_files(), directory, *target);
  const SafetensorsFile made = SafetensorsFile::open(real_files(), directory + "/case.safetensors");
  const Tensor ids = made.tensor("ids"), positions = made.tensor("positions");
  const Tensor states = made.tensor("states"), expected = made.tensor("log_probabilities");
  const int64_t count = ids.size(0), text = states.size(0) + 1;

  // The likeliest tokens after the text and each guess, with every input of the layer off by a
  // random share of about `noise`.
  const auto walk = [&](double noise) {
    FlatMemory memory(draft.rows());
    DenseAttention attention;
    Tensor before = Tensor::zeros(DType::f32, {1, draft.hidden_size()});
    std::vector<std::vector<Guess>> all;
    for (int64_t i = 0; i < count; ++i) {
      Sequence sequence;
      draft.join({ids.data<int32_t>() + i, 1}, before, sequence);
      for (int64_t k = 0; k < sequence.embeddings.elements(); ++k) {
        sequence.embeddings.data<float>()[k] *= static_cast<float>(1 + noise * random.normal());
      }
      sequence.tokens.resize(1);
      for (int64_t axis = 0; axis < 3; ++axis) {
        sequence.tokens[0].position[static_cast<size_t>(axis)] =
            positions.data<int32_t>()[axis * count + i];
      }
      sequence.memory = &memory;
      sequence.attention = &attention;
      sequence.states = {0};
      const Forwarded result = draft.forward(sequence);
      if (i + 1 < text) {
        std::copy_n(states.view().row<float>(i), draft.hidden_size(), before.data<float>());
        continue;
      }
      before = result.states[0];
      all.push_back(draft.next(result.hidden, noise > 0 ? 60 : 20)[0]);
    }
    return all;
  };
  const auto guesses = walk(0);
  ASSERT_EQ(std::ssize(guesses), count - text + 1);

  // Products of n numbers lose up to 5 u √n (as in attention/test_support.h), and a pass has eight
  // of them one after another; f32 arithmetic is taken for exact arithmetic on inputs that are off
  // by so much. What such inputs change, at most of a few trials and for each of the two programs,
  // is what may differ.
  const double eight = std::sqrt(8.0), longest = static_cast<double>(4 * draft.hidden_size());
  double change = 0;
  for (int trial = 0; trial < 8; ++trial) {
    const auto disturbed = walk(5 * 0x1p-24 * std::sqrt(longest) * eight);
    for (size_t step = 0; step < guesses.size(); ++step) {
      for (const Guess& guess : guesses[step]) {
        for (const Guess& other : disturbed[step]) {
          if (other.token != guess.token) continue;
          change = std::max(
              change, std::abs(double{guess.log_probability} - double{other.log_probability}));
        }
      }
    }
  }
  ASSERT_GT(change, 0);
  for (size_t step = 0; step < guesses.size(); ++step) {
    const float* wanted = expected.view().row<float>(static_cast<int64_t>(step));
    ASSERT_EQ(guesses[step].size(), 20u);
    for (const Guess& guess : guesses[step]) {
      EXPECT_NEAR(guess.log_probability, wanted[guess.token], 2 * change);
    }
    EXPECT_EQ(guesses[step][0].token, std::max_element(wanted, wanted + expected.size(1)) - wanted);
  }
}

TEST_F(DraftModels, OfAnotherModelAreRefused) {
  const auto with = [](const std::string& key, int64_t value) {
    return [=](DraftFiles& files) { files.config[key] = value; };
  };
  const auto says = [](const std::string& message, const std::string& part) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  says(refusal(with("hidden_size", 96)),
       "made for another model: its hidden size is 96, the model's 48");
  says(refusal(with("vocab_size", 1000)), "its vocabulary is 1000, the model's 1024");
  says(refusal(with("target_num_hidden_layers", 28)),
       "target_num_hidden_layers is 28, the model's 2");
  says(refusal(with("target_state_layer", 2)), "target_state_layer");
  says(refusal(with("num_hidden_layers", 2)), "must be 1 in a draft");
  says(refusal([](DraftFiles& files) { files.config["model_type"] = "gpt2"; }),
       "kinora has sparrow drafts, and EAGLE's and MSD's");
}

TEST_F(DraftModels, DamagedAreRefused) {
  const auto says = [](const std::string& message, const std::string& part) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  const auto nothing = [](DraftFiles&) {};
  says(refusal(nothing,
               [](DraftFiles& files) {
                 std::filesystem::resize_file(files.file(),
                                              std::filesystem::file_size(files.file()) / 2);
               }),
       "model.safetensors");
  says(refusal(nothing, [](DraftFiles& files) { std::filesystem::remove(files.file()); }),
       "safetensors");
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), INFINITY}) {
    says(refusal([&](DraftFiles& files) {
           files.tensor("layers.0.mlp.up_proj.weight").data<float>()[77] = bad;
         }),
         "tensor layers.0.mlp.up_proj.weight holds a NaN or an infinity");
  }
  says(refusal([](DraftFiles& files) { files.tensors.erase(files.tensors.begin()); }),
       "missing fc.weight");
  says(refusal([](DraftFiles& files) { files.config["fc_bias"] = true; }), "missing fc.bias");
  says(refusal([](DraftFiles& files) { files.tensor("d2t").data<int32_t>()[3] = 1024; }),
       "tensor d2t names token 1024");
  says(refusal([](DraftFiles& files) { files.tensors.pop_back(); }), "tensor d2t is missing");
  says(refusal([](DraftFiles& files) { files.config.erase("draft_vocab_size"); }), "extra");
}

}  // namespace
}  // namespace kinora
