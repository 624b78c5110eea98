// Kernels that are tried before they are trusted: what the store remembers of it, which kernel comes in place of a wrong
// one, and that what tries them sees what is wrong.
#include "runtime/compile/verify.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "autotune/measure/in_process.h"
#include "autotune/measure/verify.h"
#include "runtime/engine/environment.h"
#include "runtime/engine/host_library.h"
#include "tests/requests.h"
#include "tests/temporary_folder.h"

namespace flashjit {
namespace {

constexpr char kVerified[] = "fwd bf16 d=64 heads=4/2 mask=\"causal\"";
constexpr char kWhere[] = "o differs by 1 (batch 0, head 1, query 2, column 3)";

// What tries them is a function that finds the kernels of one family wrong.
class VerifiedKernel : public testing::Test {
 protected:
  void SetUp() override {
    auto settings = read_environment();
    ASSERT_TRUE(settings);
    if (auto opened = Nvrtc::open(settings->nvrtc); !opened) GTEST_SKIP() << opened.error().message;
  }
  CompileOptions trying(KernelStore& store, const std::string& wrong_family) {
    CompileOptions options{.store = &store};
    options.verify = [this, wrong_family](const Compiled& compiled) -> Result<std::optional<std::string>> {
      ++tried;
      EXPECT_FALSE(compiled.binary->payload.empty());
      const bool wrong = wrong_family == "all" || name(compiled.plan.schedule.family) == wrong_family;
      return std::optional<std::string>(wrong ? kWhere : "");
    };
    return options;
  }
  KernelStore store() const { return KernelStore({.directory = folder.path()}); }
  static bool is_noted(const Facts& facts) {
    return std::ranges::any_of(facts.notes,
                               [](const std::string& note) { return note.find(kWhere) != std::string::npos; });
  }

  const TemporaryFolder folder;
  int tried = 0;
};

TEST_F(VerifiedKernel, AWrongKernelIsPassedOverNowAndByWhoeverFindsIt) {
  KernelStore first = store();
  const auto made = compile_spec(kVerified, "sm_90a", "", trying(first, "hopper"));
  ASSERT_TRUE(made) << made.error().message;
  EXPECT_EQ(made->facts.family, "sync");
  EXPECT_TRUE(is_noted(made->facts));
  EXPECT_EQ(known_wrong(made->binary->facts), "");
  EXPECT_GE(tried, 2);  // one or more of hopper, and the one that was taken
  const int before = tried;
  KernelStore second = store();
  const auto found = compile_spec(kVerified, "sm_90a", "", {.store = &second});  // does not try anything
  ASSERT_TRUE(found);
  EXPECT_EQ(found->key.digest, made->key.digest);
  EXPECT_TRUE(is_noted(found->facts));
  EXPECT_EQ(second.counters().compiles, 0);
  KernelStore third = store();
  ASSERT_TRUE(compile_spec(kVerified, "sm_90a", "", trying(third, "hopper")));
  EXPECT_EQ(tried, before) << "what is known is not tried again";
}

// Where the family has no other, and registers are no reason to try one that has more of them.
TEST_F(VerifiedKernel, TheNextScheduleOfTheFamilyIsTried) {
  KernelStore kept = store();
  std::vector<std::string> schedules;
  CompileOptions options{.store = &kept};
  options.verify = [&](const Compiled& compiled) -> Result<std::optional<std::string>> {
    schedules.push_back(print(compiled.plan.schedule));
    return std::optional<std::string>(schedules.size() < 3 ? kWhere : "");
  };
  const auto made = compile_spec(kVerified, "sm_80", "", options);
  ASSERT_TRUE(made) << made.error().message;
  ASSERT_EQ(schedules.size(), 3u);
  EXPECT_EQ(std::set<std::string>(schedules.begin(), schedules.end()).size(), 3u);
  EXPECT_EQ(made->facts.schedule, schedules.back());
  EXPECT_TRUE(is_noted(made->facts));
  const auto none = compile_spec("fwd fp16 d=64 heads=4", "sm_80", "", trying(kept, "all"));
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().message.find("the pins leave"), std::string::npos) << "nothing was pinned";
}

TEST_F(VerifiedKernel, AStoredKernelIsTriedOnce) {
  KernelStore first = store();
  const auto untried = compile_spec(kVerified, "sm_80", "", {.store = &first});
  ASSERT_TRUE(untried);
  for (int i = 0; i < 2; ++i) {
    KernelStore again = store();
    const auto verified = compile_spec(kVerified, "sm_80", "", trying(again, "none"));
    ASSERT_TRUE(verified);
    EXPECT_EQ(tried, 1);
    EXPECT_EQ(verified->binary->payload, untried->binary->payload);
    EXPECT_STREQ(verified->facts.source.c_str(), i == 0 ? "compiled" : "disk");
  }
  // In the memory of a store that had it untried.
  ASSERT_TRUE(compile_spec(kVerified, "sm_80", "", trying(first, "none")));
  EXPECT_EQ(tried, 1);
  ASSERT_TRUE(compile_spec(kVerified, "sm_80", "", trying(first, "none")));
  EXPECT_EQ(tried, 1);
}

TEST_F(VerifiedKernel, NothingLeftIsAnErrorThatNamesTheElement) {
  KernelStore kept = store();
  const auto made = compile_spec(kVerified, "sm_80", "", trying(kept, "all"));
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().kind, ErrorKind::Unsupported);
  EXPECT_NE((made.error().message + made.error().detail).find(kWhere), std::string::npos) << made.error().message;
  CompileOptions quick = trying(kept, "all");
  quick.effort = Effort::Quick;
  const auto soon = compile_spec(kVerified, "sm_80", "", quick);
  ASSERT_FALSE(soon);
  EXPECT_NE(soon.error().detail.find(kWhere), std::string::npos) << soon.error().detail;
}

TEST_F(VerifiedKernel, WhatCannotBeTriedIsNotStored) {
  KernelStore kept = store();
  CompileOptions options{.store = &kept};
  options.verify = [](const Compiled&) -> Result<std::optional<std::string>> {
    return Error{ErrorKind::Driver, "no memory left", {}};
  };
  const auto made = compile_spec(kVerified, "sm_80", "", options);
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().message, "no memory left");
  const auto stat = stat_store(folder.path());
  ASSERT_TRUE(stat);
  EXPECT_EQ(stat->entries, 0);
  // Where it was not asked for, it is taken all the same.
  options.verify = [](const Compiled&) -> Result<std::optional<std::string>> { return std::optional<std::string>(); };
  EXPECT_TRUE(compile_spec(kVerified, "sm_80", "", options));
}

TEST_F(VerifiedKernel, NoTrialBeginsAfterTheTimeout) {
  KernelStore kept = store();
  std::atomic<bool> cancelled = false;
  CompileOptions options = trying(kept, "none");
  options.bounds = CompileBounds(std::chrono::milliseconds(0), &cancelled);
  ASSERT_TRUE(compile_spec(kVerified, "sm_80", "", {.store = &kept}));
  // What compiles is there already: the only thing left to do is the trial.
  cancelled = true;
  const auto called_off = compile_spec(kVerified, "sm_80", "", options);
  ASSERT_FALSE(called_off);
  EXPECT_EQ(called_off.error().kind, ErrorKind::Cancelled);
  EXPECT_EQ(tried, 0);
}

TEST(VerifiedUnasked, NewerCompilersAndDriversThanTheTestedOnes) {
  EXPECT_EQ(why_untested(13000, 13000), "");
  EXPECT_EQ(why_untested(12080, 12040), "");
  EXPECT_EQ(why_untested(0, 0), "");
  EXPECT_NE(why_untested(13010, 13000).find("NVRTC 13.1"), std::string::npos);
  EXPECT_NE(why_untested(13000, 14020).find("driver 14.2"), std::string::npos);
}

// A right kernel, of which one element of the results is changed.
class Wrong : public Kernel {
 public:
  Wrong(Kernel& right, std::int64_t element, bool left_out) : right_(right), element_(element), left_out_(left_out) {}
  const Facts& facts() const override { return right_.facts(); }
  Result<std::int64_t> workspace_bytes(const Arguments& arguments) const override {
    return right_.workspace_bytes(arguments);
  }
  Result<void> run(const Arguments& arguments, void* stream) override {
    float& victim = static_cast<float*>(arguments.o.data)[element_];
    const float poison = victim;
    FLASHJIT_TRY(right_.run(arguments, stream));
    victim = left_out_ ? poison : victim + 1;
    return {};
  }

 private:
  Kernel& right_;
  const std::int64_t element_;
  const bool left_out_;
};

class VerifiedHere : public testing::Test {
 protected:
  void SetUp() override {
    if (!host_library()) GTEST_SKIP() << "built without the host backend (LLVM 19)";
    enable_in_prepare();
    auto made = Engine::create({.device = Device::Host, .disk_cache = false, .threads = 2});
    ASSERT_TRUE(made);
    engine = std::move(*made);
  }
  std::shared_ptr<Engine> engine;
};

TEST_F(VerifiedHere, RightKernelsAreRight) {
  for (const char* spec :
       {"fwd fp32 d=64 heads=4", "fwd bf16 d=128 heads=8/2 mask=\"causal\" lse=ln", "fwd fp16 d=192/128 heads=2 sink",
        "fwd bf16 d=64 heads=4 layout=packed mask=\"document(doc)\"", "fwd fp16 d=40 heads=3 q_len=1 k_len=4096",
        "fwd bf16 d=64 heads=2 b<=1 k_len<=64 score=\"softcap(20)\"",
        "fwd fp32 d=32 heads=2 score=\"s + t[h, k] * w\" params=\"t: fp32[2], w: fp32\"",
        "fwd bf16 d=64 heads=4 layout=bhsd mask=\"k < n\" params=\"n: i32\"",
        "fwd fp32 d=8 mask=\"t[k + n] > 0\" params=\"t: fp32[1], n: i32\""}) {
    const auto kernel = engine->prepare(spec, {.verify = true});
    EXPECT_TRUE(kernel) << spec << ": " << kernel.error().message << kernel.error().detail;
  }
}

TEST_F(VerifiedHere, OneWrongElementIsNamed) {
  // Few enough rows that all are looked at.
  const std::string text = "fwd fp32 d=32 heads=2 q_len=40 k_len=300";
  const auto kernel = engine->prepare(text);
  const auto spec = parse_spec(text);
  ASSERT_TRUE(kernel && spec);
  constexpr std::int64_t kElement = ((0 * 40 + 17) * 2 + 1) * 32 + 5;  // query 17, head 1, column 5
  for (const bool left_out : {false, true}) {
    Wrong wrong(**kernel, kElement, left_out);
    const auto problem = verify_here(*spec, wrong, nullptr);
    ASSERT_TRUE(problem) << problem.error().message;
    EXPECT_NE(problem->find("batch 0, head 1, query 17, column 5"), std::string::npos) << *problem;
    EXPECT_NE(problem->find("--seed"), std::string::npos) << *problem;
  }
}

// A trial is of some 20 to 300 ms, whatever the spec says.
TEST_F(VerifiedHere, WhatHasNoSmallProblemIsNotTried) {
  for (const auto& [spec, why] : {
           std::pair{"fwd fp32 d=8 q_len=200000 k_len=200000", "multiply-adds"},
           std::pair{"fwd fp32 d=256 heads=64 q_len=200000 k_len=1", "need 26.2 GB"},
           std::pair{"fwd fp32 d=8 layout=packed b=500000 k_len<=3", "more than 1.0 GB"},
           std::pair{"fwd fp32 d=8 mask=\"t[k + n * 1000000000] > 0\" params=\"t: fp32[1], n: i32\"", "up to t"},
           std::pair{"fwd fp32 d=8 mask=\"t[k + n * 2000000000] > 0\" params=\"t: fp32[1], n: i32\"",
                     "runs to 2000000524 with n=1"},
           std::pair{"fwd fp32 d=8 mask=\"t[k - n] > 0\" params=\"t: fp32[1], n: i32\"", "runs from -1 to 523"},
       }) {
    const auto kernel = engine->prepare(spec, {.verify = true});
    ASSERT_FALSE(kernel) << spec;
    EXPECT_EQ(kernel.error().kind, ErrorKind::Unsupported) << spec;
    EXPECT_NE(kernel.error().message.find("verify: this kernel cannot be tried"), std::string::npos)
        << kernel.error().message;
    EXPECT_NE(kernel.error().message.find(why), std::string::npos) << kernel.error().message;
    EXPECT_TRUE(engine->prepare(spec)) << spec;
  }
}

}  // namespace
}  // namespace flashjit
