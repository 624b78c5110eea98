// The launch of its own that makes dQ: the role that copies keys, the roles that compute, and the division of a block
// into roles.
#include <algorithm>
#include <string>
#include <utility>

#include "compiler/families/hopper_backward/hopper_backward.h"
#include "compiler/families/hopper_backward/roles.h"

namespace flashjit {

namespace {

struct QueryRoles : Maker {
  const KernelConfig& c;
  std::vector<Product> products = dq_products(c);

  Body multiply(std::string_view name, std::string_view form, std::string_view to, std::string_view a,
                std::string_view b) const {
    Statement s = make(Kind::Mma, {to}, {a, b}, form);
    s.product = *std::ranges::find(products, name, &Product::name);
    return batch({std::move(s)});
  }

  Statement producer() {
    Body tile = {let("key_stage"),
                 await_empty({"column Ks"}, "key_to_fill"),
                 make(Kind::Expect, {"column Ks"}, {}, "key_tile"),
                 copied({"column Ks"}, "k", "key_tile"),
                 await_empty({"column Vs"}, "key_to_fill"),
                 make(Kind::Expect, {"column Vs"}, {}, "key_tile"),
                 copied({"column Vs"}, "v", "key_tile")};
    Statement producer = role(Kind::Producer, "DqProducer", "queries.cuh");
    producer.body = {body(
        "produce", {when("sees_nothing", {make(Kind::Return)}), make(Kind::Expect, {"row Qs"}, {}, "rows_of_queries"),
                    copied({"row Qs"}, "q", "rows_of_queries"), copied({"row dOs"}, "do", "rows_of_d_o"),
                    loop("key_tiles", std::move(tile))})};
    return producer;
  }

  Body step() {
    const bool has_dropout = c.dropped > 0;
    Body body = {let("key_stage_read"), await_full({"column Ks"}, "key")};
    append(body, multiply("dq_scores", "dq_scores", "S", "row Qs", "column Ks"));
    // dQ of the previous step is done then.
    append(body, {wait(1), keep("dS", "fragments"),
                  when("follows_number", {make(Kind::Release, {"column Ks"}, {}, "key_before")}),
                  await_full({"column Vs"}, "key")});
    append(body, multiply("dq_dp", "dq_dp", "dP", "row dOs", "column Vs"));
    body.push_back(make(Kind::EndTurn));
    if (has_dropout) body.push_back(make(Kind::Draw, {}, {}, "of_keys"));
    append(body, {wait(1), keep("S"), make(Kind::Softmax, {"S"}, {"S"}, "of_queries"), keep("S"), wait(0), keep("dP"),
                  make(Kind::Release, {"column Vs"})});
    if (has_dropout) body.push_back(make(Kind::Drop, {"dP"}, {"dP"}, "dp"));
    append(body, {make(Kind::Gradient, {"dS"}, {"S", "dP"}, "of_queries"), make(Kind::BeginTurn)});
    append(body, multiply("dq", "dq_sum", "dQ", "dS", "column Ks"));
    return body;
  }
  Body consume() {
    return {make(Kind::Fill, {"dQ"}), when("last_warpgroup", {make(Kind::BeginTurn)}),
            when("sees_any", {call("read_terms"), await_full({"row Qs"}, "once"), loop("key_tiles", {call("dq_step")}),
                              wait(0), keep("dQ")}),
            when("first_warpgroup", {make(Kind::EndTurn)}), make(Kind::Store, {"dq"}, {"dQ"}, "dq")};
  }
  Statement consumer() {
    Statement consumer = with(role(Kind::Consumer, "DqConsumer", ""), "count", std::int64_t{kDqWarpgroups});
    consumer.body = {body("dq_step", step()), body("consume", consume())};
    return consumer;
  }

  Statement entry() const {
    Body all = {let("shared"), let("dq_memory"), let("dq_item")};
    if (c.sequences == Sequences::packed) all.push_back(when("behind_queries", {make(Kind::Return)}));
    append(all, {call("set_up_dq"), let("warpgroup"),
                 when("copying_keys", {call("shrink_registers"), when("first_copying", {call("produce_keys")})}),
                 otherwise({call("grow_registers"), call("consume_keys")})});
    Statement entry = make(Kind::Entry);
    entry.body = {body("backward_queries", std::move(all))};
    return entry;
  }
};

}  // namespace

Result<Statement> queries_launch(Program& program, const KernelConfig& config) {
  QueryRoles roles{{program, "pipeline_copies"}, config};
  Statement launch = make_statement(Kind::Launch);
  launch.label = "queries";
  launch.body = {roles.producer(), roles.consumer(), roles.entry()};
  FLASHJIT_ASSIGN(set_up, set_up_queries(program, config));
  launch.body.back().body.insert(launch.body.back().body.begin(), std::move(set_up));
  FLASHJIT_TRY(roles.failed);
  return launch;
}

}  // namespace flashjit
