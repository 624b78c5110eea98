// The work of a warpgroup that computes, for its 64 keys of every item.
#include <algorithm>
#include <string>
#include <utility>

#include "compiler/families/hopper_backward/hopper_backward.h"
#include "compiler/families/hopper_backward/roles.h"

namespace flashjit {

namespace {

struct Consumer : Maker {
  const BackwardChoices& has;
  std::vector<Product> products;
  int warpgroups;

  Statement await(std::string_view buffer, std::string_view form = {}) {
    return form == "to_write" ? await_empty({buffer}, form) : await_full({buffer}, form);
  }
  Statement release(std::string_view buffer, std::string_view form = {}) const {
    return make(Kind::Release, {buffer}, {}, form);
  }
  bool alone() const { return warpgroups == 1; }
  Statement keep_fragments(std::string_view registers) const { return keep(registers, "fragments"); }

  // `name` is the name of the product, and of its form unless `form` names another one, which reads other operands than
  // usual.
  Statement multiply(std::string_view name, std::string_view to, std::string_view a, std::string_view b,
                     std::string_view form = {}) const {
    Statement s = make(Kind::Mma, {to}, {a, b}, form.empty() ? name : form);
    s.product = *std::ranges::find(products, name, &Product::name);
    return s;
  }

  // The draw of weights depends on no score.
  Body draw(bool first) const {
    if (!has.drops || first != has.draws_first) return {};
    Body body = {make(Kind::Draw)};
    if (first) body.push_back(call("keep_numbers"));
    return body;
  }

  // Multiplies S and dP, relative to the row terms.
  Body multiply_scores() {
    Body body;
    // Registers suffice for this here.
    if (has.inputs) body.push_back(when("inputs_not_copied", {call("copy_own_inputs")}));
    if (has.gradient_tiles) body.push_back(call("set_ones_again"));  // Kept, they would be one register too many.
    Body scores, dp;
    if (!has.apart) scores.push_back(multiply("terms", "S", "Ones", "Terms", "lse_terms"));
    scores.push_back(multiply("scores", "S", "Ks", "Qs"));
    if (!has.drops) dp.push_back(multiply("terms", "dP", "Ones", "Terms", "d_terms"));
    dp.push_back(multiply("dp", "dP", "Vs", "dOs"));
    append(body, batch(std::move(scores)));
    dp.push_back(make(Kind::Commit));
    append(body, std::move(dp));
    return body;
  }
  Body multiply_dv() const { return batch({multiply("dv", "dV", "P", "dOs")}); }

  // Makes P = exp(S). dV += P dO is issued, and runs while dS = P dP is made.
  Body make_gradients() {
    Body body;
    if (has.inputs) append(body, {let("words"), when("inputs_copied", {await("Is", "inputs")}), call("read_inputs")});
    append(body,
           {wait(1), keep("S"), make(Kind::Softmax, {"P", "S"}, {"S", "Terms"}, has.inputs ? "with_inputs" : "")});
    if (has.drops) body.push_back(make(Kind::Drop, {"P"}, {"P"}, has.signs_tell ? "signs" : ""));
    body.push_back(keep("S"));
    append(body, multiply_dv());
    // Inputs are not released where they are read: their loads are queued behind those of the products, and may still
    // be under way when the next inputs come.
    if (has.inputs) body.push_back(when("inputs_copied", {release("Is", "inputs")}));
    append(body,
           {wait(1), keep("dP"), make(Kind::Gradient, {"dS"}, {"S", "dP", "Terms"}, has.sums ? "with_sums" : "")});
    return body;
  }
  // Where gradients of parameters need the score again, everything is made when dP is there, because scores are not
  // kept otherwise.
  Body make_gradients_at_once() {
    Body body = {call("prefetch"), wait(0), keep("S"), keep("dP"),
                 make(Kind::Gradient, {"P", "dS"}, {"S", "dP", "Terms"}, "at_once")};
    if (has.drops) body.push_back(make(Kind::Drop, {"P"}, {"P"}));
    append(body, multiply_dv());
    return body;
  }

  // The gradients are stored when dV is there, which takes no time by now, and P leaves room.
  Body put_gradients() {
    if (!has.gradient_tiles) return {};
    Body body = {wait(0), keep_fragments("P"), call("put_gradients")};
    if (!has.keeps) return body;
    return {when("not_kept", std::move(body))};
  }

  // Adds a share of dQ, whose dS has been read.
  Body give_dq(std::string_view sums, std::string_view step) {
    const std::string_view form = step == "before" ? step : "";
    const Statement add = make(Kind::Store, {"dq"}, {sums}, step);
    if (!has.ordered) return {release("dSs", form), add};
    return {add, call("gather_warp"), release("dSs", form)};
  }
  // One warp lets steps go in order. The wait for it does not stand in the warpgroup's turn at products, which would
  // hold up the other warpgroup.
  Body await_turn(std::string_view step) const {
    if (!has.ordered) return {};
    return {call(step == "before" ? "await_turn_before" : "await_turn")};
  }

  // dS goes to shared memory. Then dQ of the previous step, whose dS all warps have written by now, and dK += dS Q are
  // issued, and dQ is added to memory while dK is computed.
  Body hand_out_ds() {
    return {await("dSs", "to_write"), make(Kind::Stage, {"dSs"}, {"dS"}), make(Kind::Publish), call("gather_warp"),
            make(Kind::Complete, {"dSs"})};
  }
  // A warpgroup that computes alone has no registers for sums of dK and dQ under way at the same time. The other block
  // of the SM fills the time in which it waits for products.
  Body own_step() {
    Body body = {let("stage"), let("exchange")};
    append(body, draw(true));
    body.push_back(await("Qs", "step"));
    append(body, multiply_scores());
    append(body, draw(false));
    append(body, make_gradients());
    append(body, hand_out_ds());
    append(body, batch({multiply("dk", "dK", "dS", "Qs")}));
    append(body, {await("dSs", "step"), wait(0), keep_fragments("P"), keep_fragments("dS"), keep("dK"), release("Qs")});
    append(body, batch({multiply("dq", "dQ", "dSs", "Ks")}));
    append(body, {wait(0), keep("dQ")});
    append(body, give_dq("dQ", "step"));
    return body;
  }
  Body step() {
    Body body = {let("stage")};
    if (has.adds_dq) body.push_back(let("exchange"));
    append(body, draw(true));
    append(body, {await("Qs", "step"), wait(0), keep_fragments("P"), keep_fragments("dS"),
                  when("follows", {release("Qs", "before")})});
    append(body, multiply_scores());
    body.push_back(make(Kind::EndTurn));
    append(body, draw(false));
    append(body, has.sums_at_once ? make_gradients_at_once() : make_gradients());
    if (has.adds_dq) append(body, hand_out_ds());
    append(body, put_gradients());
    if (has.ordered) body.push_back(when("follows", await_turn("before")));
    body.push_back(make(Kind::BeginTurn));
    if (has.adds_dq) {
      body.push_back(when("follows", {await("dSs", "before")}));
      append(body, batch({multiply("dq", "dQ", "dSs", "Ks", "dq_before")}));
      append(body, {multiply("dk", "dK", "dS", "Qs"), make(Kind::Commit), wait(1), keep("dQ")});
      body.push_back(when("follows", give_dq("dQ", "before")));
    } else {
      append(body, batch({multiply("dk", "dK", "dS", "Qs")}));
    }
    return body;
  }

  // Adds dQ of the last step of an item, with the last reads of K.
  Body add_last_dq() {
    Body body = {let("sums"), let("exchange"), await("dSs", "step")};
    append(body, batch({multiply("dq", "last dQ", "dSs", "Ks")}));
    append(body, {wait(0), keep("last dQ"), release("Ks")});
    append(body, await_turn("last"));
    append(body, give_dq("last dQ", "last"));
    return body;
  }
  Body end_keys() {
    if (!has.adds_dq) return {release("Ks")};
    return {when("any_steps", {call("add_last_dq")}), otherwise({release("Ks")})};
  }

  // The item is read again, because keeping it through the loop would cost registers.
  Body store_keys() {
    Body body;
    if (has.cuts_items) body.push_back(when("left_to_others", {make(Kind::Return)}));
    append(body, {let("key"), make(Kind::Store, {"dk"}, {"dK"}, "dk"), make(Kind::Store, {"dv"}, {"dV"}, "dv")});
    return body;
  }

  // `number` is that of the last step, among all items.
  Body visit() {
    Statement steps = loop(has.sums ? "steps_with_sums" : "steps",
                           {mark(has.inputs && has.apart ? "uniform_number" : "number"), call("step"), mark("before")});
    steps.along = Axis::Queries;
    Body body = {make(Kind::Fill, {"dK"}),
                 make(Kind::Fill, {"dV"}),
                 let("at"),
                 let("any"),
                 let("before"),
                 let("next"),
                 when("last_warpgroup", {make(Kind::BeginTurn)}),
                 when("any", {std::move(steps), wait(0), keep("dK"), keep("dV"), release("Qs", "last")}),
                 release("Vs"),
                 when("first_warpgroup", {make(Kind::EndTurn)})};
    // If V of the next item takes the place of K, this comes before dK and dV are stored.
    if (has.swaps) append(body, end_keys());
    body.push_back(call("store_keys"));
    if (!has.swaps) append(body, end_keys());
    return body;
  }
  Body visit_alone() {
    Statement steps = loop("steps", {mark("number"), call("own_step")});
    steps.along = Axis::Queries;
    Body body = {make(Kind::Fill, {"dK"}), make(Kind::Fill, {"dV"}), let("at"), let("any"), let("next")};
    append(body, {when("any", {std::move(steps), keep("dV")}), release("Vs"), release("Ks"), call("store_own_keys")});
    return body;
  }

  Body consume() {
    Statement items = loop("items", {when("no_item", {make(Kind::Return)}), call("find_slots"), await("Ks"),
                                     await("Vs", "alone"), call("visit"), call("release_item")});
    items.along = Axis::Queries;
    return {make(Kind::Fill, {"Ones"}, {}, "ones"), let("number"), std::move(items)};
  }

  Statement role() {
    Statement consumer =
        with(Maker::role(Kind::Consumer, "Consumer", "consumer.cuh"), "count", std::int64_t{warpgroups});
    if (alone()) {
      consumer.body = {body("own_step", own_step())};
    } else {
      consumer.body = {body("step", step())};
      if (has.adds_dq) consumer.body.push_back(body("add_last_dq", add_last_dq()));
    }
    append(consumer.body, {body(alone() ? "store_own_keys" : "store_keys", store_keys()),
                           body("visit", alone() ? visit_alone() : visit()), body("consume", consume())});
    return consumer;
  }
};

}  // namespace

Result<void> add_backward_consumer(Program& program, const PassContext& context, const BackwardChoices& choices) {
  Consumer consumer{
      {program, "pipeline_copies"}, choices, dk_dv_products(context.config), context.config.hopper_backward.warpgroups};
  Statement role = consumer.role();
  FLASHJIT_TRY(consumer.failed);
  program.body.push_back(std::move(role));
  return {};
}

}  // namespace flashjit
