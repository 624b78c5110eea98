#include "compiler/program/barriers.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "compiler/program/edit.h"
#include "compiler/program/ir_verify_roles.h"
#include "compiler/program/vocabulary.h"

namespace flashjit {
namespace {

constexpr int kThreadsOfWarp = 32, kWarpsOfWarpgroup = 4, kBlocksOfCluster = 2;

// A barrier of each slot of a buffer, named "full" or "empty".
using BarrierName = std::pair<int, std::string>;

struct SetUp {
  std::int64_t slots = 0, arrivals = 0;
  bool is_own = false;  // True if each of several roles that do the same has a barrier of its own.
};

struct BarrierCheck {
  const Program& p;
  std::map<BarrierName, SetUp> set_up = {};
  std::map<BarrierName, std::int64_t> arrive = {};
  std::set<BarrierName> in_turn = {};  // Buffers for which one of the consumers that arrive by turns has been counted.

  const Buffer& buffer(int b) const { return p.buffers[static_cast<std::size_t>(b)]; }
  std::string text(const BarrierName& name) const {
    return fmt::format("barrier {} of {}", name.second, buffer(name.first).name);
  }

  void find_set_up(const Body& body, std::int64_t slots) {
    for (const Statement& s : body) {
      if (s.kind == Kind::Launch) continue;
      for (const int b : s.writes) {
        if (s.kind != Kind::Init) continue;
        set_up[{b, print(s.attributes.find("barrier")->value)}] = {slots, integer(s, "arrivals", 0), s.form == "own"};
      }
      find_set_up(s.body, s.kind == Kind::Init ? integer(s, "count", 0) : slots);
    }
  }

  // The threads and warps that come to a statement. One thread speaks for a producer; where there are several
  // producers, each arrives.
  struct Comers {
    int threads = 1, warps = 1;
    Comers one_of(int count) const { return {std::max(threads / count, 1), std::max(warps / count, 1)}; }
  };
  static std::int64_t arrivals_of(Arrival arrival, const Comers& comers) {
    switch (arrival) {
      case Arrival::ByWarp: return comers.warps;
      case Arrival::InCluster: return kBlocksOfCluster * comers.warps;
      case Arrival::ByLane: return comers.warps * kThreadsOfWarp;
      default: return comers.threads;
    }
  }

  Result<void> find_arrivals(const Body& body, const Comers& comers,
                             std::map<BarrierName, std::int64_t>& of_role) const {
    for (const Statement& s : body) {
      const bool gives_back = s.kind == Kind::Release;
      if (gives_back || s.kind == Kind::Expect || s.kind == Kind::Complete) {
        const TileOperation* operation = find_tile_operation(p, s);
        const Arrival arrival = operation ? operation->arrival : Arrival::ByThread;
        if (arrival == Arrival::ByName) continue;
        const std::int64_t arrivals = arrivals_of(arrival, comers);
        for (const int b : s.writes) {
          const BarrierName name = {b, gives_back ? "empty" : "full"};
          const auto [earlier, is_new] = of_role.emplace(name, arrivals);
          if (!is_new && earlier->second != arrivals)
            return internal(fmt::format("{}: here {} arrive, there {}", text(name), earlier->second, arrivals));
        }
      }
      const Condition* when = s.kind == Kind::When ? find_condition(p, s.label) : nullptr;
      const Comers inside = when ? comers.one_of(when->one_of) : comers;
      FLASHJIT_TRY(find_arrivals(s.body, inside, of_role));
      FLASHJIT_TRY(find_arrivals(s.inside, inside, of_role));
    }
    return {};
  }

  static Comers comers_of(const Statement& role) {
    const int count = static_cast<int>(integer(role, "count", 1));
    if (role.kind == Kind::Producer) return {count, count};
    const int warps = role.kind == Kind::Transposer ? count : kWarpsOfWarpgroup;
    return {warps * kThreadsOfWarp, warps};
  }

  Result<void> add_role(const Statement& role) {
    std::map<BarrierName, std::int64_t> of_role;
    FLASHJIT_TRY(find_arrivals(role.body, comers_of(role), of_role));
    const std::int64_t count = role.kind == Kind::Consumer ? integer(role, "count", 1) : 1;
    for (const auto& [name, arrivals] : of_role) {
      const auto found = set_up.find(name);
      const bool is_own = found != set_up.end() && found->second.is_own;
      if (role.kind == Kind::Consumer && buffer(name.first).in_turn && !in_turn.insert(name).second) continue;
      arrive[name] += is_own ? arrivals : count * arrivals;
    }
    return {};
  }

  Result<void> check() const {
    for (const auto& [name, arrivals] : arrive) {
      const auto found = set_up.find(name);
      if (found == set_up.end()) return internal(fmt::format("{}: nobody sets it up", text(name)));
      if (found->second.slots < buffer(name.first).stages)
        return internal(
            fmt::format("{}: {} are set up for {} slots", text(name), found->second.slots, buffer(name.first).stages));
      if (found->second.arrivals != arrivals)
        return internal(
            fmt::format("{}: set up for {} arrivals, and {} arrive", text(name), found->second.arrivals, arrivals));
    }
    for (const auto& [name, of] : set_up)
      if (!arrive.contains(name)) return internal(fmt::format("{}: nobody arrives", text(name)));
    return {};
  }
};

bool holds(const Statement& s, Kind kind) {
  return s.kind == kind || std::ranges::any_of(s.body, [&](const Statement& inside) { return holds(inside, kind); });
}

void find_order(const Body& body, std::vector<const Statement*>& order) {
  for (const Statement& s : body) {
    order.push_back(&s);
    find_order(s.body, order);
  }
}

// A fence must follow what one thread sets up, so that copies find it, and a barrier, so that other threads do.
Result<void> check_published(const Statement& body) {
  if (!holds(body, Kind::Init)) return {};
  std::vector<const Statement*> order;
  find_order(body.body, order);
  bool is_published = false, is_seen = false;
  for (const Statement* s : order) {
    if (s->kind == Kind::Init) is_published = is_seen = false;
    if (s->kind == Kind::Publish && s->form == "barriers") is_published = true;
    if (s->kind == Kind::Barrier || s->label == "meet_cluster") is_seen = is_published;
  }
  if (!is_published) return internal(fmt::format("body {}: barriers are not published", body.label));
  return is_seen ? Result<void>() : internal(fmt::format("body {}: no barrier behind what is set up", body.label));
}

Result<void> check_barriers_of(const Program& p, const Body& roles) {
  BarrierCheck check{p};
  check.find_set_up(roles, 1);
  for (const Statement& s : roles) {
    if (s.kind == Kind::Launch && has_roles(s.body)) FLASHJIT_TRY(check_barriers_of(p, s.body));
    for (const Statement& body : s.body)
      if (s.kind == Kind::Entry) FLASHJIT_TRY(check_published(body));
    if (s.kind == Kind::Producer || s.kind == Kind::Transposer || s.kind == Kind::Consumer)
      FLASHJIT_TRY(check.add_role(s));
  }
  return check.check();
}

}  // namespace

Result<void> check_barriers(const Program& p) { return check_barriers_of(p, p.body); }

}  // namespace flashjit
