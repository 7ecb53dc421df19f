// A family of text models: its decoder and chat form are all that it has of its own.
#pragma once

#include <memory>
#include <string_view>

#include "model/families/family.h"

namespace kinora {

class TextFamily final : public Family {
 public:
  using Chat = ChatForm (*)(std::string_view published);

  // `name` is the model_type; it must outlive the family.
  TextFamily(std::string_view name, const DecoderTraits& decoder, Chat form)
      : model_type_(name), decoder_(decoder), chat_(form) {}

  std::string_view model_type() const override { return model_type_; }
  bool sees() const override { return false; }
  ModelConfig read(const ConfigFiles& config) const override {
    return read_config(config, decoder_);
  }
  ChatForm chat(std::string_view published) const override { return chat_(published); }
  std::unique_ptr<Model> load(const Context& context, const ModelDirectory& directory,
                              const LoadOptions& options) const override;

 private:
  std::string_view model_type_;
  DecoderTraits decoder_;
  Chat chat_;
};

}  // namespace kinora
