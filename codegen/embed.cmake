# Writes OUTPUT: a C++ file that defines FUNCTION, declared in HEADER, with the text of each of FILES, named by its path from BASE, and its
# digest, which nobody then has to compute at run time.
# Raw string literals are cut at 8000 bytes: compilers need only accept 64 KB, and some accept less. Lengths are written
# down, because a constant expression that counts all characters has too many steps for clang.
set(body "")
foreach(file IN LISTS FILES)
  file(RELATIVE_PATH name ${BASE} ${file})
  file(READ ${file} text)
  string(LENGTH "${text}" length)
  string(SHA256 digest "${text}")
  set(literal "")
  set(at 0)
  while(at LESS length)
    string(SUBSTRING "${text}" ${at} 8000 part)
    string(APPEND literal "R\"__fj__(${part})__fj__\"\n")
    math(EXPR at "${at} + 8000")
  endwhile()
  string(APPEND body "    {\"${name}\",\n{${literal}, ${length}},\n\"${digest}\"},\n")
endforeach()
file(WRITE ${OUTPUT} "#include \"${HEADER}\"
namespace flashjit {
namespace {
constexpr EmbeddedFile kFiles[] = {
${body}};
}
std::span<const EmbeddedFile> ${FUNCTION}() { return kFiles; }
}  // namespace flashjit
")
