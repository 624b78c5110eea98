// Which kernel a spec gets when the compiler's log speaks against the first choice. What the log says is put into the
// store beforehand: kernels found there are judged like those that were just made. Skipped where NVRTC is not
// installed.

#include <gtest/gtest.h>

#include <algorithm>

#include "runtime/engine/environment.h"
#include "tests/requests.h"

namespace flashjit {
namespace {

constexpr char kCompiled[] = "fwd bf16 d=64 heads=4/2 mask=\"causal\"";

class CompileTest : public testing::Test {
 protected:
  void SetUp() override {
    auto settings = read_environment();
    ASSERT_TRUE(settings);
    if (auto opened = Nvrtc::open(settings->nvrtc); !opened) GTEST_SKIP() << opened.error().message;
  }

  // Compiles with all that was compiled before in the store, the bad ones with a fact against them.
  Result<Compiled> compile(const std::string& schedule) {
    KernelStore store({.disk = false});
    for (const auto& known : known_) {
      EXPECT_TRUE(store.fetch(known.first, [&]() -> Result<StoreEntry> { return known.second; }));
    }
    auto compiled = compile_spec(kCompiled, "sm_90a", schedule, {.store = &store});
    if (compiled && !find(compiled->key)) known_.emplace_back(compiled->key, *compiled->binary);
    return compiled;
  }
  // From now on the store says this of a kernel.
  void spoil(const Compiled& compiled, const std::string& fact, const std::string& value) {
    find(compiled.key)->facts[fact] = value;
  }

  static bool has_note(const Compiled& compiled, const std::string& words) {
    return std::ranges::any_of(compiled.facts.notes,
                               [&](const std::string& note) { return note.find(words) != std::string::npos; });
  }

 private:
  StoreEntry* find(const StoreKey& key) {
    for (auto& [known, entry] : known_) {
      if (known.digest == key.digest) return &entry;
    }
    return nullptr;
  }
  std::vector<std::pair<StoreKey, StoreEntry>> known_;
};

TEST_F(CompileTest, ARejectedHopperKernelIsReplacedByALooserOne) {
  const auto first = compile("family=hopper");
  ASSERT_TRUE(first) << first.error().message;
  EXPECT_EQ(first->facts.family, "hopper");
  spoil(*first, "serialised", "wgmma instructions are serialized due to this");
  const auto second = compile("family=hopper");
  ASSERT_TRUE(second) << second.error().message;
  EXPECT_EQ(second->facts.family, "hopper");
  EXPECT_NE(second->facts.schedule, first->facts.schedule);
  EXPECT_TRUE(
      has_note(*second, first->facts.schedule + " was passed over: wgmma instructions are serialized due to this"));
}

TEST_F(CompileTest, APinnedScheduleThatIsRejectedIsRefused) {
  const auto first = compile("family=hopper");
  ASSERT_TRUE(first) << first.error().message;
  const std::string schedule = first->facts.schedule;
  const auto refused = [&](const std::string& words) {
    const auto result = compile(schedule);
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().kind, ErrorKind::Unsupported);
    for (const std::string& part : {schedule, words, std::string("pin family=sync")}) {
      EXPECT_NE(result.error().message.find(part), std::string::npos) << result.error().message;
    }
  };
  ASSERT_TRUE(compile(schedule));
  spoil(*first, "setmaxnreg_ignored", "'setmaxnreg' ignored; for this reason");
  refused("'setmaxnreg' ignored; for this reason");
  spoil(*first, "setmaxnreg_ignored", "");
  ASSERT_TRUE(compile(schedule));
  spoil(*first, "spill_bytes", "76");
  refused("it would spill 76 bytes");
}

TEST_F(CompileTest, TheSyncFamilyIsTheLastResort) {
  for (int i = 0; i < 12; ++i) {
    const auto compiled = compile("");
    ASSERT_TRUE(compiled) << compiled.error().message;
    if (compiled->facts.family == "sync") {
      EXPECT_GE(i, 1);
      EXPECT_TRUE(has_note(*compiled, "was passed over: it would spill"));
      return;
    }
    spoil(*compiled, "spill_bytes", "100");
  }
  FAIL() << "hopper kernels that spill are still accepted";
}

TEST_F(CompileTest, ASyncKernelMaySpill) {
  const auto first = compile("family=sync");
  ASSERT_TRUE(first) << first.error().message;
  spoil(*first, "spill_bytes", "8");
  const auto pinned = compile(first->facts.schedule);
  ASSERT_TRUE(pinned) << pinned.error().message;
  EXPECT_TRUE(
      has_note(*pinned, "the kernel spills 8 bytes of registers to memory; the pinned schedule leaves no other way"));
}

}  // namespace
}  // namespace flashjit
