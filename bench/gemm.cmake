# The matrix libraries side by side (docs/matmul.md); opens whichever are installed at run time.
add_executable(bench_gemm EXCLUDE_FROM_ALL ${CMAKE_CURRENT_LIST_DIR}/gemm.c)
target_link_libraries(bench_gemm PRIVATE spillway_static ${CMAKE_DL_LIBS})
set_target_properties(bench_gemm PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bench)
