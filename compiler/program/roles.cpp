#include "compiler/program/roles.h"

#include <algorithm>
#include <functional>
#include <map>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "compiler/program/edit.h"

namespace flashjit {

namespace {

// Bits that the seed alone decides.
struct Bits {
  std::uint64_t state;
  bool next() {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return state >> 63 != 0;
  }
};

// A role as bodies that its vocabulary calls.
struct BodiesTrace {
  const Statement& role;
  const Scenario& scenario;
  Bits bits;
  std::vector<Step> out = {};
  std::map<std::string_view, bool> known = {};  // Conditions whose value is known.
  Step now = {};                                // The item and the tiles of the current step.
  bool leaves_loop = false;                     // The role has returned from the loop only.
  Result<void> failed = {};
  std::function<bool(const Statement&)> run_loop =
      // It runs a loop's body as often as the loop does; empty means once. It returns false if the role has returned.
      {};

  void add(const Statement& s) {
    Step step = now;
    step.statement = &s;
    out.push_back(step);
  }

  bool holds(const Statement& s) {
    if (const auto found = known.find(s.label); found != known.end()) return found->second;
    return bits.next();
  }

  // Returns false if the role has returned.
  bool execute(const Body& body) {
    bool before = true;  // The condition of the last When.
    for (const Statement& s : body) {
      if (s.kind == Kind::When) before = holds(s);
      if (s.kind == Kind::When ? !before : s.kind == Kind::Otherwise && before) continue;
      if (!execute(s)) return false;
    }
    return true;
  }
  bool execute(const Statement& s) {
    if (s.kind == Kind::Return) {
      leaves_loop = s.form == "from_loop";
      return false;
    }
    if (s.kind == Kind::Loop && run_loop) return run_loop(s);
    if (s.kind != Kind::When && s.kind != Kind::Otherwise) add(s);
    execute(s.inside);
    if (!execute(s.body)) return false;
    const Statement* called = s.kind == Kind::Call ? find_body(role, s.label) : nullptr;
    if (called) execute(called->body);
    return true;
  }

  void run_body(std::string_view name) {
    const Statement* body = find_body(role, name);
    if (!body && failed) failed = internal(fmt::format("no role has a body {}", name));
    if (body) execute(body->body);
  }
};

// A producer, as deal_items of its vocabulary calls its bodies. V is one tile behind K.
struct ProducerTrace : BodiesTrace {
  Step waiting = {};  // The item and tile whose V is copied next; a tile of -1 means none.

  void copy_values() {
    const Step before = now;
    now = waiting;
    known["nothing_waits"] = waiting.tile < 0;
    const Statement* body = find_body(role, "copy_waiting_values");
    const bool may_clear =
        body && std::ranges::any_of(body->body, [](const Statement& s) { return s.label == "clears"; });
    known["clears"] = now.held = may_clear && bits.next();
    const std::size_t first = out.size();
    run_body("copy_waiting_values");
    now = before;
    if (did("none_waits", first)) waiting.tile = -1;
  }
  // Returns whether the role has done this since its step number `first`.
  bool did(std::string_view label, std::size_t first) const {
    return std::any_of(out.begin() + static_cast<std::ptrdiff_t>(first), out.end(),
                       [&](const Step& step) { return step.statement->label == label; });
  }
  Result<void> run_role() {
    const Statement* all = find_body(role, "produce");
    if (!all) return internal("the producer has no body produce");
    known = {{"leads", true}, {"inputs_asked", true}, {"inputs_asked_by_leader", true}};
    for (const Statement& s : all->body) {
      if (s.kind == Kind::Items) deal_items();
      else execute(s);
    }
    return failed;
  }
  void deal_items() {
    for (const RoleItem& item : scenario.items) {
      announce(item.tiles);
      for (std::int64_t tile = 0; tile < item.tiles; ++tile) {
        now.tile = tile;
        run_body("copy_tile_keys");
        copy_values();
        const std::size_t first = out.size();
        run_body("end_tile");
        if (did("waiting", first)) waiting = now;
      }
      now.tile = -1;
      copy_values();
      ++now.item;
    }
    announce(0);  // An empty item tells the end.
  }
  void announce(std::int64_t tiles) {
    now.tile = -1;
    known["any_tiles"] = tiles > 0;
    run_body("announce");
  }
};

// A transposer continues until all of V has ended.
struct TransposerTrace : BodiesTrace {
  Result<void> run_role() {
    const Statement* all = find_body(role, "transpose");
    if (!all) return internal("the transposer has no body transpose");
    for (const Statement& s : all->body) {
      if (s.kind != Kind::Loop) execute(s);
      else transpose(s.body);
    }
    return failed;
  }
  void transpose(const Body& body) {
    known = {{"first_lane", true}, {"ended", false}};
    for (const RoleItem& item : scenario.items) {
      for (now.tile = 0; now.tile < item.tiles; ++now.tile) execute(body);
      ++now.item;
    }
    now.tile = -1;
    known["ended"] = true;
    execute(body);
  }
};

// A consumer, as take_items of its vocabulary calls its bodies.
struct ConsumerTrace : BodiesTrace {
  int number, of;
  std::vector<std::pair<std::int64_t, std::int64_t>> visited = {};
  std::int64_t mixed_tiles = 0;  // The number of mixed tiles of the item, from its first tile on.

  // Main steps are in loops, whose only calls are steps and checks between them.
  void main_steps(std::int64_t last_of_item) {
    const Statement* body = find_body(role, "main_steps");
    if (!body) return;
    for (bool any = true; any && now.tile <= last_of_item;) any = main_loop(body->body, last_of_item);
  }
  // Where mixed tiles have a step of their own, a loop takes them first; another one takes the remaining tiles.
  bool main_loop(const Body& body, std::int64_t last_of_item) {
    bool any = false;
    for (const Statement& s : body) {
      if (s.kind == Kind::Loop && s.form == "mixed") {
        while (now.tile < mixed_tiles && now.tile <= last_of_item && main_loop(s.body, last_of_item)) any = true;
        continue;
      }
      const bool has_loops =
          std::ranges::any_of(s.body, [](const Statement& inner) { return inner.kind == Kind::Loop; });
      if (s.kind == Kind::Loop || (s.kind == Kind::When && has_loops)) {
        any = main_loop(s.body, last_of_item) || any;
      } else if (s.kind == Kind::Call && s.label.ends_with("_step") && now.tile <= last_of_item) {
        known["last"] = now.tile == last_of_item;
        now.on_top = bits.next();
        known["adds_anew"] = !now.on_top;
        run_body(s.label);
        next_tile();
        any = true;
      } else if (s.kind == Kind::When && !has_loops && holds(s)) {
        execute(s.body);
      }
    }
    return any;
  }
  // Mixed tiles may take a main step, once rows have references.
  bool leaves_careful_steps() { return find_body(role, "mixed_step") && bits.next(); }
  void next_tile() {
    now.item_before = now.item;
    now.tile_before = now.tile;
    ++now.tile;
  }

  void pass_item(std::int64_t tiles) {
    for (const Statement& s : find_body(role, "pass_item")->body) {
      if (s.kind == Kind::Loop) {
        for (std::int64_t tile = 1; tile < tiles; ++tile) execute(s.body);
      } else {
        if (s.kind != Kind::When || holds(s)) execute(s);
      }
    }
  }

  // Tells which tile of the block this warpgroup may leave out: the last warpgroup the first tile, which is visited
  // last, and any other warpgroup the last tile.
  struct Own {
    bool idle = false, passes_first = false, passes_last = false;
  };
  Own own_tiles(const RoleItem& item) {
    Own own;
    if (item.tiles == 0) return own;
    const bool is_last = number == of - 1;
    if (of > 1 && is_last && bits.next() && bits.next()) own.idle = true;
    else if (find_body(role, "pass_tile") && item.tiles > 1 && bits.next())
      (is_last ? own.passes_first : own.passes_last) = true;
    return own;
  }

  // Runs the role, with all items in its midst.
  Result<void> run_role() {
    const Statement* all = find_body(role, "consume");
    if (!all) return internal("the consumer has no body run");
    known = {{"first_warpgroup", number == 0}, {"last_warpgroup", number == of - 1}};
    for (const Statement& s : all->body) {
      if (s.kind == Kind::Items) take_items();
      else if (s.kind != Kind::When || holds(s)) execute(s);
    }
    return failed;
  }

  void take_items() {
    const std::map<std::string_view, bool> of_role = known;
    bool values = false, is_item = false, passed_first = false;  // They belong to the item before.
    std::int64_t number_of_item = 0;
    std::vector<RoleItem> items = scenario.items;
    items.push_back({0, 0});  // An empty item tells the end.
    for (const RoleItem& item : items) {
      const Own own = own_tiles(item);
      const std::int64_t last_of_item = item.tiles - 1 - (own.passes_first ? 1 : 0);
      now.item = number_of_item;
      if (!values) now.item_before = now.tile_before = -1;
      now.tile = item.tiles > 0 ? (own.passes_last ? 1 : 0) : -1;
      known = {{"output", values},
               {"holds_values", values},
               {"holds_no_values", !values},
               {"scores", item.tiles > 0},
               {"no_scores", item.tiles == 0},
               {"changes", true},
               {"asks", item.tiles > 0},
               {"item", is_item},
               {"last", item.tiles > 0 && now.tile == last_of_item},
               {"passes", passed_first || own.passes_last},
               {"tiles_left", item.tiles > 1},
               {"inputs_given", true},
               {"rose", true}};  // Multiplying by 1 does no harm.
      now.on_top = false;
      if (item.tiles > 0 && !own.idle) visited.emplace_back(now.tile, last_of_item + 1);
      else visited.emplace_back(0, 0);
      run_body("careful_step");
      // O of the previous item has left the place of its Q.
      if (number_of_item > 0 && !releases_queries()) release_queries(number_of_item - 1);
      values = item.tiles > 0;
      is_item = true;
      passed_first = own.passes_first;
      if (values) {
        next_tile();
        if (own.idle) {
          known["tiles_left"] = item.tiles > 1;
          pass_item(item.tiles);
          values = false;
        } else {
          mixed_tiles = item.mixed;
          known["changes"] = known["asks"] = known["passes"] = known["item"] = false;
          known["output"] = known["holds_values"] = true;
          now.on_top = false;
          while (now.tile <= last_of_item && now.tile < mixed_tiles && !leaves_careful_steps()) {
            known["last"] = now.tile == last_of_item;
            run_body("careful_step");
            next_tile();
          }
          main_steps(last_of_item);
        }
      } else if (releases_queries() && &item != &items.back()) {
        release_queries(number_of_item);  // No scores will release the queries.
      }
      ++number_of_item;
    }
    known = of_role;
  }
  void release_queries(std::int64_t item) {
    const Statement* all = find_body(role, "consume");
    if (!all) return;
    for (const Statement& s : all->body) {
      if (s.kind == Kind::Items && !s.inside.empty()) out.push_back({&s.inside.front(), item});
    }
  }
  // Returns whether bodies release the queries, once the scores of the last tile are there.
  bool releases_queries() const {
    const Statement* body = find_body(role, "pass_item");
    return body && std::ranges::any_of(body->body, [](const Statement& s) { return s.label == "tiles_left"; });
  }
};

// A role that has loops of its own over items and over their steps.
struct LoopsTrace : BodiesTrace {
  int number, of;

  static bool is_of_items(const Statement& s) { return s.label.starts_with("items"); }
  static bool is_own(const Statement& s) {
    constexpr std::string_view kLoops[] = {"steps", "key_tiles", "alternating", "dealt_tiles", "panels"};
    return s.kind == Kind::Loop && (is_of_items(s) || std::ranges::count(kLoops, s.label) > 0);
  }
  static bool has_loops(const Body& body) {
    return std::ranges::any_of(body, [](const Statement& s) { return is_own(s) || has_loops(s.body); });
  }

  Result<void> run_role() {
    known = {{"first_warpgroup", number == 0}, {"last_warpgroup", number == of - 1},
             {"first_of_role", number == 0},   {"leads", true},
             {"inputs_copied", true},          {"inputs_not_copied", false},
             {"left_to_others", false},        {"rose", true},
             {"leads_warpgroup", true},        {"no_panels", false}};
    run_loop = [this](const Statement& loop) {
      if (is_of_items(loop)) return run_items(loop.body, loop.label == "items_of_warp");
      if (loop.label == "alternating") return run_alternating(loop.body);
      if (loop.label == "dealt_tiles") return run_dealt_tiles(loop.body);
      return loop.label == "panels" ? run_panels(loop.body) : run_steps(loop.body);
    };
    begin_item(scenario.items.front());  // Such blocks have one item only.
    execute(role.body.back().body);
    return failed;
  }
  void begin_item(const RoleItem& item) {
    now.tile = now.item_before = now.tile_before = -1;
    known["begins"] = known["any"] = known["any_steps"] = known["sees_any"] = item.tiles > 0;
    known["sees_nothing"] = known["none_before"] = known["no_steps"] = item.tiles == 0;
    tiles = item.tiles, mixed = item.mixed;
  }

  bool run_items(const Body& body, bool ends_by_itself) {
    known["no_item"] = false;
    for (const RoleItem& item : scenario.items) {
      begin_item(item);
      known["last_item"] = known["is_last_item"] = &item == &scenario.items.back();
      if (!execute(body)) return false;
      ++now.item;
      first += item.tiles;
    }
    if (ends_by_itself) return true;
    known["no_item"] = true;
    // A role that is not told of the end has counted items.
    const bool is_told = std::ranges::any_of(body, [](const Statement& s) { return s.label == "no_item"; });
    if (!is_told || execute(body)) failed = internal("a role does not return behind its last item");
    return false;
  }
  bool run_steps(const Body& body) {
    for (now.tile = 0; now.tile < tiles; ++now.tile) {
      now.number = first + now.tile;
      known["follows"] = known["follows_number"] = known["leader_follows"] = now.tile > 0;
      known["no_values"] = now.tile == 0;
      now.item_before = now.tile > 0 ? now.item : -1;
      now.tile_before = now.tile - 1;
      if (!execute(body)) return false;
    }
    now.tile = tiles - 1;
    return true;
  }
  // Two roles have the tiles of all items by turns: each has its own tiles, and the tile before each, which is the
  // other's.
  bool run_alternating(const Body& body) {
    for (std::int64_t own = (first + number) % 2; own <= tiles; own += 2) {
      now.number = first + own;
      now.tile = own < tiles ? own : -1;
      now.tile_before = own - 1;
      now.item_before = own > 0 ? now.item : -1;
      known["follows"] = own > 0, known["starts"] = own == 0;
      known["mixed"] = own < mixed;
      known["tiles_end"] = own == tiles;
      known["none_before"] = own + 1 >= tiles;
      if (!execute(body)) return std::exchange(leaves_loop, false);
    }
    return true;
  }

  // Runs over the tiles that other roles hand out, until they tell that none is left.
  bool run_dealt_tiles(const Body& body) {
    known["no_tile"] = false;
    for (now.tile = 0; now.tile < tiles; ++now.tile) {
      now.number = first + now.tile;
      known["first_number"] = now.number == 0;
      if (!execute(body)) return std::exchange(leaves_loop, false);
    }
    now.tile = -1, now.number = first + tiles;
    known["no_tile"] = true;
    if (execute(body)) failed = internal("a role does not leave its loop behind the last tile");
    return std::exchange(leaves_loop, false);
  }
  bool run_panels(const Body& body) {
    constexpr int kPanels = 2;
    for (int panel = 0; panel < kPanels; ++panel) {
      known["first_panel"] = panel == 0, known["last_panel"] = panel == kPanels - 1;
      if (!execute(body)) return false;
    }
    return true;
  }

  std::int64_t tiles = 0, mixed = 0, first = 0;  // The tiles of this item, and the number of the first among all tiles.
};

}  // namespace

std::int64_t consumers_of(const Program& p) {
  std::int64_t count = 0;
  for (const Statement& role : p.body) count += role.kind == Kind::Consumer ? integer(role, "count", 1) : 0;
  return count;
}

namespace {

// Adds the steps of `made`, which has what it needs beside the scenario.
Result<void> add_trace(auto made, const Statement& role, int number, std::vector<RoleTrace>& traces) {
  FLASHJIT_TRY(made.run_role());
  traces.push_back({&role, number, std::move(made.out)});
  if constexpr (requires { made.visited; }) traces.back().visited = std::move(made.visited);
  return {};
}

}  // namespace

Result<std::vector<RoleTrace>> trace_roles(const Program& p, const Scenario& scenario) {
  std::vector<RoleTrace> traces;
  int consumers = 0;  // Counts the consumers of earlier roles.
  for (const Statement& role : p.body) {
    if (role.kind == Kind::Entry || role.kind == Kind::Launch) continue;
    const auto bodies = [&](int number) {
      return BodiesTrace{role, scenario, {scenario.seed * 97 + static_cast<std::uint64_t>(number)}};
    };
    const int count = static_cast<int>(integer(role, "count", 1));
    const int first = role.kind == Kind::Consumer ? std::exchange(consumers, consumers + count) : 0;
    const bool has_loops = LoopsTrace::has_loops(role.body);
    for (int number = first; number < first + count && has_loops; ++number)
      FLASHJIT_TRY(add_trace(LoopsTrace{bodies(number), number, count}, role, number, traces));
    if (has_loops) continue;
    switch (role.kind) {
      case Kind::Producer: FLASHJIT_TRY(add_trace(ProducerTrace{bodies(count)}, role, 0, traces)); break;
      case Kind::Transposer: FLASHJIT_TRY(add_trace(TransposerTrace{bodies(count)}, role, 0, traces)); break;
      case Kind::Consumer:
        for (int number = 0; number < count; ++number)
          FLASHJIT_TRY(add_trace(ConsumerTrace{bodies(number), number, count}, role, number, traces));
        break;
      default: return internal(fmt::format("{} is outside of a role", name(role.kind)));
    }
  }
  return traces;
}

}  // namespace flashjit
