#include "model/families/families.h"
#include "model/model.h"

namespace kinora {

std::unique_ptr<Model> load_model(const Context& context, const FileSystem& files,
                                  const std::string& directory, const LoadOptions& options) {
  const ModelDirectory opened{files, directory, ConfigFiles::read(files, directory)};
  return family_of(opened.config).load(context, opened, options);
}

}  // namespace kinora
