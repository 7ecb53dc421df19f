#include "model/random_model.h"

#include <fmt/format.h>

#include "base/error.h"
#include "model/families/families.h"

namespace kinora {

std::unique_ptr<Model> random_model(const Context& context, const FileSystem& files,
                                    const std::string& directory, const std::string& name,
                                    const ConfigFiles& shape) {
  const ModelDirectory opened{files, directory, ConfigFiles::read(files, directory)};
  return family_of(shape).make_random(context, opened, name, shape);
}

std::unique_ptr<Model> Family::make_random(const Context&, const ModelDirectory&,
                                           const std::string&, const ConfigFiles&) const {
  throw Error(ErrorKind::unsupported,
              fmt::format("no whole model of type {} is made of random weights; choose a shape of "
                          "another family",
                          model_type()));
}

}  // namespace kinora
