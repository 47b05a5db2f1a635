# The CUDA device where there is no GPU: its host sources against the fake runtime (tests/fakecuda), its kernels against
# the SIMT emulator (tests/simt). All of it needs CUDA's headers and no compiler of CUDA's.

# This needs neither.
ot_test(cuda absent cuda)
target_link_libraries(test_cuda_absent PRIVATE ${CMAKE_DL_LIBS})
target_compile_definitions(test_cuda_absent PRIVATE OT_COMMAND="$<TARGET_FILE:offtrain>")
if(OT_SANITIZE)
  target_compile_definitions(test_cuda_absent PRIVATE OT_SANITIZED)
endif()
add_dependencies(test_cuda_absent offtrain)
if(TARGET offtrain_cuda)
  target_compile_definitions(test_cuda_absent PRIVATE OT_REAL_PLUGIN="$<TARGET_FILE:offtrain_cuda>")
  add_dependencies(test_cuda_absent offtrain_cuda)
endif()

if(NOT TARGET simt) # which has said why
  return()
endif()

function(ot_cuda_headers target)
  target_include_directories(${target} SYSTEM PRIVATE ${OT_CUDA_INCLUDE})
  target_link_libraries(${target} PRIVATE ot_build)
endfunction()

# One instance of the fakes, shared by the plugin and by the tests, which set it up and read its counters.
add_library(fakecuda SHARED fakecuda/cublas.c fakecuda/memory.c fakecuda/runtime.c fakecuda/stream.c)
ot_cuda_headers(fakecuda)
set_source_files_properties(fakecuda/cublas.c fakecuda/memory.c fakecuda/runtime.c fakecuda/stream.c PROPERTIES
                            COMPILE_OPTIONS -fvisibility=default) # after the project's own
target_link_libraries(fakecuda PRIVATE Threads::Threads)

add_library(fakenvml SHARED fakecuda/nvml.c)
ot_cuda_headers(fakenvml)
target_link_libraries(fakenvml PRIVATE fakecuda)
set_target_properties(fakenvml PROPERTIES PREFIX "" OUTPUT_NAME libnvidia-ml SUFFIX .so.1
                      LIBRARY_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/fakenvml)

set(OT_FAKENCCL)
if(OT_NCCL_INCLUDE)
  add_library(fakenccl SHARED fakecuda/nccl.c)
  ot_cuda_headers(fakenccl)
  target_include_directories(fakenccl SYSTEM PRIVATE ${OT_NCCL_INCLUDE})
  target_link_libraries(fakenccl PRIVATE fakecuda Threads::Threads)
  set_source_files_properties(fakecuda/nccl.c PROPERTIES COMPILE_OPTIONS -fvisibility=default)
  set_target_properties(fakenccl PROPERTIES PREFIX "" OUTPUT_NAME libnccl SUFFIX .so.2
                        LIBRARY_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/fakenccl)
  set(OT_FAKENCCL fakenccl)
endif()

add_library(offtrain_cudaemu MODULE ${OT_CUDA_HOST_SOURCES} cuda/emulated.c)
ot_cuda_headers(offtrain_cudaemu)
# Pieces small enough that a test has many of them.
target_compile_definitions(offtrain_cudaemu PRIVATE OT_CUDA_PIN_PIECE_BYTES=1048576ull
                           OT_CUDA_STAGE_BYTES=65536u OT_CUDA_ROOT=FAKECUDA_ROOT)
target_compile_options(offtrain_cudaemu PRIVATE $<$<COMPILE_LANGUAGE:C>:SHELL:-include ${CMAKE_CURRENT_SOURCE_DIR}/fakecuda/fakecuda.h>)
# Loaded with the plugin, for it to find by name: AddressSanitizer does not look where a plugin's own path says.
target_link_libraries(offtrain_cudaemu PRIVATE simt fakecuda -Wl,--no-as-needed fakenvml ${OT_FAKENCCL} ${CMAKE_DL_LIBS})
if(OT_NCCL_INCLUDE)
  target_include_directories(offtrain_cudaemu SYSTEM PRIVATE ${OT_NCCL_INCLUDE})
endif()
if(NOT OT_SANITIZE) # whose runtimes are found in the program
  target_link_options(offtrain_cudaemu PRIVATE LINKER:-z,defs)
endif()
set_target_properties(offtrain_cudaemu PROPERTIES LINKER_LANGUAGE CXX)

# Builds tests/cuda/test_<name>.c, which opens the emulated plugin.
function(ot_cuda_test name)
  ot_test(cuda ${name} cuda ${ARGN})
  set(target test_cuda_${name})
  ot_cuda_headers(${target})
  target_link_libraries(${target} PRIVATE fakecuda)
  target_compile_definitions(${target} PRIVATE OT_CUDA_PLUGIN="$<TARGET_FILE:offtrain_cudaemu>")
  add_dependencies(${target} offtrain_cudaemu)
endfunction()

ot_cuda_test(order concurrent)
ot_cuda_test(device concurrent)
ot_cuda_test(engine concurrent)
ot_cuda_test(matmul)
if(OT_SANITIZE STREQUAL "thread")
  foreach(fault no-ready-wait no-free-wait early-reuse)
    add_test(NAME cuda/order_${fault} COMMAND test_cuda_order ${fault})
    set_tests_properties(cuda/order_${fault} PROPERTIES LABELS "cuda;concurrent" TIMEOUT 120
                         PASS_REGULAR_EXPRESSION "ThreadSanitizer: data race" ENVIRONMENT TSAN_OPTIONS=halt_on_error=1)
  endforeach()
endif()
target_link_libraries(test_cuda_matmul PRIVATE kernels_harness)

# Several ranks: threads of one process with a card each, and processes under mpirun.
if(OT_NCCL_INCLUDE)
  ot_cuda_test(collective)
  target_sources(test_cuda_collective PRIVATE support/ranks.c)
  if(NOT OT_SANITIZE) # under which it takes minutes
    ot_cuda_test(ranks)
    target_sources(test_cuda_ranks PRIVATE support/ranks.c support/rank_values.c)
  endif()
  ot_cuda_test(ranks_process fault)
  target_sources(test_cuda_ranks_process PRIVATE support/process.c support/ranks.c)
  add_dependencies(test_cuda_ranks_process offtrain_mpi)
  target_compile_definitions(test_cuda_ranks_process PRIVATE OT_MPI_PLUGIN="$<TARGET_FILE:offtrain_mpi>")
  # MPI keeps what it has until the process ends.
  set_tests_properties(cuda/ranks_process PROPERTIES ENVIRONMENT ASAN_OPTIONS=detect_leaks=0)
endif()

# The whole engine's tests, on the emulated device: all of them on the executor, which is seeded, with every eighth of the
# combinations, and the invariants with a thread for each stream and every sixteenth. With a sanitizer they take an hour.
function(ot_cuda_trainer mode threads share)
  add_test(NAME cuda/trainer_${mode} COMMAND test_engine_trainer ${ARGN})
  set_tests_properties(cuda/trainer_${mode} PROPERTIES LABELS "cuda;slow" TIMEOUT 1200 ENVIRONMENT
    "OT_TEST_DEVICE=cuda;OT_TEST_SHARE=${share};OFFTRAIN_CUDA_PLUGIN=$<TARGET_FILE:offtrain_cudaemu>;FAKECUDA_SEED=3;FAKECUDA_THREADS=${threads}")
endfunction()
if(NOT OT_SANITIZE)
  ot_cuda_trainer(executor 0 8)
  ot_cuda_trainer(threads 1 16 invariants)
endif()

# What tools/gpu_check runs on a card; here, small, on the emulated one.
add_executable(gpu_check cuda/gpu_check.c cuda/gpu_check_kernels.c cuda/gpu_check_speeds.c)
target_link_libraries(gpu_check PRIVATE engine kernels_harness)
if(NOT OT_SANITIZE)
  add_test(NAME cuda/gpu_check COMMAND gpu_check tiny)
  set_tests_properties(cuda/gpu_check PROPERTIES LABELS cuda TIMEOUT 600 ENVIRONMENT
                       "OFFTRAIN_CUDA_PLUGIN=$<TARGET_FILE:offtrain_cudaemu>")
endif()
