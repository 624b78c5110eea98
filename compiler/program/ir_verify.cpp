// Checks the rules that a program obeys after every pass. Copies are checked by running them: the statements are
// executed on the state of shared memory for loops of several lengths, so that a missing wait or barrier, or a slot
// that is overwritten too early, is found here and not as a wrong result on a GPU.
#include <algorithm>

#include <fmt/format.h>

#include "compiler/program/barriers.h"
#include "compiler/program/edit.h"
#include "compiler/program/ir.h"
#include "compiler/program/ir_verify_roles.h"

namespace flashjit {

namespace {

Result<void> check_attributes(const Program& p, const Attributes& attributes, std::string_view where) {
  for (const Attribute& a : attributes.all()) {
    if (!p.ran(a.writer)) {
      return internal(fmt::format("{}: attribute `{}` is there before pass {} has run", where, a.key, a.writer));
    }
  }
  return {};
}

// Returns whether a statement of this kind leaves the contents of the buffer that it names alone.
bool names_a_ring(Kind kind) {
  constexpr Kind kKinds[] = {Kind::Await,   Kind::Release, Kind::Expect, Kind::Complete,
                             Kind::Advance, Kind::Let,     Kind::Init};
  return std::ranges::count(kKinds, kind) > 0;
}

// Checks that every statement names buffers that exist, and reads none that nobody has written.
struct DefinitionCheck {
  const Program& p;
  std::vector<bool> defined;

  Result<void> run(const std::vector<Statement>& body) {
    for (const Statement& s : body) {
      FLASHJIT_TRY(check_attributes(p, s.attributes, name(s.kind)));
      for (const int b : s.reads) {
        if (b < 0 || b >= static_cast<int>(p.buffers.size()))
          return internal(fmt::format("{}: reads a buffer that is not there", name(s.kind)));
        if (!defined[b])
          return internal(fmt::format("{}: reads {} before anything is in it", name(s.kind), p.buffers[b].name));
      }
      for (const int b : s.writes) {
        if (b < 0 || b >= static_cast<int>(p.buffers.size()))
          return internal(fmt::format("{}: writes a buffer that is not there", name(s.kind)));
        defined[b] = defined[b] || !names_a_ring(s.kind);
      }
      FLASHJIT_TRY(run(s.body));
    }
    return {};
  }
};

Result<void> check_definitions(const Program& p) {
  constexpr std::string_view kInputs[] = {"q",         "k", "v",  "sink",    "inputs",    "o_parts",
                                          "lse_parts", "x", "do", "given o", "given lse", "weights"};
  DefinitionCheck check{p, {}};
  for (const Buffer& b : p.buffers) {
    check.defined.push_back(b.space == Space::Global && std::count(std::begin(kInputs), std::end(kInputs), b.name) > 0);
  }
  FLASHJIT_TRY(check.run(p.body));
  for (std::size_t i = 0; i < p.buffers.size(); ++i) {
    if (p.buffers[i].space == Space::Global && !check.defined[i]) {
      return internal(fmt::format("the output {} is never stored", p.buffers[i].name));
    }
  }
  return {};
}

int count(const std::vector<Statement>& body, Kind kind) {
  int found = 0;
  for (const Statement& s : body) found += (s.kind == kind) + count(s.body, kind);
  return found;
}

// Checks that all loops of a program, and no other statements, run along one axis, because there is one list of phases.
Result<void> check_loops(const std::vector<Statement>& body, std::optional<Axis>& along) {
  for (const Statement& s : body) {
    if (s.along.has_value() != (s.kind == Kind::Loop))
      return internal(
          fmt::format("{}: {}", name(s.kind), s.along ? "only loops run along an axis" : "along which axis?"));
    if (s.kind == Kind::Launch) continue;  // A launch has an axis of its own.
    if (s.along && along && *s.along != *along)
      return internal(
          fmt::format("loop {}: another one runs along {}", names_of(*s.along).axis, names_of(*along).axis));
    if (s.along) along = s.along;
    FLASHJIT_TRY(check_loops(s.body, along));
  }
  return {};
}

Result<void> check_phases(const Program& p, Axis along) {
  const AxisNames range = names_of(along);
  if (p.phases.empty()) return internal("the loop has no phases");
  if (p.phases.front().begin != range.begin || p.phases.back().end != range.end) {
    return internal(
        fmt::format("the phases do not cover the range of the {} from {} to {}", range.axis, range.begin, range.end));
  }
  bool mixed = p.phases.front().mixed;
  for (std::size_t i = 1; i < p.phases.size(); ++i) {
    mixed |= p.phases[i].mixed;
    if (p.phases[i].begin != p.phases[i - 1].end) {
      return internal(
          fmt::format("phase {} begins at {}, the one before ends at {}", i, p.phases[i].begin, p.phases[i - 1].end));
    }
  }
  if (has_roles(p.body)) return {};
  const int masks = count(p.body, Kind::Mask), softmaxes = count(p.body, Kind::Softmax);
  if (mixed && masks != softmaxes)
    return internal(
        fmt::format("a mixed phase needs a mask statement for each softmax, there are {} for {}", masks, softmaxes));
  return {};
}

// Returns the end of the last slot.
std::int64_t end_of(const Buffer& b) {
  return b.offset + (b.stages - 1) * (b.stride > 0 ? b.stride : b.bytes) + b.bytes;
}

Result<void> check_offsets(const Program& p) {
  const Attribute* total = p.attributes.find("smem_bytes");
  const std::int64_t limit = total ? std::get<std::int64_t>(total->value) : 0;
  for (const Buffer& b : p.buffers) {
    if (b.space != Space::Shared) continue;
    if (b.offset < 0 || b.offset % 16 != 0 || b.bytes <= 0 || end_of(b) > limit) {
      return internal(fmt::format("{}: {} x {} bytes at {} do not fit the {} bytes of the block", b.name, b.stages,
                                  b.bytes, b.offset, limit));
    }
  }
  return {};
}

bool copies_ahead(const std::vector<Statement>& body) {
  return std::ranges::any_of(body, [](const Statement& s) {
    return (s.kind == Kind::Load && s.attributes.find("copy") != nullptr) || copies_ahead(s.body) ||
           copies_ahead(s.inside);
  });
}

// ---- shared memory at work ----

enum class State { Empty, Copying, Arrived, Visible };

// One stage of a shared buffer.
struct Slot {
  int buffer = 0;
  std::int64_t begin = 0, end = 0;
  State state = State::Empty;
  std::int64_t tile = -1, group = 0;
  bool being_read = false;  // Some warp has read it since the last barrier.
  bool overlaps(const Slot& other) const { return begin < other.end && other.begin < end; }
};

struct Machine {
  const Program& p;
  std::int64_t tiles;  // The number of tiles of the loop.
  std::vector<Slot> slots = {};
  std::int64_t groups = 0;  // The number of committed groups.

  const std::string& name_of(const Slot& slot) const { return p.buffers[slot.buffer].name; }

  void set_up() {
    for (std::size_t b = 0; b < p.buffers.size(); ++b) {
      const Buffer& buffer = p.buffers[b];
      for (int stage = 0; buffer.space == Space::Shared && stage < buffer.stages; ++stage) {
        const std::int64_t begin = buffer.offset + stage * (buffer.stride > 0 ? buffer.stride : buffer.bytes);
        slots.push_back({static_cast<int>(b), begin, begin + buffer.bytes});
      }
    }
  }
  Slot& slot_of(int buffer, std::int64_t tile) {
    const auto first = std::find_if(slots.begin(), slots.end(), [&](const Slot& s) { return s.buffer == buffer; });
    return *(first + (tile < 0 ? 0 : tile % p.buffers[buffer].stages));
  }

  // Nobody may still use what the new contents replace. Only a warp itself knows that it has finished with its own
  // rows.
  Result<void> claim(const Slot& target, std::string_view what) {
    for (Slot& other : slots) {
      if (!other.overlaps(target)) continue;
      const bool same_warp = p.buffers[other.buffer].own_rows && p.buffers[target.buffer].own_rows;
      if (other.being_read && !same_warp) {
        return internal(
            fmt::format("{} {} overwrites {} (tile {}) while another warp may still read it: a barrier is missing",
                        what, name_of(target), name_of(other), other.tile));
      }
      if (other.state == State::Copying) {
        return internal(
            fmt::format("{} {} overwrites {} (tile {}) while a copy into it is under way: a wait is missing", what,
                        name_of(target), name_of(other), other.tile));
      }
      if (&other != &target) other.state = State::Empty;
    }
    return {};
  }

  Result<void> load(const Statement& s, std::int64_t now) {
    const std::int64_t ahead = integer(s, "tile", -1);
    const std::int64_t tile = ahead < 0 ? -1 : now + ahead;
    if (tile >= tiles) return {};
    Slot& slot = slot_of(s.writes[0], tile);
    FLASHJIT_TRY(claim(slot, "load"));
    slot.state = State::Copying;
    slot.tile = tile;
    slot.group = groups;
    return {};
  }

  Result<void> read(int buffer, std::int64_t now, std::string_view what) {
    const Slot& first = slot_of(buffer, -1);
    Slot& slot = slot_of(buffer, first.tile < 0 && p.buffers[buffer].stages == 1 ? -1 : now);
    if (slot.tile >= 0 && slot.tile != now) {
      return internal(fmt::format("{} reads tile {} of {}, but tile {} is there", what, now, name_of(slot), slot.tile));
    }
    if (slot.state != State::Visible) {
      return internal(fmt::format("{} reads {} (tile {}) before {}", what, name_of(slot), now,
                                  slot.state == State::Empty     ? "it is loaded"
                                  : slot.state == State::Copying ? "its copy is waited for"
                                                                 : "a barrier has made other threads' copies visible"));
    }
    slot.being_read = true;
    return {};
  }

  void wait(std::int64_t pending) {
    for (Slot& slot : slots) {
      if (slot.state == State::Copying && slot.group < groups - pending) slot.state = State::Arrived;
    }
  }
  void barrier() {
    for (Slot& slot : slots) {
      slot.being_read = false;
      if (slot.state == State::Arrived) slot.state = State::Visible;
    }
  }

  // A barrier of the slots tells all threads that the whole copy has arrived.
  Result<void> await(const Statement& s, std::int64_t now) {
    for (const int b : s.writes) {
      Slot& slot = slot_of(b, now);
      if (slot.state != State::Copying || slot.tile != now)
        return internal(fmt::format("await of {}: nothing copies tile {} there", name_of(slot), now));
      slot.state = State::Visible;
    }
    return {};
  }

  Result<void> step(const Statement& s, std::int64_t now) {
    switch (s.kind) {
      case Kind::Load: return load(s, now);
      case Kind::Commit: ++groups; return {};
      case Kind::Wait: wait(integer(s, "pending", 0)); return run(s.inside, now);
      case Kind::Await: return await(s, now);
      case Kind::Barrier: barrier(); return {};
      case Kind::Call: return run(s.inside, now);
      case Kind::Entry: return {};  // It only calls statements that have been run already.
      case Kind::Consumer:
      case Kind::Body:
      case Kind::When: return run(s.body, now);
      case Kind::Loop:
        for (std::int64_t tile = 0; tile < tiles; ++tile) FLASHJIT_TRY(run(s.body, tile));
        return {};
      default: break;
    }
    for (const int b : s.reads) {
      if (p.buffers[b].space == Space::Shared) FLASHJIT_TRY(read(b, now, name(s.kind)));
    }
    if (s.kind == Kind::Stage) {
      Slot& slot = slot_of(s.writes[0], -1);
      FLASHJIT_TRY(claim(slot, "stage"));
      slot.state = State::Visible;  // The contents are visible to the warp that wrote its rows.
    }
    return {};
  }

  Result<void> run(const std::vector<Statement>& body, std::int64_t now) {
    for (const Statement& s : body) FLASHJIT_TRY(step(s, now));
    return {};
  }
};

Result<void> check_copies(const Program& p) {
  int stages = 1;
  for (const Buffer& b : p.buffers) stages = std::max(stages, b.stages);
  // The lengths are none, one, fewer tiles than stages, and enough tiles to use every slot twice.
  for (const std::int64_t tiles : {0, 1, 2, 2 * stages + 1}) {
    Machine machine{p, tiles};
    machine.set_up();
    if (auto done = machine.run(p.body, 0); !done) {
      Error error = done.error();
      error.message += fmt::format(" (loop of {} tiles)", tiles);
      return error;
    }
  }
  return {};
}

}  // namespace

Result<void> verify(const Program& p) {
  const bool is_printed = p.vocabulary || has_roles(p.body);
  FLASHJIT_TRY(check_attributes(p, p.attributes, "program"));
  if (!is_printed) FLASHJIT_TRY(check_definitions(p));  // Roles hand each other what is defined.
  std::optional<Axis> along;
  FLASHJIT_TRY(check_loops(p.body, along));
  if (!along && !p.phases.empty() && !is_printed) return internal("the program has phases and no loop");
  if (along && p.ran("analyse_mask")) FLASHJIT_TRY(check_phases(p, *along));
  if (p.ran("place_buffers")) FLASHJIT_TRY(check_offsets(p));
  // A role that copies for itself waits for no other role.
  const bool is_alone = has_roles(p.body) && std::ranges::count(p.body, Kind::Producer, &Statement::kind) == 0;
  if (is_printed && !is_alone) {
    FLASHJIT_TRY(check_roles(p));
    return check_barriers(p);
  }
  if (copies_ahead(p.body)) FLASHJIT_TRY(check_copies(p));
  return {};
}

}  // namespace flashjit
