// The roles that do not compute: the producer, the transposer of V of 8 bits, and the division of a block into roles.
#include <algorithm>
#include <string>
#include <utility>

#include "compiler/families/hopper/hopper.h"
#include "compiler/families/hopper/roles.h"
#include "compiler/program/edit.h"

namespace flashjit {

namespace {

struct CopyRoles : Maker {
  const KernelConfig& c;
  bool pages = finds_pages(c), inputs = inputs_bytes(c) > 0, transposes = transposes_values(c);
  Attributes visited = {};                             // They tell how tiles are visited.
  std::string_view values = transposes ? "Vc" : "Vs";  // V as it is copied.

  // Loads V or K, in the form in which they lie in memory.
  Statement load(std::string_view buffer, std::string_view from, std::string_view made) {
    const std::string_view form = !made.empty() ? made : pages ? "paged" : ends_keys(c) ? "ending" : "rows";
    return make(Kind::Load, {buffer}, {from}, form);
  }
  // TMA copies, and then arrives at a barrier.
  Statement by_tma(Statement load, std::string_view barrier) {
    return with(with(std::move(load), "copy", std::string("tma")), "barrier", std::string(barrier));
  }
  Statement of(std::string_view buffer, Statement s) const {
    s.writes = {p.buffer(buffer)};
    return s;
  }
  // Where a warp or more copy, one thread speaks for all.
  Body by_leader(Body body) const {
    if (!pages) return body;
    return {when("leads", std::move(body))};
  }
  void join(Body& body) const {
    if (pages) body.push_back(call("join"));
  }

  Body copy_keys() {
    const bool units = has_tile_scales(c);
    Body body;
    join(body);  // No thread falls behind by more than a tile, because barriers know two phases.
    if (pages) body.push_back(let("page"));
    if (units) body.push_back(let(pages ? "scales_of_page" : "scales"));
    append(body, {await_empty({"Ks"}, "to_fill"), of("Ks", let("full"))});
    Body begin;
    if (units) begin.push_back(call("store_scales"));
    if (c.list_heads > 0) begin.push_back(call("store_number"));
    begin.push_back(make(Kind::Expect, {"Ks"}));
    append(body, by_leader(std::move(begin)));
    body.push_back(of("Ks", let("to")));
    body.push_back(by_tma(load("Ks", "k", widens(c) ? "made_keys" : ""), "full"));
    return body;
  }

  Body copy_values() {
    const bool clears = c.has_mask;
    Body body = {when("nothing_waits", {make(Kind::Return)}), let("at_values"), let("announced"), let("waiting")};
    if (clears) body.push_back(let("clears"));
    append(body, {of(values, let("to")), of(values, let("full"))});
    if (clears) body.push_back(let("copied"));
    if (pages) body.push_back(let("page"));
    body.push_back(await_empty({values}, "to_fill"));
    append(body, by_leader({make(Kind::Expect, {values}, {}, clears ? "copied" : "")}));
    const bool is_made = widens(c) || reads_transposed(c);
    body.push_back(by_tma(load(values, "v", is_made ? "made_values" : ""), clears ? "copied" : "full"));
    if (clears) {
      Body clear = {call(reads_transposed(c) ? "clear_columns" : "clear_rows")};
      join(clear);
      append(clear, by_leader({make(Kind::Complete, {values})}));
      body.push_back(when("clears", std::move(clear)));
    }
    body.push_back(mark("none_waits"));
    return body;
  }

  Body end_tile() {
    Body body;
    if (inputs) {
      Statement copy = call("copy_inputs");
      copy.inside = {await_empty({"Is"}, "to_fill"), make(Kind::Expect, {"Is"}), make(Kind::Load, {"Is"}, {"inputs"})};
      body.push_back(when(pages ? "inputs_asked_by_leader" : "inputs_asked", {std::move(copy)}));
    }
    append(body, {make(Kind::Advance, {"Ks"}, {}, "to_fill"), mark("waiting")});
    return body;
  }

  Body announce() {
    Body begin = {when("any_tiles", {make(Kind::Expect, {"Qs"}), of("Qs", let("to")),
                                     by_tma(make(Kind::Load, {"Qs"}, {"q"}, "queries"), "full")}),
                  otherwise({make(Kind::Complete, {"Qs"})})};
    Body body = {await_empty({"Qs"}, "to_fill"), of("Qs", let("full"))};
    append(body, by_leader(std::move(begin)));
    body.push_back(make(Kind::Advance, {"Qs"}, {}, "to_fill"));
    return body;
  }

  Body end_values() {
    Body body = {let("at_end"), await_empty({values}, "to_fill")};
    append(body, by_leader({call("mark_end"), make(Kind::Complete, {values}, {}, "slot")}));
    return body;
  }

  Body produce() {
    Body body = {make(Kind::Items, {}, {}, "dealt")};
    body.front().attributes = visited;
    if (transposes) body.push_back(call("end_values"));
    if (c.hopper.grid == GridKind::persistent) append(body, by_leader({call("return_counters")}));
    return body;
  }

  Statement producer() {
    Statement producer = role(Kind::Producer, "Producer", "producer.cuh");
    producer.body = {body("copy_tile_keys", copy_keys()), body("copy_waiting_values", copy_values()),
                     body("end_tile", end_tile()), body("announce", announce())};
    if (transposes) producer.body.push_back(body("end_values", end_values()));
    producer.body.push_back(body("produce", produce()));
    return producer;
  }

  Statement transposer() {
    Body tile = {
        await_full({"Vc"}),
        when("ended", {make(Kind::Return)}),
        await_empty({"Vs"}, "to_fill"),
        make(Kind::Transpose, {"Vs"}, {"Vc"}),
        make(Kind::Publish),
        call("gather_warp"),
        when("first_lane", {make(Kind::Complete, {"Vs"}, {}, "slot"), make(Kind::Release, {"Vc"}, {}, "by_threads")}),
        make(Kind::Advance, {"Vc"}),
        make(Kind::Advance, {"Vs"}, {}, "to_fill")};
    Statement transposer =
        with(role(Kind::Transposer, "Transposer", "transpose.cuh"), "count", std::int64_t{kTransposingWarps});
    transposer.body = {body("transpose", {loop("until_ended", std::move(tile))})};
    return transposer;
  }

  Body barriers() {
    constexpr int kWarps = kThreadsPerWarpgroup / 32;
    const std::int64_t consumers = c.hopper.warpgroups * kWarps, transposers = transposes ? kTransposingWarps : 1;
    Body all = {for_slots(c.hopper.q_stages,
                          {init("Qs", "full", 1), init("Qs", "empty", c.hopper.warpgroups * kThreadsPerWarpgroup)}),
                for_slots(c.stages, {init("Ks", "full", 1), init("Vs", "full", transposers),
                                     init("Ks", "empty", consumers), init("Vs", "empty", consumers)})};
    if (transposes)
      all.push_back(for_slots(c.stages, {init("Vc", "full", 1), init("Vc", "empty", transposers), call("clear_end")}));
    append(all, {init_single("flushed", consumers), init_single("finished", consumers), init_single("v_copied", 1)});
    if (inputs)
      all.push_back(for_slots(c.hopper.warpgroups, {init("Is", "full", 1, "own"), init("Is", "empty", kWarps, "own")}));
    return all;
  }

  Statement set_up() {
    Body first;
    if (c.dropped > 0) first.push_back(call("store_dropout_key"));
    if (pages) first.push_back(call("begin_progress"));
    append(first, barriers());
    append(first, {call("begin_work"), make(Kind::Publish, {}, {}, "barriers")});
    Body all = {call("clear_redo"), when("first_thread", std::move(first))};
    if (c.hopper.row_sum == RowSum::matrix) all.push_back(call("fill_ones"));
    all.push_back(make(Kind::Barrier, {}, {}, "block"));
    return body("set_up", std::move(all));
  }

  Statement entry() {
    Body copying = {call("shrink_registers"), when(pages ? "copying_threads" : "first_thread", {call("produce")})};
    if (transposes) copying.push_back(when("transposing_warps", {call("transpose")}));
    Body computing = {call("grow_registers"), let("consumer")};
    if (c.hopper.keys == Keys::parts) computing.push_back(call("set_parts"));
    computing.push_back(call("consume"));
    Statement entry = make(Kind::Entry);
    entry.body = {set_up(), body("hopper_forward",
                                 {let("shared"), let("shared_memory"), call("set_up"),
                                  when("copying_warpgroup", std::move(copying)), otherwise(std::move(computing))})};
    return entry;
  }

  void name_ring(std::string_view buffer, std::string_view slot, std::string_view ring, std::string_view fill_ring) {
    Buffer& b = p.buffers[static_cast<std::size_t>(p.buffer(buffer))];
    b.code = slot, b.ring = ring, b.fill_ring = fill_ring;
  }
  void name_buffers() {
    for (const std::string_view given : {"q", "k", "v"})
      p.buffers[static_cast<std::size_t>(p.buffer(given))].code = given;
    name_ring("Qs", "q", "q_ring", "q_ring");
    name_ring("Ks", "k", "ring", "ring");
    name_ring("Vs", "v", "values()", transposes ? "ring" : "at");
    if (transposes) name_ring("Vc", "copied_v", "copied", "at");
    if (inputs) name_ring("Is", "inputs", "", "");
    p.buffers[static_cast<std::size_t>(p.buffer("Vs"))].behind = 1;
  }
};

}  // namespace

Result<void> add_copies(Program& program, const PassContext& context) {
  CopyRoles roles{{program, "pipeline_copies"}, context.config};
  const auto loop = std::ranges::find(program.body, Kind::Loop, &Statement::kind);
  if (loop == program.body.end()) return internal("pass pipeline_copies: the program has no loop");
  roles.visited = loop->attributes;
  roles.name_buffers();
  program.body = {roles.producer()};
  if (roles.transposes) program.body.push_back(roles.transposer());
  return roles.failed;
}

void add_entry(Program& program, const PassContext& context) {
  program.body.push_back(CopyRoles{{program, "pipeline_copies"}, context.config}.entry());
}

}  // namespace flashjit
