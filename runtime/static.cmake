# cmake -DARCHIVES=a,b -DNEEDED=c -DSHARED=libflashjit.so ... -P static.cmake makes OUTPUT, one object of all the
# archives and what they need of NEEDED. Names that the shared library does not export become local to it, so that no
# name of ours, of fmt or of the standard library's templates meets another in the program it is linked into. Groups go,
# because the linker would drop ours for somebody else's copy that we cannot see. Debug information goes, too: it is
# three quarters of the size.
string(REPLACE "," ";" archives "${ARCHIVES}")
execute_process(COMMAND ${NM} -D --defined-only --format=posix ${SHARED} OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
string(REGEX REPLACE " [^\n]*" "" symbols "${symbols}")
string(REGEX REPLACE "@[^\n]*" "" symbols "${symbols}")
file(WRITE ${OUTPUT}.symbols "${symbols}")
if(NOT NEEDED MATCHES "[.]a$")
  set(NEEDED "")  # A shared library has to be linked by whoever links us.
endif()
execute_process(COMMAND ${COMPILER} -r -nostdlib -Wl,--force-group-allocation -Wl,--whole-archive ${archives}
  -Wl,--no-whole-archive ${NEEDED} -o ${OUTPUT}.part
  COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${OBJCOPY} --strip-debug --keep-global-symbols=${OUTPUT}.symbols ${OUTPUT}.part ${OUTPUT} COMMAND_ERROR_IS_FATAL ANY)
file(REMOVE ${OUTPUT}.part)
