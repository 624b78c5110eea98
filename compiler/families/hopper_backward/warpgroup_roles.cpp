// Blocks whose warpgroups have roles: one makes scores and dV, one dP and dK, and in clusters a third one dQ of the
// keys of both blocks. A block has one item.
#include <algorithm>
#include <string>
#include <utility>

#include "compiler/families/hopper_backward/hopper_backward.h"
#include "compiler/families/hopper_backward/roles.h"

namespace flashjit {

namespace {

struct WarpgroupRoles : Maker {
  const KernelConfig& c;
  const BackwardChoices& has;
  bool clusters = in_clusters(c);
  std::vector<Product> products = dk_dv_products(c);

  Statement multiply(std::string_view name, std::string_view to, std::string_view a, std::string_view b,
                     std::string_view form) const {
    Statement s = make(Kind::Mma, {to}, {a, b}, form);
    s.product = *std::ranges::find(products, name, &Product::name);
    return s;
  }
  // Two products may share the columns of a sum.
  Body multiply_sum(std::string_view name, std::string_view rest, std::string_view to, std::string_view a,
                    std::string_view b, int columns) const {
    Body body = {multiply(name, to, a, b, name == "dv" ? "role_dv" : "role_dk")};
    if (columns_at_once(c, columns) < columns) body.push_back(multiply(rest, to, a, b, rest));
    return body;
  }
  Statement loop_of_queries(std::string_view form, Body body) const {
    Statement s = loop(form, std::move(body));
    s.along = Axis::Queries;
    return s;
  }
  Statement draw() const { return make(Kind::Draw, {}, {}, "of_block"); }

  // ---- the role that copies ----

  Body copy_step() {
    Body copy = {make(Kind::Expect, {"Qs"}, {}, clusters ? "step_without_d_o" : "step"), copied({"Qs"}, "q", "q"),
                 copied({"Terms"}, "rows", "rows")};
    if (!clusters) copy.push_back(copied({"dOs"}, "do", "do"));
    Body body = {let("stage_to_fill"), await_empty({"Qs"}, "to_fill"), when("leads", std::move(copy))};
    if (clusters) {
      append(body, {await_empty({"dOs"}, "d_o_to_fill"),
                    when("leads", {make(Kind::Expect, {"dOs"}, {}, "d_o"), copied({"dOs"}, "do", "do_apart")})});
    }
    return body;
  }
  Body produce() {
    Body keys = {make(Kind::Expect, {"Ks"}, {}, "whole"), copied({"Ks"}, "k", "whole"),
                 make(Kind::Expect, {"Vs"}, {}, "whole"), copied({"Vs"}, "v", "whole")};
    if (clusters)
      append(keys, {make(Kind::Expect, {"other Ks"}, {}, "other_keys"), copied({"other Ks"}, "k", "other_keys")});
    Statement steps = loop_of_queries("steps", {let("seq"), call("copy_step"), make(Kind::Advance, {"Qs"})});
    return {let("at"), when("no_steps", {make(Kind::Return)}), when("leads", std::move(keys)), std::move(steps)};
  }
  Statement producer() {
    Statement producer = role(Kind::Producer, "Producer", "producer.cuh");
    producer.body = {body("copy_step", copy_step()), body("produce_block", produce())};
    return producer;
  }

  // ---- the roles that compute ----

  // The last reads of the previous step are done, because its product was issued before these and is done.
  Body await_scores(std::string_view scores, std::string_view fragments, bool is_first) {
    Body body = {make(Kind::EndTurn), wait(1), when("follows_number", {make(Kind::Release, {"Qs"}, {}, "before")})};
    if (clusters && is_first) body.push_back(when("leader_follows", {make(Kind::Release, {"dOs"}, {}, "d_o_before")}));
    append(body, {wait(0), keep(scores), keep(fragments, "fragments")});
    if (clusters && !is_first) body.push_back(make(Kind::Release, {"dOs"}, {}, "d_o"));
    return body;
  }
  Statement await_d_o() { return await_full({"dOs"}, "d_o"); }

  // Makes S = K Q^T, relative to the LSE unless scores are made apart, P, and dV.
  Body score_step() {
    Body scores;
    if (!has.apart) scores.push_back(multiply("terms", "S", "Ones", "Terms", "lse_terms"));
    scores.push_back(multiply("scores", "S", "Ks", "Qs", "scores"));
    Body body = {let("stage"), await_full({"Qs"}, "step")};
    append(body, batch(std::move(scores)));
    // A score function leaves no registers for this.
    if (has.drops && !c.has_score) body.push_back(draw());
    append(body, await_scores("S", "P", true));
    body.push_back(make(Kind::Softmax, {"P", "S"}, {"S", "Terms"}, "of_block"));
    if (has.drops && c.has_score) body.push_back(draw());
    if (has.drops) body.push_back(make(Kind::Drop, {"P"}, {"P"}));
    append(body, {when("follows_number", {make(Kind::Await, {"Ps"}, {}, "given_back")}),
                  make(Kind::Stage, {"Ps"}, {"S"}, "weights"), make(Kind::Complete, {"Ps"}, {}, "weights")});
    if (clusters) body.push_back(await_d_o());
    body.push_back(make(Kind::BeginTurn));
    append(body, batch(multiply_sum("dv", "dv_rest", "dV", "P", "dOs", c.head_dim_v)));
    return body;
  }
  // Makes dP = V dO^T, relative to D unless some of it is dropped, dS by P of the other warpgroup, and dK.
  Body gradient_step() {
    Body dp;
    if (!has.drops) dp.push_back(multiply("terms", "dP", "Ones", "Terms", "d_terms"));
    dp.push_back(multiply("dp", "dP", "Vs", "dOs", "role_dp"));
    Body body = {let("stage"), await_full({"Qs"}, "step")};
    if (clusters) body.push_back(await_d_o());
    append(body, batch(std::move(dp)));
    if (has.drops) body.push_back(draw());
    append(body, await_scores("dP", "dS", false));
    if (clusters) body.push_back(make(Kind::Mask, {"dP"}, {"dP", "Terms"}, "spoilt"));
    append(body,
           {make(Kind::Await, {"Ps"}, {}, "weights"), make(Kind::Gradient, {"dP"}, {"dP", "Ps", "Terms"}, "by_weights"),
            make(Kind::Release, {"Ps"}, {}, "weights"), make(Kind::Convert, {"dS"}, {"dP"})});
    if (clusters) append(body, hand_out_ds());
    body.push_back(make(Kind::BeginTurn));
    append(body, batch(multiply_sum("dk", "dk_rest", "dK", "dS", "Qs", c.head_dim_qk)));
    return body;
  }
  // dS goes to both blocks, with the number of the queries' tile.
  Body hand_out_ds() {
    return {let("ds_slot"),
            await_empty({"dSs"}, "ds_to_write"),
            make(Kind::Stage, {"dSs"}, {"dS"}, "ds"),
            make(Kind::Publish),
            call("sync_warpgroup"),
            when("leads_warpgroup", {call("mark_tile"), make(Kind::Complete, {"dSs"}, {}, "ds"),
                                     make(Kind::Complete, {"other dSs"}, {}, "other_ds"),
                                     make(Kind::Stage, {"other dSs"}, {"dS"}, "other_ds")})};
  }
  // A block may end when the other one has finished with all of its dS.
  Body end_ds() const {
    return {make(Kind::Await, {"dSs"}, {}, "ds_all_given_back"),
            when("leads_warpgroup", {call("mark_end"), make(Kind::Complete, {"dSs"}, {}, "end")})};
  }

  Body visit(std::string_view sums, std::string_view keys, std::string_view step, bool is_last) {
    Statement steps = loop_of_queries("steps", {call(step)});
    Body body = {make(Kind::Fill, {"Ones"}, {}, clusters && is_last ? "ones_of_third" : "ones"),
                 make(Kind::Fill, {sums}), let("at"), let("number_of_role")};
    if (is_last) body.push_back(make(Kind::BeginTurn));
    append(body, {let("any"), when("any", {await_full({keys}, "once"), std::move(steps), wait(0), keep(sums)})});
    if (!is_last) append(body, {make(Kind::EndTurn), when("any", {make(Kind::Await, {"Ps"}, {}, "all_given_back")})});
    return body;
  }
  Statement scores() {
    Body consume = visit("dV", "Ks", "score_step", false);
    consume.push_back(make(Kind::Store, {"dv"}, {"dV"}, "role_dv"));
    Statement scores = role(Kind::Consumer, "ScoreRole", "roles.cuh");
    scores.body = {body("score_step", score_step()), body("consume_scores", std::move(consume))};
    return scores;
  }
  Statement gradients() {
    Body consume;
    if (clusters) consume.push_back(call("find_first_tile"));
    append(consume, visit("dK", "Vs", "gradient_step", true));
    if (clusters) append(consume, end_ds());
    consume.push_back(make(Kind::Store, {"dk"}, {"dK"}, "role_dk"));
    Statement gradients = role(Kind::Consumer, "GradientRole", "");
    gradients.body = {body("gradient_step", gradient_step()), body("consume_gradients", std::move(consume))};
    return gradients;
  }

  // Makes dQ of the keys of both blocks, in half of the columns, a panel of them at a time.
  Statement query_gradients() {
    const Statement release = make(Kind::Release, {"dSs"}, {}, "ds_in_both");
    Body panel = {make(Kind::Fence), multiply("dq", "dQ", "dSs", "Ks", "dq_panel"),
                  when("first_panel", {await_full({"other dSs"}, "ds")}),
                  multiply("dq_of_other", "dQ", "other dSs", "other Ks", "dq_panel_of_other"), make(Kind::Commit)};
    if (has.ordered) panel.push_back(when("first_panel", {call("await_turn_of_slot")}));
    append(panel, {wait(0), keep("dQ"), when("last_panel", {release}), make(Kind::Store, {"dq"}, {"dQ"}, "panel")});
    Body tile = {let("slot"),
                 await_full({"dSs"}, "ds"),
                 let("tile_number"),
                 when("no_tile", {make(Kind::Return, {}, {}, "from_loop")}),
                 when("first_number", {await_full({"Ks"}, "once"), await_full({"other Ks"}, "once")}),
                 let("to"),
                 loop_of_queries("panels", std::move(panel)),
                 when("no_panels", {release})};
    if (has.ordered) append(tile, {call("gather_warp"), call("release_added")});
    Statement dealt = loop_of_queries("dealt_tiles", std::move(tile));
    Statement query_gradients = role(Kind::Consumer, "QueryGradients", "cluster.cuh");
    query_gradients.body = {body("add_query_gradients", {let("panels"), std::move(dealt)})};
    return query_gradients;
  }

  // Each warp returns, so that ptxas does not keep the number of the warp.
  Statement entry() const {
    Body copying = {call("shrink_registers"), let("warp")};
    if (has.ordered) copying.push_back(let("first_step"));
    copying.push_back(when("warp_0", {call("produce_block"), make(Kind::Return)}));
    if (has.ordered)
      append(copying,
             {when("warp_1", {call("wait_for_turns"), make(Kind::Return)}), when("warp_2", {call("tell_steps")})});
    Body computing = {call("grow_registers"), when("score_warpgroup", {call("consume_scores")}),
                      otherwise({call("consume_gradients")})};
    Body all = {let("shared"), let("shared_memory")};
    if (deals_to_clusters(c)) all.push_back(call("take_item"));
    all.push_back(let("block_item"));
    if (c.sequences == Sequences::packed) all.push_back(when("behind_keys", {make(Kind::Return)}));
    append(all, {call("set_up"), let("warpgroup"), when("copying_warpgroup", std::move(copying))});
    if (clusters) {
      all.push_back(otherwise({when("dq_warpgroup", {call("shrink_dq_registers"), call("add_query_gradients")}),
                               otherwise(std::move(computing))}));
    } else {
      all.push_back(otherwise(std::move(computing)));
    }
    Statement entry = make(Kind::Entry);
    entry.body = {body("hopper_backward", std::move(all))};
    return entry;
  }
};

}  // namespace

Result<void> add_backward_roles(Program& program, const PassContext& context, const BackwardChoices& choices) {
  WarpgroupRoles roles{{program, "pipeline_copies"}, context.config, choices};
  Body all = {roles.producer(), roles.scores(), roles.gradients()};
  if (roles.clusters) all.push_back(roles.query_gradients());
  Statement entry = roles.entry();
  FLASHJIT_ASSIGN(set_up, set_up_keys(program, context.config, choices));
  entry.body.insert(entry.body.begin(), std::move(set_up));
  all.push_back(std::move(entry));
  FLASHJIT_TRY(roles.failed);
  append(program.body, std::move(all));
  return {};
}

}  // namespace flashjit
