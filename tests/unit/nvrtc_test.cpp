// The compiler on hand-written sources. Skipped where NVRTC is not installed.
#include "runtime/nvrtc.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "runtime/environment.h"

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
            .headers = {{"templates/factor.cuh", std::move(header)}},
            .entries = {"scale"}};
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
