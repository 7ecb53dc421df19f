#include <kinora/version.h>

namespace kinora {

const char* version() { return KINORA_VERSION; }

}  // namespace kinora
