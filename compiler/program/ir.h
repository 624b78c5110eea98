// The tile IR: one kernel as buffers, a role and a short list of statements around a loop over tiles. Passes refine a
// program, and record their decisions in attributes, each of which has exactly one writer.
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
  std::string_view writer;  // The pass that wrote it.
};

class Attributes {
 public:
  // An attribute that is there already is an Internal error: no pass may overrule another.
  Result<void> set(std::string_view key, AttributeValue value, std::string_view writer);
  const Attribute* find(std::string_view key) const;
  const std::vector<Attribute>& all() const { return all_; }

 private:
  std::vector<Attribute> all_;
};

// Every attribute, and the one pass that writes it.
struct AttributeRow {
  std::string_view key, writer, meaning;
};
const AttributeRow* attribute_row(std::string_view key);

// ---- buffers ----

// How readers of a ring, and roles that fill it, count slots: by rings of their own, by the steps of all items, by
// those of these steps that alternate with another role's, or by items.
enum class Counter { Rings, Steps, Alternating, Items };

enum class Space { Global, Shared, Register };

struct Buffer {
  std::string name;
  Space space = Space::Global;
  Dtype dtype = Dtype::F32;
  std::string rows, cols;  // The extents as far as they are known: "q_len", "128".
  // It is "", "rows" (plain), "xor8" (swizzled chunks), "swizzle128" (as TMA and WGMMA do) or "fragment".
  std::string layout;
  int stages = 1;            // The number of copies of the tile, used by turns.
  std::int64_t offset = -1;  // Shared memory: bytes from the start of the block's memory.
  std::int64_t bytes = 0;    // Shared memory: bytes of one stage.
  std::int64_t stride = 0;   // Shared memory: bytes from a stage to the next one; 0 stands for `bytes`.
  bool own_rows = false;     // True if each warp touches only its own rows.
  // Printed programs: the name of the registers, or of a slot's barriers, and the rings by which readers of slots and
  // roles that fill them count.
  std::string_view code = {}, ring = {}, fill_ring = {};
  int behind = 0;  // The number of slots that its reader is behind the ring.
  Counter counter = Counter::Rings;
  // Other buffers, or -1. The barriers of `guard` stand for this buffer as well; slots are given back together with
  // those of `given_with`; and this buffer lies in slots of `inside` while these belong to their readers.
  int guard = -1, given_with = -1, inside = -1;
  bool is_room = false;  // True if nobody fills its slots: they only give room to other buffers.
  int givers = 0;        // The number of roles that give a slot back; 0 stands for all that read it.
  bool in_turn = false;  // True if consumers read its slots by turns, so that one of them gives a slot back.
};

// ---- statements ----

enum class Kind {
  Load,     // It copies global -> shared, asynchronously once copies are pipelined; before, from global to nothing yet.
  Commit,   // It closes a group of asynchronous copies, or of a consumer's products.
  Wait,     // It waits until at most `pending` groups are under way, and makes this thread's copies visible to itself.
  Barrier,  // All warps of the block meet.
  Producer,    // The work of the warp that copies for an item, beside the consumers.
  Transposer,  // The work of warps between both for an item, where an operand is to be transposed.
  Consumer,    // The work of each computing warpgroup for an item, or the bodies of it.
  Await,       // It waits until the next slot of a ring is full (for a reader) or empty (for a role that fills it).
  Release,     // This reader has finished with a slot, which is empty once all readers have.
  Transpose,   // A transposer moves shared -> shared.
  Fragment,    // It loads register operands from shared memory.
  Fill,        // It writes a constant.
  Loop,        // It runs over the tiles of the phases.
  Mma,         // It computes target += a * b: a Product.
  Score,       // It applies the score function.
  Mask,        // It writes -inf where a key is hidden.
  Softmax,     // It turns scores into probabilities, with a running reference and sum.
  Gradient,    // It makes the gradient of the logits, from P and the gradients of P.
  Rescale,     // It brings O and sums to a new reference.
  Convert,     // It converts to the operand type.
  Reduce,      // It reduces over the owners of a row.
  Finalize,    // It divides by the sum, and applies LSE and sink.
  Stage,       // It moves registers -> shared, for wide stores.
  Store,       // It stores to global memory.
  // Only programs that are printed have these (vocabulary.h):
  Body,       // A function of a role; `label` is its name.
  Call,       // It calls a body, or a function of templates.
  Items,      // It takes the items of a block, one after the other, and calls the bodies.
  When,       // Its body happens where `label` is true, ...
  Otherwise,  // ... and this one's where it is not.
  Return,     // It returns from the body.
  Let,        // It names a value.
  Fence,      // Products see what other instructions have written to registers.
  Keep,       // Accesses of registers stay on their side of this.
  BeginTurn,  // This warpgroup's products come next.
  EndTurn,    // The next warpgroup's products come next.
  Add,        // Sums take in what products have made.
  Mark,       // A condition is true from here on.
  Draw,       // It draws which weights are dropped.
  Drop,       // Dropped weights become 0.
  Look,       // It checks whether some number was too large.
  Lower,      // References rise, and large numbers become small.
  Advance,    // It goes to the next slot of a ring.
  Expect,     // It announces the bytes of a slot, which is full once they have arrived.
  Complete,   // This thread has done its share for a slot to be full.
  Publish,    // Products and copies see what has been written to shared memory.
  Init,       // It sets up barriers of slots, each for its number of arrivals.
  Entry,      // All threads begin with this: it gives them their roles.
  Launch,     // The work of another launch of the call, as the file `label` has it.
};
std::string_view name(Kind kind);

struct Statement {
  Kind kind = Kind::Load;
  std::vector<int> writes, reads;  // They are indices of buffers.
  Attributes attributes;
  // The statements of loops, roles, Body, When and Otherwise; for Softmax, what is done halfway.
  std::vector<Statement> body;
  std::vector<Statement> inside;  // The part of a called function's work that others must know.
  std::optional<Axis> along;      // Loop: the axis of its tiles.
  Product product;                // Mma: the product, once warps are assigned.
  std::string_view label;         // Body, Call, When, Let and Mark: the name.
  std::string_view form;          // It tells which of the kind's operations this is.
};
Statement make_statement(Kind kind, std::vector<int> writes = {}, std::vector<int> reads = {});

// The name of an axis, and the ends of two ranges of its tiles: of the visited tiles, and of those that need no mask.
struct AxisNames {
  std::string_view axis, begin, end, full_begin, full_end;
};
AxisNames names_of(Axis axis);

// A part of the range that loops visit, from `begin` to `end` (names of expressions of the mask analysis).
struct Phase {
  std::string begin, end;
  bool mixed = false;  // True if some key of a tile may be hidden: the Mask statement acts.
};

struct Vocabulary;

struct Program {
  std::string title;
  std::string schedule;
  std::vector<Buffer> buffers;
  std::vector<Phase> phases;
  Attributes attributes;
  std::vector<Statement> body;
  std::vector<std::string_view> passes;  // The passes that have run.
  // The program is printed with it (vocabulary.h). If null, the program is a picture.
  const Vocabulary* vocabulary = nullptr;
  std::string_view picture_of;  // The file, or folder, that has the loop of a picture.

  int buffer(std::string_view name) const;  // Returns -1 if there is no such buffer.
  bool ran(std::string_view pass) const;
};

// Returns the matrix product into this buffer, or null.
const Product* find_product(const Program& program, std::string_view target);

// Returns a statement without its attributes: "mma S <- Qs, Ks".
std::string describe(const Program& program, const Statement& statement);
// Returns one statement a line, with loops indented and attributes in brackets.
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

// Checks what must hold after any pass; an Internal error names the statement. verify_plan calls this after the last
// pass. If that finds an error, verify_plan calls it after each pass, to name the one at fault.
Result<void> verify(const Program& program);

}  // namespace flashjit
