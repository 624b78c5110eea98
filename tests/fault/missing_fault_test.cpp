// Machines without a compiler, a GPU, a home: the error's kind, and that its message says what to do.
#include <gtest/gtest.h>
#include <locale.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

#include "flashjit/flashjit.h"
#include "flashjit/flashjit.hpp"
#include "tests/requests.h"
#include "tests/temporary_folder.h"

namespace flashjit {
namespace {

constexpr char kMissedSpec[] = "fwd bf16 d=64 heads=4 mask=\"causal\"";

// The environment of the test process stays as it is: each case is a child. 0: as expected.
int in_child(const std::function<int()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(100);
    _exit(body());
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

template <class T>
int refused(const Result<T>& result, ErrorKind kind, std::initializer_list<const char*> words) {
  if (result) return 1;
  if (result.error().kind != kind) {
    fprintf(stderr, "kind %s: %s\n", name(result.error().kind), result.error().message.c_str());
    return 2;
  }
  for (const char* word : words) {
    if (result.error().message.find(word) == std::string::npos) {
      fprintf(stderr, "no '%s' in: %s\n", word, result.error().message.c_str());
      return 3;
    }
  }
  return result.error().message.find('\n') == std::string::npos ? 0 : 4;
}

TEST(Missing, Nvrtc) {
  EXPECT_EQ(in_child([] {
              setenv("FLASHJIT_NVRTC", "/nowhere/libnvrtc.so", 1);
              return refused(compile_spec(kMissedSpec, "sm_90a", ""), ErrorKind::NotFound,
                             {"FLASHJIT_NVRTC", "/nowhere/libnvrtc.so"});
            }),
            0);
}

// The loader would wait in open() for somebody to write into it.
TEST(Missing, NvrtcIsAFifo) {
  const TemporaryFolder folder;
  const std::string fifo = folder.path() + "/libnvrtc.so";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_EQ(in_child([&] {
              alarm(10);
              setenv("FLASHJIT_NVRTC", fifo.c_str(), 1);
              return refused(compile_spec(kMissedSpec, "sm_90a", ""), ErrorKind::NotFound,
                             {"FLASHJIT_NVRTC", "libnvrtc.so"});
            }),
            0);
}

TEST(Missing, Gpu) {
  EXPECT_EQ(in_child([] {
              setenv("CUDA_VISIBLE_DEVICES", "", 1);
              return refused(Engine::create({}), ErrorKind::NotFound, {"driver", "or use the host target"});
            }),
            0);
  // No kernel of a processor is in a bundle.
  for (const EngineOptions& options : {EngineOptions{.bundles = {"x.fjb"}}, EngineOptions{.jit = false}}) {
    EXPECT_EQ(in_child([&] {
                setenv("CUDA_VISIBLE_DEVICES", "", 1);
                const auto engine = Engine::create(options);
                if (!engine && engine.error().message.find("host target") != std::string::npos) return 5;
                return refused(engine, ErrorKind::NotFound, {"driver"});
              }),
              0);
  }
}

TEST(Missing, GpuThroughTheCInterface) {
  EXPECT_EQ(in_child([] {
              setenv("CUDA_VISIBLE_DEVICES", "", 1);
              flashjit_engine* engine = nullptr;
              flashjit_error* error = nullptr;
              if (flashjit_engine_create(nullptr, &engine, &error) != FLASHJIT_NOT_FOUND || engine || !error) return 1;
              if (flashjit_error_kind(error) != FLASHJIT_NOT_FOUND || !*flashjit_error_message(error)) return 2;
              flashjit_error_destroy(error);
              return flashjit_engine_create(nullptr, &engine, nullptr) == FLASHJIT_NOT_FOUND ? 0 : 3;
            }),
            0);
}

TEST(Missing, NullsThroughTheCInterface) {
  flashjit_error* error = nullptr;
  EXPECT_EQ(flashjit_engine_create(nullptr, nullptr, &error), FLASHJIT_INVALID);
  flashjit_error_destroy(error);
  EXPECT_EQ(flashjit_prepare(nullptr, nullptr, nullptr, nullptr, &error), FLASHJIT_INVALID);
  flashjit_error_destroy(error);
  EXPECT_EQ(flashjit_run(nullptr, nullptr, nullptr, &error), FLASHJIT_INVALID);
  flashjit_error_destroy(error);
  flashjit_error_destroy(nullptr);
  flashjit_kernel_destroy(nullptr);
  flashjit_engine_destroy(nullptr);
  EXPECT_STREQ(flashjit_error_message(nullptr), "");
  flashjit_engine_options options = {};
  flashjit_engine* engine = nullptr;
  EXPECT_EQ(flashjit_engine_create(&options, &engine, &error), FLASHJIT_INVALID);
  EXPECT_NE(std::string(flashjit_error_message(error)).find("struct_size: 0"), std::string::npos);
  flashjit_error_destroy(error);
}

TEST(Missing, BadOptions) {
  EXPECT_EQ(
      refused(Engine::create({.device = Device::Host, .threads = -1}), ErrorKind::Invalid, {"threads: -1", "0..1024"}),
      0);
  EXPECT_EQ(in_child([] {
              setenv("FLASHJIT_THREADS", "many", 1);
              return refused(Engine::create({.device = Device::Host}), ErrorKind::Invalid,
                             {"FLASHJIT_THREADS", "many"});
            }),
            0);
  EXPECT_EQ(refused(compile_spec(kMissedSpec, "sm_1", ""), ErrorKind::Invalid, {"sm_1"}), 0);
  EXPECT_EQ(refused(compile_spec(kMissedSpec, "x86-64-v3", ""), ErrorKind::Invalid, {"x86-64-v3"}), 0);
}

class CompileWithStore : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* where = getenv("FLASHJIT_NVRTC");
    if (auto nvrtc = Nvrtc::open(where ? where : ""); !nvrtc) GTEST_SKIP() << nvrtc.error().message;
  }
  const TemporaryFolder temporary;
  const std::string& folder = temporary.path();
};

TEST_F(CompileWithStore, JitOffNeedsABundle) {
  EXPECT_EQ(in_child([&] {
              KernelStore store({.directory = folder + "/store"});
              const CompileOptions options{.store = &store};
              if (!compile_spec(kMissedSpec, "sm_80", "", options)) return 10;
              setenv("FLASHJIT_JIT", "off", 1);
              // Not even from memory: which compiler made a kernel of the store cannot be told without opening one.
              return refused(compile_spec(kMissedSpec, "sm_80", "", options), ErrorKind::NotFound,
                             {"FLASHJIT_JIT=off", "'fwd bf16 d=64", "flashjit build", "--arch sm_80"});
            }),
            0);
}

TEST_F(CompileWithStore, SameSpecSameBytesInAnotherDirectoryAndLocale) {
  const auto here = compile_spec(kMissedSpec, "sm_80", "");
  ASSERT_TRUE(here) << here.error().message << here.error().detail;
  EXPECT_EQ(here->facts.spill_bytes, 0);
  EXPECT_EQ(here->facts.smem_bytes, here->plan.smem_bytes());
  EXPECT_GT(here->facts.registers, 0);
  EXPECT_EQ(in_child([&] {
              if (chdir(folder.c_str()) != 0) return 1;
              setenv("HOME", "/nowhere", 1);
              setenv("TMPDIR", folder.c_str(), 1);
              if (!setlocale(LC_ALL, "de_DE.UTF-8")) setlocale(LC_ALL, "C.UTF-8");
              const auto there = compile_spec(kMissedSpec, "sm_80", "");
              if (!there) return 2;
              if (there->binary->payload != here->binary->payload) return 3;
              if (there->source.generated.back().text != here->source.generated.back().text) return 4;
              return there->key.digest == here->key.digest && there->key.text == here->key.text ? 0 : 5;
            }),
            0);
}

}  // namespace
}  // namespace flashjit
