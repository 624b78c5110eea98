// The rings by which roles hand each other slots of shared memory: who fills which slot and who reads it, by whose leave.
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

// A role fills the slots of a shared buffer, or a part of each. Slots are used in turn, counted from the start, and never
// wrap.
struct Filler {
  std::int64_t granted = 0;                                        // known to be empty
  std::int64_t announced = 0;                                      // to be full once they are filled
  std::vector<std::pair<std::int64_t, std::int64_t>> filled = {};  // the item and the tile of each
  bool asks = false;          // whether a slot is empty; else it is to be filled once
  bool asks_by_name = false;  // by a named barrier, at which as many must wait as have told it
  bool has_all_back = false;  // it has waited until all were given back
  bool has_end = false;       // the last says that there are no more
};

// Who reads a ring: how many slots it has released, if it does that, and which it knows to be full.
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
  std::int64_t count = 0,
               groups = 0;  // slots of K, or of copied V, that it is past; groups of products that it has committed
  std::map<int, Filler> fillers = {};          // by buffer
  std::map<int, Reader> reads = {};            // by buffer
  std::vector<ProductUnderWay> products = {};  // under way
  std::set<int> written = {};                  // registers since the last fence
  std::map<int, std::int64_t> unkept = {};     // that products have written, of which group
  std::set<int> unpublished = {};              // shared buffers that instructions of threads have written
  bool expecting = false;                      // is it a barrier beside the slot's that expects what is copied next?
  bool is_at_barrier = false;                  // it has told the others, and waits for them
  std::map<std::string_view, std::int64_t> fills = {};  // by the ring that counts them: the slot that is filled now
  bool is_done() const { return next == trace.steps.size(); }
  bool is_consumer() const { return trace.role->kind == Kind::Consumer; }
};

struct Rings {
  const Program& p;
  std::vector<Actor> actors = {};
  std::set<std::pair<int, std::int64_t>> covered = {};  // slots in which something else lies by now

  const Buffer& buffer(int b) const { return p.buffers[static_cast<std::size_t>(b)]; }
  // The buffer whose barriers tell of this one.
  int guard(int b) const { return buffer(b).guard < 0 ? b : buffer(b).guard; }
  // The buffer with whose slots this one's are given back.
  int given_with(int b) const { return buffer(b).given_with < 0 ? guard(b) : buffer(b).given_with; }
  bool is_shared(int b) const { return buffer(b).space == Space::Shared; }

  std::string at(const Step& step) const;
  Result<void> wrong(const Step& step, std::string_view what) const;

  // Says which slot a reader's statement is about, and the slot that is filled next.
  std::int64_t slot_of(const Actor& actor, const Step& step, int b) const;
  std::int64_t slot_to_fill(Actor& actor, const Step& step, int b) const;
  // The slots that all who give them back have released.
  std::int64_t released(int b) const;
  // All who fill a part of it have, and what its barriers tell of beside it is there.
  bool is_full(int b, std::int64_t slot) const;
  // Says whether a wait is over.
  Result<bool> await(Actor& actor, const Step& step) const;

  Result<void> fill(Actor& actor, const Step& step, int b);
  // The slot that is filled next, or was filled last, is full once it is.
  Result<void> announce(Actor& actor, const Step& step, int b) const;
  // `item`, `tile`: what it is to find there. Products that nobody looks at may read anything.
  Result<void> read(Actor& actor, const Step& step, int b, std::int64_t item, std::int64_t tile) const;
  Result<void> release(Actor& actor, const Step& step) const;

  // The next slot that a role releases of a ring whose slots belong to consumers in turn; behind the last: more than any.
  std::int64_t next_release(const Actor& actor, int b, std::size_t from) const;

  // Who fills which ring, and who reads it: what it does with it anywhere in its role.
  void find_rings(Actor& actor, const std::vector<Statement>& body) const;
  // All that was filled has been told of, read and given back.
  Result<void> check_end() const;

 private:
  bool is_granted(Actor& actor, int b, std::int64_t slot) const;
  bool product_counts(const ProductUnderWay& product, int b) const;
  Result<void> cover(Actor& actor, const Step& step, int host);
  bool was_given_back(const Actor& actor, int b, std::int64_t slot) const;
};

}  // namespace flashjit
