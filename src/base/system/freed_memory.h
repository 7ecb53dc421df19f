// Freed memory that goes back to the system.
#pragma once

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace kinora {

// After a stage that used much more memory than what follows: glibc would keep it for good.
inline void give_back_freed_memory() {
#ifdef __GLIBC__
  ::malloc_trim(0);
#endif
}

// For programs, not for libraries: blocks of 1 MiB and more go back whenever they are freed. By
// itself glibc keeps blocks as large as any that was freed before, and a program holds on to the
// most it ever used.
inline void give_back_large_blocks() {
#ifdef __GLIBC__
  ::mallopt(M_MMAP_THRESHOLD, 1 << 20);
  ::mallopt(M_TRIM_THRESHOLD, 1 << 20);
#endif
}

}  // namespace kinora
