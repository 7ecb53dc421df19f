// The compiler's functions for single instructions of x86-64. Used by the *_cpu.cc of instructions
// that not every such CPU has.
#pragma once

#if defined(__x86_64__)

// GCC 12's own headers begin some results with an undefined register, and then warn of it.
#if !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#if !defined(__clang__)
#pragma GCC diagnostic pop
#endif

#endif
