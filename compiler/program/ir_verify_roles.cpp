#include "compiler/program/ir_verify_roles.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace flashjit {

namespace {

constexpr std::int64_t kSwizzleRepeats = 1024;  // bytes: where every swizzle begins anew, so tiles must too

bool touches(const Statement& s, int buffer) {
  return std::ranges::count(s.reads, buffer) + std::ranges::count(s.writes, buffer) > 0;
}

// A statement as one role executes it: for which item, and which tile of its loop.
struct Step {
  const Statement* statement;
  std::int64_t item = 0, tile = -1;
};

std::int64_t integer(const Statement& s, std::string_view key, std::int64_t absent) {
  const Attribute* a = s.attributes.find(key);
  const auto* value = a ? std::get_if<std::int64_t>(&a->value) : nullptr;
  return value ? *value : absent;
}

// Statements of a tile behind the last are not executed.
void unroll(const std::vector<Statement>& body, std::int64_t item, std::int64_t tiles, std::int64_t now, bool in_loop,
            std::vector<Step>& out) {
  for (const Statement& s : body) {
    if (s.kind == Kind::Loop) {
      for (std::int64_t tile = 0; tile < tiles; ++tile) unroll(s.body, item, tiles, tile, true, out);
      continue;
    }
    const bool of_a_tile = in_loop || s.attributes.find("tile");
    const std::int64_t tile = of_a_tile ? now + integer(s, "tile", 0) : -1;
    if (tile < tiles) out.push_back({&s, item, tile});
  }
}

// The slots of one shared buffer, used in turn. Slots are counted from the start of the program and never wrap.
struct Ring {
  std::int64_t granted = 0;  // known to the producer to be empty
  std::int64_t filled = 0;
  std::int64_t arrived = 0;         // known to the consumer to be full
  std::int64_t released = 0;        // the consumer reads this one
  std::vector<Step> contents = {};  // what filled each slot
};

struct Product {
  const Statement* statement;
  std::int64_t group;
};

// A role, and how far it has come.
struct Role {
  Kind kind;
  std::vector<Step> steps = {};
  std::size_t next = 0;
};

struct Roles {
  const Program& p;
  std::array<Role, 3> roles = {Role{Kind::Producer}, Role{Kind::Transposer}, Role{Kind::Consumer}};
  std::vector<Ring> rings = {};        // by buffer
  std::vector<Product> products = {};  // under way
  std::int64_t groups = 0;             // of products, committed

  std::string describe(const Step& step) const {
    const Statement& s = *step.statement;
    const std::string about = s.writes.empty() ? "" : " " + p.buffers[s.writes[0]].name;
    const std::string tile = step.tile < 0 ? "" : fmt::format(", tile {}", step.tile);
    return fmt::format("{}{} (item {}{})", name(s.kind), about, step.item, tile);
  }
  Result<void> wrong(const Step& step, std::string_view what) const {
    return internal(fmt::format("{}: {}", describe(step), what));
  }

  // Whether the wait is over.
  bool await(const Step& step) {
    const int buffer = step.statement->writes[0];
    Ring& ring = rings[buffer];
    const Attribute* barrier = step.statement->attributes.find("barrier");
    const bool empty = barrier && std::get<std::string>(barrier->value) == "empty";
    if (empty ? ring.granted - ring.released >= p.buffers[buffer].stages : ring.arrived >= ring.filled) return false;
    ++(empty ? ring.granted : ring.arrived);
    return true;
  }

  Result<void> produce(const Step& step) {
    if (step.statement->kind != Kind::Load) return wrong(step, "the producer copies and does nothing else");
    return fill(step);
  }

  Result<void> transpose(const Step& step) {
    if (step.statement->kind == Kind::Release) return release(step);
    if (step.statement->kind != Kind::Transpose) return wrong(step, "the transposer transposes and does nothing else");
    FLASHJIT_TRY(read(step, step.statement->reads[0]));
    return fill(step);
  }

  Result<void> fill(const Step& step) {
    Ring& ring = rings[step.statement->writes[0]];
    if (ring.filled >= ring.granted) return wrong(step, "overwrites a slot before it has awaited that it is empty");
    ++ring.filled;
    ring.contents.push_back(step);
    return {};
  }

  Result<void> read(const Step& step, int buffer) {
    const Ring& ring = rings[buffer];
    const std::string& tile = p.buffers[buffer].name;
    if (ring.released >= ring.arrived)
      return wrong(step, fmt::format("reads {} before it has awaited that it is full", tile));
    const Step& there = ring.contents[ring.released];
    if (there.item != step.item || (there.tile >= 0 && there.tile != step.tile)) {
      return wrong(step, fmt::format("reads {}, but item {}, tile {} is there", tile, there.item, there.tile));
    }
    return {};
  }

  Result<void> release(const Step& step) {
    const int buffer = step.statement->writes[0];
    Ring& ring = rings[buffer];
    if (ring.released >= ring.arrived) return wrong(step, "releases a slot that it has not awaited");
    const bool read =
        std::ranges::any_of(products, [&](const Product& product) { return touches(*product.statement, buffer); });
    if (read) return wrong(step, "releases a slot that a product under way reads: a wait is missing");
    ++ring.released;
    return {};
  }

  // Registers of a product belong to it until it has been waited for; another product may queue behind it.
  Result<void> check_registers(const Step& step) {
    for (const Product& product : products) {
      for (const int buffer : product.statement->writes) {
        if (touches(*step.statement, buffer) && step.statement->kind != Kind::Mma)
          return wrong(step,
                       fmt::format("uses {} while a product writes it: a wait is missing", p.buffers[buffer].name));
      }
      for (const int buffer : product.statement->reads) {
        if (std::ranges::count(step.statement->writes, buffer))
          return wrong(step,
                       fmt::format("changes {} while a product reads it: a wait is missing", p.buffers[buffer].name));
      }
    }
    return {};
  }

  Result<void> consume(const Step& step) {
    const Statement& s = *step.statement;
    if (s.kind == Kind::Release) return release(step);
    if (s.kind == Kind::Load) return wrong(step, "consumers do not copy");
    FLASHJIT_TRY(check_registers(step));
    for (const int buffer : s.reads) {
      if (p.buffers[buffer].space == Space::Shared) FLASHJIT_TRY(read(step, buffer));
    }
    if (s.kind == Kind::Mma) products.push_back({&s, groups});
    if (s.kind == Kind::Commit) ++groups;
    if (s.kind == Kind::Wait) {
      const std::int64_t done = groups - integer(s, "pending", 0);
      std::erase_if(products, [&](const Product& product) { return product.group < done; });
    }
    return {};
  }

  Result<void> execute(Kind role, const Step& step) {
    return role == Kind::Producer ? produce(step) : role == Kind::Transposer ? transpose(step) : consume(step);
  }

  // Lets a role go on until it waits or is done. Says whether it has come further.
  Result<bool> advance(Role& role) {
    const std::size_t before = role.next;
    for (; role.next < role.steps.size(); ++role.next) {
      const Step& step = role.steps[role.next];
      if (step.statement->kind == Kind::Await) {
        if (!await(step)) break;
      } else {
        FLASHJIT_TRY(execute(role.kind, step));
      }
    }
    return role.next > before;
  }

  Result<void> run() {
    rings.resize(p.buffers.size());
    const auto is_done = [](const Role& role) { return role.next == role.steps.size(); };
    while (!std::ranges::all_of(roles, is_done)) {
      bool any = false;
      for (Role& role : roles) {
        FLASHJIT_ASSIGN(further, advance(role));
        any |= further;
      }
      if (any) continue;
      std::vector<std::string> where;
      for (const Role& role : roles) {
        if (!role.steps.empty())
          where.push_back(fmt::format("the {} {} {}", name(role.kind), where.empty() ? "is at" : "at",
                                      is_done(role) ? "its end" : describe(role.steps[role.next])));
      }
      return internal(fmt::format("deadlock: {}", fmt::join(where, ", ")));
    }
    for (std::size_t b = 0; b < rings.size(); ++b) {
      if (rings[b].filled != rings[b].released || rings[b].granted != rings[b].filled) {
        return internal(fmt::format("{}: {} slots awaited empty, {} filled, {} released", p.buffers[b].name,
                                    rings[b].granted, rings[b].filled, rings[b].released));
      }
    }
    if (!products.empty()) return internal("a product is never waited for");
    return {};
  }
};

Result<void> check_tiles_apart(const Program& p) {
  for (const Buffer& a : p.buffers) {
    if (a.space != Space::Shared) continue;
    if (a.offset % kSwizzleRepeats != 0 || a.bytes % kSwizzleRepeats != 0)
      return internal(fmt::format("{}: {} bytes at {} are not multiples of {}, where the swizzle repeats", a.name,
                                  a.bytes, a.offset, kSwizzleRepeats));
    for (const Buffer& b : p.buffers) {
      const bool overlap = a.offset < b.offset + b.stages * b.bytes && b.offset < a.offset + a.stages * a.bytes;
      if (&a != &b && b.space == Space::Shared && overlap)
        return internal(fmt::format("{} and {} overlap in shared memory", a.name, b.name));
    }
  }
  return {};
}

bool is_role(const Statement& s) {
  return s.kind == Kind::Producer || s.kind == Kind::Transposer || s.kind == Kind::Consumer;
}

}  // namespace

bool has_roles(const Program& p) { return std::ranges::any_of(p.body, is_role); }

Result<void> check_roles(const Program& p) {
  FLASHJIT_TRY(check_tiles_apart(p));
  std::int64_t stages = 1;
  for (const Buffer& b : p.buffers) stages = std::max<std::int64_t>(stages, b.stages);
  // None, one, fewer tiles than stages, and enough for every slot to be used twice; enough items for Q's slots too.
  for (const std::int64_t tiles : {std::int64_t{0}, std::int64_t{1}, std::int64_t{2}, 2 * stages + 1}) {
    Roles roles{p};
    std::int64_t item = 0;
    for (const std::int64_t length : {tiles, std::int64_t{0}, tiles, tiles}) {
      for (const Statement& s : p.body) {
        const auto role = std::ranges::find(roles.roles, s.kind, &Role::kind);
        if (role == roles.roles.end()) return internal(fmt::format("{} is outside of a role", name(s.kind)));
        unroll(s.body, item, length, 0, false, role->steps);
      }
      ++item;
    }
    if (auto done = roles.run(); !done) {
      Error error = done.error();
      error.message += fmt::format(" (loop of {} tiles)", tiles);
      return error;
    }
  }
  return {};
}

}  // namespace flashjit
