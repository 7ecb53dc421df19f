// Marks what libkinora exports. Everything else of the library is hidden: programs cannot link
// against it, and its names cannot collide with theirs (tests/package/symbols checks it).
#pragma once

#define KINORA_API __attribute__((visibility("default")))
