// The work of the two warpgroups that compute, each for half the columns of O. Tiles belong to them by turns.
#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "compiler/families/mla/mla.h"
#include "compiler/families/mla/roles.h"

namespace flashjit {

namespace {

constexpr std::array<std::string_view, kMlaPieces> kPieces = {"K0s", "K1s", "K2s", "K3s"};
// The names of a warpgroup's role, of what it hands to the other one, and of the piece of K whose release gives back
// its half of a slot.
struct HalfNames {
  std::string_view role, weights, rises, sums, half, other_piece;
};
constexpr std::array<HalfNames, kMlaConsumers> kNames = {
    {{"FirstConsumer", "P0s", "rises 0", "sums 0", "K0s", "K1s"},
     {"SecondConsumer", "P1s", "rises 1", "sums 1", "K2s", "K3s"}}};

struct Consumer : Maker {
  const KernelConfig& c;
  bool is_first;
  const Attributes &visited, &masked;
  std::vector<Product> products = mla_products(c);
  const HalfNames& own = kNames[is_first ? 0 : 1];
  const HalfNames& other = kNames[is_first ? 1 : 0];

  // Gives back this warpgroup's half of a slot.
  Statement release(std::string_view which) const {
    const bool is_other = which == "before", in_cluster = c.decode.cluster > 1;
    return make(Kind::Release, {own.half}, {},
                is_other     ? in_cluster ? "in_cluster_before" : "before"
                : in_cluster ? "in_cluster"
                             : "");
  }
  // Sets this warpgroup's columns of V to 0 where keys are hidden. Warps that gather K have left zeros there.
  Body clear_hidden(std::string_view form) const {
    if (gathers_keys(c)) return {};
    return {make(Kind::Fill, {own.half, own.other_piece}, {own.half, own.other_piece}, form)};
  }
  Statement leave_loop() const { return make(Kind::Return, {}, {}, "from_loop"); }

  // A product begins as soon as its piece has arrived.
  Body multiply_piece(int piece) {
    const std::string_view keys = kPieces[static_cast<std::size_t>(piece)];
    Body body = {await_full({keys}, copies_rows(c) ? "unfenced_piece" : "piece")};
    Statement s = make(Kind::Mma, {"S"}, {keys, "Qs"}, "piece");
    if (piece == kMlaPieces - 1 && columns_behind(c) > 0) s.reads.push_back(p.buffer("Ts"));
    s.product = products[piece == 0 ? 0 : 1];
    Body pieces = {std::move(s)};
    if (multiplies_narrow(c) && piece == kMlaPieces - 1) {
      pieces.front().reads.pop_back();
      pieces.push_back(make(Kind::Mma, {"S"}, {"Ts", "Qs"}, "tail"));
      pieces.back().product = products[3];
    }
    append(body, batch(std::move(pieces)));
    return body;
  }
  Body multiply_pieces(int first, int end) {
    Body body = {first == 0 ? let("operands") : mark("operands")};
    for (int piece = first; piece < end; ++piece) append(body, multiply_piece(piece));
    return body;
  }

  // ---- products of 8 bits: V has been transposed, and O takes in some columns at a time ----

  Body follow_narrow() {
    return {await_full({"Vs"}, "values_before"), make(Kind::Await, {other.weights}, {}, "weights_before"),
            make(Kind::Rescale, {"O", "rows"}, {"O", "rows", other.rises}, "of_before")};
  }
  Body multiply_values(std::string_view weights, std::string_view form) {
    Statement s = make(Kind::Mma, {"O"}, {weights, "Vs"}, form);
    s.product = products[2];
    Body body = batch({std::move(s)});
    append(body, {wait(1), wait(0), keep("O")});
    return body;
  }
  Body add_other_tile_narrow() {
    Body body = {call("follow"), let("operands_before")};
    append(body, multiply_values(other.weights, "values_before"));
    body.push_back(make(Kind::Release, {"Vs"}, {}, "values_before"));
    return body;
  }
  Body step_narrow() {
    Body body = {let("parity")};
    append(body, multiply_pieces(0, kMlaPieces));
    append(body,
           {wait(0), keep("S"), make(Kind::Release, {"K0s"}, {}, c.decode.cluster > 1 ? "keys_in_cluster" : "keys")});
    body.push_back(make(Kind::Advance, {"K0s"}, {}, "if_follows"));
    append(body,
           {score_and_mask(), when("starts", {make(Kind::Fill, {"rows"}, {"S"}, "begin")}), let("factor"),
            make(Kind::Softmax, {"P", "rows"}, {"S", "rows"}), when("rose", {make(Kind::Rescale, {"O"}, {"O"})})});
    append(body, hand_over());
    append(body, {make(Kind::Await, {own.weights}, {}, "own_weights"), await_full({"Vs"}, "values"),
                  let("operands_of_values")});
    append(body, multiply_values(own.weights, "values"));
    append(body, {make(Kind::Release, {"Vs"}, {}, "values"), make(Kind::Advance, {"K0s"})});
    return body;
  }

  Body follow() {
    if (multiplies_narrow(c)) return follow_narrow();
    Body body = {await_full({own.half, own.other_piece}, "half_before"),
                 make(Kind::Await, {other.weights}, {}, "weights_before"),
                 make(Kind::Rescale, {"O", "rows"}, {"O", "rows", other.rises}, "of_before")};
    append(body, clear_hidden("hidden_before"));
    return body;
  }
  Body add_other_tile() {
    if (multiplies_narrow(c)) return add_other_tile_narrow();
    Statement s = make(Kind::Mma, {"O"}, {other.weights, own.half, own.other_piece}, "output_before");
    s.product = products[3];
    return {when("follows", {call("follow")}),
            keep("O"),
            make(Kind::Fence),
            let("values_before"),
            std::move(s),
            make(Kind::Commit)};
  }
  Body complete_other() { return {wait(0), keep("O"), when("follows", {release("before")})}; }

  // One warpgroup begins with the previous tile, which is the other's, and the other one with its own scores. So the
  // softmax of the first runs beside the second's scores, and the softmax of the second beside its own products of the
  // previous tile.
  Body multiply_scores() {
    Body body = {let("parity")};
    if (is_first) {
      append(body, multiply_pieces(0, 1));
      // The slot is given back before the next pieces are awaited.
      append(body, {wait(1), keep("O"), when("follows", {release("before")})});
      append(body, multiply_pieces(1, kMlaPieces));
      body.push_back(wait(0));
    } else {
      append(body, multiply_pieces(0, kMlaPieces));
      append(body, {call("add_other_tile"), wait(1)});
    }
    append(body, {keep("S"), make(Kind::Advance, {"K0s"}, {}, "if_follows")});
    return body;
  }
  Statement score_and_mask() const {
    const bool is_chosen = c.selected > 0;
    Statement mask = make(Kind::Mask, {"S"}, {"S"}, !is_chosen ? "" : folds_scale(c) ? "absent" : "scored_absent");
    mask.attributes = masked;
    if (is_chosen) return mask;
    return folds_scale(c) || (multiplies_narrow(c) && !c.has_score) ? when("mixed", {std::move(mask)}) : mask;
  }
  Body make_weights() {
    Body body = {score_and_mask(), when("starts", {make(Kind::Fill, {"rows"}, {"S"}, "begin")}), let("factor"),
                 make(Kind::Softmax, {"P", "rows"}, {"S", "rows"})};
    // Otherwise exponentials would wait for products of the previous tile.
    if (!is_first) {
      body.push_back(keep("P", "fragments"));
      append(body, complete_other());
    }
    body.push_back(when("rose", {make(Kind::Rescale, {"O"}, {"O"})}));
    return body;
  }
  // P is stored beside own products: beside the other warpgroup's scores shared memory has no time for it.
  Body hand_over() {
    return {make(Kind::Stage, {own.rises}, {"rows"}, "rises"), call("sync_group"),
            make(Kind::Stage, {own.weights}, {"P"}, "weights"), make(Kind::Publish),
            make(Kind::Complete, {own.weights}, {}, "weights")};
  }
  Body step() {
    if (multiplies_narrow(c)) return step_narrow();
    Body body = multiply_scores();
    append(body, make_weights());
    append(body, clear_hidden("hidden"));
    body.push_back(keep("O"));
    Statement output = make(Kind::Mma, {"O"}, {"P", own.half, own.other_piece}, "output");
    output.product = products[2];
    append(body, batch({std::move(output)}));
    append(body, hand_over());
    append(body, {wait(0), keep("O"), release("own"), make(Kind::Advance, {"K0s"})});
    return body;
  }

  // Where no tile came before, whatever lies in its place is added, and own products replace the sum: separate code for
  // the first step would come from memory.
  Body attend() {
    const bool is_narrow = multiplies_narrow(c);
    const Statement issue = call("add_other_tile"), add = is_narrow ? when("follows", {issue}) : issue;
    Body tiles = {is_first || is_narrow ? add : when("tiles_end", {add}), when("tiles_end", {leave_loop()})};
    append(tiles, {let("mixed"), call("step"), mark("before"), when("none_before", {make(Kind::Return)}), mark("tile"),
                   mark("follows")});
    Statement all = loop("alternating", std::move(tiles));
    all.attributes = visited;
    Body begun = {make(Kind::Fill, {"rows"}, {}, is_narrow ? "none_scaled" : "none"),
                  make(Kind::Fill, {"O"}),
                  let("tiles"),
                  when("none_before", {make(Kind::Return)}),
                  let("follows"),
                  when("follows", {mark("tile")}),
                  std::move(all)};
    if (!is_narrow) append(begun, {wait(0), keep("O"), release("before")});
    begun.push_back(make(Kind::Advance, {"K0s"}));
    return begun;
  }
  Body consume() {
    const bool is_narrow = multiplies_narrow(c);
    Statement join = make(Kind::Barrier, {own.sums}, {other.sums});
    Body item = {let(is_narrow ? "segment_in_memory" : "segment"), await_full({"Qs"}, "queries"), call("attend")};
    if (c.accumulate) item.push_back(call("read_earlier"));
    append(item, {make(Kind::Stage, {own.sums}, {"rows"}, "sums"), std::move(join),
                  make(Kind::Reduce, {"rows"}, {"rows", other.sums}), make(Kind::Release, {"Qs"}, {}, "queries"),
                  let("last"), when("last_item", {call("begin_next_launch")}), make(Kind::Store, {"o"}, {"O", "rows"}),
                  when("last_item", {make(Kind::Return)})});
    return {loop(is_narrow ? "items_in_memory" : "items", std::move(item))};
  }

  Statement consumer() {
    Statement consumer = role(Kind::Consumer, own.role, is_first ? "consumer.cuh" : "");
    consumer.body = {body("follow", follow()), body("add_other_tile", add_other_tile()), body("step", step()),
                     body("attend", attend()), body("consume", consume())};
    return consumer;
  }
};

// Sums of some columns take turns in these registers.
constexpr std::array<std::string_view, 2> kValueSums = {"T", "U"};

// P V of a tile of 8 bits. O takes it in by additions, some columns at a time.
struct ValueSums : Maker {
  const KernelConfig& c;

  // Pieces take the place of the product of this form, and of the waits for it. Sums lie in two places, so that one
  // product runs while O takes in the one before.
  void spread(Body& body, std::string_view form) {
    const Site product = find_site(p, body, Kind::Mma, form);
    if (!product) return;
    const Statement whole = product.statement();
    const Site first{product.body, product.at - 1};  // The statement is a fence.
    const Body replaced = first.take(6);             // Behind the fence: product, commit, two waits, keep.
    first.insert_before(pieces(whole, {replaced[3], replaced[4]}));
  }
  Body pieces(const Statement& whole, const Body& waits) {
    Body body;
    const int count = product_pieces_of_half(c), ahead = static_cast<int>(kValueSums.size());
    const auto to = [&](int piece) { return kValueSums[static_cast<std::size_t>(piece % ahead)]; };
    for (int piece = 0; piece < count + ahead; ++piece) {
      if (piece >= ahead) {
        const std::string_view done = to(piece - ahead);
        const bool is_alone = std::min(ahead, count + ahead - piece) == 1;
        append(body, {waits[is_alone ? 1 : 0], keep(done),
                      with(make(Kind::Add, {"O"}, {"O", done}), "piece", std::int64_t{piece - ahead})});
      }
      if (piece >= count) continue;
      Statement s = with(whole, "piece", std::int64_t{piece});
      s.writes = {p.buffer(to(piece))};
      append(body, batch({std::move(s)}));
    }
    return body;
  }
};

}  // namespace

Result<Program> add_up_mla_values(Program p, const PassContext& context) {
  if (!multiplies_narrow(context.config)) return p;
  ValueSums values{{p, "add_up_tiles"}, context.config};
  for (const HalfNames& names : kNames) {
    const auto is_role = [&](const Statement& s) { return s.kind == Kind::Consumer && s.label == names.role; };
    Statement& role = *std::ranges::find_if(p.body, is_role);
    for (Statement& body : role.body) {
      for (const std::string_view form : {"values", "values_before"}) values.spread(body.body, form);
    }
  }
  FLASHJIT_TRY(values.failed);
  return p;
}

Result<void> add_mla_consumers(Program& program, const KernelConfig& config, const Attributes& visited,
                               const Attributes& masked) {
  for (const bool is_first : {true, false}) {
    Consumer consumer{{program, "pipeline_copies"}, config, is_first, visited, masked};
    Statement role = consumer.consumer();
    FLASHJIT_TRY(consumer.failed);
    program.body.push_back(std::move(role));
  }
  return {};
}

}  // namespace flashjit
