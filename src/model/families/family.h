// One family of models: how its directories are read and its models made. Every family has a folder
// here with its config, weights, vision tower, processor, chat template and positions, and one entry in
// families.cc. load_model finds the family by `model_type` and asks it for the rest.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/context.h"
#include "base/file.h"
#include "model/chat/chat_template.h"
#include "model/config.h"
#include "model/config_files.h"
#include "model/model.h"

namespace kinora {

// A model directory whose config has been parsed.
struct ModelDirectory {
  const FileSystem& files;
  std::string path;
  ConfigFiles config;
};

class Family {
 public:
  virtual ~Family() = default;

  virtual std::string_view model_type() const = 0;  // of config.json
  virtual bool sees() const = 0;                    // has a vision tower

  // What every family has; load() reads what only this one has.
  virtual ModelConfig read(const ConfigFiles& config) const = 0;

  // What it writes for pictures, and the template of directories that bring none.
  virtual ChatTraits chat() const = 0;

  virtual std::unique_ptr<Model> load(const Context& context, const ModelDirectory& directory,
                                      const LoadOptions& options) const = 0;

  // A model of the sizes in `shape` with random weights; random_model.h has the rest. Throws
  // unsupported unless the family can.
  virtual std::unique_ptr<Model> make_random(const Context& context,
                                             const ModelDirectory& directory,
                                             const std::string& name,
                                             const ConfigFiles& shape) const;
};

}  // namespace kinora
