# External parts, all from the distribution's packages. scripts/setup installs them.

find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)
find_package(TBB REQUIRED)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)
find_package(PNG REQUIRED)
# Only the headers, which are the same on every machine: the library is loaded when text is drawn.
find_path(CAIRO_INCLUDE_DIR cairo.h PATH_SUFFIXES cairo REQUIRED NO_CMAKE_FIND_ROOT_PATH)
pkg_check_modules(HWY REQUIRED IMPORTED_TARGET libhwy)
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(UTF8PROC REQUIRED IMPORTED_TARGET libutf8proc)
pkg_check_modules(LIBEDIT IMPORTED_TARGET libedit)  # without it, chat reads plain lines
pkg_check_modules(SQLITE3 IMPORTED_TARGET sqlite3)  # without it, saved memories are not listed
find_package(CURL)     # without these two there is no command pull
find_package(OpenSSL)
find_package(Boost 1.74)  # headers alone; without them there is no command serve
pkg_check_modules(TURBOJPEG IMPORTED_TARGET libturbojpeg)  # without it, JPEGs differ a little
pkg_check_modules(FFMPEG REQUIRED IMPORTED_TARGET libavformat libavcodec libavutil libswscale)
if(KINORA_TESTS)
  find_package(GTest REQUIRED)
endif()
if(KINORA_BENCH)
  find_package(benchmark REQUIRED)
endif()
