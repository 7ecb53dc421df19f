#include "base/no_cuda.h"

#include "generate/device_tree/device_tree.h"

namespace kinora {

std::unique_ptr<DeviceTrees> make_device_trees(const DeviceTreeParts&) { no_cuda(); }

}  // namespace kinora
