# Writes OUTPUT: a C++ file that defines FUNCTION, declared in HEADER. It has the text of each of FILES, named by its
# path from BASE, its digest, and which others of them it includes, so that nobody has to find that out at run time.
# Raw string literals are cut at 8000 bytes: compilers need only accept 64 KB, and some accept less. Lengths are written
# down, because a constant expression that counts all characters has too many steps for clang.
set(names "")
foreach(file IN LISTS FILES)
  file(RELATIVE_PATH name ${BASE} ${file})
  list(APPEND names ${name})
endforeach()
set(body "")
set(includes "")
foreach(file name IN ZIP_LISTS FILES names)
  file(READ ${file} text)
  string(REGEX MATCHALL "#include \"[^\"]*\"" lines "${text}")
  set(indices "")
  foreach(line IN LISTS lines)
    string(REGEX REPLACE "#include \"(.*)\"" "\\1" included "${line}")
    list(FIND names "${included}" index)
    if(index GREATER_EQUAL 0)
      list(APPEND indices ${index})
    endif()
  endforeach()
  list(LENGTH includes first)
  list(LENGTH indices count)
  list(APPEND includes ${indices})
  string(LENGTH "${text}" length)
  string(SHA256 digest "${text}")
  set(literal "")
  set(at 0)
  while(at LESS length)
    string(SUBSTRING "${text}" ${at} 8000 part)
    string(APPEND literal "R\"__fj__(${part})__fj__\"\n")
    math(EXPR at "${at} + 8000")
  endwhile()
  string(APPEND body "    {\"${name}\",\n{${literal}, ${length}},\n\"${digest}\",\n{kIncludes + ${first}, ${count}}},\n")
endforeach()
list(APPEND includes 0)  # The list must not be empty.
list(JOIN includes ", " includes)
file(WRITE ${OUTPUT} "#include \"${HEADER}\"
namespace flashjit {
namespace {
constexpr std::uint16_t kIncludes[] = {${includes}};
constexpr EmbeddedFile kFiles[] = {
${body}};
}
std::span<const EmbeddedFile> ${FUNCTION}() { return kFiles; }
}  // namespace flashjit
")
