// The roles of mla that do not compute, and the division of a block into roles.
#include <algorithm>
#include <string>
#include <utility>

#include "compiler/families/mla/roles.h"
#include "templates/mla/layout.h"

namespace flashjit {

namespace {

struct CopyRoles : Maker {
  const KernelConfig& c;

  // The columns of K behind V, if it has any, come with its last ones.
  Statement with_columns_behind(Statement s) const {
    if (columns_behind(c) > 0) s.writes.push_back(p.buffer("Ts"));
    return s;
  }
  Body copy_tile() {
    Body body = copy_halves();
    if (multiplies_narrow(c))
      std::erase_if(body, [&](const Statement& s) { return s.kind == Kind::Await && s.writes[0] == p.buffer("K2s"); });
    return body;
  }
  Body copy_halves() {
    return {await_empty({"K0s"}, "slot"),
            make(Kind::Expect, {"K0s", "K1s"}, {}, "pieces"),
            call("gather_warp"),
            copied({"K0s", "K1s"}, "k", "half"),
            await_empty({"K2s"}, "slot"),
            make(Kind::Expect, {"K2s", "K3s"}, {}, "pieces"),
            call("gather_warp"),
            with_columns_behind(copied({"K2s", "K3s"}, "k", "half")),
            make(Kind::Advance, {"K0s"}, {}, "copied")};
  }
  // The first rows of Q are requested from memory before these loads. Otherwise they would come behind the first tiles
  // of all blocks, which nobody can use without Q.
  Body produce() {
    Statement items = loop(
        "items_of_warp", {let("first_tile"), let("box_coords"), when("any_tile", {mark("box_coords")}),
                          loop("steps", {call("copy_tile"), mark("next_tile"), when("any_tile", {mark("box_coords")})}),
                          call("next_item")});
    return {call("await_asked"), let("segment_of_warp"), std::move(items)};
  }

  // Rows that threads hold leave them a half at a time, so that products of the first half need not wait for the other.
  // More rows are loaded behind the fence, because it waits for all loads of a thread.
  Body gather_half(Names pieces) {
    return {await_empty({*pieces.begin()}, "slot"), make(Kind::Load, pieces, {"k"}, "gathered"), make(Kind::Publish),
            call("gather_warp"), make(Kind::Complete, pieces, {}, "gathered")};
  }
  Body gather_tile() {
    Body body;
    if (copies_rows(c)) {
      for (const std::string_view piece : {"K0s", "K1s", "K2s", "K3s"}) append(body, copy_piece(piece));
    } else {
      append(body, gather_half({"K0s", "K1s"}));
      if (c.decode.cluster == 1) body.push_back(call("fetch_last_half"));
      Body last = gather_half({"K2s", "K3s"});
      last[1] = with_columns_behind(std::move(last[1]));
      append(body, std::move(last));
    }
    append(body, {call("find_next"), call("fetch_rows"), make(Kind::Advance, {"K0s"})});
    return body;
  }
  Body copy_piece(std::string_view piece) {
    Body body;
    if (piece == "K0s" || piece == "K2s") body.push_back(await_empty({piece}, "slot"));
    Statement copy = make(Kind::Load, {piece}, {"k"}, "gathered_piece");
    body.push_back(piece == "K3s" ? with_columns_behind(std::move(copy)) : std::move(copy));
    body.push_back(make(Kind::Complete, {piece}, {}, "gathered_piece"));
    return body;
  }
  Body gather() {
    Statement queries =
        when("first_of_role",
             {call("call_queries"), call("publish_item"), await_empty({"Qs"}, "queries_slot"),
              make(Kind::Expect, {"Qs"}, {}, "queries"), call("gather_warp"), copied({"Qs"}, "q", "queries_of_warp")});
    Statement items =
        loop("items_of_warp",
             {let("first_tile"), when("any_tile", {call("find_first")}), std::move(queries), call("fetch_rows"),
              loop("steps", {call("gather_tile"), mark("next_tile")}), call("next_item")});
    return {let("segment_of_warp"), std::move(items)};
  }

  // Rows of K that have been copied become columns of V^T.
  Body transpose_tile() {
    return {await_full({"K0s", "K1s", "K2s", "K3s"}, "keys"),
            await_empty({"Vs"}, "values_slot"),
            make(Kind::Transpose, {"Vs"}, {"K0s", "K1s", "K2s", "K3s"}),
            make(Kind::Publish),
            call("gather_warp"),
            make(Kind::Complete, {"Vs"}, {}, "values"),
            make(Kind::Release, {"K0s"}, {}, c.decode.cluster > 1 ? "keys_in_cluster" : "keys"),
            make(Kind::Advance, {"K0s"})};
  }
  Body transpose() {
    return {let("segment_of_warp"),
            loop("items_of_warp",
                 {let("first_tile"), loop("steps", {call("transpose_tile"), mark("next_tile")}), call("next_item")})};
  }

  Body copy_queries(std::string_view which) {
    const bool is_first = which == "first";
    return {make(Kind::Expect, {"Qs"}, {}, is_first ? "queries" : "queries_next"), call("gather_warp"),
            copied({"Qs"}, "q", is_first ? "queries" : "queries_next")};
  }
  Body produce_queries() {
    Body body = copy_queries("first");
    body.push_back(call("tell_asked"));
    Body item = {let("segment"),
                 when("is_last_item", {make(Kind::Return)}),
                 let("next_segment"),
                 call("find_next_item"),
                 call("gather_warp"),
                 call("prefetch_queries"),
                 await_empty({"Qs"}, "queries_next")};
    append(item, copy_queries("next"));
    body.push_back(loop("items_of_queries", std::move(item)));
    return body;
  }

  Statement producer(std::string_view structure, std::string_view file, Body bodies) const {
    Statement producer = role(Kind::Producer, structure, file);
    producer.body = std::move(bodies);
    return producer;
  }

  Statement set_up() {
    Body slots;
    const std::int64_t fillers = copies_rows(c) ? kMlaGatherers * 32 : gathers_keys(c) ? kMlaGatherers : 1;
    for (const std::string_view piece : {"K0s", "K1s", "K2s", "K3s"})
      slots.push_back(init(piece, "full", fillers, "piece"));
    if (multiplies_narrow(c)) {
      append(slots,
             {init("K0s", "empty", (kMlaWarps + kMlaTransposers) * c.decode.cluster, "half"),
              init("Vs", "full", kMlaTransposers, "values"), init("Vs", "empty", kMlaConsumers * kMlaWarps, "values")});
    } else {
      for (const std::string_view half : {"K0s", "K2s"})
        slots.push_back(init(half, "empty", kMlaWarps * c.decode.cluster, "half"));
    }
    return body("set_up", {when("first_thread", {for_slots(kMlaStages, std::move(slots)), call("clear_copied"),
                                                 init("Qs", "full", 1, "queries"),
                                                 init("Qs", "empty", kMlaConsumers * kMlaWarps, "queries"),
                                                 make(Kind::Publish, {}, {}, "barriers")}),
                           make(Kind::Barrier, {}, {}, "block")});
  }

  Body call_or_transpose() {
    if (multiplies_narrow(c)) return {call("transpose_keys")};
    return {when("warp_2", {call("call_keys")})};
  }

  Statement entry() {
    Body copying = {call("shrink_registers")};
    if (gathers_keys(c)) {
      copying.push_back(call("gather_keys"));
    } else {
      append(copying, {when("warp_0", {call("produce_keys")}),
                       otherwise({when("warp_1", {call("produce_queries")}), otherwise(call_or_transpose())})});
    }
    const bool tells = !c.decode.fixed_parts;  // The second launch knows where fixed parts are.
    if (tells) copying.push_back(when("is_warp_2", {call("tell_split_tiles")}));
    Body computing = {call("grow_registers"), when("first_half", {call("consume_first")}),
                      otherwise({call("consume_second")})};
    Body idle = {make(Kind::Return)};
    if (tells) idle.insert(idle.begin(), call("tell_no_tiles"));
    Body all = {let("memory"),
                let("scratch"),
                let("shared_memory"),
                call("ask_ahead"),
                let("range"),
                when("no_range", idle),
                let("steps"),
                when("no_steps", std::move(idle)),
                let("segments"),
                let("progress"),
                when("first_thread", {mark(gathers_keys(c)        ? "first_item_of_gatherers"
                                           : multiplies_narrow(c) ? "first_item_of_transposers"
                                                                  : "first_item")}),
                call("set_up")};
    if (c.decode.cluster > 1) all.push_back(call("meet_cluster"));
    append(all, {when("copying_warpgroup", std::move(copying)), otherwise(std::move(computing))});
    if (c.decode.cluster > 1) all.push_back(call("leave_cluster"));
    Statement entry = make(Kind::Entry);
    entry.body = {set_up(), body("mla_forward", std::move(all))};
    return entry;
  }
};

}  // namespace

Result<void> add_mla_copies(Program& program, const KernelConfig& config) {
  CopyRoles roles{{program, "pipeline_copies"}, config};
  if (gathers_keys(config)) {
    program.body.push_back(roles.with(
        roles.producer("Gatherer", copies_rows(config) ? "copied_rows.cuh" : "held_rows.cuh",
                       {roles.body("gather_tile", roles.gather_tile()), roles.body("gather_keys", roles.gather())}),
        "count", std::int64_t{kMlaGatherers}));
  } else {
    program.body.push_back(
        roles.producer("Producer", "producer.cuh",
                       {roles.body("copy_tile", roles.copy_tile()), roles.body("produce_keys", roles.produce())}));
    program.body.push_back(
        roles.producer("QueriesProducer", "queries.cuh", {roles.body("produce_queries", roles.produce_queries())}));
    if (multiplies_narrow(config)) {
      Statement transposer =
          roles.with(roles.role(Kind::Transposer, "Transposer", "values.cuh"), "count", std::int64_t{kMlaTransposers});
      transposer.body = {roles.body("transpose_tile", roles.transpose_tile()),
                         roles.body("transpose_keys", roles.transpose())};
      program.body.push_back(std::move(transposer));
    }
  }
  return roles.failed;
}

void add_mla_entry(Program& program, const KernelConfig& config) {
  program.body.push_back(CopyRoles{{program, "pipeline_copies"}, config}.entry());
}

}  // namespace flashjit
