#include "compiler/program/role_rings.h"

#include <algorithm>
#include <limits>

#include <fmt/format.h>

#include "compiler/program/edit.h"

namespace flashjit {

namespace {

// Returns whether a statement waits until readers have given slots back. Its barrier tells this, or, where the barrier
// has no other name, its form.
bool awaits_empty(const Statement& s) {
  if (s.form.ends_with("given_back")) return true;
  const Attribute* barrier = s.attributes.find("barrier");
  return barrier && std::get<std::string>(barrier->value) == "empty";
}

}  // namespace

std::string Rings::at(const Step& step) const {
  const std::string tile = step.tile < 0 ? "" : fmt::format(", tile {}", step.tile);
  return fmt::format("{} (item {}{})", describe(p, *step.statement), step.item, tile);
}
Result<void> Rings::wrong(const Step& step, std::string_view what) const {
  return internal(fmt::format("{}: {}", at(step), what));
}

std::int64_t Rings::slot_of(const Actor& actor, const Step& step, int b) const {
  const std::int64_t number = step.number - (is_before(*step.statement) ? 1 : 0);
  if (buffer(b).counter == Counter::Items) return step.item + (is_next(*step.statement) ? 1 : 0);
  if (buffer(b).counter == Counter::Steps) return number;
  if (buffer(b).counter == Counter::Alternating) return number / 2;
  if (!actor.is_consumer()) return actor.count;
  if (buffer(b).ring == "q_ring") return step.item;
  if (buffer(b).ring.empty()) return actor.reads.at(b).released;
  return actor.count - buffer(b).behind;
}
std::int64_t Rings::released(int b) const {
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

std::int64_t Rings::slot_to_fill(Actor& actor, const Step& step, int b) const {
  if (buffer(b).counter != Counter::Rings) return slot_of(actor, step, b);
  const std::string_view counter = buffer(b).fill_ring;
  return counter.empty() ? actor.fillers[b].granted : actor.fills[counter];
}
bool Rings::is_full(int b, std::int64_t slot) const {
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

Result<bool> Rings::await(Actor& actor, const Step& step) const {
  const int b = step.statement->writes[0];
  if (awaits_empty(*step.statement)) {
    Filler& filler = actor.fillers[b];
    if (step.statement->form.ends_with("all_given_back")) {
      if (released(b) < static_cast<std::int64_t>(filler.filled.size())) return false;
      filler.has_all_back = true;
      ++filler.granted;
      return true;
    }
    filler.asks_by_name |= step.statement->form.ends_with("given_back");
    const std::int64_t slot = slot_to_fill(actor, step, b);
    if (slot != filler.granted)
      return wrong(step, fmt::format("awaits slot {}, but {} is the next to be filled", slot, filler.granted)).error();
    // The slots may be those of another buffer.
    const int taken = step.statement->reads.empty() ? b : step.statement->reads[0];
    if (filler.granted - released(taken) >= buffer(b).stages) return false;
    ++filler.granted;
    return true;
  }
  for (const int full : step.statement->writes)
    if (const std::int64_t slot = slot_of(actor, step, full); slot < 0 || !is_full(full, slot)) return false;
  for (const int full : step.statement->writes) actor.reads[full].full.insert(slot_of(actor, step, full));
  return true;
}

// Returns whether the role may fill this slot, or announce it. At the start all slots are empty.
bool Rings::is_granted(Actor& actor, int b, std::int64_t slot) const {
  Filler& filler = actor.fillers[given_with(b)];
  if (slot == filler.granted && slot < buffer(b).stages && buffer(b).counter != Counter::Rings) ++filler.granted;
  return slot < filler.granted;
}
Result<void> Rings::fill(Actor& actor, const Step& step, int b) {
  Filler& filler = actor.fillers[b];
  const auto slot = static_cast<std::int64_t>(filler.filled.size());
  if (buffer(b).inside >= 0) {
    FLASHJIT_TRY(cover(actor, step, buffer(b).inside));
  } else if (!is_granted(actor, b, slot)) {
    return wrong(step, "overwrites a slot before it has awaited that it is empty");
  }
  for (const Actor& other : actors) {
    for (const ProductUnderWay& product : other.products) {
      if (buffer(b).counter != Counter::Rings && std::ranges::count(product.statement->reads, b) > 0 &&
          slot_of(other, product.step, b) + buffer(b).stages <= slot && product_counts(product, b))
        return wrong(step, "overwrites a slot that a product under way reads");
    }
  }
  if (buffer(b).counter == Counter::Items) filler.filled.emplace_back(slot_of(actor, step, b), -1);
  else filler.filled.emplace_back(step.item, step.tile);
  return {};
}
// Returns whether somebody uses what the product makes from this buffer.
bool Rings::product_counts(const ProductUnderWay& product, int b) const {
  const bool is_of_before = is_before(*product.statement) && buffer(b).counter != Counter::Items;
  return (is_of_before ? product.step.item_before : product.step.tile) >= 0;
}
// Another buffer comes to lie in a slot of this buffer, whose reader no longer needs it.
Result<void> Rings::cover(Actor& actor, const Step& step, int host) {
  const std::int64_t slot = slot_of(actor, step, host);
  if (!actor.reads[guard(host)].full.contains(slot))
    return wrong(step, fmt::format("takes room of {} that is not its own yet", buffer(host).name));
  for (const ProductUnderWay& product : actor.products) {
    if (std::ranges::count(product.statement->reads, host) > 0 && slot_of(actor, product.step, host) == slot)
      return wrong(step,
                   fmt::format("takes room of {} while a product reads it: a wait is missing", buffer(host).name));
  }
  if (buffer(host).counter == Counter::Steps) covered.emplace(host, slot);
  return {};
}
Result<void> Rings::announce(Actor& actor, const Step& step, int b) const {
  Filler& filler = actor.fillers[b];
  const bool may_speak = buffer(b).inside >= 0 ? filler.announced < static_cast<std::int64_t>(filler.filled.size())
                                               : is_granted(actor, b, filler.announced);
  if (!may_speak) return wrong(step, "speaks of a slot before it has awaited that it is empty");
  ++filler.announced;
  return {};
}

Result<void> Rings::read(Actor& actor, const Step& step, int b, std::int64_t item, std::int64_t tile) const {
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

// Returns whether this reader has released a slot, or the slot has been filled anew.
bool Rings::was_given_back(const Actor& actor, int b, std::int64_t slot) const {
  if (buffer(b).counter == Counter::Rings) return false;  // Slots of such a ring are found by what has been released.
  const auto reader = actor.reads.find(given_with(b));
  if (reader != actor.reads.end() && reader->second.released > slot) return true;
  return std::ranges::any_of(actors, [&](const Actor& by) {
    const auto filler = by.fillers.find(b);
    return filler != by.fillers.end() &&
           static_cast<std::int64_t>(filler->second.filled.size()) > slot + buffer(b).stages;
  });
}

Result<void> Rings::release(Actor& actor, const Step& step) const {
  const int b = step.statement->writes[0];
  Reader& reader = actor.reads[b];
  const std::int64_t slot = slot_of(actor, step, b);
  if (slot != reader.released)
    return wrong(step, fmt::format("releases slot {}, but {} is the next to be released", slot, reader.released));
  if (!reader.full.contains(slot)) return wrong(step, "releases a slot that it has not awaited");
  // Where rings count by themselves, any slot that a product reads may be this one.
  const auto reads_it = [&](const ProductUnderWay& product) {
    return std::ranges::any_of(product.statement->reads, [&](int read) {
      return is_shared(read) && given_with(read) == b && product_counts(product, read) &&
             (buffer(b).counter == Counter::Rings || slot_of(actor, product.step, read) == slot);
    });
  };
  if (std::ranges::any_of(actor.products, reads_it))
    return wrong(step, "releases a slot that a product under way reads: a wait is missing");
  reader.released = buffer(b).in_turn ? next_release(actor, b, actor.next + 1) : reader.released + 1;
  return {};
}

std::int64_t Rings::next_release(const Actor& actor, int b, std::size_t from) const {
  for (std::size_t i = from; i < actor.trace.steps.size(); ++i) {
    const Step& step = actor.trace.steps[i];
    if (step.statement->kind == Kind::Release && step.statement->writes[0] == b) return slot_of(actor, step, b);
  }
  return std::numeric_limits<std::int64_t>::max();
}

void Rings::find_rings(Actor& actor, const Body& body) const {
  for (const Statement& s : body) {
    if (s.label == "first_of_role" && actor.trace.number > 0) continue;
    const int b = s.writes.empty() ? -1 : s.writes[0];
    const bool is_of_ring = b >= 0 && is_shared(b);
    constexpr Kind kFill[] = {Kind::Load, Kind::Stage, Kind::Transpose, Kind::Expect, Kind::Complete, Kind::Barrier};
    const bool fills = std::ranges::count(kFill, s.kind) > 0, awaits = s.kind == Kind::Await;
    if (is_of_ring && (fills || (awaits && awaits_empty(s)))) {
      for (int other = 0; other < static_cast<int>(p.buffers.size()); ++other)
        if (!buffer(other).is_room && (other == b || guard(other) == b || given_with(other) == b))
          actor.fillers[other].asks |= awaits;
    }
    if (is_of_ring && actor.trace.role->kind != Kind::Producer &&
        (s.kind == Kind::Release || (awaits && !awaits_empty(s))))
      actor.reads[b].gives_back |= s.kind == Kind::Release;
    if (is_of_ring && buffer(b).in_turn && actor.reads.contains(b)) actor.reads[b].released = next_release(actor, b, 0);
    find_rings(actor, s.inside);
    find_rings(actor, s.body);
  }
}

Result<void> Rings::check_end() const {
  for (const Actor& actor : actors) {
    for (const auto& [b, filler] : actor.fillers) {
      if (filler.asks_by_name && !filler.has_all_back)
        return internal(fmt::format("{}: a slot is given back, and nobody waits for it", buffer(b).name));
      // Nobody gives back the end, which is announced as an item or a tile is.
      const bool has_end = buffer(b).ring == "q_ring" || buffer(b).name == "Vc" || filler.has_end;
      const auto filled = static_cast<std::int64_t>(filler.filled.size()), used = filled - (has_end ? 1 : 0);
      const bool is_told = guard(b) == b;  // The buffer has barriers of its own.
      // Slots that are filled once, or read when a block ends, are not given back.
      const std::int64_t back =
          buffer(given_with(b)).in_turn ? std::min(released(given_with(b)), used) : released(given_with(b));
      const std::int64_t granted = actor.fillers.at(given_with(b)).granted;
      const bool is_given_back = used <= 0 || !filler.asks || back >= used - buffer(b).behind;
      const bool is_granted =
          buffer(b).inside >= 0 ||
          (filler.asks ? granted == filled + (actor.fillers.at(given_with(b)).has_all_back && !has_end ? 1 : 0)
                       : granted >= filled);
      if (is_told && is_granted && filler.announced == filled && is_given_back && back <= used) continue;
      if (!is_told && filled == static_cast<std::int64_t>(actor.fillers.at(guard(b)).filled.size())) continue;
      return internal(fmt::format("{}: {} slots awaited empty, {} announced, {} filled, {} released", buffer(b).name,
                                  granted, filler.announced, filled, back));
    }
  }
  return {};
}

}  // namespace flashjit
