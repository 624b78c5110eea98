# Binaries contain components of others: a list (CycloneDX) has them, and each has a notice. List and notices are
# written when CMake configures, have no date, and are installed beside the programs. The owner chooses which licence
# this project has, so it is not in the list.
set(flashjit_notices ${CMAKE_CURRENT_BINARY_DIR}/notices)
set(flashjit_components "")

# Finds the text that `pattern`, which has one group, matches in a header, or an empty text.
function(flashjit_find_in header pattern out)
  find_file(found ${header} PATHS /usr/include NO_CACHE)
  set(text "")
  if(found)
    file(STRINGS ${found} lines REGEX "${pattern}" LIMIT_COUNT 1)
    if(lines MATCHES "${pattern}")
      set(text ${CMAKE_MATCH_1})
    endif()
  endif()
  set(${out} "${text}" PARENT_SCOPE)
endfunction()

# `package` is that of Debian, which has the notice in its documentation.
function(flashjit_component name version licence package in)
  set(notice /usr/share/doc/${package}/copyright)
  file(MAKE_DIRECTORY ${flashjit_notices})
  if(EXISTS ${notice})
    file(COPY_FILE ${notice} ${flashjit_notices}/${name}.txt ONLY_IF_DIFFERENT)
  else()
    file(WRITE ${flashjit_notices}/${name}.txt "${name} ${version}: licence ${licence}. The text was not on the machine that built this "
      "(Debian: ${package}); whoever passes this on adds it.\n")
    message(STATUS "Notices: the one of ${name} is not here (${notice})")
  endif()
  list(APPEND flashjit_components "    {\"type\": \"library\", \"name\": \"${name}\", \"version\": \"${version}\", \
\"licenses\": [{\"expression\": \"${licence}\"}], \"purl\": \"pkg:generic/${name}@${version}\", \
\"properties\": [{\"name\": \"flashjit:in\", \"value\": \"${in}\"}]}")
  set(flashjit_components "${flashjit_components}" PARENT_SCOPE)
endfunction()

set(number "([0-9]+([.][0-9]+)*)")
flashjit_find_in(zstd.h "define ZSTD_VERSION_MAJOR +([0-9]+)" zstd_major)
flashjit_find_in(zstd.h "define ZSTD_VERSION_MINOR +([0-9]+)" zstd_minor)
flashjit_find_in(zstd.h "define ZSTD_VERSION_RELEASE +([0-9]+)" zstd_release)
flashjit_find_in(CLI/Version.hpp "define CLI11_VERSION \"${number}\"" cli11)
flashjit_find_in(nlohmann/json.hpp "version ${number}" json)
flashjit_find_in(zlib.h "define ZLIB_VERSION \"${number}\"" zlib)
flashjit_component(fmt "${fmt_VERSION}" "MIT" libfmt-dev "libflashjit")
flashjit_component(zstd "${zstd_major}.${zstd_minor}.${zstd_release}" "BSD-3-Clause OR GPL-2.0-only" libzstd-dev "libflashjit")
flashjit_component(CLI11 "${cli11}" "BSD-3-Clause" libcli11-dev "flashjit, the command")
flashjit_component(nlohmann-json "${json}" "MIT" nlohmann-json3-dev "flashjit, the command")
if(TARGET flashjit_host)
  file(STRINGS ${LLVM_DIR}/LLVMConfigVersion.cmake llvm REGEX "PACKAGE_VERSION \"")
  string(REGEX MATCH "${number}" llvm "${llvm}")
  flashjit_component(LLVM "${llvm}" "Apache-2.0 WITH LLVM-exception" llvm-19-dev "libflashjit_host")
  flashjit_component(zlib "${zlib}" "Zlib" zlib1g-dev "libflashjit_host")
endif()
list(JOIN flashjit_components ",\n" flashjit_components)
file(CONFIGURE OUTPUT ${flashjit_notices}/components.cdx.json @ONLY CONTENT [[
{
  "bomFormat": "CycloneDX",
  "specVersion": "1.5",
  "version": 1,
  "metadata": {"component": {"type": "library", "name": "flashjit", "version": "@PROJECT_VERSION@"}},
  "components": [
@flashjit_components@
  ]
}
]])
install(DIRECTORY ${flashjit_notices} DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT programs)
