// The rings by which roles hand each other slots of shared memory: which role fills a slot, which reads it, and when
// each may.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "compiler/program/ir.h"
#include "compiler/program/roles.h"

namespace flashjit {

// A role that fills the slots of a shared buffer, or a part of each slot. Slots are used one after the other, counted
// from the start, and never wrap.
struct Filler {
  std::int64_t granted = 0;    // The slots that are known to be empty.
  std::int64_t announced = 0;  // The slots that are announced to be full once they are filled.
  std::vector<std::pair<std::int64_t, std::int64_t>> filled = {};  // The item and the tile of each slot.
  bool asks = false;          // The role asks whether a slot is empty. Otherwise it fills the slot once.
  bool asks_by_name = false;  // The role asks at a named barrier, at which as many must wait as have told it.
  bool has_all_back = false;  // The role has waited until all slots were given back.
  bool has_end = false;       // The last slot tells that no more come.
};

// A reader of a ring: how many slots it has released, if it does that, and which slots it knows to be full.
struct Reader {
  bool gives_back = false;
  std::int64_t released = 0;
  std::set<std::int64_t> full = {};
};

struct ProductUnderWay {
  const Statement* statement;
  std::int64_t group;
  Step step;
};

// A role, how far it has come, and what it has under way.
struct Actor {
  RoleTrace trace;
  std::size_t next = 0;
  // `count` is the number of slots of K, or of copied V, that it is past, and `groups` the number of groups of products
  // that it has committed.
  std::int64_t count = 0, groups = 0;
  std::map<int, Filler> fillers = {};                   // The fillers, by buffer.
  std::map<int, Reader> reads = {};                     // The readers, by buffer.
  std::vector<ProductUnderWay> products = {};           // The products under way.
  std::set<int> written = {};                           // Registers that were written since the last fence.
  std::map<int, std::int64_t> unkept = {};              // Registers that products have written, and the group of each.
  std::set<int> unpublished = {};                       // Shared buffers that instructions of threads have written.
  bool expecting = false;                               // A barrier beside the slot's expects what is copied next.
  bool is_at_barrier = false;                           // The role has told the others, and waits for them.
  std::map<std::string_view, std::int64_t> fills = {};  // The slot that is filled now, by the ring that counts it.
  bool is_done() const { return next == trace.steps.size(); }
  bool is_consumer() const { return trace.role->kind == Kind::Consumer; }
};

struct Rings {
  const Program& p;
  std::vector<Actor> actors = {};
  std::set<std::pair<int, std::int64_t>> covered = {};  // Slots in which something else lies by now.

  const Buffer& buffer(int b) const { return p.buffers[static_cast<std::size_t>(b)]; }
  // Returns the buffer whose barriers stand for this one.
  int guard(int b) const { return buffer(b).guard < 0 ? b : buffer(b).guard; }
  // Returns the buffer with whose slots this one's are given back.
  int given_with(int b) const { return buffer(b).given_with < 0 ? guard(b) : buffer(b).given_with; }
  bool is_shared(int b) const { return buffer(b).space == Space::Shared; }

  std::string at(const Step& step) const;
  Result<void> wrong(const Step& step, std::string_view what) const;

  // Return the slot that a reader's statement is about, and the slot that is filled next.
  std::int64_t slot_of(const Actor& actor, const Step& step, int b) const;
  std::int64_t slot_to_fill(Actor& actor, const Step& step, int b) const;
  // Returns the number of slots that all roles which give them back have released.
  std::int64_t released(int b) const;
  // Returns whether all that fill a part of the slot have done so, and whether all that its barriers stand for has
  // arrived.
  bool is_full(int b, std::int64_t slot) const;
  // Returns whether a wait is over.
  Result<bool> await(Actor& actor, const Step& step) const;

  Result<void> fill(Actor& actor, const Step& step, int b);
  // Announces that the slot that is filled next, or was filled last, is full once it is filled.
  Result<void> announce(Actor& actor, const Step& step, int b) const;
  // `item` and `tile` are what the reader must find in the slot. Products that nobody uses may read anything.
  Result<void> read(Actor& actor, const Step& step, int b, std::int64_t item, std::int64_t tile) const;
  Result<void> release(Actor& actor, const Step& step) const;

  // Returns the next slot that a role releases of a ring whose slots belong to consumers by turns; behind the last, a
  // number larger than any.
  std::int64_t next_release(const Actor& actor, int b, std::size_t from) const;

  // Finds which rings a role fills and which it reads, from what it does anywhere in its bodies.
  void find_rings(Actor& actor, const std::vector<Statement>& body) const;
  // Checks that all that was filled has been announced, read and given back.
  Result<void> check_end() const;

 private:
  bool is_granted(Actor& actor, int b, std::int64_t slot) const;
  bool product_counts(const ProductUnderWay& product, int b) const;
  Result<void> cover(Actor& actor, const Step& step, int host);
  bool was_given_back(const Actor& actor, int b, std::int64_t slot) const;
};

}  // namespace flashjit
