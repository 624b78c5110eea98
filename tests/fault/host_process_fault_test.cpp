// The program around engines of a processor: it forks, waits for signals, and has set up floating point in its own way.
#include <fenv.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "flashjit/flashjit.h"
#include "flashjit/flashjit.hpp"
#include "tests/fault/store_fixture.h"

namespace flashjit {
namespace {

constexpr char kSpecOfHost[] = "fwd fp32 d=16 heads=4 mask=\"causal\"";
constexpr std::int64_t kTokens = 70;

struct Call {
  Call() {
    for (std::size_t i = 0; i < q.size(); ++i) q[i] = static_cast<float>(i % 37) * 0.07f - 1;
    for (Tensor* tensor : {&arguments.q, &arguments.k, &arguments.v})
      *tensor = {q.data(), "fp32", {1, kTokens, 4, 16}, {}};
    arguments.o = {o.data(), "fp32", {1, kTokens, 4, 16}, {}};
  }
  Call(const Call&) = delete;
  std::vector<float> q = std::vector<float>(kTokens * 4 * 16), o = q;
  Arguments arguments;
};

class HostProcess : public StoreFault {
 protected:
  void SetUp() override {
    const auto made = create();
    if (!made) GTEST_SKIP() << made.error().message;
    engine = *made;
    const auto prepared = engine->prepare(kSpecOfHost);
    ASSERT_TRUE(prepared) << prepared.error().message;
    kernel = *prepared;
  }
  Result<std::shared_ptr<Engine>> create() const {
    return Engine::create(
        {.device = Device::Host, .cache_dir = store_path(), .disk_cache = false, .threads = 3, .tuned = false});
  }
  std::shared_ptr<Engine> engine;
  std::shared_ptr<Kernel> kernel;
};

TEST_F(HostProcess, AForkedChildGivesAnEngineBack) {
  Call call;
  ASSERT_TRUE(kernel->run(call.arguments));
  EXPECT_EQ(in_child([&] {
              kernel.reset();
              engine.reset();
              exit(0);  // with all that is done at exit
              return 1;
            }),
            0);
  EXPECT_TRUE(kernel->run(call.arguments)) << "the parent's threads are there as before";
}

TEST_F(HostProcess, AForkedChildUsesAnEngine) {
  Call call;
  ASSERT_TRUE(kernel->run(call.arguments));
  const std::vector<float> expected = call.o;
  EXPECT_EQ(in_child([&] {
              std::fill(call.o.begin(), call.o.end(), 0.0f);
              if (!kernel->run(call.arguments) || call.o != expected) return 1;
              const auto another = engine->prepare("fwd fp32 d=16 heads=4 mask=\"window(3, 0)\"");
              if (!another || !(*another)->run(call.arguments)) return 2;
              const auto own = create();
              if (!own || !(*own)->prepare(kSpecOfHost)) return 3;
              return 0;
            }),
            0);
}

TEST_F(HostProcess, ForksWhileOthersRun) {
  std::atomic<bool> stop = false;
  std::vector<std::jthread> runners;
  for (int i = 0; i < 2; ++i) {
    runners.emplace_back([&] {
      Call call;
      while (!stop) static_cast<void>(kernel->run(call.arguments));
    });
  }
  int wrong = 0;
  for (int i = 0; i < (is_long() ? 3000 : 300); ++i) {
    const int result = in_child([&] {
      alarm(10);
      Call call;
      if (!kernel->run(call.arguments)) return 1;
      kernel.reset();
      engine.reset();
      return 0;
    });
    wrong += result != 0;
  }
  stop = true;
  runners.clear();
  EXPECT_EQ(wrong, 0);
}

// Each spec in words that nobody has used: found by its meaning, so that the short locks of a prepare are what it does.
TEST_F(HostProcess, ForksWhileOthersPrepare) {
  const auto tuned = Engine::create({.device = Device::Host, .cache_dir = store_path(), .threads = 2});
  ASSERT_TRUE(tuned);
  ASSERT_TRUE((*tuned)->prepare(kSpecOfHost));
  const auto in_new_words = [](int n) {
    return kSpecOfHost + std::string(" numerics=fast") + std::string(static_cast<std::size_t>(n), ' ');
  };
  std::atomic<bool> stop = false;
  std::vector<std::jthread> others;
  for (int thread = 0; thread < 3; ++thread) {
    others.emplace_back([&, thread] {
      for (int i = 0; !stop; ++i) {
        // One of them compiles and stores.
        const auto made =
            thread ? (*tuned)->prepare(in_new_words(i % 1000))
                   : (*tuned)->prepare("fwd fp32 d=16 heads=4 mask=\"window(" + std::to_string(i) + ", 0)\"");
        EXPECT_TRUE(made);
      }
    });
  }
  int wrong = 0;
  for (int i = 0; i < (is_long() ? 3000 : 100); ++i) {
    wrong += in_child([&] {
               alarm(10);
               if (!(*tuned)->prepare(in_new_words(1000 + i))) return 1;
               if (i % 25 == 0 && !(*tuned)->prepare("fwd fp32 d=16 heads=2 mask=\"causal\"")) return 2;
               return 0;
             }) != 0;
  }
  stop = true;
  others.clear();
  EXPECT_EQ(wrong, 0);
}

// Blocked after the engine was made: none of its threads may take it, and die of it.
TEST_F(HostProcess, SignalsAreForTheProgram) {
  EXPECT_EQ(in_child([&] {
              const auto own = create();
              if (!own) return 1;
              sigset_t mask, waited;
              pthread_sigmask(SIG_SETMASK, nullptr, &mask);
              if (sigismember(&mask, SIGTERM)) return 2;  // making an engine changes nothing here
              sigemptyset(&waited);
              sigaddset(&waited, SIGTERM);
              pthread_sigmask(SIG_BLOCK, &waited, nullptr);
              kill(getpid(), SIGTERM);
              std::this_thread::sleep_for(milliseconds(50));
              int got = 0;
              return sigwait(&waited, &got) == 0 && got == SIGTERM ? 0 : 3;
            }),
            0);
}

// The path of a store is a fact, and need not be UTF-8.
TEST_F(HostProcess, FactsAreUtf8WhateverThePath) {
  const std::string path = folder + "/caf\xe9";
  flashjit_engine_options options = {};
  options.struct_size = sizeof options;
  options.host = 1;
  options.cache_dir = path.c_str();
  std::string facts;
  for (int i = 0; i < 2; ++i) {  // made, and found there
    flashjit_engine* own = nullptr;
    flashjit_kernel* made = nullptr;
    ASSERT_EQ(flashjit_engine_create(&options, &own, nullptr), FLASHJIT_OK);
    ASSERT_EQ(flashjit_prepare(own, kSpecOfHost, nullptr, &made, nullptr), FLASHJIT_OK);
    facts = flashjit_kernel_facts(made);
    flashjit_kernel_destroy(made);
    flashjit_engine_destroy(own);
    EXPECT_TRUE(std::ranges::all_of(facts, [](char c) { return c > 0; })) << facts;
  }
  EXPECT_NE(facts.find(R"(/caf\\xe9")"), std::string::npos) << facts;
}

constexpr char kConstants[] =
    "fwd fp32 d=16 heads=4 scale=0.1 mask=\"causal\" score=\"s * 0.3 + 0.7 * tanh(s / 0.9) - 0.2 * 0.7\"";

TEST_F(HostProcess, RoundingOfTheCallerChangesNothing) {
  Call call;
  const auto plain = engine->prepare(kConstants);
  ASSERT_TRUE(plain) << plain.error().message;
  ASSERT_TRUE((*plain)->run(call.arguments));
  const std::vector<float> expected = call.o;
  for (const int rounding : {FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO}) {
    fesetround(rounding);
    const auto own = create();
    const auto made = own ? (*own)->prepare(kConstants) : own.error();
    const auto done = made ? (*made)->run(call.arguments) : Result<void>(made.error());
    const int after = fegetround();
    fesetround(FE_TONEAREST);
    ASSERT_TRUE(done) << done.error().message;
    EXPECT_EQ(after, rounding) << "it is the caller's";
    EXPECT_EQ((*made)->facts().key, (*plain)->facts().key);
    EXPECT_EQ((*made)->facts().spec, (*plain)->facts().spec);
    EXPECT_EQ(std::memcmp(call.o.data(), expected.data(), expected.size() * sizeof(float)), 0);
  }
}

TEST_F(HostProcess, TrapsOfTheCallerDoNotCatchTheLibrary) {
  EXPECT_EQ(in_child([&] {
              Call call;
              feenableexcept(FE_DIVBYZERO | FE_INVALID | FE_OVERFLOW | FE_UNDERFLOW | FE_INEXACT);
              const auto own = create();
              if (!own) return 1;
              const auto made = (*own)->prepare("fwd fp32 d=16 heads=4 score=\"where(k > 500, 1.0 / 0, s * 0.3)\"");
              if (!made || !(*made)->run(call.arguments)) return 2;
              return fegetexcept() & FE_INEXACT ? 0 : 3;
            }),
            0);
}

}  // namespace
}  // namespace flashjit
