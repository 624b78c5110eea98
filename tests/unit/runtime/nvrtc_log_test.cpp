#include "runtime/compile/nvrtc/nvrtc_log.h"

#include <gtest/gtest.h>

namespace flashjit {
namespace {

TEST(NvrtcLog, EntriesInTheirOrder) {
  const CompileLog log = parse_compile_log(
      "ptxas info    : 0 bytes gmem\n"
      "ptxas info    : Compiling entry function 'first' for 'sm_90a'\n"
      "ptxas info    : Function properties for first\n"
      "ptxas         .     2896 bytes stack frame, 5496 bytes spill stores, 7072 bytes spill loads\n"
      "ptxas info    : Used 32 registers, used 1 barriers, 2896 bytes cumulative stack size\n"
      "ptxas info    : Compile time = 1054.664 ms\n"
      "ptxas info    : Compiling entry function 'second' for 'sm_90a'\n"
      "ptxas info    : Function properties for second\n"
      "ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
      "ptxas info    : Used 14 registers, used 1 barriers, 400 bytes smem\n");
  ASSERT_EQ(log.entries.size(), 2u);
  EXPECT_EQ(log.entries[0].entry, "first");
  EXPECT_EQ(log.entries[0].registers, 32);
  EXPECT_EQ(log.entries[0].spill_bytes, 5496 + 7072);
  EXPECT_EQ(log.entries[0].stack_bytes, 2896);
  EXPECT_EQ(log.entries[0].static_smem_bytes, 0);
  EXPECT_EQ(log.entries[1].entry, "second");
  EXPECT_EQ(log.entries[1].registers, 14);
  EXPECT_EQ(log.entries[1].spill_bytes, 0);
  EXPECT_EQ(log.entries[1].static_smem_bytes, 400);
  EXPECT_TRUE(log.warnings.empty());
}

TEST(NvrtcLog, SpillsOfCalledFunctionsCount) {
  const CompileLog log = parse_compile_log(
      "ptxas info    : Compiling entry function 'f' for 'sm_80'\n"
      "ptxas info    : Function properties for f\n"
      "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
      "ptxas info    : Function properties for helper\n"
      "    8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads\n"
      "ptxas info    : Used 255 registers, 380 bytes cmem[0]");
  ASSERT_EQ(log.entries.size(), 1u);
  EXPECT_EQ(log.entries[0].spill_bytes, 16);
  EXPECT_EQ(log.entries[0].registers, 255);
}

TEST(NvrtcLog, WarningsAndLostPerformance) {
  const CompileLog log = parse_compile_log(
      "entry.cu(3): warning #177-D: variable \"x\" was declared but never referenced\n"
      "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized due to non wgmma "
      "instructions defining accumulator registers of a wgmma between start and end of the pipeline stage\n");
  ASSERT_EQ(log.warnings.size(), 2u);
  EXPECT_NE(log.warnings[0].find("#177-D"), std::string::npos);
  EXPECT_NE(log.warnings[1].find("serialized"), std::string::npos);
}

// What NVRTC 13.0 says of small kernels that were written to provoke it.
TEST(NvrtcLog, SerialisedMatrixProducts) {
  const auto serialised = [](const char* line) { return parse_compile_log(line).serialised; };
  EXPECT_EQ(
      serialised(
          "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized due to wgmma "
          "pipeline crossing function boundary at a function call in the function 'k'\n"),
      "Potential Performance Loss: wgmma.mma_async instructions are serialized due to wgmma pipeline crossing function boundary "
      "at a function call in the function 'k'");
  EXPECT_NE(
      serialised(
          "ptxas info    : (C7511) Potential Performance Loss: wgmma.mma_async instructions are serialized due to "
          "insufficient register resources for the wgmma pipeline in the function 'k'"),
      "");
  EXPECT_NE(
      serialised(
          "ptxas info    : (C7512) Potential Performance Loss: wgmma.mma_async instructions are serialized due to "
          "insufficient register resources for the function 'scale'"),
      "");
  EXPECT_EQ(
      serialised(
          "ptxas info    : (C7517) warpgroup.wait is injected in around line 73 by compiler to allow use of registers "
          "defined by GMMA in function 'k'\n"),
      "warpgroup.wait is injected in around line 73 by compiler to allow use of registers defined by GMMA in function 'k'");
  // The reason for all of it is kept, whatever else is said.
  const CompileLog both = parse_compile_log(
      "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized due to this\n"
      "ptxas info    : (C7517) warpgroup.wait is injected in around line 66 by compiler\n");
  EXPECT_NE(both.serialised.find("due to this"), std::string::npos);
  EXPECT_EQ(both.warnings.size(), 2u);
  EXPECT_EQ(both.setmaxnreg_ignored, "");
}

// A fence costs nothing: worth a remark, no reason against the kernel.
TEST(NvrtcLog, InjectedFences) {
  const CompileLog log = parse_compile_log(
      "ptxas info    : (C7519) warpgroup.arrive is injected in around line 98 by compiler to allow use of registers in GMMA in "
      "function 'k'\n");
  EXPECT_EQ(log.serialised, "");
  EXPECT_EQ(log.warnings.size(), 1u);
}

TEST(NvrtcLog, IgnoredRegisterCounts) {
  const CompileLog log = parse_compile_log(
      "ptxas info    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored; unable to determine register count at entry.\n"
      "ptxas info    : 0 bytes gmem\n"
      "ptxas info    : Compiling entry function 'k' for 'sm_90a'\n"
      "ptxas info    : Used 90 registers, used 0 barriers\n");
  EXPECT_EQ(log.setmaxnreg_ignored,
            "Potential Performance Loss: 'setmaxnreg' ignored; unable to determine register count at entry.");
  EXPECT_EQ(log.serialised, "");
}

// With setmaxnreg the count is that of the entry, whatever the warpgroups use afterwards.
TEST(NvrtcLog, KernelsThatChangeTheirRegisters) {
  const CompileLog log = parse_compile_log(
      "ptxas info    : 0 bytes gmem\n"
      "ptxas info    : Compiling entry function 'k' for 'sm_90a'\n"
      "ptxas info    : Function properties for k\n"
      "ptxas         .     176 bytes stack frame, 172 bytes spill stores, 172 bytes spill loads\n"
      "ptxas info    : Used 168 registers, used 9 barriers, 176 bytes cumulative stack size\n"
      "ptxas info    : Compile time = 22.267 ms\n");
  ASSERT_EQ(log.entries.size(), 1u);
  EXPECT_EQ(log.entries[0].registers, 168);
  EXPECT_EQ(log.entries[0].spill_bytes, 344);
  EXPECT_TRUE(log.warnings.empty());
  EXPECT_EQ(log.serialised + log.setmaxnreg_ignored, "");
}

TEST(NvrtcLog, InstructionsThatNeedTooManyRegisters) {
  EXPECT_EQ(
      refused_for_registers(
          "ptxas fatal   : (C7602) Insufficient registers (128) to compile instruction at line 249 in function k. "
          "Try to compile with register target of 154 or higher.\n"
          "ptxas fatal   : Ptx assembly aborted due to errors\n"),
      "Insufficient registers (128) to compile instruction at line 249 in function k. Try to compile with register target of 154 "
      "or higher.");
  EXPECT_EQ(refused_for_registers("entry.cu(3): error: identifier \"x\" is undefined"), "");
}

TEST(NvrtcLog, AnyTextIsFine) {
  for (const char* text : {"", "\n\n", "bytes spill stores", " registers", "Compiling entry function '",
                           "Compiling entry function ''\n99999999999999999999 bytes spill stores\n"}) {
    parse_compile_log(text);
  }
}

}  // namespace
}  // namespace flashjit
