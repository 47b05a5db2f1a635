# The CUDA kernels on the SIMT emulator, one by one, against the CPU device's. Needs CUDA's headers and no compiler of
# CUDA's. Included by tests/CMakeLists.txt.
find_package(CUDAToolkit QUIET)
find_path(OT_CUDA_INCLUDE cublas_v2.h HINTS ${CUDAToolkit_INCLUDE_DIRS} /usr/local/cuda/include)
if(NOT OT_CUDA_INCLUDE OR NOT CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  message(STATUS "CUDA headers: not found, or no x86-64; the kernels' tests on the emulator are left out")
  return()
endif()
enable_language(CXX)
set(CMAKE_CXX_STANDARD 17)

set_source_files_properties(${OT_CUDA_KERNEL_SOURCES} PROPERTIES LANGUAGE CXX COMPILE_OPTIONS
                            "-x;c++;-include;${CMAKE_SOURCE_DIR}/tests/simt/simt.h")
# The kernels' launchers where a launch is a call.
set(OT_SIMT_SOURCES simt/fiber.cc simt/matrix.cc simt/simt.cc)
add_library(simt STATIC ${OT_SIMT_SOURCES} ${OT_CUDA_KERNEL_SOURCES})
target_include_directories(simt SYSTEM PUBLIC ${OT_CUDA_INCLUDE})
target_link_libraries(simt PUBLIC ot_build)
set_target_properties(simt PROPERTIES POSITION_INDEPENDENT_CODE ON) # part of the emulated plugin, too
target_compile_options(simt PRIVATE -Wno-unknown-pragmas) # those for unrolling
if(OT_SANITIZE STREQUAL "thread") # which is to see the kernels, all that they read and write, and nothing of the emulator
  target_compile_options(simt PRIVATE -fno-builtin)
  set_source_files_properties(${OT_SIMT_SOURCES} PROPERTIES COMPILE_OPTIONS -fno-sanitize=thread
                              COMPILE_DEFINITIONS OT_WATCHED)
endif()
add_library(simt_harness STATIC simt/compare.c)
target_link_libraries(simt_harness PUBLIC simt kernels_harness)

function(ot_simt_test name)
  ot_test(simt ${name} cuda concurrent ${ARGN})
  target_link_libraries(test_simt_${name} PRIVATE simt_harness)
  set_target_properties(test_simt_${name} PROPERTIES LINKER_LANGUAGE CXX)
  set_tests_properties(simt/${name} PROPERTIES TIMEOUT 600 FAIL_REGULAR_EXPRESSION "WARNING: ThreadSanitizer")
endfunction()

add_executable(test_simt_emulator simt/test_emulator.cc)
target_link_libraries(test_simt_emulator PRIVATE simt test_support)
add_test(NAME simt/emulator COMMAND test_simt_emulator)
set_tests_properties(simt/emulator PROPERTIES LABELS "unit;cuda;concurrent" TIMEOUT 120
                     FAIL_REGULAR_EXPRESSION "WARNING: ThreadSanitizer")

if(NOT OT_SANITIZE STREQUAL "address,undefined") # under which these take minutes
  ot_simt_test(attention)
  ot_simt_test(norm)
endif()
ot_simt_test(elementwise)
ot_simt_test(plane)
ot_simt_test(update)
target_sources(test_simt_update PRIVATE kernels/chunk.c)

# What the real compiler makes of attention: no spills, and the tensor-core instructions that there should be.
find_package(Python3 COMPONENTS Interpreter QUIET)
if(CMAKE_CUDA_COMPILER AND Python3_FOUND AND NOT OT_SANITIZE)
  set(OT_SASS_CARDS 80 86 89 90 100 120 CACHE STRING "Cards whose machine code of attention is looked through")
  foreach(card IN LISTS OT_SASS_CARDS)
    add_test(NAME simt/sass_sm_${card} COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/simt/sass.py
             ${CMAKE_CUDA_COMPILER} ${CMAKE_SOURCE_DIR} sm_${card})
    set_tests_properties(simt/sass_sm_${card} PROPERTIES LABELS "slow;cuda" TIMEOUT 1200)
  endforeach()
endif()
