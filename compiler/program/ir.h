// The tile IR: one kernel as buffers, a role and a short list of statements around a loop over tiles. Passes refine it;
// what they decide stands in attributes, each of which has exactly one writer.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "compiler/analysis/interval.h"
#include "compiler/spec/dtype.h"
#include "compiler/program/product.h"
#include "compiler/result.h"

namespace flashjit {

// ---- attributes ----

using AttributeValue = std::variant<std::int64_t, double, std::string>;
std::string print(const AttributeValue& value);

struct Attribute {
  std::string_view key;
  AttributeValue value;
  std::string_view writer;  // the pass
};

class Attributes {
 public:
  // Internal error when the attribute is there already: no pass may overrule another.
  Result<void> set(std::string_view key, AttributeValue value, std::string_view writer);
  const Attribute* find(std::string_view key) const;
  const std::vector<Attribute>& all() const { return all_; }

 private:
  std::vector<Attribute> all_;
};

// Every attribute there is, and the one pass that writes it.
struct AttributeRow {
  std::string_view key, writer, meaning;
};
const AttributeRow* attribute_row(std::string_view key);

// ---- buffers ----

// By what who reads a ring, and who fills it, count: by rings of its own, by the steps of all items, by those steps of them
// that alternate with another role's, or by items.
enum class Counter { Rings, Steps, Alternating, Items };

enum class Space { Global, Shared, Register };

struct Buffer {
  std::string name;
  Space space = Space::Global;
  Dtype dtype = Dtype::F32;
  std::string rows, cols;  // extents as they are known so far: "q_len", "128"
  std::string layout;  // "", "rows" (plain), "xor8" (swizzled chunks), "swizzle128" (as TMA and WGMMA do), "fragment"
  int stages = 1;      // copies of the tile, used in turn
  std::int64_t offset = -1;  // shared: bytes from the start of the block's memory
  std::int64_t bytes = 0;    // shared: of one stage
  std::int64_t stride = 0;   // shared: from a stage to the next; 0: bytes
  bool own_rows = false;     // each warp touches its own rows only
  // In programs that are printed: the name of registers, or of a slot's barriers, and the rings by which who reads slots and
  // who fills them count.
  std::string_view code = {}, ring = {}, fill_ring = {};
  int behind = 0;  // slots that its reader is behind the ring
  Counter counter = Counter::Rings;
  // Other buffers, -1 for none: one whose barriers stand for this one as well, one with whose slots this one's are given
  // back, and one in whose slots it lies while these belong to who reads them.
  int guard = -1, given_with = -1, inside = -1;
  bool is_room = false;  // nobody fills its slots: they are there for what lies in them
  int givers = 0;        // how many roles give a slot back; 0: all that read it
  bool in_turn = false;  // consumers read its slots in turn, so of them one gives a slot back
};

// ---- statements ----

enum class Kind {
  Load,        // global -> shared, asynchronous once copies are pipelined; global -> nothing yet before that
  Commit,      // closes a group of asynchronous copies, or of a consumer's products
  Wait,        // until at most `pending` groups are under way; makes this thread's copies visible to itself
  Barrier,     // all warps of the block
  Producer,    // what the warp that copies does for an item, beside the consumers
  Transposer,  // what warps between both do for it, where an operand is to be transposed
  Consumer,    // what each of the warpgroups that compute does for it, or its bodies
  Await,       // until the next slot of a buffer's ring is full (for who reads it) or empty (for who fills it)
  Release,     // this reader is done with a slot: empty once all of them are
  Transpose,   // shared -> shared, by a transposer
  Fragment,    // shared -> register operands
  Fill,        // a constant
  Loop,        // over the tiles of the phases
  Mma,         // target += a * b: a Product
  Score,       // the score function
  Mask,        // -inf where a key is hidden
  Softmax,     // scores to probabilities, running reference and sum
  Gradient,    // of the logits, from P and the gradients of P
  Rescale,     // O and sums to a new reference
  Convert,     // to the operand type
  Reduce,      // over the owners of a row
  Finalize,    // divide by the sum, LSE, sink
  Stage,       // registers -> shared, for wide stores
  Store,       // to global memory
  // Only programs that are printed have these (vocabulary.h):
  Body,       // a function of a role; `label` is its name
  Call,       // of a body, or of what templates do
  Items,      // what a block is given, one after the other: calls the bodies
  When,       // what is in it happens where `label` is true
  Otherwise,  // and this where it is not
  Return,     // from the body
  Let,        // a name for what is asked or kept
  Fence,      // what other instructions have written of registers is there for products
  Keep,       // accesses of registers stay on their side of this
  BeginTurn,  // this warpgroup's products come next
  EndTurn,    // the next one's do
  TakeIn,     // sums take in what products have made
  Mark,       // something is true from here on
  Draw,       // which weights are dropped
  Drop,       // they become 0
  Look,       // was something too large?
  Lower,      // references rise, and what is large becomes small
  Advance,    // to the next slot of a ring
  Expect,     // so many bytes of a slot are on their way: it is full once they are there
  Complete,   // this thread has done its part for a slot to be full
  Publish,    // what has been written to shared memory is there for products and copies
  Init,       // barriers of slots are set up, each for so many arrivals
  Entry,      // what all threads begin with: who takes which role
  Launch,     // what another launch of the call does, as the file `label` has it
};
std::string_view name(Kind kind);

struct Statement {
  Kind kind = Kind::Load;
  std::vector<int> writes, reads;  // indices of buffers
  Attributes attributes;
  std::vector<Statement> body;    // of loops, roles, Body, When and Otherwise; of Softmax what is done halfway
  std::vector<Statement> inside;  // what the function does that it is a call of, as far as others must know
  std::optional<Axis> along;      // Loop: of which tiles
  Product product;                // Mma, once warps are assigned
  std::string_view label;         // Body, Call, When, Let, Mark: which
  std::string_view form;          // which of the kind's operations it is
};
Statement make_statement(Kind kind, std::vector<int> writes = {}, std::vector<int> reads = {});

// The name of an axis, and the ends of two ranges of its tiles: the visited ones, and those that need no mask.
struct AxisNames {
  std::string_view axis, begin, end, full_begin, full_end;
};
AxisNames names_of(Axis axis);

// A part of the range that loops visit, from `begin` to `end` (names of expressions of the mask analysis).
struct Phase {
  std::string begin, end;
  bool mixed = false;  // some key of a tile may be hidden: the Mask statement acts
};

struct Vocabulary;

struct Program {
  std::string title;
  std::string schedule;
  std::vector<Buffer> buffers;
  std::vector<Phase> phases;
  Attributes attributes;
  std::vector<Statement> body;
  std::vector<std::string_view> passes;    // that have run
  const Vocabulary* vocabulary = nullptr;  // that it is printed with (vocabulary.h); null: it is a picture
  std::string_view picture_of;             // the file, or folder, that has the loop then

  int buffer(std::string_view name) const;  // -1: none
  bool ran(std::string_view pass) const;
};

// The matrix product into this buffer; null: there is none.
const Product* find_product(const Program& program, std::string_view target);

// A statement without its attributes: "mma S <- Qs, Ks".
std::string describe(const Program& program, const Statement& statement);
// One statement a line, loops indented, attributes in brackets.
std::string dump(const Program& program);

// Calls visit(statement) for every statement, loops before their bodies; stops at the first error.
template <class Visit>
Result<void> for_each(std::vector<Statement>& body, const Visit& visit) {
  for (Statement& statement : body) {
    if (auto visited = visit(statement); !visited) return visited;
    if (auto inside = for_each(statement.body, visit); !inside) return inside;
  }
  return {};
}

// Checks what must hold after any pass; an Internal error names the statement. verify_plan asks after the last one, and after
// each where that found something, to name the pass at fault.
Result<void> verify(const Program& program);

}  // namespace flashjit
