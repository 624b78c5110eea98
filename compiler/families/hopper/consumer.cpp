// The work of a warpgroup that computes, in the order of a textbook.
#include "compiler/families/hopper/roles.h"

#include <string>
#include <utility>

#include "compiler/families/hopper/hopper.h"
#include "compiler/program/edit.h"

namespace flashjit {

namespace {

struct Consumer : Maker {
  const KernelConfig& c;
  // Queries are kept until the item is done: O takes their slot, and they are released behind it.
  bool overlaps, keeps_queries;

  Statement await(std::string_view buffer, std::string_view form = {}) {
    if (form == "inputs") return make(Kind::Await, {buffer}, {}, form);  // Inputs have one slot, and no other barrier.
    return await_full({buffer}, form);
  }
  Statement release(std::string_view buffer, std::string_view form = {}) const {
    return make(Kind::Release, {buffer}, {}, form);
  }

  // Products of the previous tile with V are one tile behind those with K.
  Body multiply_scores() {
    Statement product = make(Kind::Mma, {"S"}, {"Qs", "Ks"}, "scores");
    product.product = hopper_products(c)[0];
    return {make(Kind::Fence), product, make(Kind::Commit)};
  }
  Body multiply_output() {
    Statement product = make(Kind::Mma, {"O"}, {"P", "Vs"}, "output");
    product.product = hopper_products(c)[1];
    return {keep("O"), make(Kind::Fence), product, mark("begun"), make(Kind::Commit)};
  }
  Body complete_output() { return {wait(0), keep("O"), release("Vs")}; }

  Body release_queries() {
    if (keeps_queries) return {};
    return {when("last", {release("Qs", "by_threads")})};
  }
  Body rescale_output() { return {when("rose", {make(Kind::Rescale, {"O"}, {"O", "factor"})})}; }
  // Finds where a tile is in the tensors, and the scales of its products.
  Body find_tile() {
    Body body = {let("here")};
    if (has_tile_scales(c)) body.push_back(let("keys_scale"));
    return body;
  }

  // Tensors that are read at every key have been copied beside K.
  Body read_inputs(bool first, bool last) {
    Body body;
    if (inputs_bytes(c) > 0 && first) body.push_back(await("Is", "inputs"));
    if (inputs_bytes(c) > 0 && last) body.push_back(release("Is", "inputs"));
    return body;
  }
  Statement score(std::string_view form) {
    Statement score = make(Kind::Score, {"S"}, {"S"}, form);
    score.inside = read_inputs(true, true);
    return score;
  }

  Body main_step() {
    Body body = {await("Ks")};
    if (overlaps) {
      append(body, multiply_scores());
      body.push_back(await("Vs"));
      append(body, multiply_output());
    } else {
      body.push_back(await("Vs"));
      append(body, multiply_output());
      append(body, complete_output());
      append(body, multiply_scores());
    }
    append(body, find_tile());
    append(body, {let("factor"), wait(overlaps ? 1 : 0), keep("S"), release("Ks")});
    append(body, release_queries());
    append(body, {score("all"), make(Kind::Softmax, {"S", "rows", "factor"}, {"S", "rows"}, "tile")});
    if (overlaps) {
      body.push_back(keep("S"));
      append(body, complete_output());
    }
    body.push_back(make(Kind::Advance, {"Ks"}));
    append(body, rescale_output());
    body.push_back(make(Kind::Convert, {"P"}, {"S"}));
    return body;
  }

  // The change from one item to the next.
  Body change_items() {
    Body body = {call("gather_warp"), when("item", {call("finish_item")}), make(Kind::Fill, {"rows"}, {}, "rows"),
                 mark("next_item")};
    if (is_scaled(c)) body.push_back(when("scores", {call("receive_scales")}));
    return body;
  }

  Body careful_step() {
    Body body = {let("work"), let("before"), let("output"), when("output", {await("Vs")})};
    append(body, multiply_output());
    if (!overlaps) body.push_back(wait(0));
    Statement look_up = call("look_up");
    look_up.inside = {with(make(Kind::Await, {"Qs"}), "barrier", std::string("full"))};
    body.push_back(when("changes", {std::move(look_up)}));
    if (has_own_tiles(c, c.hopper.warpgroups)) body.push_back(when("passes", {call("pass_tile")}));
    append(body, {let("scores"), when("scores", {await("Ks")})});
    append(body, multiply_scores());
    append(body, {wait(1), keep("O"), when("output", {release("Vs")})});
    // Products of 8 bits leave registers for scales that are loaded while O is written, but not where blocks of keys
    // have scales: d=128 spills 16 bytes.
    if (c.element == Element::f8 && !has_tile_scales(c)) body.push_back(when("asks", {call("ask_scales")}));
    append(body, {when("changes", change_items()), let("mixed"), let("last"), wait(0), keep("S"),
                  when("no_scores", {make(Kind::Return)})});
    append(body, find_tile());
    append(body, {release("Ks"), make(Kind::Advance, {"Ks"})});
    append(body, release_queries());
    append(body, {let("columns"), score("mixed"), let("factor"),
                  make(Kind::Softmax, {"S", "rows", "factor"}, {"S", "rows"}, "exact")});
    append(body, rescale_output());
    body.push_back(make(Kind::Convert, {"P"}, {"S"}));
    return body;
  }

  Body takes_main_step() {
    return {when("not_full", {make(Kind::Return, {}, {}, "no")}), make(Kind::Return, {}, {}, "yes")};
  }
  Body main_steps() { return {let("first_full"), loop("all", {call("main_step")})}; }

  Body pass_copies() {
    Body body = {make(Kind::Fence), await("Ks"), release("Ks")};
    if (inputs_bytes(c) > 0) body.push_back(when("inputs_given", read_inputs(true, true)));
    append(body, {make(Kind::Advance, {"Ks"}), await("Vs")});
    return body;
  }
  Body pass_tile() {
    return {wait(0), when("holds_values", {release("Vs")}), call("pass_copies"),
            when("holds_no_values", {release("Vs")})};
  }
  Body pass_item() {
    Body body = {await("Vs"), release("Vs")};
    if (!keeps_queries) body.push_back(when("tiles_left", {release("Qs", "by_threads")}));
    body.push_back(loop("visited", {call("pass_copies"), release("Vs")}));
    return body;
  }

  Body finish_item() {
    Body body = {make(Kind::Reduce, {"rows"}, {"rows"}, "quads"), make(Kind::Finalize, {"O", "rows"}, {"O", "rows"})};
    if (c.sink) body.back().reads.push_back(p.buffer("sink"));
    if (c.hopper.keys == Keys::parts)
      body.push_back(when("parts", {make(Kind::Store, {}, {"O", "rows"}, "part"), make(Kind::Return)}));
    if (c.accumulate) {
      body.push_back(make(Kind::Store, {"o", "lse"}, {"O", "rows"}, "continued"));
      return body;
    }
    if (c.lse != Lse::none || c.max_logit) {
      Statement store = make(Kind::Store, {}, {"rows"}, "rows");
      for (const std::string_view result : {"lse", "max_logit"})
        if (p.buffer(result) >= 0) store.writes.push_back(p.buffer(result));
      body.push_back(std::move(store));
    }
    append(body, {let("kept_bits"), make(Kind::Store, {"o"}, {"O"}, stages_output(c) ? "sent" : "stored")});
    return body;
  }

  Body consume() {
    // The release is that of Q of items without keys or, where O takes the slot of Q, of all items.
    Body body = {make(Kind::Items)};
    body.front().inside = {make(Kind::Release, {"Qs"}, {}, "by_threads")};
    if (stages_output(c) && !keeps_queries) body.push_back(call("await_stores_read"));
    return body;
  }

  Statement warpgroups() {
    Statement consumer =
        with(role(Kind::Consumer, "Consumer", "consumer.cuh"), "count", std::int64_t{c.hopper.warpgroups});
    consumer.body = {body("main_step", main_step()),     body("takes_main_step", takes_main_step()),
                     body("main_steps", main_steps()),   body("careful_step", careful_step()),
                     body("finish_item", finish_item()), body("pass_copies", pass_copies())};
    if (has_own_tiles(c, c.hopper.warpgroups)) consumer.body.push_back(body("pass_tile", pass_tile()));
    append(consumer.body, {body("pass_item", pass_item()), body("consume", consume())});
    return consumer;
  }
};

}  // namespace

Result<void> add_consumer(Program& program, const PassContext& context) {
  const KernelConfig& c = context.config;
  program.buffers.push_back({"factor", Space::Register, Dtype::F32, std::to_string(c.tile_q), "1"});
  const auto name_registers = [&](std::string_view buffer, std::string_view code) {
    program.buffers[static_cast<std::size_t>(program.buffer(buffer))].code = code;
  };
  name_registers("S", "s"), name_registers("P", "p"), name_registers("O", "o"), name_registers("rows", "rows");
  Consumer consumer{{program, "pipeline_copies"}, c, c.hopper.overlap == Overlap::qk_pv, output_replaces_queries(c)};
  Statement role = consumer.warpgroups();
  if (!consumer.failed) return consumer.failed.error();
  program.body.push_back(std::move(role));
  return {};
}

}  // namespace flashjit
