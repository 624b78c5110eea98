#include <functional>

#include <gtest/gtest.h>

#include "compiler/analysis/interval.h"
#include "tests/unit/compiler/expr_random.h"

namespace flashjit {
namespace {

const Param kScalar = {"n", Dtype::I32, 0};

Expr parsed_mask(std::string_view text, bool bottom_right = true) {
  std::vector<Param> params = {{"n", Dtype::I32, 0}, {"lens", Dtype::I32, 1}, {"ids", Dtype::I32, 2}};
  const Result<Expr> expr = parse_expr(text, {&params, bottom_right, false});
  EXPECT_TRUE(expr) << text << ": " << (expr ? "" : expr.error().message + "\n" + expr.error().detail);
  return expr ? *expr : Expr();
}

void set(Environment& environment, Variable variable, std::int64_t value) {
  environment.variables[static_cast<int>(variable)] = value;
}

constexpr Axis kAxes[] = {Axis::Keys, Axis::Queries};
const char* name(Axis axis) { return axis == Axis::Keys ? "keys" : "queries"; }

// Queries and keys change places.
Expr mirrored(const Expr& e) {
  if (!e) return e;
  if (e->op == Op::Variable) {
    for (const Axis axis : kAxes) {
      const AxisVariables from = variables_of(axis), to = variables_of(other(axis));
      if (e->variable == from.position) return Expr::variable(to.position);
      if (e->variable == from.lo) return Expr::variable(to.lo);
      if (e->variable == from.hi) return Expr::variable(to.hi);
      if (e->variable == from.length) return Expr::variable(to.length);
    }
  }
  if (e->args.empty()) return e;
  std::vector<Expr> args;
  for (const Expr& arg : e->args) args.push_back(mirrored(arg));
  return e->op == Op::Load ? Expr::load(e->param, std::move(args)) : *Expr::make(e->op, std::move(args));
}

struct Visible {
  std::int64_t q_len, k_len;
  std::vector<char> bits;
  bool operator()(std::int64_t q, std::int64_t k) const { return bits[static_cast<std::size_t>(q * k_len + k)] != 0; }
  std::int64_t length(Axis axis) const { return axis == Axis::Keys ? k_len : q_len; }
};

Visible brute_force(const Expr& mask, Environment environment, std::int64_t q_len, std::int64_t k_len) {
  Visible visible{q_len, k_len, std::vector<char>(static_cast<std::size_t>(q_len * k_len))};
  set(environment, Variable::QLen, q_len);
  set(environment, Variable::KLen, k_len);
  for (std::int64_t q = 0; q < q_len; ++q) {
    for (std::int64_t k = 0; k < k_len; ++k) {
      set(environment, Variable::Q, q);
      set(environment, Variable::K, k);
      visible.bits[static_cast<std::size_t>(q * k_len + k)] = evaluate(mask, environment).integer != 0;
    }
  }
  return visible;
}

struct Limits {
  std::int64_t begin, end, full_begin, full_end;
};

// An analysis at one tile lo..hi across its axis, and what is really visible there.
struct Place {
  const TileAnalysis& tiles;
  const Visible& visible;
  Environment environment;
  std::int64_t lo, hi;

  Place(const TileAnalysis& tiles, const Visible& visible, const Environment& environment, std::int64_t lo,
        std::int64_t hi)
      : tiles(tiles), visible(visible), environment(environment), lo(lo), hi(hi) {
    set(this->environment, Variable::QLen, visible.q_len);
    set(this->environment, Variable::KLen, visible.k_len);
  }
  std::int64_t length() const { return visible.length(tiles.along); }
  bool sees(std::int64_t x, std::int64_t t) const { return tiles.along == Axis::Keys ? visible(t, x) : visible(x, t); }
  bool any(std::int64_t x) const {
    for (std::int64_t t = lo; t <= hi; ++t) {
      if (sees(x, t)) return true;
    }
    return false;
  }
  bool every(std::int64_t x) const {
    for (std::int64_t t = lo; t <= hi; ++t) {
      if (!sees(x, t)) return false;
    }
    return true;
  }
  Limits limits(std::int64_t from, std::int64_t to) const {
    Environment at = environment;
    set(at, variables_of(other(tiles.along)).lo, from);
    set(at, variables_of(other(tiles.along)).hi, to);
    const auto value = [&](const Expr& e) { return evaluate(e, at).integer; };
    return {value(tiles.begin), value(tiles.end), value(tiles.full_begin), value(tiles.full_end)};
  }
  TileClass tile(std::int64_t from, std::int64_t to) const {
    const bool keys = tiles.along == Axis::Keys;
    return keys ? classify(tiles, environment, lo, hi, from, to) : classify(tiles, environment, from, to, lo, hi);
  }
};

std::string broken_line(const Place& place) {
  if (!place.tiles.line_is_range) return {};
  for (std::int64_t t = place.lo; t <= place.hi; ++t) {
    const Limits line = place.limits(t, t);
    for (std::int64_t x = 0; x < place.length(); ++x) {
      if (place.sees(x, t) != (x >= line.begin && x < line.end)) {
        return "a line that is no range at " + std::to_string(x) + " of " + std::to_string(t);
      }
    }
  }
  return {};
}

std::string broken_tile(const Place& place) {
  for (std::int64_t size : {1, 2, 3}) {
    for (std::int64_t from = 0; from < place.length(); from += size) {
      bool any = false, every = true;
      for (std::int64_t x = from; x < from + size; ++x) {
        any = any || (x < place.length() && place.any(x));
        every = every && x < place.length() && place.every(x);
      }
      const TileClass kind = place.tile(from, from + size - 1);
      const std::string where = " at tile " + std::to_string(from) + " of " + std::to_string(size);
      if (any && kind == TileClass::Empty) return "skips a visible pair" + where;
      if (!every && kind == TileClass::Full) return "calls a partly hidden tile full" + where;
    }
  }
  return {};
}

// The law: nothing visible outside [begin, end), nothing hidden inside [full_begin, full_end). Returns what breaks it.
std::string violation(const Place& place) {
  const Limits at = place.limits(place.lo, place.hi);
  for (std::int64_t x : {at.begin, at.end, at.full_begin, at.full_end}) {
    if (x < 0 || x > place.length()) return "a limit outside the sequence: " + std::to_string(x);
  }
  for (std::int64_t x = 0; x < place.length(); ++x) {
    if (place.any(x) && (x < at.begin || x >= at.end)) return "visible outside the hull at " + std::to_string(x);
    if (!place.every(x) && x >= at.full_begin && x < at.full_end)
      return "hidden inside the full range at " + std::to_string(x);
  }
  const std::string line = broken_line(place);
  return line.empty() ? broken_tile(place) : line;
}

// Is the hull from the first to the last visible position, and the full range as long as there are positions that are
// visible with the whole tile? Returns what is not.
std::string looseness(const Place& place) {
  std::int64_t first = -1, last = -1, full = 0;
  for (std::int64_t x = 0; x < place.length(); ++x) {
    if (place.any(x) && first < 0) first = x;
    if (place.any(x)) last = x;
    full += place.every(x);
  }
  const Limits at = place.limits(place.lo, place.hi);
  const std::string range = "[" + std::to_string(at.begin) + ", " + std::to_string(at.end) + ")";
  if (first < 0) return at.begin >= at.end ? "" : range + " and nothing is visible";
  if (at.begin != first || at.end != last + 1)
    return range + ", not " + std::to_string(first) + " to " + std::to_string(last);
  const std::int64_t found = std::max<std::int64_t>(at.full_end - at.full_begin, 0);
  return found == full ? "" : std::to_string(found) + " full, not " + std::to_string(full);
}

// `complaint` (above) at every tile of up to `longest` positions; the first one, with where it is.
std::string at_all_tiles(std::string (*complaint)(const Place&), const Expr& mask, const TileAnalysis& tiles,
                         const Environment& environment, std::int64_t q_len, std::int64_t k_len, std::int64_t longest) {
  const Visible visible = brute_force(mask, environment, q_len, k_len);
  const std::int64_t length = visible.length(other(tiles.along));
  for (std::int64_t lo = 0; lo < length; ++lo) {
    for (std::int64_t hi = lo; hi < std::min(length, lo + longest); ++hi) {
      const std::string text = complaint({tiles, visible, environment, lo, hi});
      if (text.empty()) continue;
      const auto shown = [](const Expr& e) { return e ? print(e) : "nothing"; };
      return text + "\nalong " + name(tiles.along) + " of " + print(mask) + "\nq_len=" + std::to_string(q_len) +
             " k_len=" + std::to_string(k_len) + " tile " + std::to_string(lo) + ".." + std::to_string(hi) +
             "\nrange [" + shown(tiles.begin) + ", " + shown(tiles.end) + ")\nfull [" + shown(tiles.full_begin) + ", " +
             shown(tiles.full_end) + ")\nmay_see " + shown(tiles.may_see);
    }
  }
  return {};
}

TEST(IntervalTiles, SoundForRandomMasks) {
  const unsigned seed = std::random_device{}();
  testing::RandomExprs random(seed);
  testing::RandomExprs::World world;
  int understood = 0, ranges = 0;
  for (int i = 0; i < 800; ++i) {
    const Expr mask = random.mask(i % 4);
    ASSERT_TRUE(mask);
    if (!check_ranges(mask, default_ranges(64, 64, 64, 64, 64))) continue;
    for (const Axis along : kAxes) {
      const TileAnalysis tiles = analyse_tiles(mask, along);
      ranges += tiles.line_is_range;
      understood += tiles.begin->op != Op::IntConst || tiles.end->op != Op::Variable;
      for (int j = 0; j < 4; ++j) {
        random.fill(world);
        for (auto& x : world.environment.variables) x = random.pick(4);
        set(world.environment, Variable::Hk,
            random.pick(1 + static_cast<int>(world.environment.variables[static_cast<int>(Variable::H)])));
        const std::int64_t q_len = random.pick(9), k_len = random.pick(12);
        ASSERT_EQ(at_all_tiles(violation, mask, tiles, world.environment, q_len, k_len, 4), "") << "seed " << seed;
      }
    }
  }
  EXPECT_GT(understood, 320) << "most random masks should give limits of their own";
  EXPECT_GT(ranges, 40) << "some should be found to be ranges";
}

// Neither axis knows more than the other.
TEST(IntervalTiles, QueriesAreTheMirrorOfKeys) {
  const unsigned seed = std::random_device{}();
  testing::RandomExprs random(seed);
  for (int i = 0; i < 400; ++i) {
    const Expr mask = random.mask(i % 4), swapped = mirrored(mask);
    const TileAnalysis keys = analyse_tiles(mask), queries = analyse_tiles(swapped, Axis::Queries);
    const auto expect_mirror = [&](const Expr& a, const Expr& b) {
      ASSERT_EQ(static_cast<bool>(a), static_cast<bool>(b)) << "seed " << seed << "\n" << print(mask);
      if (a) {
        ASSERT_EQ(print(mirrored(a)), print(b)) << "seed " << seed << "\n" << print(mask);
      }
    };
    expect_mirror(keys.begin, queries.begin);
    expect_mirror(keys.end, queries.end);
    expect_mirror(keys.full_begin, queries.full_begin);
    expect_mirror(keys.full_end, queries.full_end);
    expect_mirror(keys.may_see, queries.may_see);
    ASSERT_EQ(keys.line_is_range, queries.line_is_range) << "seed " << seed << "\n" << print(mask);
    if (HasFatalFailure()) return;
  }
}

// What the parameters of the masks below hold.
struct NamedWorld {
  std::int32_t n = 3;
  std::int32_t lens[4] = {5, 0, 2, 9};
  std::int32_t ids[4][16] = {{0, 0, 0, 1, 1, 1, 1, 2, 2, 3, 3, 3}, {0, 1, 0, 1, 0, 1}, {}, {7, 7, 7, 7, 7, 7, 7, 7, 8}};
  std::int64_t words[4][16];
  std::vector<Param> params = {kScalar, {"lens", Dtype::I32, 1}, {"ids", Dtype::I32, 2}, {"words", Dtype::I64, 3}};
  ParamValue values[4] = {{&n, {}, {}}, {lens, {4}, {1}}, {ids, {4, 16}, {16, 1}}, {words, {4, 16, 1}, {16, 1, 1}}};
  Environment environment;

  NamedWorld() {
    for (int b = 0; b < 4; ++b) {
      for (int q = 0; q < 16; ++q) words[b][q] = 0x5a3c96 >> (b * q % 7) & ((2 << q) - 1);
    }
    environment.params = &params;
    environment.values = values;
  }
};

std::string first_complaint(std::string (*complaint)(const Place&), const Expr& mask, const TileAnalysis& tiles) {
  NamedWorld world;
  for (std::int64_t q_len = 0; q_len <= 9; q_len += 1 + q_len % 2) {
    for (std::int64_t k_len = 0; k_len <= 11; ++k_len) {
      set(world.environment, Variable::B, k_len % 4);
      set(world.environment, Variable::H, k_len % 3);
      const std::string text = at_all_tiles(complaint, mask, tiles, world.environment, q_len, k_len, 16);
      if (!text.empty()) return text;
    }
  }
  return {};
}

// Where the hull and the full range are exactly the first and last visible position, and those visible with the whole
// tile.
TEST(IntervalTiles, ExactForNamedMasks) {
  static const char* const kMasks[] = {
      "causal",
      "causal_top_left",
      "causal_bottom_right",
      "window(3, 0)",
      "window(2, 2)",
      "window(-1, 2)",
      "window(2, -1)",
      "window(0, 0)",
      "chunk(4)",
      "chunk(3)",
      "prefix(0)",
      "prefix(5)",
      "causal & window(3, 0)",
      "causal & chunk(4)",
      "causal & window(5, 2) & chunk(3)",
      "q >= k & q - k < 4",
      "!(k > q)",
      "k / 3 == q / 3",
      "abs(qpos - k) <= 2",
      "k < lens[b]",
      "k < lens[b] & causal",
      "k < lens[b] | causal",
      "q + 1 > k * 2",
      "-k >= -q",
      "k >= 3 & k < 7",
      "true",
      "window(n, n)",
      "h < 2 & causal | h >= 2 & window(2, 0)",
      "where(h < 2, causal, chunk(4))",
      "k <= qpos / 4 * 4 + 3",
      "min(k, 6) <= q & k < 8",
      "k / 2 * 2 <= qpos",
  };
  for (const char* text : kMasks) {
    for (const bool bottom_right : {true, false}) {
      for (const Axis along : kAxes) {
        const Expr mask = parsed_mask(text, bottom_right);
        const TileAnalysis tiles = analyse_tiles(mask, along);
        EXPECT_FALSE(tiles.may_see) << text << " along " << name(along) << ": " << print(tiles.may_see);
        ASSERT_EQ(first_complaint(violation, mask, tiles), "") << text;
        EXPECT_EQ(first_complaint(looseness, mask, tiles), "") << text;
      }
    }
  }
}

// Ranges cannot be exact where data decides, or where a disjunction leaves holes.
TEST(IntervalTiles, SoundForNamedMasks) {
  static const char* const kMasks[] = {
      "document(ids)",
      "document(ids) & causal",
      "!document(ids) | window(2, 0)",
      "tree(words)",
      "tree(words) & window(4, 0)",
      "tree(words) | !causal",
      "!window(2, 1)",
      "!chunk(4)",
      "chunk(4) | k < 2",
      "k < 2 | window(2, 0)",
      "prefix(4) & !chunk(3)",
      "k < ids[b, q]",
      "k < ids[b, q] & causal",
      "q >= ids[b, k]",
      "q < lens[b] & k < lens[b]",
      "(q - k) % 3 == 0",
      "k != q",
      "where(causal, k % 4 < 2, q < 3)",
      "k >= lens[q % 4] | k + 2 < q",
      "q >= lens[min(k, 3)] & q < lens[min(k, 3)] + n",
      "q * n >= k",
      "q * k < 12",
      "causal & (k < 2 | q - k < 3 | k % 4 == 0)",
  };
  for (const char* text : kMasks) {
    for (const bool bottom_right : {true, false}) {
      for (const Axis along : kAxes) {
        const Expr mask = parsed_mask(text, bottom_right);
        ASSERT_EQ(first_complaint(violation, mask, analyse_tiles(mask, along)), "") << text;
      }
    }
  }
}

// Kernels take the mask of a tile from two comparisons a line where this is true.
TEST(IntervalTiles, LinesThatAreRanges) {
  for (const char* mask :
       {"true", "causal", "causal_top_left", "window(1024, 0)", "causal & window(1023, 0)", "causal & chunk(2048)",
        "prefix(512)", "k < lens[b] & causal", "h < 2 & causal | h >= 2 & window(2, 0)", "window(n, n)"}) {
    for (const Axis along : kAxes) {
      EXPECT_TRUE(analyse_tiles(parsed_mask(mask), along).line_is_range) << mask << " along " << name(along);
    }
  }
  for (const char* mask :
       {"k < 4 | window(1024, 0)", "(q - k) % 128 == 0", "document(ids) & causal", "tree(words)", "k != q"}) {
    for (const Axis along : kAxes) {
      EXPECT_FALSE(analyse_tiles(parsed_mask(mask), along).line_is_range) << mask << " along " << name(along);
    }
  }
  EXPECT_TRUE(analyse_tiles(Expr()).line_is_range);
}

// These texts end up in kernels and are read in a profiler.
struct ShortResult {
  const char* mask;
  const char* limits[4];
  const char* may_see;
  Axis along = Axis::Keys;
};
const ShortResult kShortResults[] = {
    {"true", {"0", "k_len", "0", "k_len"}, ""},
    {"causal", {"0", "max(q_hi + k_len - q_len + 1, 0)", "0", "max(q_lo + k_len - q_len + 1, 0)"}, ""},
    {"causal_top_left", {"0", "min(q_hi + 1, k_len)", "0", "min(q_lo + 1, k_len)"}, ""},
    {"window(1024, 0)",
     {"max(q_lo + k_len - q_len - 1024, 0)", "max(q_hi + k_len - q_len + 1, 0)", "max(q_hi + k_len - q_len - 1024, 0)",
      "max(q_lo + k_len - q_len + 1, 0)"},
     ""},
    {"k < 4 | window(1024, 0)",
     {"0", "min(max(q_hi + k_len - q_len + 1, 4), k_len)", "max(q_hi + k_len - q_len - 1024, 0)",
      "max(q_lo + k_len - q_len + 1, 0)"},
     "k_lo < 4 | k_hi >= q_lo + k_len - q_len - 1024"},
    {"tree(words)", {"0", "k_len", "0", "max(k_len - q_len, 0)"}, ""},
    {"document(ids) & causal", {"0", "max(q_hi + k_len - q_len + 1, 0)", "0", "0"}, ""},
    {"(q - k) % 128 == 0", {"0", "k_len", "0", "0"}, ""},
    {"k < lens[b]", {"0", "max(min(lens[b], k_len), 0)", "0", "max(min(lens[b], k_len), 0)"}, ""},
    {"false", {"0", "0", "0", "0"}, ""},
    {"true", {"0", "q_len", "0", "q_len"}, "", Axis::Queries},
    {"causal", {"max(k_lo + q_len - k_len, 0)", "q_len", "max(k_hi + q_len - k_len, 0)", "q_len"}, "", Axis::Queries},
    {"causal_top_left", {"min(k_lo, q_len)", "q_len", "min(k_hi, q_len)", "q_len"}, "", Axis::Queries},
    {"window(512, 512)",
     {"max(k_lo + q_len - k_len - 512, 0)", "max(min(q_len + k_hi - k_len + 513, q_len), 0)",
      "max(k_hi + q_len - k_len - 512, 0)", "max(min(q_len + k_lo - k_len + 513, q_len), 0)"},
     "",
     Axis::Queries},
    {"prefix(512)",
     {"max(where(k_lo <= 511, 0, k_lo + q_len - k_len), 0)", "q_len",
      "max(where(k_hi <= 511, 0, k_hi + q_len - k_len), 0)", "q_len"},
     "",
     Axis::Queries},
    {"q < 4 | window(1024, 0)",
     {"0", "min(max(q_len + k_hi - k_len + 1025, 4), q_len)", "max(k_hi + q_len - k_len, 0)",
      "max(min(q_len + k_lo - k_len + 1025, q_len), 0)"},
     "q_lo < 4 | q_hi >= k_lo + q_len - k_len",
     Axis::Queries},
    {"tree(words)", {"0", "q_len", "0", "where(k_len > k_hi + q_len, q_len, 0)"}, "", Axis::Queries},
    {"document(ids)", {"0", "q_len", "0", "0"}, "", Axis::Queries},
    {"document(ids) & causal", {"max(k_lo + q_len - k_len, 0)", "q_len", "0", "0"}, "", Axis::Queries},
    {"k < ids[b, q]", {"0", "q_len", "0", "0"}, "", Axis::Queries},
    {"k < lens[b]",
     {"0", "where(k_lo < lens[b], q_len, 0)", "0", "where(k_hi < lens[b], q_len, 0)"},
     "",
     Axis::Queries},
};

TEST(IntervalTiles, ShortResults) {
  for (const ShortResult& row : kShortResults) {
    const TileAnalysis tiles = analyse_tiles(parsed_mask(row.mask), row.along);
    EXPECT_EQ(print(tiles.begin), row.limits[0]) << row.mask;
    EXPECT_EQ(print(tiles.end), row.limits[1]) << row.mask;
    EXPECT_EQ(print(tiles.full_begin), row.limits[2]) << row.mask;
    EXPECT_EQ(print(tiles.full_end), row.limits[3]) << row.mask;
    EXPECT_EQ(print(tiles.may_see), row.may_see) << row.mask;
  }
  const TileAnalysis none = analyse_tiles(Expr());
  EXPECT_EQ(print(none.full_end), "k_len");
}

TEST(IntervalTiles, HolesAreSkipped) {
  const TileAnalysis tiles = analyse_tiles(parsed_mask("k < 4 | window(1024, 0)"));
  Environment environment;
  set(environment, Variable::QLen, 8192);
  set(environment, Variable::KLen, 8192);
  EXPECT_EQ(classify(tiles, environment, 4096, 4223, 0, 127), TileClass::Mixed);
  for (std::int64_t k_lo = 128; k_lo + 127 < 4096 - 1024; k_lo += 128) {
    EXPECT_EQ(classify(tiles, environment, 4096, 4223, k_lo, k_lo + 127), TileClass::Empty) << k_lo;
  }
  EXPECT_EQ(classify(tiles, environment, 4096, 4223, 3072, 3199), TileClass::Mixed);
  EXPECT_EQ(classify(tiles, environment, 4096, 4223, 3200, 3327), TileClass::Full);
  EXPECT_EQ(classify(tiles, environment, 4096, 4223, 3968, 4095), TileClass::Full);
  EXPECT_EQ(classify(tiles, environment, 4096, 4223, 4096, 4223), TileClass::Mixed);
  EXPECT_EQ(classify(tiles, environment, 4096, 4223, 4224, 4351), TileClass::Empty);
}

TEST(IntervalTiles, HolesBetweenQueriesAreSkipped) {
  const TileAnalysis tiles = analyse_tiles(parsed_mask("q < 4 | causal & k >= 64"), Axis::Queries);
  Environment environment;
  set(environment, Variable::QLen, 8192);
  set(environment, Variable::KLen, 8192);
  EXPECT_EQ(classify(tiles, environment, 0, 127, 4096, 4223), TileClass::Mixed);
  for (std::int64_t q_lo = 128; q_lo < 4096; q_lo += 128) {
    EXPECT_EQ(classify(tiles, environment, q_lo, q_lo + 127, 4096, 4223), TileClass::Empty) << q_lo;
  }
  EXPECT_EQ(classify(tiles, environment, 4096, 4223, 4096, 4223), TileClass::Mixed);
  EXPECT_EQ(classify(tiles, environment, 4224, 4351, 4096, 4223), TileClass::Full);
  EXPECT_EQ(classify(tiles, environment, 8064, 8191, 0, 63), TileClass::Empty);
}

// Where a limit cannot be computed without overflow, everything is a sound answer.
TEST(IntervalTiles, OverflowGivesEverything) {
  std::vector<Param> params = {{"far", Dtype::I64, 0}};
  const Result<Expr> mask = parse_expr("q - k <= far", {&params, true, false});
  ASSERT_TRUE(mask);
  ASSERT_TRUE(check_ranges(*mask, default_ranges(1, 1, 1, 1024, 1024)));
  for (const Axis along : kAxes) {
    const TileAnalysis tiles = analyse_tiles(*mask, along);
    EXPECT_EQ(print(tiles.begin), "0");
    EXPECT_EQ(print(tiles.end), along == Axis::Keys ? "k_len" : "q_len");
    EXPECT_EQ(print(tiles.full_end), "0");
  }
}

TEST(IntervalTiles, HostileNestingEnds) {
  std::string text = "k";
  for (int i = 0; i < 60; ++i) text = "abs(" + text + " - 1)";
  for (const Axis along : kAxes) EXPECT_TRUE(analyse_tiles(parsed_mask(text + " < q"), along).end) << name(along);
}

}  // namespace
}  // namespace flashjit
