// What the models of all families have in common: tokenizer, chat template, decoder, and what is
// known of the directory. A family adds its pictures and its positions.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "model/families/family.h"
#include "model/model.h"
#include "model/weights/weights.h"
#include "text/tokenizer.h"

namespace kinora {

// What every model is made of.
struct ModelParts {
  const Family& family;
  std::string name;  // what messages call the model
  ModelConfig config;
  DecoderWeights decoder;
  WeightCount weights;       // the tower's included
  std::string quantization;  // as ModelInfo has it
  Tokenizer tokenizer;
  ChatTemplate chat;
};

// Reads tokenizer and chat template; the name is that of the directory.
ModelParts gather_parts(const Family& family, const ModelDirectory& directory, ModelConfig config,
                        DecoderWeights decoder, const WeightCount& weights);

// For make_random: the directory's config with the decoder of `shape`. Throws a usage error where
// the directory is of another family, or has more tokens than the shape.
ModelConfig config_in_shape(const Family& family, const ModelDirectory& directory,
                            const ConfigFiles& shape);

class FamilyModel : public Model {
 public:
  FamilyModel(const Context& context, ModelParts parts, const LoadOptions& options);

  const ModelInfo& info() const override { return info_; }
  const Tokenizer& tokenizer() const override { return tokenizer_; }
  const Decoder& decoder() const override { return *decoder_; }
  std::vector<PromptRun> render(const Conversation& conversation) const override;

 protected:
  // What a family's processor does to the text of a conversation before it is tokenized.
  virtual void arrange(const Conversation&, std::vector<ChatPiece>&) const {}

  // Of activations on the device the model was loaded for.
  DType activations() const { return activations_; }

 private:
  ModelInfo info_;
  Tokenizer tokenizer_;
  ChatTemplate chat_;
  DType activations_;
  std::unique_ptr<Decoder> decoder_;
};

// Throws an internal error unless the frames fit the plan.
void check_frames(const VisualPlan& plan, const FrameGroup& frames, bool last);

}  // namespace kinora
