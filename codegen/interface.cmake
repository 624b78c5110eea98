# Writes OUTPUT: a C++ file that defines host_interface() (codegen/host/backend.h), a digest of HEADERS by their paths
# from BASE. These headers decide how everything that passes between libflashjit.so and libflashjit_host.so lies in
# memory.
set(digests "")
list(SORT HEADERS)
foreach(header IN LISTS HEADERS)
  file(RELATIVE_PATH name ${BASE} ${header})
  file(SHA256 ${header} digest)
  string(APPEND digests "${name} ${digest}\n")
endforeach()
string(SHA256 all "${digests}")
string(SUBSTRING ${all} 0 16 all)
set(text "#include \"codegen/host/backend.h\"
namespace flashjit {
const char* host_interface() { return \"interface-${all}\"; }
}  // namespace flashjit
")
file(WRITE ${OUTPUT} "${text}")
