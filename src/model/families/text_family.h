// A family of text models: its decoder and chat template are all that it has of its own.
#pragma once

#include <memory>
#include <string_view>

#include "model/families/family.h"

namespace kinora {

class TextFamily final : public Family {
 public:
  // `name` is the model_type. It and the chat template, for directories that bring none, must
  // outlive the family.
  TextFamily(std::string_view name, const DecoderTraits& decoder, std::string_view chat_template)
      : model_type_(name), decoder_(decoder), chat_template_(chat_template) {}

  std::string_view model_type() const override { return model_type_; }
  bool sees() const override { return false; }
  ModelConfig read(const ConfigFiles& config) const override {
    return read_config(config, decoder_);
  }
  ChatTraits chat() const override { return {.own_template = chat_template_}; }
  std::unique_ptr<Model> load(const Context& context, const ModelDirectory& directory,
                              const LoadOptions& options) const override;

 private:
  std::string_view model_type_;
  DecoderTraits decoder_;
  std::string_view chat_template_;
};

}  // namespace kinora
