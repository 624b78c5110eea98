// The roles that do not compute, and the division of a block into roles.
#include <string>
#include <utility>

#include "compiler/families/hopper_backward/roles.h"

namespace flashjit {

namespace {

struct CopyRoles : Maker {
  const BackwardChoices& has;

  // `reader` is the buffer whose readers have to finish.
  Statement await_slot(std::string_view buffer, std::string_view reader, std::string_view form) {
    Statement s = await_empty({buffer}, form);
    if (reader != buffer) s.reads = {p.buffer(reader)};
    return s;
  }
  Statement await_keys_slot() {
    return has.swaps ? await_slot("Ks", "Vs", "swapped_keys") : await_slot("Ks", "Ks", "key_slot");
  }
  Statement await_values_slot() {
    return has.swaps ? await_slot("Vs", "Ks", "swapped_values") : await_slot("Vs", "Vs", "alone_to_fill");
  }
  Statement steps(Body body) const {
    Statement s = loop("steps", std::move(body));
    s.along = Axis::Queries;
    return s;
  }

  Body copy_step() {
    return {let("stage_to_fill"), await_slot("Qs", "Qs", "to_fill"),
            when("leads", {make(Kind::Expect, {"Qs"}, {}, "step"), copied({"Qs"}, "q", "q"),
                           copied({"Terms"}, "rows", "rows"), copied({"dOs"}, "do", "do")})};
  }
  // The slot of V is free later than that of the first queries.
  Body copy_values() {
    return {await_values_slot(), when("leads", {make(Kind::Expect, {"Vs"}), copied({"Vs"}, "v", "v")})};
  }
  Body copy_steps() {
    Body step = {let("seq"), call("copy_step")};
    if (has.inputs) {
      Statement copy = call("copy_inputs");
      copy.inside = {await_empty({"Is"}, "to_fill"), make(Kind::Expect, {"Is"}), make(Kind::Load, {"Is"}, {"inputs"})};
      step.push_back(when("inputs_copied", {std::move(copy)}));
    }
    append(step, {make(Kind::Advance, {"Qs"}), when("no_values", {call("copy_values")}), mark("values")});
    return {let("key_slot"), await_keys_slot(), when("leads", {make(Kind::Expect, {"Ks"}), copied({"Ks"}, "k", "k")}),
            let("no_values"), steps(std::move(step))};
  }
  Body produce() {
    Statement items = loop(
        "items",
        {let("item"), when("no_item", {make(Kind::Return)}), let("steps"), when("begins", {call("copy_steps")}),
         otherwise({let("key_slot"), await_keys_slot(), when("leads", {make(Kind::Complete, {"Ks"}, {}, "key_slot")}),
                    await_values_slot(), when("leads", {make(Kind::Complete, {"Vs"}, {}, "key_slot")})}),
         call("release_item_of_round"), when("leads", {call("want_item")})});
    items.along = Axis::Queries;
    return {std::move(items)};
  }
  Statement producer() {
    Statement producer = role(Kind::Producer, "Producer", "producer.cuh");
    producer.body = {body("copy_step", copy_step()), body("copy_values", copy_values()),
                     body("copy_steps", copy_steps()), body("produce", produce())};
    return producer;
  }

  // Each warp returns, so that ptxas does not keep the number of the warp.
  Statement warp(std::string_view which, std::string_view what) const {
    return when(which, {call(what), make(Kind::Return)});
  }
  Statement entry() const {
    Body copying = {call("shrink_registers"), let("warp"), warp("warp_0", "produce_steps"), warp("warp_1", "deal")};
    if (has.counts) copying.push_back(warp("warp_2", "count_items"));
    if (has.ordered) copying.push_back(call("let_steps_go"));
    if (has.keeps) copying.push_back(warp("keeps", "keep_items"));
    if (has.zeroes) copying.push_back(when("warp_3", {call("zero_items")}));
    Body computing = {call("grow_registers"), let("consumer")};
    if (has.sums) computing.push_back(call("set_head_sums"));
    if (has.keeps) computing.push_back(call("set_keeps"));
    if (has.cuts_items) computing.push_back(call("set_part_sums"));
    computing.push_back(call("consume"));
    Body all = {let("shared"), let("shared_memory")};
    if (has.counts) all.push_back(call("begin_next_launch"));
    if (has.keeps) all.push_back(let("keeps"));
    append(all, {call(has.keeps ? "set_up_keeping" : "set_up"), let("warpgroup"),
                 when("copying_warpgroup", std::move(copying)), otherwise(std::move(computing))});
    Statement entry = make(Kind::Entry);
    entry.body = {body("hopper_backward", std::move(all))};
    return entry;
  }
};

}  // namespace

Result<void> add_backward_producer(Program& program, const BackwardChoices& choices) {
  CopyRoles roles{{program, "pipeline_copies"}, choices};
  Statement producer = roles.producer();
  FLASHJIT_TRY(roles.failed);
  program.body.push_back(std::move(producer));
  return {};
}

Result<void> add_backward_entry(Program& program, const PassContext& context, const BackwardChoices& choices) {
  Statement entry = CopyRoles{{program, "pipeline_copies"}, choices}.entry();
  FLASHJIT_ASSIGN(set_up, set_up_keys(program, context.config, choices));
  entry.body.insert(entry.body.begin(), std::move(set_up));
  program.body.push_back(std::move(entry));
  return {};
}

}  // namespace flashjit
