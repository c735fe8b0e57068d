# The file store's rate, for bench/store_fio.sh.
add_executable(bench_store_rate EXCLUDE_FROM_ALL ${CMAKE_CURRENT_LIST_DIR}/store_rate.c)
target_link_libraries(bench_store_rate PRIVATE spillway_static)
set_target_properties(bench_store_rate PROPERTIES
    RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bench)
