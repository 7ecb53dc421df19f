// What the families have in common: tokenizer, chat template, decoder, and what is known of the
// directory. A family adds its pictures and its positions.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "model/chat_template.h"
#include "model/config.h"
#include "model/decoder/transformer_decoder.h"
#include "model/model.h"
#include "model/weights/weights.h"
#include "text/tokenizer.h"

namespace kinora {

// Everything that was read of a model directory.
struct LoadedFiles {
  std::string directory;
  ModelConfig config;
  ModelWeights weights;
  Tokenizer tokenizer;
  ChatTemplate chat;
  std::string name = {};  // empty: that of the directory
};

class FamilyModel : public Model {
 public:
  FamilyModel(const Context& context, LoadedFiles loaded, const LoadOptions& options);

  const ModelInfo& info() const override { return info_; }
  const Tokenizer& tokenizer() const override { return tokenizer_; }
  const Decoder& decoder() const override { return *decoder_; }
  std::vector<PromptRun> render(const Conversation& conversation) const override;

 protected:
  const ModelConfig& config() const { return config_; }
  // Of activations on the device the model was loaded for.
  DType activations() const { return activations_; }

 private:
  ModelInfo info_;
  ModelConfig config_;
  Tokenizer tokenizer_;
  ChatTemplate chat_;
  DType activations_;
  std::unique_ptr<Decoder> decoder_;
};

// Throws an internal error unless the frames fit the plan.
void check_frames(const VisualPlan& plan, const FrameGroup& frames, bool last);

// One factory per family, each in its own file.
std::unique_ptr<Model> make_qwen2_5_vl(const Context& context, const FileSystem& files,
                                       LoadedFiles loaded, const LoadOptions& options);
std::unique_ptr<Model> make_llava_onevision(const Context& context, const FileSystem& files,
                                            LoadedFiles loaded, const LoadOptions& options);
std::unique_ptr<Model> make_text_model(const Context& context, LoadedFiles loaded,
                                       const LoadOptions& options);

}  // namespace kinora
