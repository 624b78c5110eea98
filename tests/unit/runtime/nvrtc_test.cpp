// The compiler on hand-written sources. Skipped where NVRTC is not installed.
#include "runtime/compile/nvrtc/nvrtc.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "codegen/cuda/embedded_templates.h"
#include "codegen/cuda/matrix.h"
#include "compiler/families/hopper/hopper.h"
#include "runtime/engine/environment.h"
#include "templates/hopper/layout.h"

namespace flashjit {
namespace {

class NvrtcTest : public testing::Test {
 protected:
  void SetUp() override {
    auto settings = read_environment();
    ASSERT_TRUE(settings);
    auto opened = Nvrtc::open(settings->nvrtc);
    if (!opened) GTEST_SKIP() << opened.error().message;
    nvrtc = *opened;
  }

  static KernelSource source(std::string body, std::string header = "#pragma once\nconstexpr int kFactor = 3;\n") {
    return {.generated = {{"entry.cu", "#include \"templates/factor.cuh\"\n" + std::move(body)}},
            .headers = {{"templates/factor.cuh", std::move(header)}}};
  }
  static constexpr char kGood[] =
      "extern \"C\" __global__ void scale(float* x) {\n"
      "  __shared__ float s[64];\n"
      "  s[threadIdx.x % 64] = x[threadIdx.x];\n"
      "  __syncthreads();\n"
      "  x[threadIdx.x] = s[(threadIdx.x + 1) % 64] * kFactor;\n"
      "}\n";

  std::shared_ptr<const Nvrtc> nvrtc;
  Target target{.name = "sm_80"};
};

TEST_F(NvrtcTest, CubinAndWhatTheLogSays) {
  const auto cubin = nvrtc->compile(source(kGood), target);
  ASSERT_TRUE(cubin) << cubin.error().message << cubin.error().detail;
  EXPECT_EQ(std::string(cubin->bytes.begin() + 1, cubin->bytes.begin() + 4), "ELF");
  ASSERT_EQ(cubin->facts.entries.size(), 1u);
  EXPECT_EQ(cubin->facts.entries[0].entry, "scale");
  EXPECT_GT(cubin->facts.entries[0].registers, 0);
  EXPECT_EQ(cubin->facts.entries[0].spill_bytes, 0);
  EXPECT_EQ(cubin->facts.entries[0].static_smem_bytes, 256);
}

TEST_F(NvrtcTest, Ptx) {
  const auto ptx = nvrtc->ptx(source(kGood), target);
  ASSERT_TRUE(ptx) << ptx.error().message;
  EXPECT_NE(ptx->find(".target sm_80"), std::string::npos);
  EXPECT_NE(ptx->find("scale"), std::string::npos);
}

TEST_F(NvrtcTest, RefusedSourceGivesTheLog) {
  const auto cubin = nvrtc->compile(source("extern \"C\" __global__ void scale(float* x) { *x = nowhere; }"), target);
  ASSERT_FALSE(cubin);
  EXPECT_EQ(cubin.error().kind, ErrorKind::Compile);
  EXPECT_NE(cubin.error().message.find("entry.cu"), std::string::npos);
  EXPECT_NE(cubin.error().detail.find("nowhere"), std::string::npos);
}

TEST_F(NvrtcTest, UnknownArchitectureIsRefused) {
  const auto cubin = nvrtc->compile(source(kGood), Target{.name = "sm_12345"});
  ASSERT_FALSE(cubin);
  EXPECT_EQ(cubin.error().kind, ErrorKind::Compile);
  EXPECT_NE(cubin.error().message.find("sm_12345"), std::string::npos) << cubin.error().message;
  EXPECT_NE(cubin.error().message.find("a newer NVRTC"), std::string::npos) << cubin.error().message;
}

TEST_F(NvrtcTest, IdentityNamesTheBuildAndNoPath) {
  EXPECT_EQ(nvrtc->identity().find('/'), std::string::npos);
  EXPECT_NE(nvrtc->identity().find("build"), std::string::npos);
  EXPECT_EQ(nvrtc->identity().find("unknown"), std::string::npos) << nvrtc->identity();
}

TEST_F(NvrtcTest, ThreadsGetTheSameBytes) {
  const auto reference = nvrtc->compile(source(kGood), target);
  ASSERT_TRUE(reference);
  std::vector<std::vector<std::uint8_t>> results(6);
  std::vector<std::thread> threads;
  for (auto& result : results) {
    threads.emplace_back([&] {
      if (auto cubin = nvrtc->compile(source(kGood), target)) result = cubin->bytes;
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& result : results) EXPECT_EQ(result, reference->bytes);
}

// A kernel around one of the matrix products of a configuration: `call` fills `sums` numbers, `between` stands before
// its end.
std::string matrix_kernel(const KernelConfig& c, const std::string& name, int sums, const std::string& call,
                          const std::string& between) {
  const std::string count = std::to_string(sums);
  return "extern \"C\" __global__ void __launch_bounds__(128) " + name +
         "(float* x, u32 a, u32 b) {\n"
         "  float sums[" +
         count +
         "] = {};\n"
         "  [[maybe_unused]] const u32 p[" +
         std::to_string(c.tile_kv / 16) +
         "][4] = {{1, 2, 3, 4}};\n"
         "  asm volatile(\"wgmma.fence.sync.aligned;\" ::: \"memory\");\n"
         "  " +
         call +
         "\n"
         "  asm volatile(\"wgmma.commit_group.sync.aligned;\" ::: \"memory\");\n"
         "  " +
         between +
         "\n"
         "  asm volatile(\"wgmma.wait_group.sync.aligned 0;\" ::: \"memory\");\n"
         "  for (int i = 0; i < " +
         count + "; ++i) x[threadIdx.x * 1024 + i] = sums[i];\n}\n";
}

// A program that is nothing but the products of the family.
Program program_of(const KernelConfig& c) {
  Program p;
  for (const Product& product : hopper_products(c)) {
    for (const std::string_view operand : {product.a, product.b}) {
      const int rows = operand == "Qs" ? c.tile_q : c.tile_kv;
      p.buffers.push_back({std::string(operand), Space::Shared, c.element == Element::f16 ? Dtype::F16 : Dtype::BF16,
                           std::to_string(rows), ""});
    }
    p.body.push_back(make_statement(Kind::Mma));
    p.body.back().product = product;
  }
  return p;
}

KernelSource matrix_kernels(const KernelConfig& c, const std::string& between = "") {
  KernelSource source{
      .generated = {
          {"config.gen.cuh", "#pragma once\n#include \"templates/kernel_config.h\"\n"},
          {"matrix.gen.cuh", emit_matrix(program_of(c))},
          {"entry.cu", "#include \"matrix.gen.cuh\"\nusing namespace flashjit;\n" +
                           matrix_kernel(c, "scores", c.tile_kv / 2, "multiply_scores(sums, a, b);", between) +
                           matrix_kernel(c, "output", output_columns(c) / 2, "multiply_output(sums, p, b, 1);", "")}}};
  for (const EmbeddedFile& file : embedded_templates())
    source.headers.push_back({std::string(file.name), std::string(file.text)});
  return source;
}

TEST_F(NvrtcTest, MatrixProductsOfEveryWidth) {
  const Target hopper{.name = "sm_90a"};
  for (const Element element : {Element::bf16, Element::f16}) {
    for (const int columns : {8, 16, 72, 128, 136, 176, 256}) {
      KernelConfig c;
      c.element = element;
      c.tile_q = 64;
      c.head_dim_qk = 32;
      c.hopper.row_sum = columns % 16 != 0
                             ? RowSum::matrix
                             : RowSum::adds;  // the row sum's eight columns beside a V that is padded to 16
      c.tile_kv = c.hopper.row_sum == RowSum::matrix ? 32 : columns;
      c.head_dim_v = columns - (c.hopper.row_sum == RowSum::matrix ? 8 : 0);
      const KernelSource source = matrix_kernels(c);
      const std::string type = element == Element::f16 ? ".f32.f16.f16" : ".f32.bf16.bf16";
      const std::string instruction = "wgmma.mma_async.sync.aligned.m64n" + std::to_string(columns) + "k16" + type;
      SCOPED_TRACE(instruction);
      const auto cubin = nvrtc->compile(source, hopper);
      ASSERT_TRUE(cubin) << cubin.error().message << cubin.error().detail;
      EXPECT_EQ(cubin->facts.serialised, "") << cubin->log;
      ASSERT_EQ(cubin->facts.entries.size(), 2u);
      for (const EntryUsage& entry : cubin->facts.entries) EXPECT_EQ(entry.spill_bytes, 0) << entry.entry;
      const auto ptx = nvrtc->ptx(source, hopper);
      ASSERT_TRUE(ptx) << ptx.error().message;
      std::size_t count = 0;
      for (std::size_t at = ptx->find(instruction); at != std::string::npos; at = ptx->find(instruction, at + 1))
        ++count;
      // 16 columns of Q and K, or 16 keys, are one instruction.
      EXPECT_EQ(count, (c.tile_kv == columns ? 2u : 0u) + static_cast<std::size_t>(c.tile_kv / 16));
    }
  }
}

TEST_F(NvrtcTest, SerialisationIsSeen) {
  KernelConfig c;
  c.tile_q = c.tile_kv = c.head_dim_qk = c.head_dim_v = 64;
  const auto cubin = nvrtc->compile(matrix_kernels(c, "sums[3] *= x[0];"), Target{.name = "sm_90a"});
  ASSERT_TRUE(cubin) << cubin.error().message << cubin.error().detail;
  EXPECT_NE(cubin->facts.serialised, "") << cubin->log;
}

TEST_F(NvrtcTest, IgnoredRegisterCountsAreSeen) {
  const auto facts = [&](const std::string& bounds) {
    const auto cubin = nvrtc->compile(source("extern \"C\" __global__ void " + bounds +
                                             " scale(float* x) {\n"
                                             "  asm volatile(\"setmaxnreg.inc.sync.aligned.u32 232;\");\n"
                                             "  x[threadIdx.x] *= kFactor;\n}\n"),
                                      Target{.name = "sm_90a"});
    EXPECT_TRUE(cubin) << cubin.error().message << cubin.error().detail;
    return cubin ? cubin->facts : CompileLog{};
  };
  EXPECT_NE(facts("").setmaxnreg_ignored, "");
  EXPECT_EQ(facts("__launch_bounds__(384, 1)").setmaxnreg_ignored, "");
}

TEST(NvrtcPlaces, NamedFolderWithoutIt) {
  const auto opened = Nvrtc::open("/proc");
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().kind, ErrorKind::NotFound);
  EXPECT_NE(opened.error().message.find("FLASHJIT_NVRTC"), std::string::npos);
  EXPECT_NE(opened.error().message.find("'/proc'"), std::string::npos);
}

TEST(NvrtcPlaces, AnotherLibraryIsNoNvrtc) {
  const auto opened = Nvrtc::open("libm.so.6");
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().kind, ErrorKind::NotFound);
  EXPECT_NE(opened.error().detail.find("not NVRTC"), std::string::npos) << opened.error().detail;
}

}  // namespace
}  // namespace flashjit
