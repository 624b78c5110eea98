#include "compiler/plan.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "compiler/choice/candidates.h"
#include "compiler/program/passes.h"
#include "compiler/families/family.h"
#include "compiler/families/pass_common.h"
#include "tests/unit/compiler/asked.h"
#include "templates/hopper/layout.h"

namespace flashjit {
namespace {

Result<Plan> plan_of(const std::string& text, std::string_view target_name, const std::string& pins = "") {
  FLASHJIT_ASSIGN(spec, parse_spec(text));
  FLASHJIT_ASSIGN(target, find_target(target_name));
  FLASHJIT_ASSIGN(schedule, parse_schedule(pins));
  return make_plan(spec, *target, schedule);
}

Plan planned(const std::string& text, const char* target, const std::string& pins = "") {
  auto plan = plan_of(text, target, pins);
  EXPECT_TRUE(plan) << text << " on " << target << ": " << plan.error().message;
  return plan ? *plan : Plan{};
}

TEST(Plan, EverySpecHasAKernelOnEveryTarget) {
  const char* variants[] = {"", " mask=\"causal\"",
                            " mask=\"window(128, 0)\" score=\"softcap(50)\" lse=ln sink max_logit bytes=2",
                            " layout=packed mask=\"causal\" score=\"alibi\" out=fp32 q_len=1"};
  for (const Target& target : targets()) {
    for (const int d_qk : {8, 64, 72, 128, 136, 192, 256}) {
      for (const int d_v : {8, 64, 128, 248, 256}) {
        for (const char* variant : variants) {
          for (const char* dtype : {"fp16", "e4m3"}) {
            const std::string text = std::string("fwd ") + dtype + " d=" + std::to_string(d_qk) + "/" +
                                     std::to_string(d_v) + " heads=8/2" + variant;
            const auto plan = plan_of(text, target.name);
            ASSERT_TRUE(plan) << text << " on " << target.name << ": " << plan.error().message;
            EXPECT_EQ(why_illegal(plan->spec, target, plan->schedule), "");
            EXPECT_LE(plan->smem_bytes(), target.smem_per_block);
          }
        }
      }
    }
  }
}

TEST(Plan, ConfigSaysWhatTheSpecSays) {
  const Plan p = planned(
      "fwd fp16 out=bf16 d=72/40 heads=12/4 layout=packed mask=\"causal\" score=\"softcap(30)\" scale=0.5 lse=log2 max_logit sink bytes=8",
      "sm_90a", "tile_q=128,warps=4,tile_kv=32,stages=3,q_in=registers,blocks_per_sm=1,order=natural,unroll_d=5");
  const KernelConfig& c = p.config;
  EXPECT_EQ(c.element, Element::f16);
  EXPECT_EQ(c.output, Element::bf16);
  EXPECT_EQ(c.head_dim_qk, 72);
  EXPECT_EQ(c.head_dim_v, 40);
  EXPECT_EQ(c.heads_q, 12);
  EXPECT_EQ(c.heads_kv, 4);
  EXPECT_TRUE(c.sequences == Sequences::packed && c.max_logit && c.sink && c.has_score && c.has_mask);
  EXPECT_EQ(c.lse, Lse::log2);
  EXPECT_EQ(c.scale, 0.5f);
  EXPECT_EQ(c.copy_bytes, 8);
  EXPECT_EQ(c.tile_q, 128);
  EXPECT_EQ(c.tile_kv, 32);
  EXPECT_EQ(c.sync.warps, 4);
  EXPECT_EQ(c.stages, 3);
  EXPECT_TRUE(c.sync.q_in == QueryStorage::registers);
  EXPECT_EQ(c.sync.blocks_per_sm, 1);
  EXPECT_FALSE(c.order == TileOrder::longest_first);
  EXPECT_EQ(c.sync.unroll_d, 5);
  EXPECT_EQ(p.threads(), 128);

  const KernelConfig plain = planned("fwd bf16 d=64", "sm_80").config;
  EXPECT_FALSE(plain.sequences == Sequences::packed || plain.max_logit || plain.sink || plain.has_score ||
               plain.has_mask || plain.mask_has_holes);
  EXPECT_EQ(plain.lse, Lse::none);
  EXPECT_FLOAT_EQ(plain.scale, 0.125f);
  EXPECT_EQ(planned("fwd bf16 d=64 mask=\"k == k\"", "sm_80").config.has_mask, false)
      << "a mask that hides nothing is no mask";
}

// Code is unrolled over the scores of a thread, and a mask of this length for each of them is most of a kernel.
TEST(Plan, LongMasksAreEvaluatedInALoop) {
  const auto is_long = [](const std::string& mask) {
    return planned("fwd bf16 d=64 heads=4 mask=\"" + mask + "\"", "sm_90a").config.mask_is_long;
  };
  EXPECT_FALSE(is_long("document(doc) & (causal | prefix(100)) & window(4096, 64)"));
  EXPECT_FALSE(is_long("tree(nodes) | k < 4"));
  std::string sum = "k", range = "k <= qpos";
  for (int i = 1; i < 20; ++i) {
    sum += " + (k + q) % " + std::to_string(i + 2);
    range += " & k >= qpos - q / " + std::to_string(i);
  }
  EXPECT_TRUE(is_long(sum + " > 40"));
  EXPECT_FALSE(is_long(range)) << "its rows have a first and a last key";
}

TEST(Plan, ScheduleIsCompleteAndPinsHold) {
  const Plan p = planned("fwd bf16 d=128 heads=8 mask=\"causal\"", "sm_80", "tile_kv=32,stages=1");
  const Schedule& s = p.schedule;
  EXPECT_TRUE(s.family && s.tile_q && s.tile_kv && s.warps && s.stages && s.q_in && s.blocks_per_sm && s.order &&
              s.unroll_d);
  EXPECT_EQ(s.tile_kv, 32);
  EXPECT_EQ(s.stages, 1);
  EXPECT_EQ(s.order, TileOrder::longest_first) << "late query tiles of a causal mask have more keys";
  const auto again = plan_of("fwd bf16 d=128 heads=8 mask=\"causal\"", "sm_80", print(s));
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_EQ(again->schedule, s);
  EXPECT_EQ(dump(again->program), dump(p.program));
  EXPECT_EQ(planned("fwd bf16 d=128 heads=8", "sm_80").schedule.order, TileOrder::natural);
}

TEST(Plan, IllegalPinsNameTheField) {
  const std::tuple<const char*, const char*, const char*, const char*> rows[] = {
      {"fwd bf16 d=128", "sm_80", "family=host", "schedule family: host does not run on sm_80; use family=sync"},
      {"fwd bf16 d=128", "x86-64-v3", "family=sync",
       "schedule family: sync does not run on x86-64-v3; use family=host"},
      {"fwd bf16 d=128", "x86-64-v3", "warps=4",
       "warps: host schedules have no such field, only tile_q, tile_kv; remove it"},
      {"fwd bf16 d=128", "sm_90a", "family=hopper,warps=4", "warps: hopper schedules have no such field, only tile_q"},
      {"fwd bf16 d=128", "sm_90a", "family=sync,overlap=none",
       "overlap: sync schedules have no such field, only tile_q"},
      {"fwd bf16 d=128", "sm_90a", "warps=4,overlap=none", "overlap: sync schedules have no such field"},
      {"fwd bf16 d=128", "sm_80", "warpgroups=2", "warpgroups: sync schedules have no such field"},
      {"fwd bf16 d=128", "sm_80", "family=hopper",
       "family: hopper needs WGMMA and TMA, which sm_80 does not have; use family=sync"},
      {"fwd bf16 d=128 bytes=8", "sm_90a", "family=hopper", "family: hopper copies by TMA"},
      {"fwd bf16 d=128", "x86-64-v3", "family=hopper", "family: hopper does not run on x86-64-v3; use family=host"},
      {"fwd bf16 d=128", "x86-64-v3", "tile_kv=24", "tile_kv: 24 is not a multiple of 16"},
      {"fwd bf16 d=128", "sm_80", "tile_q=100", "tile_q: 100 is not a multiple of 64"},
      {"fwd bf16 d=128", "sm_80", "tile_kv=40", "tile_kv: 40 is not a multiple of 16"},
      {"fwd bf16 d=128", "sm_80", "stages=9", "stages: 9 is above 8"},
      {"fwd bf16 d=128", "sm_80", "warps=32", "warps: 32 is above 16"},
      {"fwd bf16 d=128", "sm_80", "unroll_d=9", "unroll_d: 9 is above 8, the steps of d=128"},
      {"fwd bf16 d=256", "sm_86", "tile_q=128,tile_kv=128", "bytes of shared memory, a block of sm_86 has 101376"},
      {"fwd bf16 d=256", "sm_80", "tile_q=64,warps=4,tile_kv=32,blocks_per_sm=3", "blocks_per_sm: 3 blocks take"},
      {"fwd bf16 d=256", "sm_80", "tile_q=128,warps=4", "registers per thread are needed"},
      {"fwd bf16 d=64", "sm_80", "blocks_per_sm=65536", "blocks_per_sm: 65536 is above 32"},
      {"fwd bf16 d=256", "sm_80", "tile_q=65536,warps=16,stages=8,tile_kv=256,blocks_per_sm=32",
       "bytes of shared memory"},
  };
  for (const auto& [text, target, pins, message] : rows) {
    const auto plan = plan_of(text, target, pins);
    ASSERT_FALSE(plan) << text << " with " << pins;
    EXPECT_EQ(plan.error().kind, ErrorKind::Invalid) << pins;
    EXPECT_NE(plan.error().message.find(message), std::string::npos) << pins << ": " << plan.error().message;
  }
}

TEST(Plan, Fp32IsForTheHost) {
  const auto plan = plan_of("fwd fp32 d=64", "sm_90a");
  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.error().kind, ErrorKind::Unsupported);
  EXPECT_NE(plan.error().message.find("fp32 runs on host targets only, sm_90a"), std::string::npos)
      << plan.error().message;
  EXPECT_TRUE(plan_of("fwd fp32 d=64", "x86-64-v3"));
}

TEST(Plan, SlowPathsAreReported) {
  const auto has_note = [](const Plan& plan, std::string_view part) {
    return std::any_of(plan.notes.begin(), plan.notes.end(),
                       [&](const std::string& n) { return n.find(part) != n.npos; });
  };
  EXPECT_TRUE(has_note(planned("fwd bf16 d=64 bytes=4", "sm_80"), "slow path: inputs are only 4-byte aligned"));
  EXPECT_TRUE(has_note(planned("fwd bf16 d=72", "sm_80"), "d=72 is padded to 80"));
  EXPECT_TRUE(has_note(planned("fwd bf16 d=64 dropout=0.1", "sm_80"), "dropout=0.1 counts as 26/256"));
  EXPECT_FALSE(has_note(planned("fwd bf16 d=64 dropout=0.25", "sm_80"), "dropout"));
  EXPECT_TRUE(planned("fwd bf16 d=64", "sm_80").all_notes().empty());
}

TEST(Plan, WideIntsAreReportedWithWhatHelps) {
  static const char* const kRows[][2] = {
      {"mask=\"k * 3 < q\"", "as for `k * 3`; bound q_len and k_len, or use smaller constants"},
      {"params=\"n: i32\" mask=\"k + n < q\"",
       "as for `k + n`; `n` can be anything that i32 holds: cut it with min and max, or declare it as u8"},
      {"params=\"n: i64\" mask=\"k < n\"", "as for `n`; `n` can be anything that i64 holds: declare it as i32"},
      {"params=\"t: u32[1]\" score=\"s + t[k]\"",
       "as for `t[k]`; `t` can be anything that u32 holds: declare it as i32"},
  };
  for (const auto& [fields, says] : kRows) {
    const Plan p = planned("fwd bf16 d=64 " + std::string(fields), "sm_80");
    EXPECT_TRUE(p.wide_ints);
    ASSERT_FALSE(p.notes.empty()) << fields;
    EXPECT_NE(p.notes[0].find(says), std::string::npos) << p.notes[0];
  }
  for (const char* fields :
       {"k_len<=4096 mask=\"k * 3 < q\"", "params=\"n: i32\" mask=\"k + min(max(n, 0), 4096) < q\"",
        "params=\"n: u8\" mask=\"k + n < q\"", "params=\"n: i32\" mask=\"k < n\"",
        "params=\"t: i32[1]\" score=\"s + t[k]\""}) {
    EXPECT_FALSE(planned("fwd bf16 d=64 " + std::string(fields), "sm_80").wide_ints) << fields;
  }
}

TEST(Plan, APinnedLengthIsADivisorOf32Bits) {
  EXPECT_FALSE(planned("fwd bf16 d=64 q_len=4 mask=\"k % q_len == 0\"", "sm_80").wide_ints);
}

TEST(Plan, HopperWhereItCan) {
  for (const char* text :
       {"fwd bf16 d=128 heads=16", "fwd fp16 d=64 heads=32 mask=\"causal\"", "fwd bf16 d=256 heads=8 layout=packed",
        "fwd bf16 d=192/128 heads=16 score=\"softcap(50)\" lse=ln max_logit sink"}) {
    const Plan p = planned(text, "sm_90a");
    EXPECT_EQ(p.schedule.family, find_family("hopper")) << text;
    EXPECT_TRUE(p.all_notes().empty()) << text << ": " << p.all_notes().front();
    EXPECT_NE(planned(text, "sm_100a").schedule.family, find_family("hopper")) << "has TMA, but no WGMMA";
  }
}

TEST(Plan, SaysWhyItIsNotHopper) {
  const std::tuple<const char*, const char*, const char*> rows[] = {
      {"fwd bf16 d=128 bytes=8", "", "pointers and strides that are multiples of 16 bytes, and the spec has bytes=8"},
      {"fwd bf16 d=128", "family=sync", "family=sync is pinned"},
      {"fwd bf16 d=128", "warps=4", "warps is pinned, which hopper schedules do not have"},
      {"fwd bf16 d=64", "tile_q=256", "tile_q: 256 is not 192, 64 rows for each of 3 warpgroups"},
      {"fwd bf16 d=16 heads=8 q_len=64 k_len=64 b=512", "", "us for the best of the hopper family"},
  };
  for (const auto& [text, pins, reason] : rows) {
    const Plan p = planned(text, "sm_90a", pins);
    EXPECT_EQ(p.schedule.family, find_family("sync")) << text;
    EXPECT_NE(p.why_family.find("reaches about 60 % of the matrix rate of sm_90a: "), std::string::npos)
        << p.why_family;
    EXPECT_NE(p.why_family.find(reason), std::string::npos) << p.why_family;
  }
}

TEST(Plan, HopperConfigSaysWhatTheScheduleSays) {
  const Plan p =
      planned("fwd fp16 out=fp32 d=64 heads=12/4 mask=\"causal\" sink q_len=8", "sm_90a",
              "family=hopper,tile_q=192,tile_kv=80,warpgroups=3,stages=3,q_stages=2,overlap=qk_pv,exclusive=issue,"
              "reference=first,row_sum=matrix,grid=persistent,head_tiles=grouped,order=longest_first");
  const KernelConfig& c = p.config;
  EXPECT_EQ(c.output, Element::f32);
  EXPECT_EQ(c.tile_q, 192);
  EXPECT_EQ(c.tile_kv, 80);
  EXPECT_EQ(c.stages, 3);
  const HopperConfig& h = c.hopper;
  EXPECT_TRUE(h.warpgroups == 3 && h.q_stages == 2);
  EXPECT_TRUE(h.overlap == Overlap::qk_pv && h.row_sum == RowSum::matrix && h.exclusive == Exclusive::issue);
  EXPECT_TRUE(h.grid == GridKind::persistent && c.head_tiles == HeadTiles::grouped && c.sink);
  EXPECT_EQ(c.order, TileOrder::longest_first);
  EXPECT_EQ(c.reference, Reference::first);
  EXPECT_EQ(p.threads(), 512);
  EXPECT_EQ(p.smem_bytes(), hopper_layout(c).bytes);

  const KernelConfig plain = planned("fwd bf16 d=128 heads=16 lse=log2", "sm_90a",
                                     "tile_q=128,stages=2,q_stages=1,overlap=none,exclusive=none,reference=tile,"
                                     "row_sum=adds,grid=tiles,order=natural")
                                 .config;
  EXPECT_FALSE(plain.hopper.overlap == Overlap::qk_pv || plain.hopper.row_sum == RowSum::matrix);
  EXPECT_FALSE(plain.head_tiles == HeadTiles::grouped || plain.hopper.grid == GridKind::persistent);
  EXPECT_EQ(plain.order, TileOrder::natural);
  EXPECT_EQ(plain.lse, Lse::log2);
  EXPECT_EQ(plain.hopper.exclusive, Exclusive::none);
  EXPECT_EQ(plain.reference, Reference::tile);
  EXPECT_EQ(plain.hopper.warpgroups, 2) << "follows from tile_q";
  EXPECT_EQ(planned("fwd bf16 d=64", "sm_80").config.reference, Reference::lazy);
}

// With nothing pinned: what won on an H200 (2026-11-22), and what the spec leaves no other choice in.
TEST(Plan, HopperDefaults) {
  const std::pair<const char*, const char*> rows[] = {
      {"fwd bf16 d=128 heads=16", "tile_q=128,tile_kv=128,warpgroups=2,stages=2,q_stages=2"},
      {"fwd bf16 d=128 heads=16",
       "overlap=qk_pv,exclusive=none,reference=first,row_sum=matrix,grid=persistent,head_tiles=single"},
      {"fwd bf16 d=128 heads=16 lse=ln", "overlap=qk_pv,exclusive=issue,reference=first,row_sum=adds"},
      {"fwd bf16 d=192 heads=16", "tile_q=128,tile_kv=80,warpgroups=2,stages=2,q_stages=2"},
      {"fwd bf16 d=192 heads=16 mask=\"causal\"", "overlap=qk_pv,exclusive=issue,reference=first,row_sum=matrix"},
      {"fwd bf16 d=64/192 heads=16", "tile_q=128,tile_kv=128,warpgroups=2,stages=2,q_stages=2"},
      {"fwd bf16 d=64 heads=32", "tile_q=192,tile_kv=128,warpgroups=3,stages=4,q_stages=2"},
      {"fwd bf16 d=64 heads=32 mask=\"causal\"", "tile_q=192,tile_kv=128,warpgroups=3"},
      {"fwd bf16 d=256 heads=8", "tile_q=128,tile_kv=64,warpgroups=2,stages=2,q_stages=1"},
      {"fwd bf16 d=200 heads=8", "tile_kv=64"},  // 48 would leave room for two Q
      {"fwd bf16 d=128 heads=16 max_logit", "reference=tile"},
      {"fwd bf16 d=128 heads=16 score=\"alibi\"", "reference=tile"},  // the farthest keys come first
      {"fwd bf16 d=128 heads=16 mask=\"causal\" score=\"alibi\"", "reference=first"},
      {"fwd bf16 d=128 heads=16 score=\"bias(table)\"", "reference=first"},
      {"fwd bf16 d=128 heads=16 numerics=batch_invariant", "reference=tile"},
      {"fwd bf16 d=128 heads=16 mask=\"causal\"", "order=longest_first"},
      {"fwd bf16 d=128 heads=64/8 q_len=16 b=64", "head_tiles=grouped"},
  };
  for (const auto& [text, part] : rows) {
    const std::string schedule = print(planned(text, "sm_90a").schedule);
    EXPECT_NE(("," + schedule + ",").find("," + std::string(part) + ","), std::string::npos)
        << text << ": " << schedule;
  }
}

// Few rows for every KV head, or few sequences: the keys are split. More, or what that loop does not do: another family.
TEST(Plan, WhatTheDecodeFamilyTakes) {
  const std::tuple<const char*, const char*, bool> rows[] = {
      {"fwd bf16 d=128 heads=32/8 q_len=1", "sm_90a", true},
      {"fwd bf16 d=128 heads=32/8 q_len=1", "sm_80", true},
      {"fwd fp16 d=64/192 heads=8 q_len<=16 mask=\"causal & window(100, 0)\" score=\"alibi\" sink lse=ln", "sm_120a",
       true},
      {"fwd bf16 d=256 heads=16/1 q_len=1 layout=packed", "sm_90a", true},
      {"fwd bf16 d=128 heads=32/8 q_len=5", "sm_90a", true},
      {"fwd bf16 d=128 heads=64/8 q_len=16 b=1 k_len=8192", "sm_90a", true},
      {"fwd bf16 d=128 heads=64/8 q_len=16 b=64 k_len=8192", "sm_90a", false},
      {"fwd bf16 kv=e4m3 d=128 heads=64/8 q_len=4 layout=paged(64)", "sm_90a", true},
      {"fwd bf16 d=128 heads=32/8", "sm_90a", false},
      {"fwd bf16 d=128 heads=32/8 q_len=1 bytes=8", "sm_90a", false},
      {"fwd bf16 d=128 heads=32/8 q_len=1 mask=\"k < h * 100\"", "sm_90a", false},
      {"fwd bf16 d=128 heads=32/8 q_len=1 numerics=batch_invariant", "sm_90a", true},
  };
  for (const auto& [text, target, taken] : rows) {
    const Plan plan = planned(text, target);
    EXPECT_EQ(plan.schedule.family == find_family("decode"), taken) << text << ": " << print(plan.schedule);
  }
  EXPECT_EQ(planned("fwd bf16 d=128 heads=32/8 q_len=2", "sm_90a").schedule.tile_q, 8);
  EXPECT_EQ(planned("fwd bf16 d=128 heads=32/8 q_len=3", "sm_90a").schedule.tile_q, 16);
  EXPECT_EQ(planned("fwd bf16 d=128 heads=32/8 q_len=5", "sm_90a").schedule.tile_q, 24);
  EXPECT_EQ(planned("fwd bf16 d=128 heads=64/8 q_len=4", "sm_90a").schedule.tile_q, 32);
  EXPECT_EQ(planned("fwd bf16 d=128 heads=64/8 q_len=4 numerics=batch_invariant", "sm_90a").schedule.tile_q, 16);
}

// The hopper loop drops a check for these: nothing else may be taken for one.
TEST(Plan, WhichScoresAreCapped) {
  const struct {
    const char* score;
    float cap;
  } rows[] = {
      {"softcap(50.0)", 50},
      {"tanh(s)", 1},
      {"-(tanh(s / -40.0) * 40.0)", 40},
      {"2.0 * (tanh(s * 0.5) / 8.0)", 0.25f},
      {"-softcap(50.0)", 0},
      {"50.0 * tanh(s / -50.0)", 0},
      {"softcap(50.0) + 1.0", 0},
      {"softcap(50.0) * k", 0},
      {"softcap(50.0) * slope[h]", 0},
      {"50.0 * tanh(s * slope[h])", 0},
      {"50.0 * tanh(s + 1.0)", 0},
      {"50.0 * tanh(s * k)", 0},
      {"50.0 * tanh(tanh(s))", 0},
      {"50.0 * tanh(abs(s))", 0},
      {"50.0 / tanh(s)", 0},
      {"1e7 * tanh(s)", 0},
      {"tanh(s * 1e-7)", 0},
      {"where(s > 0, tanh(s), s)", 0},
  };
  for (const auto& [score, cap] : rows) {
    const std::string text =
        std::string("fwd bf16 d=128 heads=4 params=\"slope: fp32[1]\" mask=\"slope[h] > -1.0\" score=\"") + score +
        "\"";
    EXPECT_EQ(planned(text, "sm_90a").config.score_cap, cap) << score;
  }
  EXPECT_FLOAT_EQ(planned("fwd bf16 d=64 heads=4 score=\"softcap(50.0)\"", "sm_90a").config.score_factor, 0.125f / 50);
  EXPECT_FLOAT_EQ(planned("fwd bf16 d=64 heads=4 scale=2.0 score=\"-tanh(s * -0.5)\"", "sm_90a").config.score_factor,
                  1);
  EXPECT_EQ(planned("fwd bf16 d=128 heads=4", "sm_90a").config.score_cap, 0);
  EXPECT_EQ(planned("fwd bf16 d=128 heads=4 scale=1e-8 score=\"softcap(50.0)\"", "sm_90a").config.score_cap, 0);
}

TEST(Plan, WideIntegersOnlyWhereNeeded) {
  EXPECT_FALSE(planned("fwd bf16 d=64 mask=\"causal\"", "sm_80").wide_ints)
      << "default bounds keep positions in 32 bits";
  EXPECT_TRUE(planned("fwd bf16 d=64 mask=\"q * 5 > k\"", "sm_80").wide_ints);
  EXPECT_FALSE(planned("fwd bf16 d=64 mask=\"q * 5 > k\" q_len<=100000", "sm_80").wide_ints);
}

// ---- what a family's loop honours ----

Result<void> honoured(const Plan& plan, const Program& program) {
  return check_honoured(program, name(plan.schedule.family), plan.schedule.family->honoured);
}

TEST(Honoured, EveryPlanIs) {
  for (const char* pins : {"family=sync", "family=hopper", "family=hopper,reference=tile", "family=naive"}) {
    const Plan plan = planned("fwd bf16 d=64 mask=\"causal\"", "sm_90a", pins);
    EXPECT_TRUE(honoured(plan, plan.program)) << pins;
  }
}

TEST(Honoured, AnAttributeOfAnotherFamilyIsRefused) {
  const Plan plan = planned("fwd bf16 d=64 mask=\"causal\"", "sm_90a", "family=sync");
  Program program = plan.program;
  ASSERT_TRUE(for_each(program.body, [](Statement& s) -> Result<void> {
    if (s.kind != Kind::Finalize) return {};
    return s.attributes.set("redo", std::string("tile"), "choose_softmax");
  }));
  const auto planted = honoured(plan, program);
  ASSERT_FALSE(planted);
  EXPECT_EQ(planted.error().message,
            "redo of finalize: `tile` (written by pass choose_softmax) is honoured by no loop of the sync family");
}

TEST(Honoured, AValueThatTheLoopDoesNotDoIsRefused) {
  const Plan plan = planned("fwd bf16 d=64", "sm_90a", "family=hopper");
  Program program = plan.program;
  ASSERT_TRUE(for_each(program.body, [](Statement& s) -> Result<void> {
    Attributes changed;
    for (const Attribute& a : s.attributes.all()) {
      FLASHJIT_TRY(
          changed.set(a.key, a.key == "direction" ? AttributeValue(std::string("first_to_last")) : a.value, a.writer));
    }
    s.attributes = changed;
    return {};
  }));
  const auto refused = honoured(plan, program);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("direction of items: `first_to_last`"), std::string::npos)
      << refused.error().message;
}

// What a program multiplies is what the registers are estimated from and what is emitted.
TEST(Plan, ProductsAreThoseOfTheFamily) {
  const Plan hopper =
      planned("fwd bf16 d=96/128 heads=4", "sm_90a", "family=hopper,tile_kv=64,row_sum=matrix,warpgroups=2");
  const Product* scores = find_product(hopper.program, "S");
  const Product* output = find_product(hopper.program, "O");
  ASSERT_TRUE(scores && output);
  EXPECT_EQ(print(*scores), "m64n64k16 by a warpgroup, depth 96");
  EXPECT_EQ(print(*output), "m64n136k16 by a warpgroup, depth 64, a in registers, b transposed");
  EXPECT_EQ(accumulator_registers(*scores), 32);
  EXPECT_EQ(accumulator_registers(*output), 68);
  const Plan sync = planned("fwd bf16 d=72 heads=4", "sm_80", "tile_q=64,warps=4,tile_kv=32,unroll_d=5");
  EXPECT_EQ(print(*find_product(sync.program, "S")), "m16n8k16 by a warp, depth 80, a in registers, 5 steps unrolled");
  EXPECT_EQ(accumulator_registers(*find_product(sync.program, "S")), 16);
  EXPECT_EQ(find_product(sync.program, "P"), nullptr);
}

TEST(Plan, DumpsAfterEveryPass) {
  const auto spec = parse_spec("fwd bf16 d=64 mask=\"causal\"");
  const auto target = find_target("sm_80");
  ASSERT_TRUE(spec && target);
  std::vector<std::string> names, dumps;
  const auto plan = make_plan(*spec, **target, {}, [&](std::string_view pass, const std::string& dump) {
    names.emplace_back(pass);
    dumps.push_back(dump);
  });
  ASSERT_TRUE(plan);
  const std::vector<std::string> expected = {"build",         "analyse_mask",    "choose_tiling",   "assign_warps",
                                             "place_buffers", "pipeline_copies", "budget_registers"};
  EXPECT_EQ(names, expected);
  EXPECT_EQ(dumps.back(), dump(plan->program));
}

// Products of 8 bits begin anew in each tile: in registers of their own beside overlap, else in pieces as wide as S, the last
// of which may reach behind V.
TEST(Plan, SumsOfEightBitsAreThoseOfATile) {
  const struct {
    const char *spec, *schedule, *output;
    int pieces;
  } rows[] = {
      {"fwd e4m3 d=128", "tile_kv=128,warpgroups=2", "m64n128k32 by a warpgroup, depth 128, a in registers", 1},
      {"fwd e4m3 d=64 lse=ln", "tile_kv=96,warpgroups=3", "m64n64k32 by a warpgroup, depth 96, a in registers", 1},
      {"fwd e4m3 d=256", "tile_kv=128", "m64n128k32 by a warpgroup, depth 128, a in registers", 2},
      {"fwd e5m2 d=208", "tile_kv=96", "m64n96k32 by a warpgroup, depth 96, a in registers", 3},
  };
  for (const auto& row : rows) {
    const Plan plan = planned(row.spec, "sm_90a", std::string("family=hopper,") + row.schedule);
    EXPECT_EQ(plan.config.hopper.overlap, row.pieces == 1 ? Overlap::qk_pv : Overlap::none) << row.spec;
    EXPECT_EQ(product_pieces(plan.config), row.pieces) << row.spec;
    const Product* output = find_product(plan.program, "O");
    ASSERT_TRUE(output) << row.spec;
    EXPECT_EQ(print(*output), row.output) << row.spec;
    EXPECT_EQ(output->accumulates, row.pieces == 1) << row.spec;  // O takes in two at once between two items
  }
}

// Every GPU computes Q of 8 bits, as halves where its products are not of 8 bits.
TEST(Plan, NarrowQueriesAreWidened) {
  const struct {
    const char *spec, *family;
    Narrow queries, cache;
    int scale_block;
  } rows[] = {{"fwd e4m3 d=64 heads=4/2", "sync", Narrow::e4m3, Narrow::e4m3, 0},
              {"fwd e5m2 kv=e4m3 d=64 scales=block(128) bytes=2", "sync", Narrow::e5m2, Narrow::e4m3, 128},
              {"fwd e4m3 kv=e5m2 d=128 heads=8/2 q_len=1 layout=paged(16)", "decode", Narrow::e4m3, Narrow::e5m2, 0}};
  for (const char* target : {"sm_80", "sm_86", "sm_100a"}) {
    for (const auto& row : rows) {
      const Plan plan = planned(row.spec, target);
      EXPECT_EQ(name(plan.schedule.family), row.family) << row.spec;
      EXPECT_EQ(plan.config.element, Element::f16);
      EXPECT_EQ(plan.config.output, Element::bf16);
      EXPECT_EQ(plan.config.queries, row.queries) << row.spec;
      EXPECT_EQ(plan.config.cache, row.cache) << row.spec;
      EXPECT_EQ(plan.config.scale_block, row.scale_block) << row.spec;
      EXPECT_EQ(weights_of(plan.spec, plan.config), Dtype::F16);
    }
  }
}

TEST(Plan, NarrowProductsWhereTheGpuHasThem) {
  for (const char* target : {"sm_89", "sm_120a", "sm_121a"}) {
    const Plan plan = planned("fwd e4m3 kv=e5m2 d=80/96 heads=4/2 bytes=4", target);
    EXPECT_EQ(name(plan.schedule.family), "sync_narrow");
    EXPECT_EQ(plan.config.element, Element::f8);
    EXPECT_EQ(*plan.schedule.tile_kv % 32, 0);
    EXPECT_EQ(weights_of(plan.spec, plan.config), Dtype::E4M3);
    EXPECT_EQ(name(planned("fwd e4m3 d=72", target).schedule.family), "sync");
  }
}

}  // namespace
}  // namespace flashjit
