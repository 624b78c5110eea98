# cmake --install installs headers, both libraries, the host backend, find_package(flashjit) and pkg-config. The
# installed tree may be moved.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(package ${CMAKE_INSTALL_LIBDIR}/cmake/flashjit)
foreach(library flashjit flashjit_static)
  target_include_directories(${library} INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
endforeach()
install(FILES include/flashjit/flashjit.hpp include/flashjit/flashjit.h ${PROJECT_SOURCE_DIR}/compiler/result.h
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/flashjit)
# Installed files are stripped, as with `cmake --install --strip`: gdb finds the line tables by the build id, in the
# build folder. The archive has none from the start (static.cmake). A project that has this one within it decides that
# itself.
if(PROJECT_IS_TOP_LEVEL)
  install(CODE "set(CMAKE_INSTALL_DO_STRIP TRUE)" ALL_COMPONENTS)
endif()
# The component `programs` has everything that runs; a Python wheel has it alone.
install(TARGETS flashjit EXPORT flashjit_shared LIBRARY COMPONENT programs)
install(TARGETS flashjit_static EXPORT flashjit_static)
install(EXPORT flashjit_shared NAMESPACE flashjit:: DESTINATION ${package})
install(EXPORT flashjit_static NAMESPACE flashjit:: DESTINATION ${package})
# It is found at run time relative to the library.
install(TARGETS flashjit_compiler_program RUNTIME DESTINATION ${CMAKE_INSTALL_LIBEXECDIR}/flashjit COMPONENT programs)
if(TARGET flashjit_host)
  # It is found at run time beside libflashjit.so, or beside the program that has libflashjit.a in it.
  install(TARGETS flashjit_host LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT programs)
endif()

file(CONFIGURE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/flashjitConfig.cmake @ONLY CONTENT [[
# find_package(flashjit) gives the target flashjit::flashjit, the shared library. With COMPONENTS static it gives
# flashjit::static as well.
include(CMakeFindDependencyMacro)
include(${CMAKE_CURRENT_LIST_DIR}/flashjit_shared.cmake)
foreach(component IN LISTS flashjit_FIND_COMPONENTS)
  if(component STREQUAL "static")
    find_dependency(Threads)
    include(${CMAKE_CURRENT_LIST_DIR}/flashjit_static.cmake)
    get_property(flashjit_languages GLOBAL PROPERTY ENABLED_LANGUAGES)
    if(NOT "CXX" IN_LIST flashjit_languages)  # Nobody else links the C++ runtime then.
      set_property(TARGET flashjit::static APPEND PROPERTY INTERFACE_LINK_LIBRARIES stdc++ m)
    endif()
  elseif(NOT component STREQUAL "shared" AND flashjit_FIND_REQUIRED_${component})
    set(flashjit_FOUND FALSE)
    set(flashjit_NOT_FOUND_MESSAGE "flashjit has the components shared and static, and no ${component}")
  endif()
endforeach()
]])
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/flashjitConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/flashjitConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/flashjitConfigVersion.cmake DESTINATION ${package})

set(zstd "")
if(NOT FLASHJIT_BUNDLE_ZSTD MATCHES "[.]a$")
  set(zstd "-lzstd")
endif()
file(RELATIVE_PATH up /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
file(CONFIGURE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/flashjit.pc @ONLY CONTENT [[
prefix=${pcfiledir}/@up@
libdir=${prefix}@CMAKE_INSTALL_LIBDIR@
Name: flashjit
Description: Attention kernels, generated for exactly your problem and your GPU
Version: @PROJECT_VERSION@
Cflags: -I${prefix}@CMAKE_INSTALL_INCLUDEDIR@
Libs: -L${libdir} -lflashjit
Libs.private: @zstd@ -lstdc++ -lm -lpthread -ldl
]])
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/flashjit.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

include(notices.cmake)

# The reference of both APIs is made if Doxygen is there. It is installed if it was built (ninja reference).
find_package(Doxygen QUIET)
if(DOXYGEN_FOUND AND PROJECT_IS_TOP_LEVEL)
  set(FLASHJIT_REFERENCE_DIR ${CMAKE_CURRENT_BINARY_DIR}/reference)
  file(MAKE_DIRECTORY ${FLASHJIT_REFERENCE_DIR})
  configure_file(reference/Doxyfile.in ${FLASHJIT_REFERENCE_DIR}/Doxyfile @ONLY)
  add_custom_command(OUTPUT ${FLASHJIT_REFERENCE_DIR}/html/index.html
    COMMAND ${DOXYGEN_EXECUTABLE} ${FLASHJIT_REFERENCE_DIR}/Doxyfile
    DEPENDS ${FLASHJIT_REFERENCE_DIR}/Doxyfile reference/comments include/flashjit/flashjit.hpp include/flashjit/flashjit.h
      ${PROJECT_SOURCE_DIR}/compiler/result.h)
  add_custom_target(reference DEPENDS ${FLASHJIT_REFERENCE_DIR}/html/index.html)
  install(DIRECTORY ${FLASHJIT_REFERENCE_DIR}/html DESTINATION ${CMAKE_INSTALL_DOCDIR} OPTIONAL)
endif()

# This target is everything that is installed, and tools/try builds it.
add_custom_target(installable)
add_dependencies(installable flashjit flashjit_static flashjit_compiler_program)
if(TARGET flashjit_host)
  add_dependencies(installable flashjit_host)
endif()
