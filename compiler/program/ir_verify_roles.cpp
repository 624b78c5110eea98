// Runs the roles of a program against each other, on the rings of shared memory, the turns of warpgroups and the registers of
// products. What is found is a wrong program, for some number of tiles and some order of events.
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
#include "compiler/program/roles.h"

namespace flashjit {

namespace {

constexpr std::int64_t kSwizzleRepeats = 1024;  // bytes: where every swizzle begins anew, so tiles must too

bool awaits_empty(const Statement& s) {
  const Attribute* barrier = s.attributes.find("barrier");
  return barrier && std::get<std::string>(barrier->value) == "empty";
}

// A role fills the slots of a shared buffer, or a part of each. Slots are used in turn, counted from the start, and never
// wrap.
struct Filler {
  std::int64_t granted = 0;                                        // known to be empty
  std::int64_t announced = 0;                                      // to be full once they are filled
  std::vector<std::pair<std::int64_t, std::int64_t>> filled = {};  // the item and the tile of each
  bool asks = false;  // whether a slot is empty; else it is to be filled once
};

// Who reads a ring: how many slots it has released, if it does that, and which it knows to be full.
struct Reader {
  bool gives_back = false;
  std::int64_t released = 0;
  std::set<std::int64_t> full = {};
};

struct Product {
  const Statement* statement;
  std::int64_t group;
  Step step;
};

// A role, how far it has come, and what it has under way.
struct Actor {
  RoleTrace trace;
  std::size_t next = 0;
  std::int64_t count = 0,
               groups = 0;  // slots of K, or of copied V, that it is past; groups of products that it has committed
  std::map<int, Filler> fillers = {};       // by buffer
  std::map<int, Reader> reads = {};         // likewise
  std::vector<Product> products = {};       // under way
  std::set<int> written = {};               // registers since the last fence
  std::map<int, std::int64_t> unkept = {};  // that products have written, of which group
  std::set<int> unpublished = {};           // shared buffers that instructions of threads have written
  bool expecting = false;                   // is it a barrier beside the slot's that expects what is copied next?
  bool is_at_barrier = false;               // it has told the others, and waits for them
  std::map<std::string_view, std::int64_t> fills = {};  // by the ring that counts them: the slot that is filled now
  bool is_done() const { return next == trace.steps.size(); }
  bool is_consumer() const { return trace.role->kind == Kind::Consumer; }
};

struct Block {
  const Program& p;
  const std::function<void(const RoleTrace&, const Step&)>& on_step;
  std::vector<Actor> actors = {};
  std::vector<int> turns = {};                          // given to each consumer, and not taken
  std::set<std::pair<int, std::int64_t>> covered = {};  // slots in which something else lies by now

  const Buffer& buffer(int b) const { return p.buffers[static_cast<std::size_t>(b)]; }
  // The buffer whose barriers tell of this one.
  int guard(int b) const { return buffer(b).guard < 0 ? b : buffer(b).guard; }
  // And that with whose slots this one's are given back.
  int place(int b) const { return buffer(b).place < 0 ? guard(b) : buffer(b).place; }
  bool is_shared(int b) const { return buffer(b).space == Space::Shared; }

  std::string at(const Step& step) const {
    const std::string tile = step.tile < 0 ? "" : fmt::format(", tile {}", step.tile);
    return fmt::format("{} (item {}{})", describe(p, *step.statement), step.item, tile);
  }
  Result<void> wrong(const Step& step, std::string_view what) const {
    return internal(fmt::format("{}: {}", at(step), what));
  }

  // Which slot a reader's statement is about.
  std::int64_t slot_of(const Actor& actor, const Step& step, int b) const {
    const std::int64_t number = step.number - (is_before(*step.statement) ? 1 : 0);
    if (buffer(b).counter == Counter::Items) return step.item + (is_next(*step.statement) ? 1 : 0);
    if (buffer(b).counter == Counter::Steps) return number;
    if (buffer(b).counter == Counter::Turns) return number / 2;
    if (!actor.is_consumer()) return actor.count;
    if (buffer(b).ring == "q_ring") return step.item;
    if (buffer(b).ring.empty()) return actor.reads.at(b).released;
    return actor.count - buffer(b).behind;
  }
  // The slots that all who give them back have released.
  std::int64_t released(int b) const {
    std::int64_t least = -1;
    int givers = 0;
    for (const Actor& actor : actors) {
      const auto reader = actor.reads.find(b);
      if (reader == actor.reads.end() || (buffer(b).givers > 0 && !reader->second.gives_back)) continue;
      ++givers;
      least = least < 0 ? reader->second.released : std::min(least, reader->second.released);
    }
    return givers < buffer(b).givers ? 0 : std::max<std::int64_t>(least, 0);
  }

  // The slot that is filled next.
  std::int64_t slot_to_fill(Actor& actor, const Step& step, int b) {
    if (buffer(b).counter != Counter::Rings) return slot_of(actor, step, b);
    const std::string_view counter = buffer(b).fill_ring;
    return counter.empty() ? actor.fillers[b].granted : actor.fills[counter];
  }
  // All who fill a part of it have, and what its barriers tell of beside it is there.
  bool is_full(int b, std::int64_t slot) const {
    bool any = false;
    for (const Actor& actor : actors) {
      for (const auto& [filled, filler] : actor.fillers) {
        if (guard(filled) != b) continue;
        if (slot >= static_cast<std::int64_t>(filler.filled.size())) return false;
        if (filled == b && slot >= filler.announced) return false;
        any = true;
      }
    }
    return any;
  }

  // Whether a wait is over.
  Result<bool> await(Actor& actor, const Step& step) {
    const int b = step.statement->writes[0];
    if (awaits_empty(*step.statement)) {
      Filler& filler = actor.fillers[b];
      const std::int64_t slot = slot_to_fill(actor, step, b);
      if (slot != filler.granted)
        return wrong(step, fmt::format("awaits slot {}, but {} is the next to be filled", slot, filler.granted))
            .error();
      const int taken = step.statement->reads.empty() ? b : step.statement->reads[0];  // another's place
      if (filler.granted - released(taken) >= buffer(b).stages) return false;
      ++filler.granted;
      return true;
    }
    for (const int full : step.statement->writes)
      if (const std::int64_t slot = slot_of(actor, step, full); slot < 0 || !is_full(full, slot)) return false;
    for (const int full : step.statement->writes) actor.reads[full].full.insert(slot_of(actor, step, full));
    return true;
  }

  // May it fill this slot, or speak of it? At the start all are empty.
  bool is_granted(Actor& actor, int b, std::int64_t slot) const {
    Filler& filler = actor.fillers[place(b)];
    if (slot == filler.granted && slot < buffer(b).stages && buffer(b).counter == Counter::Items) ++filler.granted;
    return slot < filler.granted;
  }
  Result<void> fill(Actor& actor, const Step& step, int b) {
    Filler& filler = actor.fillers[b];
    const auto slot = static_cast<std::int64_t>(filler.filled.size());
    if (buffer(b).inside >= 0) {
      FLASHJIT_TRY(cover(actor, step, buffer(b).inside));
    } else if (!is_granted(actor, b, slot)) {
      return wrong(step, "overwrites a slot before it has awaited that it is empty");
    }
    for (const Actor& other : actors) {
      for (const Product& product : other.products) {
        if (buffer(b).counter != Counter::Rings && std::ranges::count(product.statement->reads, b) > 0 &&
            slot_of(other, product.step, b) + buffer(b).stages <= slot && product_counts(product, b))
          return wrong(step, "overwrites a slot that a product under way reads");
      }
    }
    if (buffer(b).counter == Counter::Items) filler.filled.emplace_back(slot_of(actor, step, b), -1);
    else filler.filled.emplace_back(step.item, step.tile);
    return {};
  }
  // Does somebody look at what it makes of this buffer?
  bool product_counts(const Product& product, int b) const {
    const bool is_of_before = is_before(*product.statement) && buffer(b).counter != Counter::Items;
    return (is_of_before ? product.step.item_before : product.step.tile) >= 0;
  }
  // Something comes to lie in a slot of this buffer, whose reader does no longer need it.
  Result<void> cover(Actor& actor, const Step& step, int host) {
    const std::int64_t slot = slot_of(actor, step, host);
    if (!actor.reads[guard(host)].full.contains(slot))
      return wrong(step, fmt::format("takes room of {} that is not its own yet", buffer(host).name));
    for (const Product& product : actor.products) {
      if (std::ranges::count(product.statement->reads, host) > 0 && slot_of(actor, product.step, host) == slot)
        return wrong(step,
                     fmt::format("takes room of {} while a product reads it: a wait is missing", buffer(host).name));
    }
    if (buffer(host).counter == Counter::Steps) covered.emplace(host, slot);
    return {};
  }
  // The slot that is filled next, or was filled last, is full once it is.
  Result<void> announce(Actor& actor, const Step& step, int b) {
    Filler& filler = actor.fillers[b];
    const bool may_speak = buffer(b).inside >= 0 ? filler.announced < static_cast<std::int64_t>(filler.filled.size())
                                                 : is_granted(actor, b, filler.announced);
    if (!may_speak) return wrong(step, "speaks of a slot before it has awaited that it is empty");
    ++filler.announced;
    return {};
  }

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
        if (actor.unpublished.contains(b)) return wrong(step, "is not seen by products: a publish is missing");
        FLASHJIT_TRY(announce(actor, step, b));
        // Who has nothing to copy fills the slot by that.
        if (const Filler& filler = actor.fillers[b];
            copies && filler.announced > static_cast<std::int64_t>(filler.filled.size()))
          return fill(actor, step, b);
        return {};
      case Kind::Publish: actor.unpublished.clear(); return {};
      case Kind::Advance: ++(s.form == "to_fill" ? actor.fills[buffer(b).fill_ring] : actor.count); return {};
      case Kind::Let:  // V is copied behind K, and what tells that there is no more in its stead
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
        return {};
      default: break;
    }
    return wrong(step, fmt::format("the {} does not do that", name(actor.trace.role->kind)));
  }

  // `item`, `tile`: what it is to find there. Products that nobody looks at may read anything.
  Result<void> read(Actor& actor, const Step& step, int b, std::int64_t item, std::int64_t tile) {
    if (item < 0) return {};
    const std::int64_t slot = slot_of(actor, step, b);
    if (!actor.reads[guard(b)].full.contains(slot))
      return wrong(step, fmt::format("reads {} before it has awaited that it is full", buffer(b).name));
    const int host = buffer(b).inside < 0 ? b : buffer(b).inside;
    if (covered.contains({b, slot}) || was_given_back(actor, host, slot_of(actor, step, host)))
      return wrong(step, fmt::format("reads {} when it is no longer there", buffer(b).name));
    for (const Actor& by : actors) {
      const auto filler = by.fillers.find(b);
      if (filler == by.fillers.end()) continue;
      const auto [there, of] = filler->second.filled[static_cast<std::size_t>(slot)];
      if (there != item || (of >= 0 && of != tile))
        return wrong(step, fmt::format("reads {}, but item {}, tile {} is there", buffer(b).name, there, of));
    }
    return {};
  }

  // Has this reader released a slot, or has it been filled anew?
  bool was_given_back(const Actor& actor, int b, std::int64_t slot) const {
    if (buffer(b).counter == Counter::Rings) return false;  // slots of it are found by what has been released
    const auto reader = actor.reads.find(place(b));
    if (reader != actor.reads.end() && reader->second.released > slot) return true;
    return std::ranges::any_of(actors, [&](const Actor& by) {
      const auto filler = by.fillers.find(b);
      return filler != by.fillers.end() &&
             static_cast<std::int64_t>(filler->second.filled.size()) > slot + buffer(b).stages;
    });
  }

  Result<void> release(Actor& actor, const Step& step) {
    const int b = step.statement->writes[0];
    Reader& reader = actor.reads[b];
    const std::int64_t slot = slot_of(actor, step, b);
    if (slot != reader.released)
      return wrong(step, fmt::format("releases slot {}, but {} is the next to be released", slot, reader.released));
    if (!reader.full.contains(slot)) return wrong(step, "releases a slot that it has not awaited");
    // Where rings count by themselves, any slot that a product reads may be this one.
    const auto reads_it = [&](const Product& product) {
      return std::ranges::any_of(product.statement->reads, [&](int read) {
        return is_shared(read) && place(read) == b && product_counts(product, read) &&
               (buffer(b).counter == Counter::Rings || slot_of(actor, product.step, read) == slot);
      });
    };
    if (std::ranges::any_of(actor.products, reads_it))
      return wrong(step, "releases a slot that a product under way reads: a wait is missing");
    ++reader.released;
    return {};
  }

  // Registers of a product belong to it until it has been waited for; another product may queue behind it.
  Result<void> check_registers(Actor& actor, const Step& step) {
    const Statement& s = *step.statement;
    const auto touches = [&](int b) { return std::ranges::count(s.reads, b) + std::ranges::count(s.writes, b) > 0; };
    for (const Product& product : actor.products) {
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
      // What a group has written stays together.
      const auto kept = actor.unkept.find(s.writes[0]);
      if (kept == actor.unkept.end()) return {};
      const std::int64_t group = kept->second;
      std::erase_if(actor.unkept, [&](const auto& other) { return other.second == group; });
      return {};
    }
    // What is overwritten needs no keeping: ptxas does not move that over the wait.
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
      std::erase_if(actor.products, [&](const Product& product) {
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
      return announce(actor, step, s.writes[0]);
    }
    return actor.is_consumer() ? consume(actor, step) : provide(actor, step);
  }

  // Tells the others what it has written, and waits until they have: what they tell it may read then.
  Result<bool> meet(Actor& actor, const Step& step) {
    if (!std::exchange(actor.is_at_barrier, true)) FLASHJIT_TRY(announce(actor, step, step.statement->writes[0]));
    for (const int b : step.statement->reads)
      if (!is_full(b, slot_of(actor, step, b))) return false;
    for (const int b : step.statement->reads) actor.reads[b].full.insert(slot_of(actor, step, b));
    actor.is_at_barrier = false;
    return true;
  }

  // False: it waits.
  Result<bool> may_go_on(Actor& actor, const Step& step) {
    if (step.statement->kind == Kind::Await) return await(actor, step);
    if (step.statement->kind == Kind::Barrier) return meet(actor, step);
    if (step.statement->kind != Kind::BeginTurn) return true;
    int& turn = turns[static_cast<std::size_t>(actor.trace.number)];
    return turn > 0 ? --turn, true : false;
  }

  // Lets a role go on until it waits or is done. Says whether it has come further.
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

  // Who fills which ring, and who reads it: what it does with it anywhere.
  void find_rings(Actor& actor, const Body& body) const {
    for (const Statement& s : body) {
      const int b = s.writes.empty() ? -1 : s.writes[0];
      const bool is_of_ring = b >= 0 && is_shared(b);
      constexpr Kind kFill[] = {Kind::Load, Kind::Stage, Kind::Transpose, Kind::Expect, Kind::Complete, Kind::Barrier};
      const bool fills = std::ranges::count(kFill, s.kind) > 0, awaits = s.kind == Kind::Await;
      if (is_of_ring && (fills || (awaits && awaits_empty(s)))) {
        for (int other = 0; other < static_cast<int>(p.buffers.size()); ++other)
          if (other == b || guard(other) == b || place(other) == b) actor.fillers[other].asks |= awaits;
      }
      if (is_of_ring && actor.trace.role->kind != Kind::Producer &&
          (s.kind == Kind::Release || (awaits && !awaits_empty(s))))
        actor.reads[b].gives_back |= s.kind == Kind::Release;
      find_rings(actor, s.inside);
      find_rings(actor, s.body);
    }
  }
  void set_up() {
    turns.resize(static_cast<std::size_t>(std::max<std::int64_t>(consumers_of(p), 1)));
    for (Actor& actor : actors) {
      find_rings(actor, actor.trace.role->body);
      for (auto& [b, filler] : actor.fillers)
        if (!filler.asks && buffer(b).counter == Counter::Items) filler.granted = 1;
    }
  }

  Result<void> check_end() {
    for (const Actor& actor : actors) {
      for (const auto& [b, filler] : actor.fillers) {
        // The end, which is announced as an item or a tile is, nobody gives back.
        const bool has_end = buffer(b).ring == "q_ring" || buffer(b).name == "Vc";
        const auto filled = static_cast<std::int64_t>(filler.filled.size()), used = filled - (has_end ? 1 : 0);
        const bool is_told = guard(b) == b;  // by barriers of its own
        // Slots that are filled once, or read when a block ends, are not given back.
        const std::int64_t back = released(place(b)), granted = actor.fillers.at(place(b)).granted;
        const bool is_given_back = used <= 0 || !filler.asks || back >= used - buffer(b).behind;
        const bool is_granted = buffer(b).inside >= 0 || (filler.asks ? granted == filled : granted >= filled);
        if (is_told && is_granted && filler.announced == filled && is_given_back && back <= used) continue;
        if (!is_told && filled == static_cast<std::int64_t>(actor.fillers.at(guard(b)).filled.size())) continue;
        return internal(fmt::format("{}: {} slots awaited empty, {} announced, {} filled, {} released", buffer(b).name,
                                    granted, filler.announced, filled, back));
      }
    }
    for (const Actor& actor : actors) {
      if (!actor.products.empty()) return internal("a product is never waited for");
    }
    if (std::ranges::any_of(turns, [](int turn) { return turn > 0; })) return internal("a turn is never taken");
    return {};
  }

  // `first`: of the roles, in each round.
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

// The shared buffers that statements name.
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
  Block block{p, on_step};
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
  // None, one, fewer tiles than stages, and enough for every slot to be used twice; enough items for Q's slots too.
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
