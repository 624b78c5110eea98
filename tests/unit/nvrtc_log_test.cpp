#include "runtime/nvrtc_log.h"

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

TEST(NvrtcLog, AnyTextIsFine) {
  for (const char* text : {"", "\n\n", "bytes spill stores", " registers", "Compiling entry function '",
                           "Compiling entry function ''\n99999999999999999999 bytes spill stores\n"}) {
    parse_compile_log(text);
  }
}

}  // namespace
}  // namespace flashjit
