// A hint of the sizes never makes a kernel that needs a workspace for who does not say that calls bring one.
#include <string>

#include "tests/embed/embed_fixture.h"

namespace flashjit {
namespace {

constexpr char kPlain[] = "fwd bf16 d=64 heads=8/1";

// No address of the process: nothing is read there.
void* on_device(int number) { return reinterpret_cast<void*>(0x10000000ull + 0x10000000ull * number); }

// Few query tiles on many keys: blocks could share these.
Arguments long_keys() {
  Arguments a;
  a.q = {on_device(0), "bf16", {1, 256, 8, 64}, {}};
  a.k = {on_device(1), "bf16", {1, 32768, 1, 64}, {}};
  a.v = {on_device(2), "bf16", {1, 32768, 1, 64}, {}};
  a.o = {on_device(3), "bf16", {1, 256, 8, 64}, {}};
  return a;
}

struct Hint : ::testing::Test {
  void SetUp() override {
    engine = create_engine({.ordinal = 1, .disk_cache = false});
    if (!engine) GTEST_SKIP() << "no NVRTC on this machine";
  }
  std::shared_ptr<Kernel> prepared(bool workspace) const {
    PrepareOptions options;
    options.shape = "b=1,q=256,k=32768";
    options.workspace = workspace;
    auto kernel = engine->prepare(kPlain, options);
    EXPECT_TRUE(kernel) << kernel.error().message;
    return kernel ? *kernel : nullptr;
  }
  std::shared_ptr<Engine> engine;
};

bool says_workspace(const Kernel& kernel) {
  for (const std::string& note : kernel.facts().notes) {
    if (note.find("needs a workspace: ask for it with the option `workspace`") != std::string::npos) return true;
  }
  return false;
}

TEST_F(Hint, RunsWithoutAWorkspaceAsItDidWithoutAHint) {
  const auto kernel = prepared(false);
  ASSERT_TRUE(kernel);
  const auto bytes = kernel->workspace_bytes(long_keys());
  ASSERT_TRUE(bytes) << bytes.error().message;
  EXPECT_EQ(*bytes, 0);
  const auto run = kernel->run(long_keys());
  EXPECT_TRUE(run) << run.error().message;
  EXPECT_TRUE(says_workspace(*kernel)) << kernel->facts().schedule;
}

TEST_F(Hint, GivesWhoBringsOneTheFasterKernel) {
  const auto kernel = prepared(true), plain = prepared(false);
  ASSERT_TRUE(kernel && plain);
  EXPECT_NE(kernel, plain) << "the same words but for the option";
  EXPECT_NE(kernel->facts().schedule, plain->facts().schedule);
  EXPECT_FALSE(says_workspace(*kernel));
  Arguments a = long_keys();
  const auto bytes = kernel->workspace_bytes(a);
  ASSERT_TRUE(bytes) << bytes.error().message;
  ASSERT_GT(*bytes, 0);
  const auto refused = kernel->run(a);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("workspace: missing"), std::string::npos) << refused.error().message;
  a.workspace = on_device(4);
  a.workspace_bytes = *bytes;
  const auto run = kernel->run(a);
  EXPECT_TRUE(run) << run.error().message;
}

}  // namespace
}  // namespace flashjit
