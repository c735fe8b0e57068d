# Libraries of the trainer alone. oneDNN multiplies matrices (docs/matmul.md): only dnnl_sgemm is
# called, which is the same in the 2.x of Debian 12 and the 3.x of Debian 13.
find_library(SPW_DNNL dnnl REQUIRED)
find_path(SPW_DNNL_INCLUDE oneapi/dnnl/dnnl.h REQUIRED)
target_include_directories(spw_train SYSTEM PUBLIC ${SPW_DNNL_INCLUDE})
target_link_libraries(spw_train PUBLIC ${SPW_DNNL} ${CMAKE_DL_LIBS})

# The trainer's own loops, once for each vector width; loops.c picks one when first asked.
set(train_levels baseline)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    list(APPEND train_levels x86_64_v3 x86_64_v4)
endif()
foreach(level ${train_levels})
    set(lib spw_train_loops_${level})
    add_library(${lib} OBJECT ${CMAKE_CURRENT_LIST_DIR}/train/loops/loops.c)
    target_link_libraries(${lib} PUBLIC spw_flags)
    # Without traps gcc may turn comparisons into blends; no value changes by it.
    target_compile_options(${lib} PRIVATE -O3 -fno-trapping-math)
    target_compile_definitions(${lib} PRIVATE SPW_LOOPS_SUFFIX=${level})
    if(NOT level STREQUAL "baseline")
        string(REPLACE "x86_64_" "x86-64-" march ${level})
        target_compile_options(${lib} PRIVATE -march=${march})
    endif()
    target_sources(spw_train PRIVATE $<TARGET_OBJECTS:${lib}>)
endforeach()
