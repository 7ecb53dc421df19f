# Language level, warnings, sanitizers, the compiler cache and CUDA.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
# The library exports what include/kinora/ marks with KINORA_API and nothing else.
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_CUDA_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_CXX_FLAGS_RELEASE "-O3 -g1 -DNDEBUG")
set(CMAKE_CXX_FLAGS_DEBUG "-O0 -g -D_GLIBCXX_ASSERTIONS")
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O1 -g1 -D_GLIBCXX_ASSERTIONS")

add_library(kinora_flags INTERFACE)
target_compile_options(kinora_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual
                            -Wcast-align -Werror -fno-math-errno>
  # GCC 12 sees overlapping copies in std::string code that has none (its bug 105651).
  $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,13>>:-Wno-restrict>
  # 554: a const view's conversion to itself, which other views share a template with.
  # Handles of a GPU stand in headers that builds without one share.
  $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:Clang>>:-Wno-unused-private-field>
  $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra,-Werror -Werror=all-warnings
                             --diag-suppress=554 --expt-relaxed-constexpr>)
# How long one test may take before it counts as hung.
set(KINORA_TEST_SECONDS 300)
if(KINORA_SANITIZE OR CMAKE_BUILD_TYPE STREQUAL "Debug")
  set(KINORA_TEST_SECONDS 3600)
endif()
if(KINORA_SANITIZE)
  # GCC takes the members of a std::variant for uninitialised where it instruments them.
  target_compile_options(kinora_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-maybe-uninitialized>)
  target_compile_options(kinora_flags INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${KINORA_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer>)
  target_link_options(kinora_flags INTERFACE -fsanitize=${KINORA_SANITIZE})
endif()

# Paths are made relative to the checkout, so that every build directory shares one cache.
find_program(KINORA_CCACHE ccache)
if(KINORA_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER
    ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${KINORA_CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
endif()

set(KINORA_HAS_CUDA OFF)
if(NOT KINORA_CUDA STREQUAL "OFF")
  if(NOT CMAKE_CUDA_COMPILER AND EXISTS /usr/local/cuda/bin/nvcc)
    set(CMAKE_CUDA_COMPILER /usr/local/cuda/bin/nvcc)
  endif()
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    set(CMAKE_CUDA_ARCHITECTURES ${KINORA_CUDA_ARCHITECTURES})
    set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
    enable_language(CUDA)
    # CMake 3.25.1 has not heard that nvcc speaks C++20.
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
    # CMake 3.25.1 marks this target as deprecated without asking whether it is there; CUDA 13 has
    # dropped its library.
    if(CMAKE_VERSION VERSION_LESS 3.26 AND NOT TARGET CUDA::nvToolsExt)
      add_library(CUDA::nvToolsExt INTERFACE IMPORTED)
    endif()
    find_package(CUDAToolkit REQUIRED)
    set(KINORA_HAS_CUDA ON)
  elseif(KINORA_CUDA STREQUAL "ON")
    message(FATAL_ERROR "KINORA_CUDA=ON, but no CUDA compiler (nvcc) was found")
  endif()
endif()
message(STATUS "kinora: CUDA backend ${KINORA_HAS_CUDA}")
