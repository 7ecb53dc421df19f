// The cancel token is part of the public API; inside it is included from here like the rest of
// base/.
#pragma once

#include <kinora/cancel.h>
