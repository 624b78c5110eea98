#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "compiler/program/edit.h"
#include "tests/unit/compiler/program/interpreter.h"

namespace flashjit::testing {

namespace {

constexpr int kKeys = 3, kDims = 2;
constexpr double kInfinity = std::numeric_limits<double>::infinity(), kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kUnit = 2;  // that O is in, with scales of keys

// Numbers that follow from where they are, and grow along the tiles, so that references rise.
double query(std::int64_t item, int i) { return 2 * std::sin(static_cast<double>(item * 613 + i * 11 + 1) * 1.7); }
double number(int what, std::int64_t item, std::int64_t tile, int k, int i) {
  return (1 + 0.3 * static_cast<double>(tile)) *
         std::cos(static_cast<double>(what * 7919 + item * 401 + tile * 97 + k * 13 + i * 7 + 1) * 2.3);
}
double scale(int what, std::int64_t tile, int k) { return 1 + 0.1 * static_cast<double>(what + tile % 3 + k); }

// A warp, its tiles, and what its ring or its registers hold of them: the tile's number; -1: nothing.
struct Warp {
  const Program& p;
  const Statement &begin, &attend;
  bool in_ring = p.buffer("Ks") >= 0;
  std::int64_t slots = in_ring ? p.buffers[static_cast<std::size_t>(p.buffer("Ks"))].stages : 1;
  bool has_boxes = false, has_scales = false;

  std::int64_t item = 0, tiles = 0;
  std::int64_t tile = 0, next = 0, stage = 0, ahead = 0, scales_of = -1;
  std::vector<std::int64_t> keys = {}, values = {};
  bool cleared = false;
  std::array<double, kKeys> s = {};
  std::array<double, kDims> o = {};
  double reference = 0, sum = 0;
  std::string wrong = {};

  // The last tile ends with a key that does not exist: anything may lie there of K, and of V where boxes are copied whole.
  bool is_hidden(std::int64_t of, int k) const { return of == tiles - 1 && k == kKeys - 1; }

  void begin_tiles() {
    for (std::int64_t i = 0; i < slots; ++i) {
      const auto slot = static_cast<std::size_t>((stage + i) % slots);
      keys[slot] = values[slot] = i < tiles ? i : -1;
    }
    ahead = slots;
  }
  void multiply_scores() {
    const std::int64_t of = keys[static_cast<std::size_t>(stage)];
    for (int k = 0; k < kKeys; ++k) {
      s[k] = of < 0 || is_hidden(of, k) ? kNan : 0;
      for (int i = 0; i < kDims; ++i) s[k] += query(item, i) * number(1, item, of, k, i);
    }
  }
  void mask() {
    for (int k = 0; k < kKeys; ++k) {
      if (has_scales) s[k] *= scale(1, scales_of, k);
      if (is_hidden(tile, k)) s[k] = -kInfinity;
    }
  }
  void soften() {
    const double largest = *std::ranges::max_element(s), before = reference;
    if (before == -kInfinity || largest > before + 1) reference = std::max(before, largest);
    const double factor = before == -kInfinity ? 1 : std::exp(before - reference);
    sum *= factor;
    for (double& x : o) x *= factor;
    for (double& x : s) sum += x = std::exp(x - reference);
  }
  void accumulate() {
    const std::int64_t of = values[static_cast<std::size_t>(stage)];
    for (int i = 0; i < kDims; ++i) {
      for (int k = 0; k < kKeys; ++k) {
        const bool hidden = is_hidden(of, k);
        const double v = of < 0 || (hidden && has_boxes && !cleared) ? kNan : hidden ? 0 : number(2, item, of, k, i);
        o[i] += s[k] * v;
      }
    }
  }

  void call(std::string_view what) {
    if (what == "begin_tiles") begin_tiles();
    if (what == "advance") stage = (stage + 1) % slots;
    if (what == "begin_facts") scales_of = tile;
    if (what == "load_next_facts") scales_of = next;
    if (what == "copy_ahead") {
      const auto slot = static_cast<std::size_t>(stage);
      if (ahead < tiles) keys[slot] = values[slot] = ahead;
      ++ahead;
    }
  }
  void fill(std::string_view form) {
    if (form == "none") reference = -kInfinity, sum = 0;
    else if (form == "hidden") cleared = true;
    else o = {};
  }
  void execute(const Statement& statement) {
    switch (statement.kind) {
      case Kind::Call: call(statement.label); break;
      case Kind::Loop:
        for (int turn = 0; tile < tiles; ++turn) {
          if (turn > tiles) return void(wrong = "the loop over tiles never ends");
          cleared = false;
          execute(statement.body);
        }
        break;
      case Kind::When:
        if (statement.label == "cut" && tile == tiles - 1) execute(statement.body);
        break;
      case Kind::Let:
        if (statement.label == "next") next = tile + 1;
        break;
      case Kind::Mark: tile = next; break;
      case Kind::Load: (statement.form == "keys_next" ? keys : values)[0] = next < tiles ? next : -1; break;
      case Kind::Mma: statement.form == "scores" ? multiply_scores() : accumulate(); break;
      case Kind::Mask: mask(); break;
      case Kind::Softmax: soften(); break;
      case Kind::Rescale:
        if (statement.form == "values")
          for (int k = 0; k < kKeys; ++k) s[k] *= scale(2, scales_of, k) / kUnit;
        else
          for (double& x : o) x *= kUnit;
        break;
      case Kind::Fill: fill(statement.form); break;
      default: break;
    }
  }
  void execute(const std::vector<Statement>& body) {
    for (const Statement& statement : body) execute(statement);
  }

  std::string run(std::int64_t number_of_item, std::int64_t count) {
    item = number_of_item, tiles = count, tile = 0;
    o.fill(7);  // whatever the registers held before
    execute(begin.body);
    execute(attend.body);
    if (!wrong.empty() || tiles == 0) return wrong;
    double total = 0, expected[kDims] = {};
    for (std::int64_t of = 0; of < tiles; ++of) {
      for (int k = 0; k < kKeys; ++k) {
        if (is_hidden(of, k)) continue;
        double score = 0;
        for (int i = 0; i < kDims; ++i) score += query(item, i) * number(1, item, of, k, i);
        const double weight = std::exp(score * (has_scales ? scale(1, of, k) : 1));
        total += weight;
        for (int i = 0; i < kDims; ++i)
          expected[i] += weight * (has_scales ? scale(2, of, k) : 1) * number(2, item, of, k, i);
      }
    }
    for (int i = 0; i < kDims; ++i)
      if (!(std::abs(o[i] / sum - expected[i] / total) < 1e-9))
        return fmt::format("O of item {}, column {}: {} for {}", item, i, o[i] / sum, expected[i] / total);
    return {};
  }
};

}  // namespace

std::string interpret_decode(const Program& program, const Scenario& scenario) {
  if (const auto sound = verify(program); !sound) return sound.error().message;
  Warp warp{program, *find_body(program, "begin_segment"), *find_body(program, "attend")};
  warp.keys.assign(static_cast<std::size_t>(warp.slots), -1);
  warp.values = warp.keys;
  // By what the program is for: a program with that statement taken out is for the same.
  warp.has_boxes = program.schedule.find("copies=boxes") != std::string::npos;
  warp.has_scales = program.title.find("token_scales") != std::string::npos;
  std::int64_t item = 0;
  for (const RoleItem& its : scenario.items)
    if (const std::string off = warp.run(item++, its.tiles); !off.empty()) return off;
  return {};
}

}  // namespace flashjit::testing
