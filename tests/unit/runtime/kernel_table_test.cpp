#include "runtime/engine/kernel_table.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

namespace flashjit {
namespace {

struct Named : Kernel {
  explicit Named(std::string spec) { facts_.spec = std::move(spec); }
  const Facts& facts() const override { return facts_; }
  Result<void> run(const Arguments&, void*) override { return {}; }
  Result<std::int64_t> workspace_bytes(const Arguments&) const override { return std::int64_t{0}; }
  Facts facts_;
};

std::shared_ptr<Kernel> named(const std::string& spec) { return std::make_shared<Named>(spec); }

TEST(KernelTable, SpecAndScheduleAreTheKey) {
  KernelTable table;
  const auto one = named("one"), two = named("two"), three = named("three");
  EXPECT_EQ(table.find("a", ""), nullptr);
  table.add("a", "", one);
  table.add("a", "b", two);
  table.add("ab", "", three);
  EXPECT_EQ(table.find("a", ""), one);
  EXPECT_EQ(table.find("a", "b"), two);
  EXPECT_EQ(table.find("ab", ""), three);
  EXPECT_EQ(table.find("", "ab"), nullptr);
  EXPECT_EQ(table.find("b", "a"), nullptr);
  table.add("a", "", two);
  EXPECT_EQ(table.find("a", ""), one) << "who holds the first and who asks now have the same";
}

TEST(KernelTable, KernelsLiveAsLongAsTheTableOrWhoeverHasThem) {
  std::weak_ptr<Kernel> alive;
  std::shared_ptr<Kernel> mine;
  {
    KernelTable table;
    auto kernel = named("a");
    alive = kernel;
    table.add("a", "", kernel);
    kernel.reset();
    EXPECT_FALSE(alive.expired());
    mine = table.find("a", "");
  }
  EXPECT_EQ(mine->facts().spec, "a");
  mine.reset();
  EXPECT_TRUE(alive.expired());
}

TEST(KernelTable, WhatOtherTextsKeepIsBounded) {
  KernelTable table;
  const auto one = named("one"), two = named("two");
  table.add("one", "", one);
  for (std::size_t i = 0; i < 2 * KernelTable::kMostOthers; ++i) table.add("one " + std::to_string(i), "", one);
  EXPECT_EQ(table.find("one " + std::to_string(KernelTable::kMostOthers - 1), ""), one);
  EXPECT_EQ(table.find("one " + std::to_string(KernelTable::kMostOthers), ""), nullptr);
  table.add("two", "", two);
  EXPECT_EQ(table.find("two", ""), two) << "a kernel has its first text at all times";

  KernelTable wide;
  wide.add("one", "", one);
  const std::string half(KernelTable::kMostOtherBytes / 2, 'x');
  for (const char* end : {"", "1"}) wide.add(half.substr(1) + end, "", one);
  wide.add(half, "more", one);
  EXPECT_EQ(wide.find(half.substr(1) + "1", ""), one);
  EXPECT_EQ(wide.find(half, "more"), nullptr);
}

TEST(KernelTable, ManyThreadsAddAndFind) {
  KernelTable table;
  constexpr int kThreads = 6, kSpecs = 2000;  // several for each bucket
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kSpecs; ++i) {
        const std::string spec = "spec " + std::to_string((i + t * 7) % kSpecs);
        if (!table.find(spec, "")) table.add(spec, "", named(spec));
        const auto found = table.find(spec, "");
        wrong += !found || found->facts().spec != spec;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(table.find("spec 7", ""), table.find("spec 7", ""));
}

}  // namespace
}  // namespace flashjit
