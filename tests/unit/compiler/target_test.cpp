#include "compiler/card.h"
#include "compiler/spec/target.h"

#include <set>

#include <gtest/gtest.h>

namespace flashjit {
namespace {

TEST(Target, TableIsSound) {
  std::set<std::string_view> names;
  for (const Target& t : targets()) {
    EXPECT_TRUE(names.insert(t.name).second) << t.name << " twice";
    for (const double fact :
         {t.clock_ghz, t.mma_flops_per_clock, t.exp_per_clock, t.smem_bytes_per_clock, t.memory_tbs, t.l2_mb}) {
      EXPECT_GT(fact, 0) << t.name;
    }
    EXPECT_GT(t.sm_count, 0) << t.name;
    EXPECT_GT(t.mma_flops_per_clock, t.exp_per_clock) << t.name;
    if (t.gpu) {
      EXPECT_TRUE(t.can.cp_async) << t.name << ": the oldest GPU of the table has it";
      EXPECT_FALSE(t.can.avx2) << t.name;
      EXPECT_GT(t.smem_per_block, 48 * 1024) << t.name << ": what a block gets without asking";
      EXPECT_LE(t.smem_per_block + 1024, t.smem_per_sm) << t.name << ": the system takes 1 KB of each block";
      EXPECT_EQ(t.registers_per_sm, 65536) << t.name;
      EXPECT_EQ(t.threads_per_sm % 32, 0) << t.name;
      EXPECT_TRUE(!t.can.wgmma || t.can.tma) << t.name;
      EXPECT_EQ(t.can.wgmma, t.wgmma_flops_per_clock > t.mma_flops_per_clock) << t.name << ": it is there to be faster";
    } else {
      EXPECT_FALSE(t.can.cp_async || t.can.tma || t.can.wgmma) << t.name;
      EXPECT_TRUE(t.can.avx2) << t.name;
      EXPECT_TRUE(!t.can.avx512 || t.can.avx2) << t.name;
      EXPECT_TRUE(!t.can.avx512_bf16 || t.can.avx512) << t.name;
      EXPECT_TRUE(!t.can.amx_bf16 || t.can.avx512_bf16) << t.name;
      EXPECT_EQ(t.vector_bits, t.can.avx512 ? 512 : 256) << t.name;
    }
  }
}

TEST(Target, PeaksAreThoseOfTheProducts) {
  // TFLOP/s of 16-bit mma.sync with fp32 accumulation from the data sheets (for sm_90a: what was measured).
  const std::pair<const char*, double> rows[] = {
      {"sm_80", 312}, {"sm_86", 125}, {"sm_89", 165}, {"sm_90a", 637}, {"sm_120a", 209}};
  for (const auto& [name, peak] : rows) {
    const auto t = find_target(name);
    ASSERT_TRUE(t);
    const double tflops = (*t)->mma_flops_per_clock * (*t)->clock_ghz * (*t)->sm_count / 1e3;
    EXPECT_NEAR(tflops, peak, 0.03 * peak) << name;
  }
  // The data sheet of the H200 says 989 at 1.83 GHz; WGMMA of N columns takes N / 2 clocks (measured).
  EXPECT_NEAR((*find_target("sm_90a"))->wgmma_flops_per_clock * 1.83 * 132 / 1e3, 989, 10);
}

TEST(Target, Lookup) {
  for (const Target& t : targets()) {
    const auto found = find_target(t.name);
    ASSERT_TRUE(found);
    EXPECT_EQ((*found)->name, t.name);
  }
  const auto missing = find_target("sm_90");
  ASSERT_FALSE(missing);
  EXPECT_NE(missing.error().message.find("did you mean `sm_90a`?"), std::string::npos) << missing.error().message;
  EXPECT_NE(missing.error().message.find("x86-64-v4+amx"), std::string::npos);
  EXPECT_FALSE(find_target(""));
}

TEST(Target, CardsAreNamesOfTargets) {
  const std::pair<const char*, const char*> rows[] = {
      {"a100", "sm_80"}, {"h100", "sm_90a"}, {"h200", "sm_90a"}, {"b200", "sm_100a"}};
  for (const auto& [card, target] : rows) {
    const auto found = find_target(card);
    ASSERT_TRUE(found) << card;
    EXPECT_EQ((*found)->name, target);
  }
  for (const Card& card : cards()) {
    ASSERT_TRUE(find_target(card.name)) << card.name;
    EXPECT_EQ((*find_target(card.name))->name, card.target);
  }
  for (const Target& target : targets()) {
    const Card* usual = usual_card(target);
    ASSERT_EQ(usual != nullptr, target.gpu) << target.name;
    if (!usual) continue;
    EXPECT_EQ(usual->memory_tbs, target.memory_tbs) << target.name << ": the row is that card's";
  }
  EXPECT_LT(find_card("h100")->memory_tbs, find_card("h200")->memory_tbs);
  const auto missing = find_target("h20");
  ASSERT_FALSE(missing);
  EXPECT_NE(missing.error().message.find("did you mean `h200`?"), std::string::npos) << missing.error().message;
  const auto capital = find_target("H100");
  ASSERT_FALSE(capital);
  EXPECT_NE(capital.error().message.find("did you mean `h100`?"), std::string::npos) << capital.error().message;
}

TEST(Target, ComputeCapability) {
  const std::tuple<int, int, const char*> rows[] = {{8, 0, "sm_80"},    {8, 6, "sm_86"},    {8, 7, "sm_87"},
                                                    {8, 9, "sm_89"},    {9, 0, "sm_90a"},   {10, 0, "sm_100a"},
                                                    {10, 3, "sm_103a"}, {12, 0, "sm_120a"}, {12, 1, "sm_121a"}};
  for (const auto& [major, minor, name] : rows) {
    const Target* t = target_for_compute_capability(major, minor);
    ASSERT_NE(t, nullptr) << name;
    EXPECT_EQ(t->name, name);
  }
  EXPECT_EQ(target_for_compute_capability(7, 5), nullptr);
  EXPECT_EQ(target_for_compute_capability(9, 9), nullptr);
  EXPECT_EQ(target_for_compute_capability(-1, 0), nullptr);
}

TEST(Target, RunsOn) {
  const std::tuple<const char*, int, int, bool> rows[] = {
      {"sm_80", 8, 0, true},    {"sm_80", 8, 9, true},     {"sm_86", 8, 0, false},  {"sm_86", 8, 7, true},
      {"sm_80", 9, 0, false},   {"sm_90a", 9, 0, true},    {"sm_90a", 9, 1, false}, {"sm_90a", 10, 0, false},
      {"sm_100a", 10, 0, true}, {"sm_100a", 10, 3, false}, {"sm_89", 8, 9, true},   {"sm_89", 10, 9, false}};
  for (const auto& [name, major, minor, runs] : rows)
    EXPECT_EQ(runs_on(**find_target(name), major, minor), runs) << name << " on " << major << "." << minor;
}

}  // namespace
}  // namespace flashjit
