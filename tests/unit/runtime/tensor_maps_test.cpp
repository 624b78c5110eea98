// What TMA is told about the operands that it copies: compared with numbers worked out by hand, and where there is a GPU, shown to its
// driver.
#include "runtime/launch/tensor_maps.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <vector>

#include "compiler/families/family.h"
#include "compiler/plan.h"

namespace flashjit {
namespace {

using Numbers = std::vector<std::uint64_t>;

// Addresses only: nothing is read or written through them.
const void* address(std::uintptr_t at) { return reinterpret_cast<const void*>(at); }

KernelConfig config_of(int heads_q, int heads_kv, int d_qk, int d_v) {
  KernelConfig c;
  c.heads_q = heads_q;
  c.heads_kv = heads_kv;
  c.head_dim_qk = d_qk;
  c.head_dim_v = d_v;
  c.hopper.warpgroups = 2;
  c.tile_q = 128;
  c.tile_kv = 176;
  return c;
}

// Lengths 300 and 500, batch 2; strides of contiguous [batch, token, head, d].
KernelParams params_of(const KernelConfig& c) {
  KernelParams p = {};
  p.q = address(0x10000);
  p.k = address(0x20000);
  p.v = address(0x30000);
  p.o = const_cast<void*>(address(0x40000));
  p.batch = 2;
  p.q_len = 300;
  p.k_len = 500;
  const auto strides = [](int tokens, int heads, int d) {
    return Strides{Int64{tokens} * heads * d, d, Int64{heads} * d};
  };
  p.q_stride = strides(p.q_len, c.heads_q, c.head_dim_qk);
  p.k_stride = strides(p.k_len, c.heads_kv, c.head_dim_qk);
  p.v_stride = strides(p.k_len, c.heads_kv, c.head_dim_v);
  p.o_stride = strides(p.q_len, c.heads_q, c.head_dim_v);
  return p;
}

// A plan of this config as the hopper family, or another one, finishes it.
Plan plan_of(const KernelConfig& c, std::string_view family = "hopper", Dtype dtype = Dtype::BF16) {
  Plan plan;
  plan.config = c;
  plan.target = **find_target("sm_90a");
  plan.spec.dtype = plan.spec.kv_dtype = dtype;
  plan.spec.heads_q = c.heads_q, plan.spec.heads_kv = c.heads_kv;
  plan.spec.d_qk = c.head_dim_qk, plan.spec.d_v = c.head_dim_v;
  plan.spec.page_size = c.page_size, plan.spec.k_lens = c.k_lens;
  if (c.sequences == Sequences::packed) plan.spec.layout = Layout::Packed;
  find_family(family)->finish(plan);
  return plan;
}

// By the names of the operands.
using Layouts = std::map<std::string_view, TensorMapLayout>;
Result<Layouts> layouts_of(const Plan& plan, const KernelParams& p) {
  Layouts layouts;
  for (const OperandMap& mapped : plan.maps) {
    FLASHJIT_ASSIGN(layout, operand_layout(mapped, p, {.q_tokens = 600}));
    layouts[mapped.operand->name] = layout;
  }
  return layouts;
}
Result<Layouts> layouts_of(const KernelConfig& c, const KernelParams& p) { return layouts_of(plan_of(c), p); }

void expect_layout(const TensorMapLayout& map, const void* data, const Numbers& size, const Numbers& stride,
                   const Numbers& box) {
  EXPECT_EQ(map.address, data);
  EXPECT_EQ(Numbers(map.size, map.size + map.rank), size);
  EXPECT_EQ(Numbers(map.stride, map.stride + (map.rank - 1)), stride);
  EXPECT_EQ(Numbers(map.box, map.box + map.rank), box);
}

TEST(TensorMaps, TokensBeforeHeads) {
  KernelConfig c = config_of(4, 2, 72, 128);
  const auto maps = layouts_of(c, params_of(c));
  ASSERT_TRUE(maps) << maps.error().message;
  // d=72 takes two panels of 64 columns; the last 56 are out of bounds.
  expect_layout(maps->at("q"), address(0x10000), {72, 300, 4, 2}, {576, 144, 172800}, {64, 128, 1, 1});
  expect_layout(maps->at("k"), address(0x20000), {72, 500, 2, 2}, {288, 144, 144000}, {64, 176, 1, 1});
  expect_layout(maps->at("v"), address(0x30000), {128, 500, 2, 2}, {512, 256, 256000}, {64, 176, 1, 1});
}

TEST(TensorMaps, OutputGoesByWarpsFromQsPlace) {
  KernelConfig c = config_of(8, 2, 128, 72);
  c.output = Element::bf16;
  c.hopper.q_stages = 2;
  const auto maps = layouts_of(c, params_of(c));
  ASSERT_TRUE(maps) << maps.error().message;
  expect_layout(maps->at("o"), address(0x40000), {72, 300, 8, 2}, {1152, 144, 345600}, {64, 16, 1, 1});
  c.head_tiles = HeadTiles::grouped;  // four heads of four queries
  const auto grouped = layouts_of(c, params_of(c));
  ASSERT_TRUE(grouped) << grouped.error().message;
  expect_layout(grouped->at("o"), address(0x40000), {72, 4, 300, 2, 2}, {144, 1152, 576, 345600}, {64, 4, 4, 1, 1});
}

TEST(TensorMaps, OutputStaysOffTmaWithoutAPlace) {
  KernelConfig one = config_of(4, 2, 128, 128), wide = config_of(4, 2, 64, 128), floats = config_of(4, 2, 128, 128);
  wide.hopper.q_stages = floats.hopper.q_stages = 2;
  floats.output = Element::f32;
  KernelConfig odd = config_of(6, 2, 128, 128);  // three heads do not divide a warp's 16 rows
  odd.hopper.q_stages = 2;
  odd.head_tiles = HeadTiles::grouped;
  odd.tile_q = 192;
  for (const KernelConfig& c : {one, wide, floats, odd}) {
    const auto maps = layouts_of(c, params_of(c));
    ASSERT_TRUE(maps) << maps.error().message;
    EXPECT_FALSE(maps->contains("o"));
  }
}

TEST(TensorMaps, HeadsBeforeTokens) {
  KernelConfig c = config_of(4, 2, 96, 96);
  KernelParams p = params_of(c);
  p.q_stride = {4 * 300 * 96, 300 * 96, 96};
  p.k_stride = {2 * 500 * 96, 500 * 96, 96};
  const auto maps = layouts_of(c, p);
  ASSERT_TRUE(maps) << maps.error().message;
  expect_layout(maps->at("q"), address(0x10000), {96, 300, 4, 2}, {192, 57600, 230400}, {64, 128, 1, 1});
  expect_layout(maps->at("k"), address(0x20000), {96, 500, 2, 2}, {192, 96000, 192000}, {64, 176, 1, 1});
}

TEST(TensorMaps, HeadsOfAGroupShareATile) {
  KernelConfig c = config_of(8, 2, 64, 64);
  c.head_tiles = HeadTiles::grouped;
  const auto maps = layouts_of(c, params_of(c));
  ASSERT_TRUE(maps) << maps.error().message;
  expect_layout(maps->at("q"), address(0x10000), {64, 4, 300, 2, 2}, {128, 1024, 512, 307200}, {64, 4, 32, 1, 1});
  expect_layout(maps->at("k"), address(0x20000), {64, 500, 2, 2}, {256, 128, 128000}, {64, 176, 1, 1});
}

TEST(TensorMaps, PackedSequencesEndWhereTheKernelSays) {
  KernelConfig c = config_of(4, 2, 64, 64);
  c.sequences = Sequences::packed;
  const auto maps = layouts_of(c, params_of(c));
  ASSERT_TRUE(maps) << maps.error().message;
  constexpr std::uint64_t kRows = 1 << 30, kAny = 0x7fff0000;
  expect_layout(maps->at("q"), address(0x10000), {64, kRows, 4, kAny, kAny}, {512, 128, 512, 34359737856},
                {64, 128, 1, 1, 1});
  expect_layout(maps->at("k"), address(0x20000), {64, kRows, 2, kAny, kAny}, {256, 128, 256, 34359738112},
                {64, 176, 1, 1, 1});
  // Row 3 of a sequence that begins at token 1000 and has 70: its last row is the last within bounds.
  const std::uint64_t start = 1000, length = 70, row = 3, head = 2;
  const std::uint64_t at[] = {kRows - length + row, head, start + length, kRows};
  std::uint64_t offset = 0;
  for (int i = 0; i < 4; ++i) offset += at[i] * maps->at("q").stride[i];
  EXPECT_EQ(offset, (start + row) * 512 + head * 128);
  EXPECT_EQ(kRows - length + (length - 1), maps->at("q").size[1] - 1);
}

// The bytes from the first to what the coordinates behind the column say, as the hardware adds them up.
std::uint64_t offset_of(const TensorMapLayout& map, const Numbers& at) {
  std::uint64_t offset = 0;
  for (int i = 0; i < map.rank - 1; ++i) offset += at[i] * map.stride[i];
  return offset;
}

// Keys whose lengths, or pages, the kernel knows: where templates/hopper/rows.cuh says that a row lies, it does.
TEST(TensorMaps, CachesEndWhereTheKernelSays) {
  constexpr std::uint64_t kRows = 1 << 30, kAny = 0x7fff0000;
  const struct {
    const char* name;
    int page_size;
    Strides stride;      // in elements of 2 bytes
    std::uint64_t step;  // in bytes
    std::uint32_t rows;  // of a box
  } rows[] = {{"lengths", 0, {500 * 2 * 64, 64, 2 * 64}, 256, 176},
              {"heads first", 0, {2 * 500 * 64, 500 * 64, 64}, 128, 176},
              {"expanded", 0, {0, 64, 2 * 64}, 256, 176},
              {"pages", 64, {64 * 2 * 64, 64, 2 * 64}, 256, 16},
              {"pages of K and V", 48, {2 * 48 * 2 * 64, 64, 2 * 64}, 256, 16},
              {"a tile in a page", 352, {352 * 64 * 2, 352 * 64, 64}, 128, 176},
              {"room behind each", 8, {8 * (2 * 64 + 8) + 24, 64, 2 * 64 + 8}, 16, 8}};
  for (const auto& row : rows) {
    SCOPED_TRACE(row.name);
    KernelConfig c = config_of(4, 2, 64, 64);
    c.k_lens = true;
    c.page_size = row.page_size;
    KernelParams p = params_of(c);
    p.pages = 10;
    p.k_stride = row.stride;
    const auto maps = layouts_of(c, p);
    ASSERT_TRUE(maps) << maps.error().message;
    const TensorMapLayout& k = maps->at("k");
    const auto bytes = [](Int64 elements) { return static_cast<std::uint64_t>(elements) * 2; };
    const std::uint64_t token = bytes(row.stride.token), head = bytes(row.stride.head), page = bytes(row.stride.batch);
    expect_layout(k, address(0x20000), {64, kRows, 2, kAny, kAny}, {token, head, row.step, (1ull << 35) - token},
                  {64, row.rows, 1, 1, 1});
    EXPECT_EQ(maps->at("q").rank, 4);
    const OperandMap mapped = plan_of(c).maps[1];
    ASSERT_EQ(mapped.steps, &TensorMaps::k_steps);
    const EndSteps steps = end_steps(mapped, p, {});
    // Row 5 of a box that begins at row 2 of page 1 and has 6 rows left: the last that is there.
    const std::uint64_t begin = 2, left = 6, number = 1;
    EXPECT_EQ(offset_of(k, {kRows - left + 5, 1, number * steps.outer + (begin + left) * steps.token, kRows}),
              number * page + head + (begin + 5) * token);
    EXPECT_EQ(kRows - left + 5, k.size[1] - 1);
  }
}

TEST(TensorMaps, BoxesOfFewerRowsThanAGroupHasAreHeadsOfOneQuery) {
  KernelConfig c = config_of(24, 1, 64, 64);
  c.head_tiles = HeadTiles::grouped, c.page_size = 32;
  KernelParams p = params_of(c);
  p.pages = 2;
  const auto maps = layouts_of(plan_of(c, "mla"), p);
  ASSERT_TRUE(maps) << maps.error().message;
  expect_layout(maps->at("q"), address(0x10000), {64, 24, 300, 1, 2}, {128, 3072, 16, 921600}, {64, 8, 1, 1, 1});
  expect_layout(maps->at("k"), address(0x20000), {64, 32, 1, 2}, {128, 16, 64000}, {64, 32, 1, 1});
}

TEST(TensorMaps, PackedHeadsOfAGroupShareATile) {
  KernelConfig c = config_of(8, 2, 64, 64);
  c.sequences = Sequences::packed, c.head_tiles = HeadTiles::grouped;
  c.page_size = 16;
  c.output = Element::bf16, c.hopper.q_stages = 2;
  KernelParams p = params_of(c);
  p.pages = 10, p.tiles_q = 1;
  const auto maps = layouts_of(c, p);
  ASSERT_TRUE(maps) << maps.error().message;
  constexpr std::uint64_t kRows = 1 << 30, kAny = 0x7fff0000;
  // 1024 bytes a token, of which a group has 512.
  const TensorMapLayout &q = maps->at("q"), &o = maps->at("o");
  expect_layout(q, address(0x10000), {64, 4, kRows, kAny, kAny}, {128, 1024, 512, 34359737344}, {64, 4, 32, 1, 1});
  expect_layout(o, address(0x40000), {64, 4, kRows, kAny, kAny}, {128, 1024, 512, 34359737344}, {64, 4, 4, 1, 1});
  const OperandMap mapped = plan_of(c).maps[0];
  ASSERT_EQ(mapped.steps, &TensorMaps::q_steps);
  const EndSteps steps = end_steps(mapped, p, {.q_tokens = 600});
  // Head 3 of the second group, query 7 of a sequence of 20 that begins at token 100.
  const std::uint64_t end = 1 * steps.outer + (100 + 20) * steps.token;
  EXPECT_EQ(offset_of(q, {3, kRows - 20 + 7, end, kRows}), (4 + 3) * 128 + 107 * 1024);
  // Three sequences of one query, which is all that a tile holds: each sequence still has a token of its own.
  c.tile_q = 4;
  EXPECT_EQ(end_steps(plan_of(c).maps[0], p, {.q_tokens = 3}).token, steps.token);
}

TEST(TensorMaps, ADimensionOfOneNeedsNoStride) {
  KernelConfig c = config_of(1, 1, 64, 64);
  KernelParams p = params_of(c);
  p.batch = 1;
  p.q_len = 1;
  p.q_stride = {0, 7, Int64{1} << 50};
  const auto maps = layouts_of(c, p);
  ASSERT_TRUE(maps) << maps.error().message;
  expect_layout(maps->at("q"), address(0x10000), {64, 1, 1, 1}, {16, 16, 16}, {64, 128, 1, 1});
  // Nor do the steps of a cache care.
  c.k_lens = true;
  p.k_len = 1;
  p.k_stride = p.v_stride = {3, 7, 5};
  const auto caches = layouts_of(c, p);
  ASSERT_TRUE(caches) << caches.error().message;
  expect_layout(caches->at("k"), address(0x20000), {64, 1 << 30, 1, 0x7fff0000, 0x7fff0000},
                {0, 16, 16, std::uint64_t{1} << 35}, {64, 176, 1, 1, 1});
}

TEST(TensorMaps, WithoutKeysPointersAndStridesMeanNothing) {
  for (const char* kind : {"dense", "packed", "lengths", "pages"}) {
    KernelConfig c = config_of(4, 2, 64, 128);
    c.sequences = kind == std::string_view("packed") ? Sequences::packed : Sequences::dense;
    c.k_lens = kind == std::string_view("lengths") || kind == std::string_view("pages");
    c.page_size = kind == std::string_view("pages") ? 16 : 0;
    KernelParams p = params_of(c);
    p.k = p.v = nullptr;
    p.k_len = 0;
    p.k_stride = p.v_stride = {1, 3, 5};
    const auto maps = layouts_of(c, p);
    ASSERT_TRUE(maps) << maps.error().message;
    for (const TensorMapLayout* map : {&maps->at("k"), &maps->at("v")}) {
      EXPECT_EQ(map->address, p.q);
      for (int i = 0; i < map->rank; ++i) EXPECT_GE(map->size[i], 1u);
      for (int i = 0; i < map->rank - 1; ++i) EXPECT_EQ(map->stride[i] % 16, 0u);
    }
  }
}

TEST(TensorMaps, RefusesWhatTmaCannotAddress) {
  int page_size = 0;
  const auto refused = [&](bool packed, void (*change)(KernelParams&), const char* words) {
    KernelConfig c = config_of(4, 2, 64, 64);
    c.sequences = packed ? Sequences::packed : Sequences::dense;
    c.page_size = page_size;
    KernelParams p = params_of(c);
    change(p);
    const auto maps = layouts_of(c, p);
    ASSERT_FALSE(maps);
    EXPECT_EQ(maps.error().kind, ErrorKind::Invalid);
    EXPECT_NE(maps.error().message.find(words), std::string::npos) << maps.error().message;
  };
  refused(
      false, [](KernelParams& p) { p.q = address(0x10008); },
      "q.data: address 0x10008, TMA reads from multiples of 16 bytes; align");
  refused(
      false, [](KernelParams& p) { p.k_stride.token = 132; },
      "k.strides: 264 bytes per token, TMA steps in multiples of 16; pass");
  refused(false, [](KernelParams& p) { p.v_stride.head = 68; }, "v.strides: 136 bytes per head");
  refused(false, [](KernelParams& p) { p.q_stride.batch = 1004; }, "q.strides: 2008 bytes per sequence");
  refused(
      false, [](KernelParams& p) { p.v_stride.batch = Int64{1} << 39; },
      "v.strides: 1099511627776 bytes per sequence, TMA steps less than");
  refused(true, [](KernelParams& p) { p.k_stride.token = 132; }, "k.strides: 264 bytes per token");
  refused(
      true, [](KernelParams& p) { p.k_stride.token = Int64{1} << 34; },
      "k.strides: 34359738368 bytes per token, packed tensors and caches step less");
  page_size = 16;
  refused(
      false, [](KernelParams& p) { p.pages = 4, p.v_stride.batch = 1004; },
      "v.strides: 2008 bytes per page, TMA steps in multiples of 16");
  refused(
      true, [](KernelParams& p) { p.pages = 1 << 30, p.k_stride.batch += 8; },
      "in steps of 16, what page and token have in common, are more than 2147418112 steps");
}

// A bias [head, query, key] in the first parameter, tiles of 192 rows (three warpgroups) and 96 keys.
struct InputCase {
  InputMap map = {.name = "table", .query = 1, .rows = 64, .dtype = Dtype::F16};
  std::int64_t shape[4] = {4, 500, 640, 0};
  ExtraParam param = {address(0x1000), {500 * 640, 640, 1, 0}};
  TensorView tensor;
  InputCase() {
    tensor.rank = 3;
    tensor.shape = shape;
  }
  TensorMapLayout layout() const { return input_layout(map, tensor, param); }
};

TEST(TensorMaps, InputsOfTheScore) {
  InputCase c;
  expect_layout(c.layout(), address(0x1000), {640, 500, 4, 1}, {1280, 640000, 16}, {64, 64, 1, 1});
  c.map.dtype = Dtype::F32;
  expect_layout(c.layout(), address(0x1000), {640, 500, 4, 1}, {2560, 1280000, 16}, {32, 64, 1, 1});
}

TEST(TensorMaps, InputsOfNoQueryAreOneRow) {
  InputCase c;
  c.map.query = -1;
  c.map.rows = 1;
  expect_layout(c.layout(), address(0x1000), {640, 1, 4, 500}, {16, 640000, 1280}, {64, 1, 1, 1});
}

TEST(TensorMaps, InputsThatAreExpanded) {
  InputCase c;
  c.param.stride[0] = 0;
  expect_layout(c.layout(), address(0x1000), {640, 500, 4, 1}, {1280, 0, 16}, {64, 64, 1, 1});
}

TEST(TensorMaps, InputsThatTmaCannotAddress) {
  const auto refused = [](auto change) {
    InputCase c;
    change(c);
    return c.layout().rank == 0;
  };
  EXPECT_TRUE(refused([](InputCase& c) { c.param.data = address(0x1008); }));
  EXPECT_TRUE(refused([](InputCase& c) { c.param.stride[2] = 2; }));
  EXPECT_TRUE(refused([](InputCase& c) { c.param.stride[1] = 641; }));
  EXPECT_TRUE(refused([](InputCase& c) { c.param.stride[0] = -640; }));
  EXPECT_TRUE(refused([](InputCase& c) { c.param.stride[0] = Int64{1} << 40; }));
  // What is never stepped in may be anything.
  EXPECT_FALSE(refused([](InputCase& c) { c.shape[0] = 1, c.param.stride[0] = 3; }));
}

// K and V may have another element type than Q, and O a third one.
TEST(TensorMaps, ElementsAreThoseOfTheOperand) {
  KernelConfig config = config_of(4, 4, 128, 128);
  config.hopper.q_stages = 2;
  config.output = Element::bf16;
  const AttentionSpec spec = *parse_spec("fwd fp16 kv=e4m3 out=bf16 d=128 heads=4");
  const auto mapped = [&](std::string_view name) {
    return operand_map(spec, find_operand(name), &TensorMaps::q, RowsForm::Dense, 16);
  };
  const auto k = operand_layout(mapped("k"), params_of(config), {});
  ASSERT_TRUE(k);
  EXPECT_EQ(mapped("q").dtype, Dtype::F16);
  EXPECT_EQ(k->dtype, Dtype::E4M3);
  EXPECT_EQ(k->box[0], 128u);
  EXPECT_EQ(k->stride[0], 4 * 128u);
  EXPECT_EQ(mapped("o").dtype, Dtype::BF16);
}

struct Encoded {
  int dtype, swizzle, promotion;
  std::uint32_t rank, element_stride;
} encoded;

Driver recording_driver(int version) {
  DriverApi api;
  api.tensor_map_encode = [](TensorMap* map, int dtype, std::uint32_t rank, void*, const std::uint64_t*,
                             const std::uint64_t*, const std::uint32_t*, const std::uint32_t* element_strides, int,
                             int swizzle, int promotion, int) {
    encoded = {dtype, swizzle, promotion, rank, element_strides[rank - 1]};
    std::memset(map, 0xff, sizeof *map);
    return 0;
  };
  return Driver(api, version);
}

TEST(TensorMaps, WhatTheDriverIsTold) {
  const Driver driver = recording_driver(13020);
  const KernelConfig c = config_of(4, 2, 80, 128);
  TensorMap map;
  const struct {
    Dtype dtype;
    int number;
  } rows[] = {{Dtype::F16, 6}, {Dtype::BF16, 9}, {Dtype::E4M3, 0}};
  for (const auto& [dtype, number] : rows) {
    const auto layouts = layouts_of(plan_of(c, "hopper", dtype), params_of(c));
    ASSERT_TRUE(layouts);
    ASSERT_TRUE(encode(driver, layouts->at("q"), map));
    EXPECT_EQ(encoded.dtype, number);
  }
  EXPECT_EQ(encoded.swizzle, 3);
  EXPECT_EQ(encoded.promotion, 2);
  EXPECT_EQ(encoded.rank, 4u);
  EXPECT_EQ(encoded.element_stride, 1u);
}

TEST(TensorMaps, SmallTensorsLoseABitOfOldDrivers) {
  TensorMapLayout map{.address = address(0x1000),
                      .rank = 2,
                      .dtype = Dtype::BF16,
                      .size = {64, 1023},
                      .stride = {128},
                      .box = {64, 64}};
  const auto bit = [&](int version) {
    const Driver driver = recording_driver(version);
    TensorMap result;
    EXPECT_TRUE(encode(driver, map, result));
    EXPECT_EQ(result.words[0], ~0ull);
    EXPECT_EQ(result.words[1] | 1ull << 21, ~0ull);
    return result.words[1] >> 21 & 1;
  };
  EXPECT_EQ(bit(12040), 0u);  // 1023 rows of 128 bytes: less than 128 KiB
  EXPECT_EQ(bit(13010), 0u);
  EXPECT_EQ(bit(13020), 1u);
  map.size[1] = 1024;
  EXPECT_EQ(bit(12040), 1u);
  map.size[1] = 2;
  map.stride[0] = std::uint64_t{1} << 39;
  EXPECT_EQ(bit(12040), 1u);
  map.size[1] = std::uint64_t{1} << 30;
  map.stride[0] = 0;  // expanded: all rows are one
  EXPECT_EQ(bit(12040), 0u);
}

TEST(TensorMaps, TheDriverTakesThemAll) {
  auto driver = Driver::open();
  if (!driver) GTEST_SKIP() << driver.error().message;
  auto gpu = GpuContext::open(*driver, 0);
  ASSERT_TRUE(gpu) << gpu.error().message;
  const CurrentContext current(*gpu);
  for (const bool packed : {false, true}) {
    for (const int page_size : {0, 16, 24}) {
      for (const bool grouped : {false, true}) {
        if (packed && grouped) continue;
        for (const int d : {8, 64, 72, 96, 256}) {
          for (const bool keys : {true, false}) {
            for (const bool expanded : {false, true}) {
              KernelConfig c = config_of(8, 2, d, d);
              c.sequences = packed ? Sequences::packed : Sequences::dense;
              c.head_tiles = grouped ? HeadTiles::grouped : HeadTiles::single;
              c.page_size = page_size;
              KernelParams p = params_of(c);
              p.pages = 20;
              if (!keys) p.k = p.v = nullptr, p.k_len = 0;
              if (expanded) p.k_stride.head = p.v_stride.batch = p.q_stride.batch = 0;
              SCOPED_TRACE(testing::Message() << "packed " << packed << " pages of " << page_size << " grouped "
                                              << grouped << " d " << d << " keys " << keys << " expanded " << expanded);
              const auto layouts = layouts_of(c, p);
              ASSERT_TRUE(layouts) << layouts.error().message;
              TensorMap map;
              for (const auto& [name, layout] : *layouts) {
                const auto done = encode(**driver, layout, map);
                EXPECT_TRUE(done) << name << ": " << done.error().message;
              }
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace flashjit
