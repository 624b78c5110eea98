// Sets up the barriers of all rings, with which blocks of both launches begin.
#include <utility>

#include "compiler/families/hopper_backward/roles.h"
#include "templates/hopper_backward/layout.h"

namespace flashjit {

namespace {

constexpr int kWarps = kThreadsPerWarpgroup / 32;  // A warpgroup has these warps.

struct SetUps : Maker {
  const KernelConfig& c;
  int computing = (computes_alone(c) ? 1 : 2) * kWarps;  // These warps read what is copied.

  Body of_items(const BackwardChoices& has, int slots) {
    return {for_slots(slots, {init("Ks", "empty", computing)}),
            for_slots(kItemSlots, {call(has.keeps ? "init_item_keeping" : "init_item")}),
            init("Vs", "empty", computing, "alone"), call("init_item_wanted")};
  }
  // Warps write dS for each other. Two more read it: the warp that lets dQ be added in order, and the one that keeps
  // dS.
  Body of_exchanges(const BackwardChoices& has) {
    const std::string_view form = has.ordered ? "ordered" : has.keeps ? "kept" : "";
    Body slot = {init("dSs", "full", computing), init("dSs", "empty", computing, form)};
    if (has.ordered) slot.push_back(call("init_turn"));
    return slot;
  }
  // dO has barriers of its own, and dS goes to both blocks.
  Body of_cluster(const BackwardChoices& has, int d_o_stages) {
    Body slot = {init("dSs", "full", 1), init("dSs", "empty", c.hopper_backward.cluster * kWarps),
                 init("other dSs", "full", 1)};
    if (has.ordered) append(slot, {call("init_turn"), call("init_added")});
    return {init("other Ks", "full", 1, "alone"),
            for_slots(d_o_stages, {init("dOs", "full", 1), init("dOs", "empty", computing)}),
            for_slots(kDsStages, std::move(slot))};
  }

  Statement of_keys(const BackwardChoices& has) {
    const HopperBackwardLayout layout = hopper_backward_layout(c);
    Body first;
    if (has.drops) first.push_back(call("store_dropout_key"));
    append(first, {for_slots(layout.k_slots, {init("Ks", "full", 1)}), init("Vs", "full", 1, "alone")});
    if (takes_items(c)) append(first, of_items(has, layout.k_slots));
    first.push_back(for_slots(c.stages, {init("Qs", "full", 1), init("Qs", "empty", computing)}));
    if (!has_roles(c) && has.adds_dq) first.push_back(for_slots(exchanges(c), of_exchanges(has)));
    if (has.inputs)
      first.push_back(
          for_slots(c.hopper_backward.warpgroups, {init("Is", "full", 1, "own"), init("Is", "empty", kWarps, "own")}));
    if (in_clusters(c)) append(first, of_cluster(has, layout.d_o_stages));
    first.push_back(make(Kind::Publish, {}, {}, "barriers"));
    return body(has.keeps ? "set_up_keeping" : "set_up",
                {when("first_thread", std::move(first)),
                 in_clusters(c) ? call("meet_cluster") : make(Kind::Barrier, {}, {}, "block")});
  }

  Statement of_queries() {
    Body first;
    if (c.dropped > 0) first.push_back(call("store_dropout_key"));
    append(first, {init("row Qs", "full", 1, "alone"),
                   for_slots(kDqStages, {init("column Ks", "full", 1), init("column Vs", "full", 1),
                                         init("column Ks", "empty", kDqWarpgroups * kWarps),
                                         init("column Vs", "empty", kDqWarpgroups * kWarps)}),
                   make(Kind::Publish, {}, {}, "barriers")});
    return body("set_up_dq", {when("first_thread", std::move(first)), make(Kind::Barrier, {}, {}, "block")});
  }
};

}  // namespace

Result<Statement> set_up_keys(Program& program, const KernelConfig& config, const BackwardChoices& choices) {
  SetUps set_ups{{program, "pipeline_copies"}, config};
  Statement all = set_ups.of_keys(choices);
  FLASHJIT_TRY(set_ups.failed);
  return all;
}

Result<Statement> set_up_queries(Program& program, const KernelConfig& config) {
  SetUps set_ups{{program, "pipeline_copies"}, config};
  Statement all = set_ups.of_queries();
  FLASHJIT_TRY(set_ups.failed);
  return all;
}

}  // namespace flashjit
