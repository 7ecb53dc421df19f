set(KINORA_RUN_ROOT ${CMAKE_SOURCE_DIR} CACHE STRING
  "Where the tests find the checkout's files when they run: a path, or . for their working directory")

# kinora_folder(NAME [KNOWS folder…] [USES library…] [TEST_USES library…])
#
# Makes the target kinora_NAME from the folder src/NAME and all below it, and NAME_test from its
# tests. A file's name says where it belongs:
#
#   *_test.cc, test_*.cc   the test program
#   *.cu, *_cuda.cc        builds with CUDA
#   no_cuda.cc             builds without CUDA: what is left of the folder's CUDA functions
#   main.cc                none of these; the folder's own CMakeLists.txt uses it
#
# A folder sees the headers of the folders it KNOWS and of no others: every folder gets an
# include root of its own that holds nothing but a link to that folder, and only the roots of
# known folders are on the include path. A wrong include is therefore a missing file.
function(kinora_folder name)
  cmake_parse_arguments(FOLDER "" "" "KNOWS;USES;TEST_USES" ${ARGN})

  set(root ${CMAKE_BINARY_DIR}/include/${name})
  file(MAKE_DIRECTORY ${root})
  file(CREATE_LINK ${CMAKE_CURRENT_SOURCE_DIR} ${root}/${name} SYMBOLIC)

  file(GLOB_RECURSE sources CONFIGURE_DEPENDS *.cc *.cu)
  set(tests ${sources})
  list(FILTER tests INCLUDE REGEX "/(test_[^/]*|[^/]*_test)\\.cc$")
  list(FILTER sources EXCLUDE REGEX "/(test_[^/]*|[^/]*_test|main)\\.cc$")
  if(KINORA_HAS_CUDA)
    list(FILTER sources EXCLUDE REGEX "/no_cuda\\.cc$")
  else()
    list(FILTER sources EXCLUDE REGEX "(\\.cu|_cuda\\.cc)$")
    # "no_cuda.cc" ends like the files it stands for.
    file(GLOB_RECURSE without_cuda CONFIGURE_DEPENDS no_cuda.cc)
    list(APPEND sources ${without_cuda})
  endif()
  # Vectors that live in memory make a model a hundred times slower: kernels are optimised even in a
  # debug build and under a sanitizer, which leaves their locals alone and checks what they read and
  # write elsewhere.
  set(kernels ${sources})
  list(FILTER kernels INCLUDE REGEX "(_cpu|_kernels)\\.cc$")
  if(KINORA_SANITIZE OR CMAKE_BUILD_TYPE STREQUAL Debug)
    set_property(SOURCE ${kernels} APPEND PROPERTY COMPILE_OPTIONS -O2)
    if(KINORA_SANITIZE MATCHES "address" AND CMAKE_CXX_COMPILER_ID STREQUAL GNU)
      set_property(SOURCE ${kernels} APPEND PROPERTY COMPILE_OPTIONS
        --param=asan-stack=0 -fno-sanitize=null,alignment,object-size,vptr,return)
    endif()
  endif()
  add_library(kinora_${name} STATIC ${sources})
  target_include_directories(kinora_${name} PUBLIC ${root})
  list(TRANSFORM FOLDER_KNOWS PREPEND kinora_ OUTPUT_VARIABLE known)
  target_link_libraries(kinora_${name} PUBLIC ${known} PRIVATE kinora_flags ${FOLDER_USES})
  if(KINORA_HAS_CUDA)
    target_compile_definitions(kinora_${name} PRIVATE KINORA_HAS_CUDA=1)
    target_link_libraries(kinora_${name} PRIVATE CUDA::cudart_static)
  endif()
  set_property(GLOBAL APPEND PROPERTY KINORA_FOLDERS kinora_${name})
  # Compiled for scripts/check-no-cuda, and linked to nothing.
  file(GLOB_RECURSE without_cuda CONFIGURE_DEPENDS no_cuda.cc)
  if(KINORA_HAS_CUDA AND KINORA_TESTS AND without_cuda)
    add_library(kinora_${name}_no_cuda OBJECT ${without_cuda})
    target_link_libraries(kinora_${name}_no_cuda PRIVATE kinora_${name} kinora_flags)
  endif()

  if(KINORA_TESTS AND tests)
    add_executable(${name}_test ${tests})
    target_include_directories(${name}_test PRIVATE ${CMAKE_SOURCE_DIR}/tests)
    target_compile_definitions(${name}_test PRIVATE
      KINORA_FIXTURES="${KINORA_RUN_ROOT}/tests/fixtures" KINORA_SOURCE="${KINORA_RUN_ROOT}")
    target_link_libraries(${name}_test PRIVATE
      kinora_${name} kinora_flags GTest::gtest_main ${FOLDER_USES} ${FOLDER_TEST_USES})
    gtest_discover_tests(${name}_test DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 120
      TEST_PREFIX "${name}/" PROPERTIES TIMEOUT ${KINORA_TEST_SECONDS})
  endif()
endfunction()
