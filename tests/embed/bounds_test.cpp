// What bounds, isolates, replaces and forbids compiled code, through the engine of the library: the recording driver
// takes any machine code.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "tests/embed/embed_fixture.h"
#include "tests/temporary_folder.h"

namespace flashjit {
namespace {

using namespace std::chrono_literals;

class BoundsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    engine = create_engine({.disk_cache = false});
    if (!engine) GTEST_SKIP() << "no NVRTC on this machine";
  }
  static PrepareOptions within(std::chrono::milliseconds budget) {
    PrepareOptions options;
    options.budget = budget;
    return options;
  }
  static bool shell(const std::string& command) { return std::system(command.c_str()) == 0; }
  static bool build_bundle(const std::string& path) {
    const std::string command = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "flashjit";
    return shell("echo '" + std::string(kSpec) + "' | '" + command + "' build - --arch sm_80 --no-cache -o '" + path +
                 "' > /dev/null 2>&1");
  }
  std::shared_ptr<Engine> engine;
};

TEST_F(BoundsTest, QuickCodeAnswersAndTheBestCodeReplacesIt) {
  const auto kernel = engine->prepare(kSpec, within(1ms));
  ASSERT_TRUE(kernel) << kernel.error().message;
  EXPECT_EQ(engine->counters().quick_kernels, 1);
  ASSERT_TRUE((*kernel)->run(arguments()));
  const int unloads = fake_cuda::fake_cuda_counters().unloads;
  while (engine->counters().replaced_kernels == 0) std::this_thread::sleep_for(5ms);
  for (const std::string& note : (*kernel)->facts().notes)
    EXPECT_EQ(note.find("quickly compiled"), std::string::npos) << note;
  ASSERT_TRUE((*kernel)->run(arguments()));
  EXPECT_EQ(fake_cuda::fake_cuda_counters().unloads, unloads) << "graphs may still launch the quick code";
  const auto again = engine->prepare(kSpec, within(1ms));
  ASSERT_TRUE(again);
  EXPECT_EQ(*again, *kernel);
  EXPECT_EQ(engine->counters().quick_kernels, 1);
  EXPECT_EQ(engine->counters().compiles, 2);
}

// No level of --Ofast-compile makes a hopper kernel that may run.
TEST_F(BoundsTest, FromTheSyncFamilyToHopper) {
  const auto newer = Engine::create({.ordinal = 1, .disk_cache = false});
  ASSERT_TRUE(newer) << newer.error().message;
  const auto kernel = (*newer)->prepare(kSpec, within(1ms));
  ASSERT_TRUE(kernel) << kernel.error().message;
  EXPECT_EQ((*newer)->counters().quick_kernels, 1);
  ASSERT_TRUE((*kernel)->run(arguments()));
  while ((*newer)->counters().replaced_kernels == 0) std::this_thread::sleep_for(5ms);
  EXPECT_EQ((*kernel)->facts().family, "hopper");
  ASSERT_TRUE((*kernel)->run(arguments()));
}

// The hint chooses another hopper schedule (192 rows instead of 128): that is what is waited for, and no pin of the
// quick code.
TEST_F(BoundsTest, AHintDoesNotKeepQuickCodeFromAnswering) {
  const auto newer = Engine::create({.ordinal = 1, .disk_cache = false});
  ASSERT_TRUE(newer) << newer.error().message;
  PrepareOptions options = within(1ms);
  options.shape = "b=1,q=32768,k=32768";
  const auto kernel = (*newer)->prepare("fwd bf16 d=64 heads=16/4 mask=\"causal\"", options);
  ASSERT_TRUE(kernel) << kernel.error().message;
  EXPECT_EQ((*newer)->counters().quick_kernels, 1);
  while ((*newer)->counters().replaced_kernels == 0) std::this_thread::sleep_for(5ms);
  EXPECT_NE((*kernel)->facts().schedule.find("tile_q=192"), std::string::npos) << (*kernel)->facts().schedule;
}

TEST_F(BoundsTest, WithTimeEnoughTheBestCodeAnswers) {
  const auto kernel = engine->prepare(kSpec, within(1h));
  ASSERT_TRUE(kernel) << kernel.error().message;
  EXPECT_EQ(engine->counters().quick_kernels, 0);
  EXPECT_EQ(engine->counters().compiles, 1);
}

TEST_F(BoundsTest, NoQuickCodeForThoseWhoAskForTheSameBits) {
  for (const char* numerics : {" numerics=deterministic", " numerics=batch_invariant"}) {
    const auto kernel = engine->prepare(std::string(kSpec) + numerics, within(1ms));
    ASSERT_TRUE(kernel) << kernel.error().message;
    EXPECT_EQ(engine->counters().quick_kernels, 0);
  }
}

TEST_F(BoundsTest, ABudgetDoesNotChangeWhatIsRefused) {
  const auto kernel = engine->prepare("fwd bf16 d=-1 heads=4", within(1ms));
  ASSERT_FALSE(kernel);
  EXPECT_EQ(kernel.error().kind, ErrorKind::Invalid);
}

TEST_F(BoundsTest, AnEngineEndsWhileTheBestCodeIsCompiled) {
  const auto kernel = engine->prepare(kSpec, within(1ms));
  ASSERT_TRUE(kernel) << kernel.error().message;
  engine.reset();
  EXPECT_TRUE((*kernel)->run(arguments()));
}

TEST_F(BoundsTest, TimeoutThenTheSameAgainWithTime) {
  PrepareOptions options;
  options.timeout = 5ms;
  const auto late = engine->prepare(kSpec, options);
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().kind, ErrorKind::Timeout) << late.error().message;
  const auto kernel = engine->prepare(kSpec);
  ASSERT_TRUE(kernel) << kernel.error().message;
  EXPECT_TRUE(engine->prepare(kSpec, options)) << "what is prepared takes no time";
}

TEST_F(BoundsTest, ACancelledPrepareDoesNotHurtOthers) {
  std::atomic<bool> cancel = false;
  std::atomic<int> right = 0;
  std::thread canceller([&] {
    PrepareOptions options;
    options.cancel = &cancel;
    const auto kernel = engine->prepare(kSpec, options);
    EXPECT_TRUE(kernel || kernel.error().kind == ErrorKind::Cancelled) << kernel.error().message;
  });
  while (engine->counters().misses == 0) std::this_thread::sleep_for(1ms);
  std::vector<std::thread> others;
  for (int i = 0; i < 4; ++i) others.emplace_back([&] { right += bool(engine->prepare(kSpec)); });
  cancel = true;
  canceller.join();
  for (std::thread& other : others) other.join();
  EXPECT_EQ(right, 4);
  EXPECT_EQ(engine->counters().compiles, 1);
}

TEST_F(BoundsTest, IsolatedCompilerIsFoundBesideTheLibrary) {
  const auto isolated = Engine::create({.disk_cache = false, .isolate_compiler = true});
  ASSERT_TRUE(isolated) << isolated.error().message << isolated.error().detail;
  const auto there = (*isolated)->prepare(kSpec), here = engine->prepare(kSpec);
  ASSERT_TRUE(there) << there.error().message;
  ASSERT_TRUE(here) << here.error().message;
  EXPECT_EQ((*there)->facts().key, (*here)->facts().key);
  EXPECT_EQ((*there)->facts().registers, (*here)->facts().registers);
}

TEST_F(BoundsTest, OverrideOfAnEngine) {
  const auto missing = Engine::create({.disk_cache = false, .override_dir = "/nowhere"});
  ASSERT_TRUE(missing) << missing.error().message;
  const auto kernel = (*missing)->prepare(kSpec);
  ASSERT_FALSE(kernel);
  EXPECT_EQ(kernel.error().kind, ErrorKind::Invalid);
  EXPECT_NE(kernel.error().message.find("/nowhere"), std::string::npos);
}

TEST_F(BoundsTest, FactsAndCountersSayWhereAKernelCameFrom) {
  const TemporaryFolder temporary;
  const std::string& folder = temporary.path();
  for (int round = 0; round < 2; ++round) {
    const auto own = Engine::create({.cache_dir = folder});
    ASSERT_TRUE(own);
    const auto kernel = (*own)->prepare(kSpec);
    ASSERT_TRUE(kernel) << kernel.error().message;
    ASSERT_TRUE((*own)->prepare(kSpec));
    const Counters counters = (*own)->counters();
    EXPECT_EQ(counters.memory_hits, 1);
    EXPECT_EQ(counters.disk_hits, round);
    EXPECT_EQ(counters.misses, 1 - round);
    EXPECT_EQ(counters.compiles, 1 - round);
    EXPECT_GT(round ? counters.bytes_read : counters.bytes_written, 1000);
    EXPECT_EQ((*kernel)->facts().source, round ? "disk" : "compiled");
    EXPECT_EQ((*kernel)->facts().layer, round ? folder : "");
    EXPECT_EQ((*kernel)->facts().miss, round ? "" : "no entry in " + folder);
  }
}

// What changes in the environment later counts for the next engine.
TEST_F(BoundsTest, AnEngineKeepsTheEnvironmentItWasCreatedWith) {
  const TemporaryFolder temporary;
  const auto own = Engine::create({.disk_cache = false});
  ASSERT_TRUE(own);
  setenv("FLASHJIT_DUMP_DIR", temporary.path().c_str(), 1);
  setenv("FLASHJIT_LOG", (temporary.path() + "/log").c_str(), 1);
  setenv("FLASHJIT_JIT", "off", 1);
  const auto kernel = (*own)->prepare(kSpec);
  PrepareOptions soon;
  soon.budget = std::chrono::hours(1);
  const auto other = (*own)->prepare(std::string(kSpec) + " lse=ln", soon);
  const auto next = Engine::create({.disk_cache = false});
  setenv("FLASHJIT_JIT", "maybe", 1);
  const auto third = (*own)->prepare(std::string(kSpec) + " lse=log2");
  for (const char* name : {"FLASHJIT_DUMP_DIR", "FLASHJIT_LOG", "FLASHJIT_JIT"}) unsetenv(name);
  ASSERT_TRUE(kernel) << kernel.error().message;
  EXPECT_EQ((*kernel)->facts().source, "compiled");
  EXPECT_TRUE(other) << other.error().message;
  EXPECT_TRUE(third) << third.error().message;
  EXPECT_TRUE(std::filesystem::is_empty(temporary.path()));
  ASSERT_FALSE(next);
  EXPECT_EQ(next.error().kind, ErrorKind::NotFound);
}

bool says_unheeded(const Kernel& kernel) {
  for (const std::string& note : kernel.facts().notes) {
    if (note.find("shape: this engine chooses no schedule by sizes") != std::string::npos) return true;
  }
  return false;
}

// The schedule of a bundle was chosen when it was built. A caller who names sizes learns it.
TEST_F(BoundsTest, ABundleHeedsNoSizesAndSaysSo) {
  const TemporaryFolder temporary;
  const std::string bundle = temporary.path() + "/x.fjb";
  ASSERT_TRUE(build_bundle(bundle));
  const auto made = Engine::create({.disk_cache = false, .bundles = {bundle}, .jit = false});
  ASSERT_TRUE(made) << made.error().message;
  PrepareOptions sizes;
  sizes.shape = "b=64,q=1,k=8192";
  const auto kernel = (*made)->prepare(kSpec, sizes);
  ASSERT_TRUE(kernel) << kernel.error().message;
  EXPECT_EQ((*kernel)->facts().source, "bundle");
  EXPECT_TRUE(says_unheeded(**kernel));
}

// Whoever cannot reach the options of an engine, because a library made it, names bundles and a manifest in the environment.
TEST_F(BoundsTest, TheEnvironmentNamesBundlesAndAManifest) {
  const TemporaryFolder temporary;
  const std::string bundle = temporary.path() + "/x.fjb", manifest = temporary.path() + "/kernels.txt";
  ASSERT_TRUE(build_bundle(bundle));
  setenv("FLASHJIT_JIT", "off", 1);
  setenv("FLASHJIT_BUNDLES", bundle.c_str(), 1);
  setenv("FLASHJIT_RECORD", manifest.c_str(), 1);
  const auto made = Engine::create({.disk_cache = false});
  setenv("FLASHJIT_BUNDLES", (bundle + ":" + bundle + "-of-others").c_str(), 1);
  const auto missing = Engine::create({.disk_cache = false}),
             given = Engine::create({.disk_cache = false, .bundles = {bundle}});
  for (const char* name : {"FLASHJIT_JIT", "FLASHJIT_BUNDLES", "FLASHJIT_RECORD"}) unsetenv(name);
  ASSERT_TRUE(made) << made.error().message;
  const auto kernel = (*made)->prepare(kSpec);
  ASSERT_TRUE(kernel) << kernel.error().message;
  EXPECT_EQ((*kernel)->facts().source, "bundle");
  EXPECT_TRUE(shell("grep -qx '" + std::string((*kernel)->facts().spec) + "' '" + manifest + "'"));
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().message.find("FLASHJIT_BUNDLES: "), 0u) << missing.error().message;
  EXPECT_TRUE(given) << "an engine's own bundles count: " << given.error().message;
}

// An option says of one engine what the environment says of all.
TEST_F(BoundsTest, AnEngineWithoutJitTakesBundlesAlone) {
  const TemporaryFolder temporary;
  const std::string bundle = temporary.path() + "/x.fjb", other = std::string(kSpec) + " lse=ln";
  ASSERT_TRUE(build_bundle(bundle));
  const auto none = Engine::create({.disk_cache = false, .jit = false});
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().kind, ErrorKind::NotFound);
  EXPECT_NE(none.error().message.find("jit=false"), std::string::npos) << none.error().message;
  for (const bool jit : {false, true}) {
    const auto made = Engine::create({.disk_cache = false, .bundles = {bundle}, .jit = jit});
    ASSERT_TRUE(made) << made.error().message;
    const auto bundled = (*made)->prepare(kSpec), absent = (*made)->prepare(other);
    ASSERT_TRUE(bundled) << bundled.error().message;
    EXPECT_EQ((*bundled)->facts().source, "bundle");
    EXPECT_FALSE(says_unheeded(**bundled));
    EXPECT_EQ(bool(absent), jit);
    if (!absent) {
      EXPECT_EQ(absent.error().kind, ErrorKind::NotFound);
      EXPECT_NE(absent.error().message.find("flashjit build"), std::string::npos) << absent.error().message;
    }
  }
}

// Bundles and entries of shared directories that are on the list are used, others not.
TEST_F(BoundsTest, TheListOfTrustedFilesHoldsForAnEngine) {
  const TemporaryFolder temporary;
  const std::string folder = temporary.path(), site = folder + "/site", list = folder + "/list",
                    bundle = folder + "/x.fjb";
  ASSERT_TRUE((*Engine::create({.cache_dir = site}))->prepare(kSpec));
  ASSERT_TRUE(build_bundle(bundle));
  ASSERT_TRUE(shell("umask 022; sha256sum '" + site + "'/v1/*/* '" + bundle + "' > '" + list +
                    "'; sha256sum /dev/null > '" + list + "-of-others'"));

  const auto source = [&](const EngineOptions& options) {
    const auto made = Engine::create(options);
    if (!made) return made.error().message;
    const auto kernel = (*made)->prepare(kSpec);
    return kernel ? (*kernel)->facts().source + " " + (*kernel)->facts().miss : kernel.error().message;
  };
  EXPECT_EQ(source({.cache_dir = folder + "/a:" + site, .trusted_list = list}), "disk ");
  EXPECT_EQ(source({.disk_cache = false, .bundles = {bundle}, .trusted_list = list}), "bundle ");
  EXPECT_NE(source({.cache_dir = folder + "/b:" + site, .trusted_list = list + "-of-others"})
                .find("compiled no entry in " + folder + "/b; an entry that is not on"),
            std::string::npos);
  EXPECT_NE(source({.disk_cache = false, .bundles = {bundle}, .trusted_list = list + "-of-others"})
                .find("is not in " + list + "-of-others"),
            std::string::npos);
}

}  // namespace
}  // namespace flashjit
