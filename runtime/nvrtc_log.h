// What NVRTC's log says about a kernel (--ptxas-options=-v).
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
  std::vector<std::string> warnings;  // includes ptxas' remarks about lost performance, such as serialised wgmma
};

CompileLog parse_compile_log(std::string_view log);

}  // namespace flashjit
