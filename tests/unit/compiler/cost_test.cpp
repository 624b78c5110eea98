#include "compiler/choice/cost_model.h"
#include "tests/unit/compiler/asked.h"

#include <tuple>

#include <gtest/gtest.h>

#include "compiler/choice/candidates.h"

namespace flashjit {
namespace {

Plan planned(const std::string& text, std::string_view target_name, const char* pins = "") {
  const auto spec = parse_spec(text);
  const auto target = find_target(target_name);
  const auto schedule = parse_schedule(pins);
  EXPECT_TRUE(spec && target && schedule) << text;
  auto plan = make_plan(*spec, **target, *schedule);
  EXPECT_TRUE(plan) << text << ": " << plan.error().message;
  return *plan;
}

// Counts by looking at every score: what work_of() estimates from the analysis.
struct Counted {
  double tiles = 0, visible = 0;
};
Counted count(const AttentionSpec& spec, const Shape& shape, int tile_q, int tile_kv) {
  Counted counted;
  Environment e;
  e.variables[static_cast<int>(Variable::QLen)] = shape.q_len;
  e.variables[static_cast<int>(Variable::KLen)] = shape.k_len;
  double query_tiles = 0;
  for (std::int64_t q0 = 0; q0 < shape.q_len; q0 += tile_q, query_tiles += 1) {
    for (std::int64_t k0 = 0; k0 < shape.k_len; k0 += tile_kv) {
      double seen = 0;
      for (std::int64_t q = q0; q < std::min(q0 + tile_q, shape.q_len); ++q) {
        for (std::int64_t k = k0; k < std::min(k0 + tile_kv, shape.k_len); ++k) {
          e.variables[static_cast<int>(Variable::Q)] = q;
          e.variables[static_cast<int>(Variable::K)] = k;
          seen += spec.mask ? evaluate(spec.mask, e).integer != 0 : 1;
        }
      }
      counted.tiles += seen > 0;
      counted.visible += seen;
    }
  }
  counted.tiles /= query_tiles;
  counted.visible /= static_cast<double>(shape.q_len * shape.k_len);
  return counted;
}

double tiles_of(std::int64_t length, std::int64_t tile) { return static_cast<double>((length + tile - 1) / tile); }

TEST(Work, AgreesWithCounting) {
  const Shape shapes[] = {{1, 512, 512}, {1, 128, 700}, {1, 1, 333}};
  for (const char* mask : {"", " mask=\"causal\"", " mask=\"window(100, 0)\"", " mask=\"causal & window(64, 64)\"",
                           " mask=\"chunk(128)\""}) {
    const auto spec = parse_spec(std::string("fwd bf16 d=64") + mask);
    ASSERT_TRUE(spec);
    for (const Shape& shape : shapes) {
      const Work work = work_of(*spec, analyse_tiles(spec->mask), shape, 64, 32);
      const Counted counted = count(*spec, shape, 64, 32);
      EXPECT_NEAR(work.kv_tiles, counted.tiles, 0.1 * counted.tiles + 0.6) << mask << " q=" << shape.q_len;
      EXPECT_NEAR(work.visible, counted.visible, 0.12) << mask << " q=" << shape.q_len;
      EXPECT_TRUE(work.exact);
      EXPECT_GE(work.kv_tiles_max, work.kv_tiles);
      EXPECT_LE(work.mixed_tiles, work.kv_tiles);
      const Work by_keys = work_of(*spec, analyse_tiles(spec->mask, Axis::Queries), shape, 64, 32);
      // As many pairs of tiles, shared among the key tiles.
      const double pairs = counted.tiles * tiles_of(shape.q_len, 64) / tiles_of(shape.k_len, 32);
      EXPECT_NEAR(by_keys.kv_tiles, pairs, 0.1 * pairs + 0.6) << mask << " q=" << shape.q_len;
      EXPECT_NEAR(by_keys.visible, counted.visible, 0.12) << mask << " q=" << shape.q_len;
    }
  }
}

TEST(Work, MasksThatReadTensorsAreNotExact) {
  const auto spec = parse_spec("fwd bf16 d=64 mask=\"doc[q] == doc[k]\" params=\"doc: i32[1]\"");
  ASSERT_TRUE(spec);
  const Work work = work_of(*spec, analyse_tiles(spec->mask), {1, 256, 256}, 64, 64);
  EXPECT_FALSE(work.exact);
  EXPECT_EQ(work.kv_tiles, 4);
}

// Chunks of 2048 keys: query tiles of 128 see 1 to 16 tiles of 128 keys, whatever part of the chunks a sample could
// fall into.
TEST(Work, SamplesDoNotFallIntoStepWithAMask) {
  const auto spec = parse_spec("fwd bf16 d=128 mask=\"causal & chunk(2048)\"");
  ASSERT_TRUE(spec) << spec.error().message;
  for (const std::int64_t length : {4096, 8192, 16384, 32768, 65536}) {
    const Work work = work_of(*spec, analyse_tiles(spec->mask), {1, length, length}, 128, 128);
    EXPECT_NEAR(work.kv_tiles, 8.5, 1.5) << length;
    EXPECT_GE(work.kv_tiles_max, 12) << length;
  }
}

// A warpgroup does not visit what only the others of its block see, and one without queries visits nothing to speak of.
TEST(Work, WarpgroupsLeaveTilesOut) {
  const auto visited = [](const char* text, const char* schedule, const Shape& shape) {
    const Plan plan = planned(text, "sm_90a", schedule);
    const double block = work_of(plan.spec, plan.tiles, shape, plan.config.tile_q, plan.config.tile_kv).kv_tiles;
    return work_of(Problem(plan.spec, plan.target, plan.tiles), shape, plan.schedule).kv_tiles / block;
  };
  const char* causal = "fwd bf16 d=64 heads=2 mask=\"causal\"";
  EXPECT_LT(visited(causal, "tile_q=192,tile_kv=64", {1, 1536, 1536}), 0.97);
  EXPECT_EQ(visited(causal, "tile_q=128,tile_kv=128", {1, 1536, 1536}), 1) << "tiles as long as the block has rows";
  EXPECT_EQ(visited(causal, "family=sync", {1, 1536, 1536}), 1);
  EXPECT_EQ(
      visited("fwd bf16 d=64 heads=2 mask=\"k < 64 | (k >= 512 & k < q)\"", "tile_q=192,tile_kv=64", {1, 1536, 1536}),
      1)
      << "holes";
  EXPECT_EQ(visited("fwd bf16 d=64 heads=2", "tile_q=192", {1, 1536, 1536}), 1);
  EXPECT_LT(visited("fwd bf16 d=64 heads=2", "tile_q=192", {1, 1024, 1024}), 0.97) << "two of the last block's three";
}

TEST(Work, EmptyShapesHaveNone) {
  const auto spec = parse_spec("fwd bf16 d=64 mask=\"causal\"");
  ASSERT_TRUE(spec);
  EXPECT_EQ(work_of(*spec, analyse_tiles(spec->mask), {1, 0, 64}, 64, 64).kv_tiles, 0);
  EXPECT_EQ(work_of(*spec, analyse_tiles(spec->mask), {1, 64, 0}, 64, 64).kv_tiles, 0);
}

TEST(CostModel, MoreWorkTakesLonger) {
  for (const char* target : {"sm_80", "sm_90a", "x86-64-v3"}) {
    const Plan full = planned("fwd bf16 d=128 heads=32", target),
               causal = planned("fwd bf16 d=128 heads=32 mask=\"causal\"", target);
    const double base = roofline(full, {4, 2048, 2048}).predicted.total;
    EXPECT_GT(roofline(full, {8, 2048, 2048}).predicted.total, base) << target;
    EXPECT_GT(roofline(full, {4, 4096, 2048}).predicted.total, base) << target;
    EXPECT_GT(roofline(full, {4, 2048, 4096}).predicted.total, base) << target;
    EXPECT_LT(roofline(causal, {4, 2048, 2048}).predicted.total, base) << target;
  }
}

TEST(CostModel, NeverFasterThanTheHardware) {
  for (const Target& target : targets()) {
    const Plan plan = planned("fwd bf16 d=128 heads=32/8", target.name);
    for (const Shape& shape : {Shape{1, 1, 1}, Shape{1, 4096, 4096}, Shape{64, 1, 8192}, Shape{2, 300, 17}}) {
      const Roofline r = roofline(plan, shape);
      const double rate = std::max(target.mma_flops_per_clock, target.wgmma_flops_per_clock);
      const double peak = rate * target.clock_ghz * target.sm_count * 1e3;  // flops per us
      EXPECT_GE(r.predicted.total, r.flops / peak) << target.name;
      EXPECT_GE(r.predicted.total, r.fused_bytes / (target.memory_tbs * 1e6)) << target.name;
    }
  }
}

TEST(CostModel, GradientsAreWrittenInTheirDtypes) {
  const auto bytes = [](const char* out) {
    const Plan plan = planned(std::string("bwd bf16 d=64/32 heads=4/2 out=") + out, "sm_80");
    return roofline(plan, {1, 100, 300}).fused_bytes;
  };
  const double usual = bytes("bf16");
  EXPECT_EQ(bytes("fp32/bf16/bf16") - usual, 2 * 100 * 4 * 64);
  EXPECT_EQ(bytes("bf16/fp32/bf16") - usual, 2 * 300 * 2 * 64);
  EXPECT_EQ(bytes("bf16/fp16/fp32") - usual, 2 * 300 * 2 * 32);
}

TEST(CostModel, CandidatesAreSortedAndExplained) {
  const Plan plan = planned("fwd bf16 d=128 heads=32/8 mask=\"causal\"", "sm_86");
  bool illegal = false;
  double last = 0;
  for (const Candidate& c : *plan.candidates) {
    const std::string why = why_illegal(plan.spec, plan.target, c.schedule);
    EXPECT_EQ(c.legal, why.empty()) << why;
    if (!c.legal) {
      illegal = true;
      EXPECT_NE(why.find(':'), std::string::npos) << "names a field: " << why;
      continue;
    }
    EXPECT_FALSE(illegal) << "legal ones come first";
    EXPECT_GE(c.rank, last);
    last = c.rank;
  }
  EXPECT_TRUE(illegal);
  EXPECT_EQ(plan.candidates->front().schedule, plan.schedule);
}

// What a schedule of the hopper family is predicted to take, with some of its fields pinned.
double hopper_us(const std::string& spec, const std::string& pins, const Shape& shape) {
  const Plan plan = planned(spec, "sm_90a", ("family=hopper," + pins).c_str());
  return roofline(plan, shape).predicted.total;
}

// Where rows are ranges a mask becomes bits, however long its text: chunks as long as the sequence change nothing.
TEST(CostModel, RangesCostNothingForTheirLength) {
  const auto predicted = [](const std::string& mask) {
    return hopper_us("fwd bf16 d=64 heads=16 mask=\"" + mask + "\"", "tile_q=128,tile_kv=128", {8, 2048, 2048});
  };
  const double causal = predicted("causal");
  EXPECT_DOUBLE_EQ(predicted("causal & chunk(2048) & chunk(4096)"), causal);
  EXPECT_GT(predicted("causal & chunk(2048) & chunk(4096) & (k + q) % 8192 != 8191"), causal);
}

TEST(CostModel, HopperKnowsWavesAndTails) {
  const std::string spec = "fwd bf16 d=128 heads=16";
  // 16 heads x 8 tiles of 128 rows are one wave of 132 SMs; 9 tiles are two.
  const auto at = [&](std::int64_t q) { return hopper_us(spec, "tile_q=128,tile_kv=128", {1, q, 4096}); };
  EXPECT_NEAR(at(1024), at(512), 0.02 * at(512)) << "SMs without work take no time";
  EXPECT_GT(at(1152), 1.5 * at(1024));
  // Few queries: lower tiles fill more SMs.
  EXPECT_LT(hopper_us(spec, "tile_q=64", {1, 512, 4096}), hopper_us(spec, "tile_q=192", {1, 512, 4096}));
  EXPECT_LT(hopper_us(spec, "tile_q=128", {4, 4096, 4096}), hopper_us(spec, "tile_q=64", {4, 4096, 4096}));
}

TEST(CostModel, HopperKnowsWhatChoicesAreFor) {
  const Shape shape{1, 16384, 16384};
  const auto faster = [&](const std::string& a, const std::string& b) {
    const std::string tile = "tile_q=128,tile_kv=128,row_sum=adds,";
    EXPECT_LT(hopper_us("fwd bf16 d=128 heads=16", tile + a, shape),
              hopper_us("fwd bf16 d=128 heads=16", tile + b, shape))
        << a << " before " << b;
  };
  faster("reference=first", "reference=tile");
  faster("reference=tile,overlap=qk_pv,exclusive=issue", "reference=tile,overlap=qk_pv,exclusive=none");
  faster("reference=tile,overlap=qk_pv,exclusive=issue", "reference=tile,overlap=none");
  faster("grid=persistent,q_stages=2", "grid=persistent,q_stages=1");
  faster("grid=persistent,q_stages=1", "grid=tiles,q_stages=1");
  // Packed heads fill a tile that the queries of one head leave empty.
  const std::string decode = "fwd bf16 d=128 heads=64/8 q_len=8";
  EXPECT_LT(hopper_us(decode, "head_tiles=grouped", {64, 8, 8192}),
            0.6 * hopper_us(decode, "head_tiles=single", {64, 8, 8192}));
}

// How many times as fast a choice was on an H200 (2026-11-21, 16384 tokens), and what the model says of it.
TEST(CostModel, HopperAgreesWithWhatWasMeasured) {
  const std::string d64 = "fwd bf16 d=64 heads=32", d128 = "fwd bf16 d=128 heads=16", d256 = "fwd bf16 d=256 heads=8";
  const std::string tall = "tile_q=192,tile_kv=128,", wide = "tile_q=128,tile_kv=128,",
                    narrow = "tile_q=128,tile_kv=80,";
  const std::tuple<std::string, std::string, const char*, const char*, double> rows[] = {
      {d64, tall, "exclusive=issue", "exclusive=none", 1.03},
  };
  for (const auto& [spec, tile, choice, other, measured] : rows) {
    const Shape shape{1, 16384, 16384};
    const double predicted = hopper_us(spec, tile + other, shape) / hopper_us(spec, tile + choice, shape);
    EXPECT_NEAR(predicted, measured, 0.05) << spec << ": " << choice << " over " << other;
    EXPECT_EQ(predicted > 1, measured > 1) << spec << ": " << choice << " over " << other << ": " << predicted;
  }
}

// Microseconds of an H200, 32/8 heads, d=128, one query (2026-11-23 to 28): within 12 % each, and what was faster by more
// than a tenth is predicted to be faster.
TEST(CostModel, DecodeAgreesWithWhatWasMeasured) {
  struct Row {
    const char *fields, *pins;
    Shape shape;
    double us;
  };
  const Row rows[] = {
      {"", "tile_kv=16,stages=3,copies=rows", {1, 1, 1024}, 8.4},
      {"", "tile_kv=16,stages=3,copies=rows", {1, 1, 8192}, 16.6},
      {"", "tile_kv=16,stages=3,copies=rows", {8, 1, 4096}, 41.5},
      {"", "tile_kv=16,stages=3,copies=rows", {16, 1, 8192}, 131},
      {"", "tile_kv=16,stages=3,copies=rows", {64, 1, 8192}, 480},
      {"", "tile_kv=16,stages=3,copies=boxes", {1, 1, 8192}, 16.8},
      {"", "tile_kv=16,stages=3,copies=boxes", {8, 1, 4096}, 41.8},
      {"", "tile_kv=16,stages=2,copies=rows", {1, 1, 8192}, 18.8},
      {"", "tile_kv=16,stages=2,copies=rows", {8, 1, 4096}, 44.7},
      {"", "tile_kv=16,stages=1,copies=rows", {1, 1, 1024}, 8.9},
      {"", "tile_kv=16,stages=1,copies=rows", {1, 1, 8192}, 19.2},
      {"", "tile_kv=16,stages=1,copies=rows", {8, 1, 4096}, 42.7},
      {"", "tile_kv=16,stages=1,copies=rows", {16, 1, 8192}, 140},
      {"layout=paged(16)", "tile_kv=16,stages=3,copies=rows", {1, 1, 3008}, 10.8},
      {"layout=paged(16)", "tile_kv=32,stages=1,copies=rows", {1, 1, 3008}, 13.0},
  };
  std::vector<double> predicted;
  for (const Row& row : rows) {
    const Plan plan = planned(std::string("fwd bf16 d=128 heads=32/8 q_len=1 ") + row.fields, "sm_90a",
                              (std::string("family=decode,tile_q=8,warps=8,blocks_per_sm=1,") + row.pins).c_str());
    const Problem problem(plan.spec, plan.target, plan.tiles);
    predicted.push_back(predict(problem, plan.schedule, row.shape, work_of(problem, row.shape, plan.schedule)).total);
    EXPECT_NEAR(predicted.back() / row.us, 1, 0.12) << row.fields << " " << row.pins << " " << print(row.shape);
  }
  for (std::size_t i = 0; i < std::size(rows); ++i) {
    for (std::size_t j = 0; j < std::size(rows); ++j) {
      if (rows[i].shape != rows[j].shape || rows[i].us * 1.1 >= rows[j].us) continue;
      EXPECT_LT(predicted[i], predicted[j]) << i << " " << j;
    }
  }
}

TEST(Roofline, Figures) {
  // Llama-3-8B heads, by hand: b=2, q=k=4096, d=128, 32/8 heads, bf16.
  const Roofline r = roofline(planned("fwd bf16 d=128 heads=32/8", "sm_90a"), {2, 4096, 4096});
  EXPECT_DOUBLE_EQ(r.flops, 4.0 * 2 * 32 * 4096 * 4096 * 128);
  EXPECT_DOUBLE_EQ(r.fused_bytes, 2.0 * 4096 * 128 * 2 * (32 + 8 + 8 + 32));
  EXPECT_DOUBLE_EQ(r.score_bytes_never_written, 2.0 * 32 * 4096 * 4096 * 6);
  EXPECT_DOUBLE_EQ(r.textbook_bytes, r.fused_bytes + 2 * r.score_bytes_never_written);
  EXPECT_DOUBLE_EQ(r.kv_cache_bytes_per_token, 8 * 256 * 2);
  EXPECT_DOUBLE_EQ(r.kv_cache_bytes_per_sequence, 8.0 * 256 * 2 * 4096);
  EXPECT_DOUBLE_EQ(r.visible, 1);
  EXPECT_GT(r.intensity, r.balance_point) << "prefill is limited by arithmetic";

  const Roofline causal = roofline(planned("fwd bf16 d=128 heads=32/8 mask=\"causal\"", "sm_90a"), {2, 4096, 4096});
  EXPECT_NEAR(causal.visible, 0.5, 0.03);
  EXPECT_NEAR(causal.flops, r.flops / 2, 0.03 * r.flops);

  const Roofline decode = roofline(planned("fwd bf16 d=128 heads=32/8 q_len=1", "sm_90a"), {64, 1, 8192});
  EXPECT_LT(decode.intensity, decode.balance_point) << "decode is limited by memory";
}

// By hand: 64 sequences, one query of 32 heads, K and V of 8 heads at the keys that the mask shows.
TEST(Roofline, BytesAreThoseOfVisibleKeys) {
  const auto keys = [](const std::string& more, std::int64_t q_len = 1, std::int64_t k_len = 8192) {
    const Plan plan = planned("fwd bf16 d=128 heads=32/8 " + more, "sm_90a");
    const double of_queries = 64.0 * static_cast<double>(q_len) * 32 * 128 * 2 * 2, of_key = 64.0 * 8 * 2 * 128 * 2;
    return (roofline(plan, {64, q_len, k_len}).fused_bytes - of_queries) / of_key;
  };
  EXPECT_DOUBLE_EQ(keys("q_len=1"), 8192);
  EXPECT_DOUBLE_EQ(keys("q_len=1 mask=\"causal\""), 8192);
  EXPECT_DOUBLE_EQ(keys("q_len=1 mask=\"window(1023, 0)\""), 1024);
  EXPECT_DOUBLE_EQ(keys("q_len=4 mask=\"causal & window(1023, 0)\"", 4), 1027) << "the queries see 1024 each";
  EXPECT_DOUBLE_EQ(keys("q_len=1 mask=\"window(1023, 0)\"", 1, 100), 100);
  EXPECT_NEAR(keys("q_len=1 mask=\"causal & (window(1023, 0) | k < 4)\""), 1028, 32) << "in groups of 16";
  EXPECT_DOUBLE_EQ(keys("mask=\"causal & window(1023, 0)\"", 8192), 8192) << "each key has a query that sees it";
  EXPECT_DOUBLE_EQ(keys("q_len=1 align=top_left mask=\"causal\""), 1);
  EXPECT_DOUBLE_EQ(keys("q_len=1 params=\"left: u8\" mask=\"k >= qpos - left\""), 8192) << "nobody knows `left`";
  EXPECT_DOUBLE_EQ(keys("q_len=1 mask=\"k < 0\""), 0);
}

TEST(ReferenceShape, FollowsPinsAndBounds) {
  const auto shape = [](const char* text) { return assumed_shape(*parse_spec(text)); };
  EXPECT_EQ(shape("fwd bf16 d=64"), (Shape{4, 4096, 4096}));
  EXPECT_EQ(shape("fwd bf16 d=64 q_len=1"), (Shape{32, 1, 8192}));
  EXPECT_EQ(shape("fwd bf16 d=64 b=3 q_len=512 k_len=512"), (Shape{3, 512, 512}));
  EXPECT_EQ(shape("fwd bf16 d=64 b<=2 q_len<=128 k_len<=100"), (Shape{2, 128, 100}));
}

// Measured on an H200 (tests/device/RESULTS.md): hopper takes 163, 104 and 83 us, the sync schedules that were taken
// for faster 195, 158 and 123.
TEST(CostModel, ShortSequencesTakeHopper) {
  for (const char* text : {"fwd bf16 d=64 heads=32/8 mask=\"causal\" score=\"alibi\"",
                           "fwd bf16 d=72 heads=16 mask=\"causal\"", "fwd bf16 d=40 heads=16"}) {
    const auto spec = parse_spec(text);
    ASSERT_TRUE(spec) << text;
    const auto ranked = candidates(Asked(text, "sm_90a").problem, {}, {32, 512, 512});
    EXPECT_EQ(ranked.front().schedule.family, find_family("hopper")) << text << ": " << print(ranked.front().schedule);
  }
}

// Whoever says that there are few queries gets what splits their keys, whatever else the spec allows. 62 single tokens and
// two prompts of 2048 have 65 in the mean (H200, keys of 8 bits: hopper takes 1887 us for them, decode 3015).
TEST(CostModel, HintsOfFewQueriesCount) {
  const auto best = [](const char* text, const Shape& shape) {
    return candidates(Asked(text, "sm_90a").problem, {}, shape).front().schedule.family->name;
  };
  EXPECT_EQ(best("fwd bf16 d=128 heads=32/8", {16, 1, 8192}), "decode");
  EXPECT_EQ(best("fwd bf16 kv=e4m3 d=128 heads=32/8 layout=paged(64)", {1, 32, 16384}), "decode");
  EXPECT_EQ(best("fwd bf16 d=128 heads=32/8", {1, 512, 16384}), "hopper");
  EXPECT_EQ(best("fwd bf16 kv=e4m3 d=128 heads=32/8 layout=packed/paged(64)", {64, 1, 8192}), "decode");
  EXPECT_EQ(best("fwd bf16 kv=e4m3 d=128 heads=32/8 layout=packed/paged(64) mask=\"causal\"", {64, 65, 8192}),
            "hopper");
}

}  // namespace
}  // namespace flashjit
