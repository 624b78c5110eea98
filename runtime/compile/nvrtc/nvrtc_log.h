// These functions read what NVRTC's log tells about a kernel (--ptxas-options=-v).
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace flashjit {

struct EntryUsage {
  std::string entry;
  int registers = 0;
  int spill_bytes = 0;  // stores plus loads
  int stack_bytes = 0;
  int static_smem_bytes = 0;
};

struct CompileLog {
  std::vector<EntryUsage> entries;
  std::vector<std::string> warnings;  // includes ptxas' remarks about lost performance and about wgmma
  // Both are ptxas' own words, and empty if it has no such remark. Either makes a hopper kernel several times slower
  // than it was planned to be.
  std::string serialised;          // The kernel waits for matrix products where the source does not.
  std::string setmaxnreg_ignored;  // The number of registers stays as it is at the entry.
};

CompileLog parse_compile_log(std::string_view log);

// Returns ptxas' words when it refuses an instruction whose operands alone need more registers than a thread has, or an
// empty text if there is no such remark.
std::string refused_for_registers(std::string_view log);

}  // namespace flashjit
