// Runs the roles of a program against each other, on the rings of shared memory, the turns of warpgroups and the
// registers of products. This finds programs that are wrong for some number of tiles and some order of events.
#include "compiler/program/ir_verify_roles.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "compiler/program/edit.h"
#include "compiler/program/role_rings.h"
#include "compiler/program/roles.h"

namespace flashjit {

namespace {

// Every swizzle begins anew after this number of bytes, so tiles must begin there, too.
constexpr std::int64_t kSwizzleRepeats = 1024;

// All roles of a block, with the registers of their products, and their turns.
struct Block : Rings {
  const std::function<void(const RoleTrace&, const Step&)>& on_step;
  std::vector<int> turns = {};  // Turns that were given to each consumer and not taken.

  // Executes a statement of a producer or a transposer.
  Result<void> provide(Actor& actor, const Step& step) {
    const Statement& s = *step.statement;
    const bool copies = actor.trace.role->kind == Kind::Producer;
    const int b = s.writes.empty() ? -1 : s.writes[0];
    switch (s.kind) {
      case Kind::Expect:
        actor.expecting = s.form == "copied";
        for (const int expected : s.writes)
          if (!step.held) FLASHJIT_TRY(announce(actor, step, expected));
        return {};
      case Kind::Complete:
        for (const int done : s.writes) {
          if (actor.unpublished.contains(done)) return wrong(step, "is not seen by products: a publish is missing");
          if (const Filler& filler = actor.fillers[done];
              s.form.starts_with("gathered") && filler.announced >= static_cast<std::int64_t>(filler.filled.size()))
            return wrong(step, "tells of a slot before it has filled it");
          FLASHJIT_TRY(announce(actor, step, done));
          // A role that has nothing to copy fills the slot in this way; a role that gathers always has something to
          // copy.
          if (const Filler& filler = actor.fillers[done];
              copies && !s.form.starts_with("gathered") &&
              filler.announced > static_cast<std::int64_t>(filler.filled.size()))
            FLASHJIT_TRY(fill(actor, step, done));
        }
        return {};
      case Kind::Publish: actor.unpublished.clear(); return {};
      case Kind::Advance: ++(s.form == "to_fill" ? actor.fills[buffer(b).fill_ring] : actor.count); return {};
      case Kind::Let:  // V is copied one tile behind K, and so is the sign that no V is left.
        if (s.label == "at_values") actor.fills["at"] = actor.fills["ring"] - 1;
        if (s.label == "at_end") actor.fills["at"] = actor.fills["ring"];
        return {};
      case Kind::Call:
      case Kind::Mark:
      case Kind::Items: return {};
      case Kind::Transpose:
        if (copies) break;
        FLASHJIT_TRY(read(actor, step, s.reads[0], step.item, step.tile));
        actor.unpublished.insert(b);
        return fill(actor, step, b);
      case Kind::Load:
        if (!copies) break;
        if (const Attribute* tells = s.attributes.find("barrier");
            tells && (print(tells->value) == "copied") != actor.expecting)
          return wrong(step, "tells a barrier that does not expect it");
        for (const int copied : s.writes) FLASHJIT_TRY(fill(actor, step, copied));
        // Instructions of threads, unlike copies, write what products do not see by themselves.
        if (s.form == "gathered") actor.unpublished.insert(s.writes.begin(), s.writes.end());
        return {};
      default: break;
    }
    return wrong(step, fmt::format("the {} does not do that", name(actor.trace.role->kind)));
  }

  // Registers of a product belong to it until it has been waited for. Another product may queue behind it.
  Result<void> check_registers(Actor& actor, const Step& step) {
    const Statement& s = *step.statement;
    const auto touches = [&](int b) { return std::ranges::count(s.reads, b) + std::ranges::count(s.writes, b) > 0; };
    for (const ProductUnderWay& product : actor.products) {
      for (const int b : product.statement->writes) {
        if (touches(b) && s.kind != Kind::Mma && s.kind != Kind::Keep)
          return wrong(step, fmt::format("uses {} while a product writes it: a wait is missing", buffer(b).name));
      }
      for (const int b : product.statement->reads) {
        const bool is_apart = is_shared(b) && slot_of(actor, product.step, b) != slot_of(actor, step, b);
        if (std::ranges::count(s.writes, b) > 0 && s.kind != Kind::Keep && !is_apart)
          return wrong(step, fmt::format("changes {} while a product reads it: a wait is missing", buffer(b).name));
      }
    }
    if (s.kind == Kind::Keep) {
      // Registers that a group has written stay together.
      const auto kept = actor.unkept.find(s.writes[0]);
      if (kept == actor.unkept.end()) return {};
      const std::int64_t group = kept->second;
      std::erase_if(actor.unkept, [&](const auto& other) { return other.second == group; });
      return {};
    }
    // Overwritten registers need no keeping, because ptxas does not move the overwriting instruction over the wait.
    for (const auto& [b, group] : actor.unkept) {
      if (std::ranges::count(s.reads, b) > 0 && s.kind != Kind::Mma)
        return wrong(
            step, fmt::format("uses {} behind a wait, and nothing keeps it there: a keep is missing", buffer(b).name));
    }
    if (s.kind == Kind::Fence) return actor.written.clear(), Result<void>();
    if (s.kind == Kind::Mma) {
      for (const int b : actor.written) {
        if (touches(b)) return wrong(step, fmt::format("takes {} as it was: a fence is missing", buffer(b).name));
      }
      return {};
    }
    for (const int b : s.writes) {
      if (buffer(b).space == Space::Register) actor.written.insert(b);
    }
    return {};
  }

  Result<void> consume(Actor& actor, const Step& step) {
    const Statement& s = *step.statement;
    if (s.kind == Kind::Load) return wrong(step, "consumers do not copy");
    FLASHJIT_TRY(check_registers(actor, step));
    for (const int b : s.reads) {
      if (!is_shared(b)) continue;
      const Counter counter = buffer(b).counter;
      const bool before = counter == Counter::Rings ? buffer(b).behind > 0 : is_before(s) && counter != Counter::Items;
      FLASHJIT_TRY(read(actor, step, b,
                        before                                       ? step.item_before
                        : step.tile < 0 && counter != Counter::Items ? -1
                                                                     : step.item,
                        before ? step.tile_before : step.tile));
    }
    if (s.kind == Kind::Publish) actor.unpublished.clear();
    if (s.kind == Kind::Stage) {
      if (buffer(s.writes[0]).layout.starts_with("swizzle")) actor.unpublished.insert(s.writes[0]);
      FLASHJIT_TRY(fill(actor, step, s.writes[0]));
    }
    if (s.kind == Kind::Mma) actor.products.push_back({&s, actor.groups, step});
    if (s.kind == Kind::Commit) ++actor.groups;
    if (s.kind == Kind::Wait) {
      const std::int64_t done = actor.groups - integer(s, "pending", 0);
      std::erase_if(actor.products, [&](const ProductUnderWay& product) {
        if (product.group < done) actor.unkept[product.statement->writes[0]] = product.group;
        return product.group < done;
      });
    }
    if (s.kind == Kind::Advance) ++actor.count;
    if (s.kind == Kind::EndTurn) {
      int& turn = turns[static_cast<std::size_t>((actor.trace.number + 1) % static_cast<int>(turns.size()))];
      if (++turn > 1) return wrong(step, "gives a turn that was given and not taken");
    }
    return {};
  }

  Result<void> execute(Actor& actor, const Step& step) {
    const Statement& s = *step.statement;
    if (actor.is_consumer() && on_step) on_step(actor.trace, step);
    if (s.kind == Kind::Release && actor.reads.contains(s.writes[0])) return release(actor, step);
    if (actor.is_consumer() && s.kind == Kind::Complete) {
      if (actor.unpublished.contains(s.writes[0])) return wrong(step, "is not seen by products: a publish is missing");
      // Bytes from elsewhere may be expected before they come.
      const Filler& filler = actor.fillers[s.writes[0]];
      if (s.form != "other_ds" && s.form != "end" &&
          filler.announced >= static_cast<std::int64_t>(filler.filled.size()))
        return wrong(step, "tells of a slot before it has filled it");
      FLASHJIT_TRY(announce(actor, step, s.writes[0]));
      if (s.form != "end") return {};
      actor.fillers[s.writes[0]].has_end = true;
      return fill(actor, step, s.writes[0]);
    }
    return actor.is_consumer() ? consume(actor, step) : provide(actor, step);
  }

  // Tells the others what it has written, and waits until they have. It may then read what they tell.
  Result<bool> meet(Actor& actor, const Step& step) {
    if (!std::exchange(actor.is_at_barrier, true)) FLASHJIT_TRY(announce(actor, step, step.statement->writes[0]));
    for (const int b : step.statement->reads)
      if (!is_full(b, slot_of(actor, step, b))) return false;
    for (const int b : step.statement->reads) actor.reads[b].full.insert(slot_of(actor, step, b));
    actor.is_at_barrier = false;
    return true;
  }

  // Returns false if the role has to wait.
  Result<bool> may_go_on(Actor& actor, const Step& step) {
    if (step.statement->kind == Kind::Await) return await(actor, step);
    if (step.statement->kind == Kind::Barrier) return meet(actor, step);
    if (step.statement->kind != Kind::BeginTurn) return true;
    int& turn = turns[static_cast<std::size_t>(actor.trace.number)];
    return turn > 0 ? --turn, true : false;
  }

  // Lets a role continue until it waits or is done. Returns whether it has made progress.
  Result<bool> advance(Actor& actor) {
    const std::size_t before = actor.next;
    for (; !actor.is_done(); ++actor.next) {
      const Step& step = actor.trace.steps[actor.next];
      FLASHJIT_ASSIGN(goes_on, may_go_on(actor, step));
      if (!goes_on) break;
      constexpr Kind kWaits[] = {Kind::Await, Kind::BeginTurn, Kind::Barrier};
      if (std::ranges::count(kWaits, step.statement->kind) == 0) FLASHJIT_TRY(execute(actor, step));
    }
    return actor.next > before;
  }

  void set_up() {
    const auto takes_turns = [](const Actor& actor) {
      return std::ranges::any_of(actor.trace.steps, [](const Step& step) {
        return step.statement->kind == Kind::BeginTurn || step.statement->kind == Kind::EndTurn;
      });
    };
    turns.resize(static_cast<std::size_t>(std::max<std::ptrdiff_t>(std::ranges::count_if(actors, takes_turns), 1)));
    for (Actor& actor : actors) {
      find_rings(actor, actor.trace.role->body);
      for (auto& [b, filler] : actor.fillers)
        if (!filler.asks && buffer(b).counter == Counter::Items) filler.granted = 1;
    }
  }
  Result<void> check_end() const {
    FLASHJIT_TRY(Rings::check_end());
    for (const Actor& actor : actors)
      if (!actor.products.empty()) return internal("a product is never waited for");
    if (std::ranges::any_of(turns, [](int turn) { return turn > 0; })) return internal("a turn is never taken");
    return {};
  }

  // `first` is the role that begins each round.
  Result<void> run(std::size_t first) {
    set_up();
    while (!std::ranges::all_of(actors, &Actor::is_done)) {
      bool any = false;
      for (std::size_t i = 0; i < actors.size(); ++i) {
        FLASHJIT_ASSIGN(further, advance(actors[(first + i) % actors.size()]));
        any |= further;
      }
      if (any) continue;
      std::vector<std::string> where;
      for (const Actor& actor : actors) {
        where.push_back(fmt::format("{} waits at {}", name(actor.trace.role->kind),
                                    actor.is_done() ? "its end" : at(actor.trace.steps[actor.next])));
      }
      return internal(fmt::format("deadlock: {}", fmt::join(where, ", ")));
    }
    return check_end();
  }
};

// Finds the shared buffers that statements name.
void find_tiles(const Program& p, const Body& body, std::set<int>& tiles) {
  for (const Statement& s : body) {
    if (s.kind == Kind::Launch) continue;
    for (const auto* named : {&s.writes, &s.reads})
      for (const int b : *named)
        if (b >= 0 && p.buffers[static_cast<std::size_t>(b)].space == Space::Shared) tiles.insert(b);
    find_tiles(p, s.inside, tiles);
    find_tiles(p, s.body, tiles);
  }
}

bool overlap(const Buffer& a, const Buffer& b) {
  const auto begin = [](const Buffer& of, int stage) {
    return of.offset + stage * (of.stride > 0 ? of.stride : of.bytes);
  };
  for (int i = 0; i < a.stages; ++i)
    for (int j = 0; j < b.stages; ++j)
      if (begin(a, i) < begin(b, j) + b.bytes && begin(b, j) < begin(a, i) + a.bytes) return true;
  return false;
}

Result<void> check_tiles_apart(const Program& p) {
  std::set<int> tiles;
  find_tiles(p, p.body, tiles);
  for (const int tile : tiles) {
    const Buffer& a = p.buffers[static_cast<std::size_t>(tile)];
    if (!a.layout.starts_with("swizzle")) continue;
    if (a.offset % kSwizzleRepeats != 0 || a.bytes % kSwizzleRepeats != 0)
      return internal(fmt::format("{}: {} bytes at {} are not multiples of {}, where the swizzle repeats", a.name,
                                  a.bytes, a.offset, kSwizzleRepeats));
    for (const int other : tiles) {
      const Buffer& b = p.buffers[static_cast<std::size_t>(other)];
      if (tile != other && a.inside != other && b.inside != tile && overlap(a, b))
        return internal(fmt::format("{} and {} overlap in shared memory", a.name, b.name));
    }
  }
  return {};
}

bool is_role(const Statement& s) {
  return s.kind == Kind::Producer || s.kind == Kind::Transposer || s.kind == Kind::Consumer || s.kind == Kind::Entry;
}

}  // namespace

Result<void> run_roles(const Program& p, const Scenario& scenario,
                       const std::function<void(const RoleTrace&, const Step&)>& on_step) {
  FLASHJIT_ASSIGN(traces, trace_roles(p, scenario));
  Block block{{p}, on_step};
  for (RoleTrace& trace : traces) block.actors.push_back({std::move(trace)});
  return block.run(scenario.seed);
}

bool has_roles(const Body& body) { return std::ranges::any_of(body, is_role); }

Result<void> check_roles(const Program& p, std::uint64_t seed) {
  for (const Statement& s : p.body) {
    if (s.kind != Kind::Launch || !has_roles(s.body)) continue;
    Program launch = p;
    launch.body = s.body;
    FLASHJIT_TRY(check_roles(launch, seed));
  }
  FLASHJIT_TRY(check_tiles_apart(p));
  std::int64_t stages = 1;
  for (const Buffer& b : p.buffers) stages = std::max<std::int64_t>(stages, b.stages);
  // The lengths are none, one, fewer tiles than stages, and enough tiles to use every slot twice. There are enough
  // items for Q's slots too.
  for (const std::int64_t tiles : {std::int64_t{0}, std::int64_t{1}, std::int64_t{2}, 2 * stages + 1}) {
    const Scenario scenario = {{{tiles, 1}, {0, 0}, {tiles, 2}, {tiles, 1}}, seed};
    if (auto done = run_roles(p, scenario, {}); !done) {
      Error error = done.error();
      error.message += fmt::format(" (loop of {} tiles)", tiles);
      return error;
    }
  }
  return {};
}

}  // namespace flashjit
