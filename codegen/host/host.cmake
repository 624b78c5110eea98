# The host backend is LLVM and everything that needs it, in one library that the runtime opens if it is there.
if(FLASHJIT_HOST_BACKEND STREQUAL "OFF")
  return()
endif()
find_package(LLVM 19.1 QUIET CONFIG PATHS /usr/lib/llvm-19)
if(NOT LLVM_FOUND)
  if(FLASHJIT_HOST_BACKEND STREQUAL "ON")
    message(FATAL_ERROR "FLASHJIT_HOST_BACKEND is ON, but LLVM 19 was not found; install llvm-19-dev or set LLVM_DIR")
  endif()
  message(STATUS "Host backend: off (LLVM 19 was not found)")
  return()
endif()
message(STATUS "Host backend: LLVM ${LLVM_PACKAGE_VERSION}")

file(GLOB_RECURSE sources CONFIGURE_DEPENDS host/*.cpp)
list(FILTER sources EXCLUDE REGEX "/(backend|exit)[.]cpp$")
add_library(flashjit_host_code STATIC ${sources})
flashjit_folder(flashjit_host_code codegen)
flashjit_unite(flashjit_host_code)
target_link_libraries(flashjit_host_code PUBLIC flashjit_compiler)
target_include_directories(flashjit_host_code SYSTEM PUBLIC ${LLVM_INCLUDE_DIRS})
target_compile_options(flashjit_host_code PRIVATE -ffunction-sections -fdata-sections)
target_precompile_headers(flashjit_host_code PRIVATE ${FLASHJIT_PURE_HEADERS} <llvm/IR/IRBuilder.h>)

# LLVM's static libraries are linked, even if LLVM was found as one shared library: a second LLVM in the process must
# not matter.
# Their system libraries are named here because LLVM's own list has some that nothing reachable from here uses.
execute_process(COMMAND ${LLVM_TOOLS_BINARY_DIR}/llvm-config --link-static --libfiles orcjit passes x86codegen x86desc x86info
  OUTPUT_VARIABLE flashjit_llvm OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
string(REPLACE " " "," flashjit_llvm "${flashjit_llvm}")
find_library(FLASHJIT_ZSTD NAMES libzstd.a zstd REQUIRED)
find_library(FLASHJIT_ZLIB NAMES libz.a z REQUIRED)
target_link_libraries(flashjit_host_code PUBLIC
  "$<LINK_GROUP:RESCAN,${flashjit_llvm}>" ${FLASHJIT_ZSTD} ${FLASHJIT_ZLIB} Threads::Threads ${CMAKE_DL_LIBS})

add_library(flashjit_host SHARED host/backend.cpp host/exit.cpp ${flashjit_interface})
# This target makes that file. Two targets that made it at a time would spoil it.
add_dependencies(flashjit_host flashjit_codegen)
target_link_libraries(flashjit_host PRIVATE flashjit_host_code)
target_link_options(flashjit_host PRIVATE
  -Wl,--build-id=sha1  # part of the key of stored kernels
  -Wl,--no-undefined -Wl,--gc-sections -Wl,--exclude-libs,ALL -Wl,--version-script=${CMAKE_CURRENT_SOURCE_DIR}/host/exports.map -s)
flashjit_make_movable(flashjit_host)
