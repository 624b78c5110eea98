// The roles of mla that do not compute, and how a block is shared out.
#include <string>
#include <utility>

#include "compiler/families/mla/roles.h"
#include "templates/mla/layout.h"

namespace flashjit {

namespace {

struct CopyRoles : Maker {
  const KernelConfig& c;

  // The columns behind V come with its last ones.
  Body copy_tile() {
    return {await_empty({"K0s"}, "place"),
            make(Kind::Expect, {"K0s", "K1s"}, {}, "pieces"),
            call("gather_warp"),
            copied({"K0s", "K1s"}, "k", "half"),
            await_empty({"K2s"}, "place"),
            make(Kind::Expect, {"K2s", "K3s"}, {}, "pieces"),
            call("gather_warp"),
            copied({"K2s", "K3s", "Ts"}, "k", "half"),
            make(Kind::Advance, {"K0s"}, {}, "copied")};
  }
  // Memory is asked for the first rows of Q before: they would come behind the first tiles of all blocks else, which nobody
  // can use without them.
  Body produce() {
    Statement items = loop(
        "items_of_warp", {let("first_tile"), let("box_place"), when("any_tile", {mark("box_place")}),
                          loop("steps", {call("copy_tile"), mark("next_tile"), when("any_tile", {mark("box_place")})}),
                          call("next_item")});
    return {call("await_asked"), let("segment_of_warp"), std::move(items)};
  }

  Body complete_gathered(Names told) { return {call("gather_warp"), make(Kind::Complete, told, {}, "gathered")}; }
  // Rows of 16 bits are under way for both halves at once.
  Body copy_wide_tile() {
    Body body = {await_empty({"K0s"}, "place"), make(Kind::Load, {"K0s", "K1s"}, {"k"}, "gathered_wide"),
                 await_empty({"K2s"}, "place"), make(Kind::Load, {"K2s", "K3s", "Ts"}, {"k"}, "gathered_wide"),
                 call("await_first_half")};
    append(body, complete_gathered({"K0s", "K1s"}));
    body.push_back(call("await_last_half"));
    append(body, complete_gathered({"K2s", "K3s"}));
    append(body, {call("look_ahead"), call("fetch_next"), make(Kind::Advance, {"K0s"})});
    return body;
  }
  // Threads leave each half where products find it, and ask memory for the next one behind that.
  Body gather_tile() {
    if (!holds_rows(c)) return copy_wide_tile();
    Body body = {await_empty({"K0s"}, "place"), make(Kind::Load, {"K0s", "K1s"}, {"k"}, "gathered")};
    append(body, complete_gathered({"K0s", "K1s"}));
    append(body, {call("fetch_last_half"), call("look_ahead"), await_empty({"K2s"}, "place"),
                  make(Kind::Load, {"K2s", "K3s", "Ts"}, {"k"}, "gathered")});
    append(body, complete_gathered({"K2s", "K3s"}));
    append(body, {call("fetch_next"), make(Kind::Advance, {"K0s"})});
    return body;
  }
  Body gather() {
    Body tile = {let("next_tile"), call("gather_tile"), mark("tile_gathered")};
    Statement items = loop("items_of_warp", {let("first_tile"), when("any_tile", {call("fetch_first")}),
                                             loop("steps", std::move(tile)), call("next_item")});
    return {call("await_asked"), let("segment_of_warp"), std::move(items)};
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
                 call("find_next"),
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
    const std::int64_t fillers = gathers_keys(c) ? kMlaGatherers : 1;
    for (const std::string_view piece : {"K0s", "K1s", "K2s", "K3s"})
      slots.push_back(init(piece, "full", fillers, "piece"));
    for (const std::string_view half : {"K0s", "K2s"})
      slots.push_back(init(half, "empty", kMlaWarps * c.decode.cluster, "half"));
    return body("set_up", {when("first_thread", {for_slots(kMlaStages, std::move(slots)), call("clear_copied"),
                                                 init("Qs", "full", 1, "queries"),
                                                 init("Qs", "empty", kMlaConsumers * kMlaWarps, "queries"),
                                                 make(Kind::Publish, {}, {}, "barriers")}),
                           make(Kind::Barrier, {}, {}, "block")});
  }

  Statement entry() {
    Body copying = {call("shrink_registers")};
    if (gathers_keys(c)) {
      append(copying, {when("gatherers", {call("gather_keys")}), otherwise({call("produce_queries")})});
    } else {
      append(copying,
             {when("warp_0", {call("produce_keys")}), otherwise({when("warp_1", {call("produce_queries")}),
                                                                 otherwise({when("warp_2", {call("call_keys")})})})});
    }
    Body computing = {call("grow_registers"), when("first_half", {call("consume_first")}),
                      otherwise({call("consume_second")})};
    Body all = {let("memory"),
                let("scratch"),
                let("shared_memory"),
                call("ask_ahead"),
                let("range"),
                when("no_range", {make(Kind::Return)}),
                let("steps"),
                when("no_steps", {make(Kind::Return)}),
                let("segments"),
                let("progress"),
                when("first_thread", {mark(gathers_keys(c) ? "first_item_of_gatherers" : "first_item")}),
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
  Statement keys =
      gathers_keys(config)
          ? roles.with(roles.producer(
                           "Gatherer", "gather.cuh",
                           {roles.body("gather_tile", roles.gather_tile()), roles.body("gather_keys", roles.gather())}),
                       "count", std::int64_t{kMlaGatherers})
          : roles.producer("Producer", "producer.cuh",
                           {roles.body("copy_tile", roles.copy_tile()), roles.body("produce_keys", roles.produce())});
  Statement queries =
      roles.producer("QueriesProducer", "queries.cuh", {roles.body("produce_queries", roles.produce_queries())});
  FLASHJIT_TRY(roles.failed);
  program.body.push_back(std::move(keys));
  program.body.push_back(std::move(queries));
  return {};
}

void add_mla_entry(Program& program, const KernelConfig& config) {
  program.body.push_back(CopyRoles{{program, "pipeline_copies"}, config}.entry());
}

}  // namespace flashjit
