// What the hopper family refuses and why, and which of its schedules are tried.
#include "compiler/choice/candidates.h"
#include "templates/hopper/layout.h"
#include "tests/unit/compiler/asked.h"

#include <algorithm>
#include <set>
#include <tuple>

#include <gtest/gtest.h>

#include "compiler/plan.h"

namespace flashjit {
namespace {

constexpr char kSound[] =
    "family=hopper,tile_q=128,tile_kv=64,warpgroups=2,stages=2,q_stages=1,overlap=qk_pv,exclusive=issue,reference=first,"
    "row_sum=adds,grid=persistent,head_tiles=single,transpose=none,keys=whole,tiles=range,order=natural";

AttentionSpec spec_of(const std::string& text) {
  const auto spec = parse_spec(text);
  EXPECT_TRUE(spec) << text << ": " << spec.error().message;
  return *spec;
}

// The fields of `changes` set over those of kSound.
Schedule changed(const std::string& changes) {
  std::string text;
  for (std::string_view rest = kSound; !rest.empty();) {
    const std::string_view item = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), item.size() + 1));
    const std::string key(item.substr(0, item.find('=') + 1));
    if (("," + changes).find("," + key) == std::string::npos) text += std::string(item) + ",";
  }
  const auto schedule = parse_schedule(changes.empty() ? std::string(kSound) : text + changes);
  EXPECT_TRUE(schedule) << changes << ": " << schedule.error().message;
  return *schedule;
}

std::string why(const std::string& spec, const std::string& changes, const char* target = "sm_90a") {
  return why_illegal(spec_of(spec), **find_target(target), changed(changes));
}

TEST(Hopper, LegalSchedules) {
  const std::pair<const char*, const char*> rows[] = {
      {"fwd bf16 d=128 heads=16", ""},
      {"fwd bf16 d=8", "tile_kv=256,stages=2"},
      {"fwd bf16 d=240", "exclusive=none,tile_kv=80"},
      {"fwd bf16 d=144", "tile_q=192,warpgroups=3,tile_kv=64,q_stages=1"},
      {"fwd bf16 d=72 score=\"softcap(50)\"", "tile_q=192,warpgroups=3,tile_kv=96"},
      {"fwd bf16 d=128", "tile_kv=176,q_stages=1"},
      {"fwd fp16 d=64", "tile_q=192,warpgroups=3,tile_kv=112,row_sum=matrix"},
      {"fwd bf16 d=128 heads=32/8 mask=\"causal\"", "head_tiles=grouped"},
      {"fwd bf16 d=128 heads=32/8 score=\"s + 0.5 * h\"", "head_tiles=grouped"},
      {"fwd bf16 d=128 score=\"bias(slopes)\"", "tile_kv=128"},
      {"fwd bf16 d=128 layout=packed", "grid=tiles"},
      {"fwd bf16 d=128 max_logit", "reference=tile"},
      {"fwd e4m3 d=128 layout=packed v_transposed", "transpose=launch"},
      {"fwd e4m3 d=128 layout=paged(64)", "transpose=loop"},
      {"fwd bf16 d=128 numerics=batch_invariant", "reference=tile"},
      {"fwd bf16 d=128", "tile_q=64,warpgroups=1,exclusive=none,stages=1,overlap=none"},
  };
  for (const auto& [spec, changes] : rows) EXPECT_EQ(why(spec, changes), "") << spec << " " << changes;
}

// The pin that is wrong is named, not what follows from it.
TEST(Schedules, PinsFarOutsideTheirLimits) {
  const auto refused = [](const char* pins) {
    for (const Schedule& s : enumerate_schedules(Asked("fwd bf16 d=64", "sm_80").problem, *parse_schedule(pins))) {
      EXPECT_TRUE(parse_schedule(print(s))) << print(s);
    }
    const auto plan = make_plan(spec_of("fwd bf16 d=64"), **find_target("sm_80"), *parse_schedule(pins));
    EXPECT_FALSE(plan) << pins;
    return plan ? std::string() : plan.error().message;
  };
  EXPECT_EQ(refused("warps=4444"), "schedule warps: 4444 is above 16");
  EXPECT_EQ(refused("warps=65536"), "schedule warps: 65536 is above 16");
  EXPECT_NE(refused("tile_q=65536"), "");
}

// Also where the family is not hopper: what is read from a text may lack any field.
TEST(Schedules, IncompleteOnesAreIllegal) {
  const auto why_not = [](const char* text, const char* target) {
    return why_illegal(spec_of("fwd bf16 d=64 heads=4"), **find_target(target), *parse_schedule(text));
  };
  EXPECT_EQ(why_not("", "sm_90a"), "family: is not set");
  EXPECT_EQ(why_not("tile_q=64", "sm_80"), "family: is not set");
  EXPECT_EQ(why_not("family=host,tile_q=64", "x86-64-v3"),
            "tile_kv: is not set; a complete host schedule has tile_q, tile_kv");
  EXPECT_EQ(why_not("family=sync", "sm_80").substr(0, 18), "tile_q: is not set");
  for (const std::string_view key : {"tile_q", "tile_kv", "warpgroups", "stages", "q_stages", "overlap", "exclusive",
                                     "reference", "row_sum", "grid", "head_tiles", "transpose", "keys", "order"}) {
    std::string text = "," + std::string(kSound) + ",";
    const std::size_t at = text.find("," + std::string(key) + "=");
    text.erase(at, text.find(',', at + 1) - at);
    text = text.substr(1, text.size() - 2);
    EXPECT_EQ(why_not(text.c_str(), "sm_90a").substr(0, key.size() + 12), std::string(key) + ": is not set") << text;
  }
}

TEST(Hopper, EveryRuleNamesFieldValueAndWayOut) {
  const std::tuple<const char*, const char*, const char*> rows[] = {
      {"fwd bf16 d=64", "tile_q=96", "tile_q: 96 is not 128, 64 rows for each of 2 warpgroups; set warpgroups"},
      {"fwd bf16 d=64", "tile_kv=72", "tile_kv: 72 is not a multiple of 16"},
      {"fwd bf16 d=64", "tile_kv=272", "tile_kv: 272 is above 256"},
      {"fwd bf16 d=64", "stages=9", "stages: 9 is above 8"},
      {"fwd bf16 d=64", "stages=1",
       "stages: 1 is too few for overlap=qk_pv, which reads two K/V tiles at a time; use stages=2"},
      {"fwd bf16 d=64", "warpgroups=1,tile_q=64", "exclusive: issue needs two warpgroups to take turns, there is 1"},
      {"fwd bf16 d=64", "warpgroups=1,tile_q=64,exclusive=issue", "exclusive: issue needs two warpgroups"},
      {"fwd e4m3 d=64", "", "transpose: none leaves the columns of V along rows"},
      {"fwd bf16 d=64", "transpose=loop", "transpose: loop is for V of 8 bits"},
      {"fwd e4m3 d=64 layout=paged(64)", "transpose=launch", "transpose: launch does not go through pages"},
      {"fwd bf16 d=64", "overlap=none", "exclusive: issue needs overlap=qk_pv"},
      {"fwd bf16 d=64 numerics=batch_invariant", "keys=parts,reference=tile",
       "keys: parts are as many as SMs want, which numerics=batch_invariant excludes; use keys=whole"},
      {"fwd bf16 d=128", "keys=parts,row_sum=matrix", "row_sum: matrix is not exact enough for the LSE by which parts"},
      {"fwd bf16 d=64 max_logit", "", "reference: first never finds the maximum of a row, which max_logit asks for"},
      {"fwd bf16 d=64 numerics=batch_invariant", "", "numerics=batch_invariant excludes; use reference=tile"},
      {"fwd bf16 d=128", "tile_kv=128,stages=4",
       "bytes of shared memory, a block of sm_90a has 232448; use smaller tiles"},
      {"fwd bf16 d=128", "tile_kv=192",
       "tile_kv: about 237 registers per thread are needed, 2 warpgroups leave 232; use a smaller tile_kv or "
       "overlap=none"},
      {"fwd bf16 d=256", "tile_kv=80", "registers per thread are needed, 2 warpgroups leave 232"},
      {"fwd bf16 d=136", "tile_q=192,warpgroups=3,tile_kv=80",
       "registers per thread are needed, 3 warpgroups leave 160"},
      {"fwd bf16 d=152", "tile_q=192,warpgroups=3,tile_kv=64",
       "registers per thread are needed, 3 warpgroups leave 160"},
      {"fwd bf16 d=32 score=\"softcap(50)\"", "tile_q=192,warpgroups=3,tile_kv=128",
       "registers per thread are needed, 3 warpgroups leave 160"},
      {"fwd bf16 d=256", "tile_q=192,warpgroups=3", "registers per thread are needed, 3 warpgroups leave 160"},
      {"fwd bf16 d=128 params=\"t: fp32[2]\" score=\"s + t[q, k / 2]\"", "tile_kv=160,q_stages=1",
       "registers per thread are needed"},
      {"fwd bf16 d=128 score=\"bias(slopes)\"", "tile_kv=160,q_stages=1", "tiles take 279688 bytes of shared memory"},
      {"fwd bf16 d=128 params=\"t: fp32[1]\" score=\"where(k < 9, t[k], s)\"", "tile_kv=128",
       "registers per thread are needed"},
      {"fwd bf16 d=72", "row_sum=matrix",
       "row_sum: matrix puts its column behind whole panels of V, and the V dim 72 is no multiple of 64"},
      {"fwd bf16 d=256", "row_sum=matrix,tile_kv=16",
       "row_sum: matrix makes 264 columns of the V dim 256, an instruction has 256"},
      {"fwd bf16 d=128 lse=ln", "row_sum=matrix",
       "row_sum: matrix adds up probabilities as they are rounded for the product, which is "
       "right for O and not exact enough for lse; use row_sum=adds"},
      {"fwd bf16 d=64 heads=24/8", "head_tiles=grouped", "head_tiles: grouped needs tile_q=128 to be a multiple of 3"},
      {"fwd bf16 d=64 heads=8/4 layout=packed", "head_tiles=grouped", "head_tiles: grouped does not do layout=packed"},
      {"fwd bf16 d=64 heads=8/4 mask=\"k <= q + 16 * h\"", "head_tiles=grouped",
       "head_tiles: grouped needs one KV range for all heads of a tile"},
      {"fwd bf16 d=64 bytes=8", "", "multiples of 16 bytes, and the spec has bytes=8"},
  };
  for (const auto& [spec, changes, message] : rows) {
    const std::string got = why(spec, changes);
    EXPECT_NE(got.find(message), std::string::npos) << spec << " " << changes << ": `" << got << "`";
  }
  EXPECT_NE(why("fwd bf16 d=64", "", "sm_80").find("WGMMA and TMA, which sm_80 does not have"), std::string::npos);
  EXPECT_NE(why("fwd bf16 d=64", "", "sm_100a").find("WGMMA and TMA, which sm_100a does not have"), std::string::npos);
}

std::vector<Schedule> hopper_schedules(const std::string& text, const char* pins = "") {
  std::vector<Schedule> out;
  for (const Schedule& s : enumerate_schedules(Asked(text, "sm_90a").problem, *parse_schedule(pins))) {
    if (s.family == find_family("hopper")) out.push_back(s);
  }
  return out;
}

TEST(Hopper, EnumerationIsModestCompleteAndWithoutDoubles) {
  for (const char* spec :
       {"fwd bf16 d=64 heads=32", "fwd bf16 d=128 heads=32/8 mask=\"causal\"", "fwd bf16 d=256 heads=8", "fwd fp16 d=8",
        "fwd bf16 d=128 heads=32/8 q_len=16", "fwd bf16 d=96 layout=packed", "fwd bf16 d=64 max_logit"}) {
    std::set<std::string> seen;
    int legal = 0;
    for (const Schedule& s : hopper_schedules(spec)) {
      EXPECT_TRUE(seen.insert(print(s)).second) << spec << ": twice " << print(s);
      EXPECT_EQ(std::ranges::count(print(s), ','), std::ranges::count(fields_of(find_family("hopper")), ',') + 1)
          << "a field is not set: " << print(s);
      legal += why_illegal(spec_of(spec), **find_target("sm_90a"), s).empty();
    }
    EXPECT_GT(legal, 5) << spec;
    EXPECT_LE(legal, 150) << spec;
  }
}

TEST(Hopper, EnumerationFollowsThePins) {
  const char* spec = "fwd bf16 d=128 heads=32/8";
  for (const char* pin : {"tile_q=192", "tile_kv=48", "tile_kv=176", "stages=2", "q_stages=2", "overlap=none",
                          "exclusive=none", "reference=tile", "row_sum=matrix", "row_sum=adds", "grid=tiles",
                          "head_tiles=grouped", "order=longest_first", "warpgroups=1"}) {
    const std::vector<Schedule> found = hopper_schedules(spec, pin);
    EXPECT_FALSE(found.empty()) << pin;
    for (const Schedule& s : found)
      EXPECT_NE(("," + print(s) + ",").find("," + std::string(pin) + ","), std::string::npos) << print(s);
  }
  EXPECT_TRUE(hopper_schedules(spec, "warps=4").empty()) << "no hopper schedule has warps";
  EXPECT_TRUE(hopper_schedules("fwd bf16 d=128 bytes=4").empty());
  for (const Schedule& s : enumerate_schedules(Asked(spec, "sm_90a").problem, *parse_schedule("row_sum=adds"))) {
    EXPECT_EQ(s.family, find_family("hopper")) << "no sync schedule has row_sum";
  }
}

// Legal, measured, and slower (H200, 2026-11-21; templates/experiments has the figures).
TEST(Hopper, WhatLostIsTriedOnlyWhenPinned) {
  for (const char* spec : {"fwd bf16 d=64 heads=32", "fwd bf16 d=128 heads=32/8 mask=\"causal\"",
                           "fwd bf16 d=256 heads=8", "fwd fp16 d=8", "fwd bf16 d=128 heads=32/8 q_len=16",
                           "fwd bf16 d=96 layout=packed", "fwd bf16 d=64 lse=ln numerics=deterministic"}) {
    for (const Schedule& s : hopper_schedules(spec)) {
      EXPECT_NE(s.stages, 3) << spec << ": " << print(s);
      EXPECT_EQ(s.grid, GridKind::persistent) << spec << ": " << print(s);
      EXPECT_LE(*s.tile_kv, 128) << spec << ": " << print(s);
    }
  }
  for (const char* pins :
       {"family=hopper,row_sum=matrix,q_stages=1", "family=hopper,row_sum=adds", "family=hopper,exclusive=issue",
        "family=hopper,tile_kv=176,q_stages=1", "family=hopper,grid=tiles"}) {
    const AttentionSpec spec = spec_of("fwd bf16 d=128 heads=16");
    EXPECT_TRUE(std::ranges::any_of(hopper_schedules("fwd bf16 d=128 heads=16", pins), [&](const Schedule& s) {
      return why_illegal(spec, **find_target("sm_90a"), s).empty();
    })) << pins;
  }
}

// A column of ones beside V, and turns: README.md of the compiler says where they pay.
TEST(Hopper, SumsAndTurns) {
  for (const char* spec :
       {"fwd bf16 d=128 heads=8", "fwd bf16 d=128 heads=8 lse=ln", "fwd bf16 d=128 heads=8 max_logit",
        "fwd bf16 d=128 heads=8 numerics=deterministic", "fwd fp16 d=192 heads=8", "fwd bf16 d=64 heads=8",
        "fwd bf16 d=160 heads=8", "fwd bf16 d=256 heads=8", "fwd bf16 d=96/128 heads=8",
        "fwd bf16 d=128 heads=8 mask=\"causal\" score=\"alibi\"", "fwd bf16 d=128 heads=8 score=\"softcap(50)\""}) {
    for (const Schedule& s : hopper_schedules(spec)) {
      const AttentionSpec parsed = spec_of(spec);
      const bool may = parsed.d_v >= 128 && parsed.d_v < 256 && parsed.d_v % 64 == 0 && parsed.lse == Lse::none &&
                       s.reference == Reference::first && s.warpgroups == 2 && s.q_stages == 2 &&
                       s.overlap == Overlap::qk_pv;
      EXPECT_TRUE(may || s.row_sum == RowSum::adds) << spec << ": " << print(s);
      const bool turns = *s.warpgroups > 1 && s.overlap == Overlap::qk_pv &&
                         (s.row_sum == RowSum::adds || parsed.d_v > 128 ||
                          std::string_view(spec).find("score") != std::string_view::npos);
      EXPECT_EQ(s.exclusive, turns ? Exclusive::issue : Exclusive::none) << spec << ": " << print(s);
    }
  }
  const auto any = [](const char* spec, RowSum sum) {
    return std::ranges::any_of(hopper_schedules(spec), [&](const Schedule& s) { return s.row_sum == sum; });
  };
  EXPECT_TRUE(any("fwd bf16 d=128 heads=8", RowSum::matrix));
  EXPECT_TRUE(any("fwd bf16 d=192 heads=8", RowSum::matrix));
  EXPECT_TRUE(any("fwd bf16 d=128 heads=8 score=\"softcap(50)\"", RowSum::matrix));
  const auto pinned = hopper_schedules("fwd bf16 d=128 heads=8", "row_sum=adds");
  EXPECT_TRUE(std::ranges::all_of(pinned, [](const Schedule& s) { return s.row_sum == RowSum::adds; }));
}

// The same of 8 bits: ones where they pay, no turns in windows, nor beside ones that are a product by themselves, unless weights
// are interpolated.
TEST(Hopper, SumsAndTurnsOf8Bits) {
  const struct {
    const char *spec, *pins;
    bool ones, turns;
  } rows[] = {
      {"fwd e4m3 d=64 heads=8", "", true, false},
      {"fwd e4m3 d=80 heads=8 score=\"alibi\"", "", false, true},  // reference=tile: far keys come first
      {"fwd e4m3 d=80 heads=8 mask=\"causal\"", "", true, true},
      {"fwd e4m3 d=64 heads=8 lse=ln", "", false, false},
      {"fwd e4m3 d=64 heads=8 score=\"softcap(50)\"", "", false, false},
      {"fwd e4m3 d=96 heads=8", "", false, false},
      {"fwd e4m3 d=96 heads=8 score=\"softcap(50)\"", "", false, true},
      {"fwd e4m3 d=128 heads=8", "tile_kv=96", false, true},
      {"fwd e4m3 d=128 heads=8", "tile_kv=128,keys=whole", true, false},
      {"fwd e4m3 d=128 heads=8", "tile_kv=128,keys=parts", true, false},
      {"fwd e4m3 d=128 heads=8 lse=ln", "tile_kv=128", false, true},
      {"fwd e4m3 d=128 heads=8 scales=block(128)", "tile_kv=128", false, true},
      {"fwd e4m3 d=192/128 heads=8 mask=\"causal\"", "tile_kv=128,keys=whole", true, false},
      {"fwd e4m3 d=128 heads=8 linear_exp", "", true, true},
      {"fwd e4m3 d=128 heads=8 linear_exp", "tile_kv=128", true, true},
      {"fwd e4m3 d=128 heads=8 mask=\"window(1023, 0)\"", "tile_kv=96", false, false},
      {"fwd e4m3 d=128 heads=8 linear_exp mask=\"window(1023, 0)\"", "", true, false},
  };
  for (const auto& [spec, pins, ones, turns] : rows) {
    int seen = 0;
    for (const Schedule& s : hopper_schedules(spec, pins)) {
      if (s.overlap != Overlap::qk_pv || *s.warpgroups < 2 || s.transpose == Transpose::launch) continue;
      EXPECT_EQ(s.row_sum, ones ? RowSum::matrix : RowSum::adds) << spec << ": " << print(s);
      EXPECT_EQ(s.exclusive, turns ? Exclusive::issue : Exclusive::none) << spec << ": " << print(s);
      ++seen;
    }
    EXPECT_GT(seen, 0) << spec << " " << pins;
  }
}

// Interpolated weights of 128 keys need turns, for which tensors of the score function, and masks, leave no registers.
TEST(Hopper, InterpolatedWeightsTakeFewerKeysWhereTheyWouldLeaveNoTurns) {
  const std::pair<const char*, bool> rows[] = {
      {"fwd e4m3 d=128 heads=8 linear_exp score=\"bias(extra, bf16)\"", false},
      {"fwd e4m3 d=128 heads=8 linear_exp mask=\"causal\"", false},
      {"fwd e4m3 d=128 heads=8 linear_exp mask=\"causal\" scales=block(128)", true},
      {"fwd e4m3 d=128 heads=8 linear_exp mask=\"window(1023, 0)\"", true},
      {"fwd e4m3 d=192/128 heads=8 linear_exp", true},
      {"fwd e4m3 d=192/128 heads=8 linear_exp mask=\"causal\"", false},
      {"fwd e4m3 d=192/128 heads=8 mask=\"causal\"", true},
  };
  for (const auto& [spec, many] : rows) {
    const auto schedules = hopper_schedules(spec);
    EXPECT_EQ(std::ranges::any_of(schedules, [](const Schedule& s) { return *s.tile_kv == 128; }), many) << spec;
  }
}

TEST(Hopper, RefusesSumsOfWeightsOf8BitsThatAreNotExactEnough) {
  const std::tuple<const char*, const char*, const char*> rows[] = {
      {"fwd e4m3 d=128 lse=ln linear_exp", "row_sum=matrix,transpose=loop,tile_kv=96",
       "row_sum: matrix adds up weights as 8 bits have them, which is not exact enough for lse; use row_sum=adds"},
      {"fwd e4m3 d=128 lse=log2", "row_sum=matrix,transpose=loop,tile_kv=96",
       "not exact enough for lse; use row_sum=adds"},
      {"fwd e4m3 d=128 linear_exp", "row_sum=matrix,transpose=launch,tile_kv=96", "row_sum: matrix has ones beside V"},
  };
  for (const auto& [spec, changes, message] : rows) {
    const std::string got = why(spec, changes);
    EXPECT_NE(got.find(message), std::string::npos) << spec << " " << changes << ": `" << got << "`";
  }
}

// Weights are interpolated where products sum them up, which is where nobody reads the sums.
TEST(Hopper, InterpolatesWhereTheSpecAllowsIt) {
  for (const char* spec :
       {"fwd e4m3 d=128 heads=8 linear_exp", "fwd e4m3 d=64 heads=8 mask=\"causal\" linear_exp",
        "fwd e5m2 d=32 heads=8 layout=packed linear_exp", "fwd e4m3 d=96 heads=8 max_logit linear_exp",
        "fwd e4m3 d=128 heads=8 linear_exp scales=block(128)", "fwd e4m3 d=256 heads=8 linear_exp"}) {
    const auto schedules = hopper_schedules(spec, "transpose=loop");
    EXPECT_TRUE(std::ranges::any_of(schedules, [](const Schedule& s) { return s.row_sum == RowSum::matrix; })) << spec;
  }
  for (const char* spec : {"fwd e4m3 d=96 heads=8", "fwd e4m3 d=128 heads=8 lse=ln linear_exp"}) {
    const auto schedules = hopper_schedules(spec);
    EXPECT_TRUE(std::ranges::all_of(schedules, [](const Schedule& s) { return s.row_sum == RowSum::adds; })) << spec;
  }
}

// Beside pieces of products, tiles with a unit of V and 128 columns of 128 keys, the sums of rows are a product by itself.
TEST(Hopper, SumsApart) {
  const std::tuple<const char*, const char*, bool> rows[] = {
      {"fwd e4m3 d=256 linear_exp", "tile_kv=128", true},
      {"fwd e4m3 d=64 linear_exp scales=block(128)", "tile_kv=128", true},
      {"fwd e4m3 d=128 linear_exp mask=\"window(1023, 0)\"", "tile_kv=128", true},
      {"fwd e4m3 d=128 linear_exp", "tile_kv=96", false},
      {"fwd e4m3 d=128", "tile_kv=128", true},
      {"fwd e4m3 d=64", "tile_kv=96", false},
      {"fwd e4m3 d=256", "tile_kv=128", false},
  };
  for (const auto& [spec, pins, apart] : rows) {
    const auto plan =
        make_plan(spec_of(spec), **find_target("sm_90a"), *parse_schedule(std::string("family=hopper,") + pins));
    ASSERT_TRUE(plan) << spec;
    const HopperLayout layout = hopper_layout(plan->config);
    EXPECT_EQ(sums_apart(plan->config), apart) << spec;
    EXPECT_EQ(layout.state_offset - layout.ones_offset, apart ? kSumColumns * kPanelWidth : 0) << spec;
    EXPECT_EQ(output_columns(plan->config) - plan->config.head_dim_v,
              plan->config.hopper.row_sum == RowSum::matrix && !apart ? kSumColumns : 0)
        << spec;
  }
}

// O of 8 bits is sent from Q's place, from one of its own where that is too small and memory is left, or not by TMA.
TEST(Hopper, PlacesOfOutput) {
  const Target& target = **find_target("sm_90a");
  EXPECT_EQ(kSharedOfBlock, target.smem_per_block);
  const std::tuple<const char*, bool, bool> rows[] = {
      {"fwd e4m3 d=64", true, false},
      {"fwd e4m3 d=128", false, true},
      {"fwd e4m3 d=128 linear_exp", false, true},
      {"fwd e4m3 d=128 out=fp32", false, false},
      {"fwd e4m3 d=256", false, false},
      {"fwd bf16 d=128", true, false},
      {"fwd bf16 d=256", false, false},
  };
  for (const auto& [spec, replaces, place] : rows) {
    const auto plan = make_plan(spec_of(spec), target, *parse_schedule("family=hopper"));
    ASSERT_TRUE(plan) << spec;
    const KernelConfig& c = plan->config;
    EXPECT_EQ(output_replaces_queries(c), replaces) << spec;
    EXPECT_EQ(output_has_memory(c), place) << spec;
    const HopperLayout layout = hopper_layout(c);
    EXPECT_EQ(layout.ones_offset - layout.output_offset, place ? c.tile_q * c.head_dim_v * 2 : 0) << spec;
    EXPECT_LE(layout.bytes, target.smem_per_block) << spec;
  }
}

// Products of scores take Q from registers where these are left over.
TEST(Hopper, QueriesInRegisters) {
  const std::tuple<const char*, bool> rows[] = {
      {"fwd e4m3 d=64 heads=8", true},
      {"fwd e4m3 d=64 heads=8 lse=ln", true},
      {"fwd e4m3 d=96 heads=8 mask=\"window(100, 0)\" linear_exp", true},
      {"fwd e4m3 d=64 heads=8 score=\"alibi\"", false},
      {"fwd e4m3 d=64 heads=8 max_logit", false},
      {"fwd e4m3 d=64 heads=8 scales=block(64)", false},
      {"fwd e4m3 d=112 heads=8", false},
      {"fwd bf16 d=64 heads=8", false},
  };
  for (const auto& [spec, expected] : rows) {
    const auto plan = make_plan(spec_of(spec), **find_target("sm_90a"), *parse_schedule("family=hopper"));
    ASSERT_TRUE(plan) << spec;
    EXPECT_EQ(queries_in_registers(plan->config), expected) << spec;
  }
}

TEST(Hopper, EnumerationFollowsTheSpec) {
  const auto any = [](const std::vector<Schedule>& schedules, auto has) { return std::ranges::any_of(schedules, has); };
  const auto packed = [](const Schedule& s) { return s.head_tiles == HeadTiles::grouped; };
  EXPECT_TRUE(any(hopper_schedules("fwd bf16 d=128 heads=32/8 q_len=1"), packed));
  EXPECT_FALSE(any(hopper_schedules("fwd bf16 d=128 heads=8 q_len=1"), packed)) << "no group";
  EXPECT_FALSE(any(hopper_schedules("fwd bf16 d=128 heads=32/8"), packed)) << "queries fill tiles by themselves";
  EXPECT_FALSE(any(hopper_schedules("fwd bf16 d=128 heads=32/8 layout=paged(64)"), packed));
  EXPECT_TRUE(any(hopper_schedules("fwd bf16 d=128 heads=32/8 layout=packed/paged(64)"), packed)) << "single tokens";
  const auto first = [](const Schedule& s) { return s.reference == Reference::first; };
  EXPECT_TRUE(any(hopper_schedules("fwd bf16 d=128"), first));
  EXPECT_FALSE(any(hopper_schedules("fwd bf16 d=128 max_logit"), first));
  EXPECT_FALSE(any(hopper_schedules("fwd bf16 d=128 numerics=deterministic"), first));
  const auto tall = [](const Schedule& s) { return *s.tile_q > 64; };
  EXPECT_FALSE(any(hopper_schedules("fwd bf16 d=128 q_len<=64"), tall));
  EXPECT_TRUE(any(hopper_schedules("fwd bf16 d=128 q_len<=65"), tall));
}

// Boxes of a page are many where tiles and pages have little in common.
TEST(Hopper, TilesFitPages) {
  const auto tile = [](const std::string& layout) {
    const auto plan = make_plan(spec_of("fwd bf16 d=128 heads=16 layout=" + layout), **find_target("sm_90a"), {});
    EXPECT_TRUE(plan && name(plan->schedule.family) == "hopper") << layout;
    return *plan->schedule.tile_kv;
  };
  EXPECT_EQ(tile("paged(64)") % 64, 0);
  EXPECT_EQ(tile("paged(256)"), tile("bshd"));
}

// 64 or 96 keys a tile are a fifth slower (templates/experiments).
TEST(Hopper, TilesOfEightBitsHave128Keys) {
  for (const char* words :
       {"", " mask=\"causal\"", " mask=\"causal\" scales=block(128)", " mask=\"causal\" sink lse=ln",
        " layout=packed/paged(128)", " layout=packed/paged(128) mask=\"causal\" scales=block(128)"}) {
    const auto plan = make_plan(spec_of(std::string("fwd e4m3 d=128 heads=16") + words), **find_target("sm_90a"), {});
    ASSERT_TRUE(plan) << words;
    EXPECT_EQ(plan->schedule.tile_kv, 128) << words;
    EXPECT_EQ(plan->schedule.overlap, Overlap::qk_pv) << words;
  }
}

// Along the queries: which of them see a tile of keys. What keys a tile of queries sees may know no head all the same.
TEST(Schedules, GradientsLookAtHeadsWhoseQueriesDiffer) {
  const auto differ = [](const char* mask) {
    const auto plan = make_plan(spec_of(std::string("bwd fp16 d=16 heads=4/1 mask=\"") + mask + "\""),
                                **find_target("sm_90a"), *parse_schedule("family=hopper_backward"));
    EXPECT_TRUE(plan) << mask << ": " << plan.error().message;
    return plan->config.ranges_differ;
  };
  EXPECT_TRUE(differ("h % 10 > k % 17"));
  EXPECT_TRUE(differ("q >= h * 8"));
  EXPECT_FALSE(differ("causal"));
  EXPECT_FALSE(differ("k % 3 != q % 3"));
}

// Row tiles of one KV head are computed at the same time where the spec says how many there are.
TEST(Schedules, RowTilesAtTheSameTime) {
  const auto tiles = [](const char* text) {
    const auto plan = make_plan(spec_of(text), **find_target("sm_90a"), *parse_schedule("family=decode"));
    EXPECT_TRUE(plan) << text << ": " << plan.error().message;
    return plan->config.decode.row_tiles;
  };
  EXPECT_EQ(tiles("fwd bf16 d=128 heads=64/8 q_len=4"), 1);
  EXPECT_EQ(tiles("fwd bf16 d=128 heads=64/8 q_len=8"), 2);
  EXPECT_EQ(tiles("fwd bf16 d=128 heads=64/8 q_len=16"), 4);
  EXPECT_EQ(tiles("fwd bf16 d=128 heads=64/8 q_len<=16"), 1);
  EXPECT_EQ(tiles("fwd bf16 d=128 heads=64/8 q_len=16 numerics=batch_invariant"), 1);
  EXPECT_EQ(tiles("fwd bf16 d=128 heads=64/8 q_len=4000"), 1);  // more than there are SMs
}

// Tiles that lie in no block of the mask are left out, but where pins leave no others.
TEST(Sync, PinnedWarpsLeaveATile) {
  for (const char* spec : {"fwd fp16 d=80 heads=3/1 blocks=64/256",
                           "fwd bf16 d=64 mask=\"keep[h, q / 64, k / 100] != 0\" params=\"keep: u8[3]\""})
    for (const char* pins : {"family=sync,warps=8", "family=sync,warps=4", "family=sync,tile_kv=48"}) {
      const auto plan = make_plan(spec_of(spec), **find_target("sm_90a"), *parse_schedule(pins));
      EXPECT_TRUE(plan) << spec << " // " << pins << ": " << plan.error().message;
    }
}

}  // namespace
}  // namespace flashjit
