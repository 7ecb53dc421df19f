# Toolchain for x86-64 machines that have nothing of kinora's installed: see scripts/setup-cross,
# which makes build/cross-x86_64. Works on hosts of either architecture. Programs look for their
# shared libraries in lib/ next to themselves.

set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR x86_64)
set(CMAKE_C_COMPILER x86_64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER x86_64-linux-gnu-g++)

get_filename_component(cross_root ${CMAKE_CURRENT_LIST_DIR}/../build/cross-x86_64 ABSOLUTE)
set(sysroot ${cross_root}/sysroot)
set(sysroot_libraries ${sysroot}/usr/lib/x86_64-linux-gnu)

set(CMAKE_FIND_ROOT_PATH ${sysroot} /usr/x86_64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(CMAKE_LIBRARY_ARCHITECTURE x86_64-linux-gnu)

set(ENV{PKG_CONFIG_LIBDIR} ${sysroot_libraries}/pkgconfig:${sysroot}/usr/share/pkgconfig)
set(ENV{PKG_CONFIG_SYSROOT_DIR} ${sysroot})
set(ENV{PKG_CONFIG_PATH} "")

set(system_includes "-isystem ${sysroot}/usr/include")
string(APPEND system_includes " -isystem ${sysroot}/usr/include/x86_64-linux-gnu")
set(CMAKE_C_FLAGS_INIT "${system_includes}")
set(CMAKE_CXX_FLAGS_INIT "${system_includes}")
foreach(kind EXE SHARED MODULE)
  set(CMAKE_${kind}_LINKER_FLAGS_INIT
    "-L${sysroot_libraries} -L${sysroot}/lib/x86_64-linux-gnu -Wl,-rpath-link,${sysroot_libraries}:${sysroot}/lib/x86_64-linux-gnu")
endforeach()
set(CMAKE_BUILD_WITH_INSTALL_RPATH ON)
set(CMAKE_INSTALL_RPATH "$ORIGIN/lib")

if(NOT CMAKE_HOST_SYSTEM_PROCESSOR STREQUAL "x86_64")
  set(CMAKE_CROSSCOMPILING_EMULATOR qemu-x86_64 -L /usr/x86_64-linux-gnu
    -E LD_LIBRARY_PATH=${sysroot_libraries}:${sysroot}/lib/x86_64-linux-gnu)
  if(EXISTS ${cross_root}/cuda/ready)
    list(APPEND CMAKE_FIND_ROOT_PATH ${cross_root}/cuda)
    set(CMAKE_CUDA_COMPILER ${cross_root}/cuda/bin/nvcc)
    set(CMAKE_CUDA_HOST_COMPILER ${CMAKE_CXX_COMPILER})
    # The front end was built for another processor: characters are signed here, and two things in
    # libstdc++'s headers for x86-64 are unknown to it.
    set(CMAKE_CUDA_FLAGS_INIT
      "-Xcudafe --signed_chars -U__SIZEOF_FLOAT80__ '-D__builtin_ia32_pause()='")
  endif()
endif()
