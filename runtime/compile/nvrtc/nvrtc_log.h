// These functions read what NVRTC's log says about a kernel (--ptxas-options=-v).
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
  // In ptxas' words, empty if it does not say so. Either makes a hopper kernel several times slower than it was
  // planned.
  std::string serialised;          // it waits for matrix products where the source does not
  std::string setmaxnreg_ignored;  // registers stay as they are at the entry
};

CompileLog parse_compile_log(std::string_view log);

// Returns what ptxas says when it refuses an instruction whose operands alone are more registers than a thread has;
// empty: it says nothing of the kind.
std::string refused_for_registers(std::string_view log);

}  // namespace flashjit
