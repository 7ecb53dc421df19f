# Fails when the assembler reports that a kernel spills registers, or that tensor core instructions
# were serialised or held back (C75xx); both cost more than a slow line of code ever could.
#   cmake -DNVCC=… -DARCHITECTURE=90a -DSOURCE=… -DINCLUDES=a;b -DOUTPUT=… -P check_registers.cmake
list(TRANSFORM INCLUDES PREPEND -I)
execute_process(
  COMMAND ${NVCC} -std=c++20 --diag-suppress=554 --expt-relaxed-constexpr -O3 -DNDEBUG ${INCLUDES}
          -gencode=arch=compute_${ARCHITECTURE},code=sm_${ARCHITECTURE} -Xptxas=-v
          -cubin -o ${OUTPUT}.cubin ${SOURCE}
  RESULT_VARIABLE status OUTPUT_VARIABLE report ERROR_VARIABLE report)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "${SOURCE} does not compile for sm_${ARCHITECTURE}:\n${report}")
endif()
file(REMOVE ${OUTPUT}.cubin)
# Every kernel has a line "… bytes stack frame, N bytes spill stores, N bytes spill loads".
string(REGEX MATCHALL "[0-9]+ bytes spill stores, [0-9]+ bytes spill loads" spills "${report}")
if(NOT spills)
  message(FATAL_ERROR "the assembler's report on ${SOURCE} has no line about spills:\n${report}")
endif()
list(FILTER spills EXCLUDE REGEX "^0 bytes spill stores, 0 bytes spill loads$")
string(REGEX MATCHALL "\\(C75[0-9][0-9]\\)[^\n]*" remarks "${report}")
if(spills OR remarks)
  message(FATAL_ERROR "the assembler is unhappy with ${SOURCE} for sm_${ARCHITECTURE}: ${spills} ${remarks}")
endif()
file(WRITE ${OUTPUT} "${report}")
