// The decode loop. A warp copies its tiles itself: straight to registers, or through a ring of its own in shared
// memory. A block goes over the segments of its range, or has its share of a row tile.
#include <array>
#include <utility>

#include "compiler/families/decode/decode.h"
#include "compiler/families/decode/roles.h"

namespace flashjit {

namespace {

struct Loop : Maker {
  const KernelConfig& c;
  const Attributes &visited, &masked;
  bool has_boxes = has_ring(c) && c.decode.copies == Copies::boxes,
       has_rows = has_ring(c) && c.decode.copies == Copies::rows;
  std::array<Product, 2> products = decode_products(c);

  Statement load(Names to, Names from, std::string_view form, std::int64_t tile) {
    return with(with(make(Kind::Load, to, from, form), "copy", std::string(has_boxes ? "tma" : "cp.async")), "tile",
                tile);
  }
  // Copies K and V of a tile. Where lanes copy, each of the two is a group of copies.
  Body copy_tile(std::int64_t tile) {
    Body body = {load({"Ks"}, {"k"}, "", tile)};
    if (has_rows) body.push_back(make(Kind::Commit));
    body.push_back(load({"Vs"}, {"v"}, "", tile));
    if (has_rows) body.push_back(make(Kind::Commit));
    return body;
  }
  Statement multiply(int number, Names to, Names from, std::string_view form) const {
    Statement s = make(Kind::Mma, to, from, form);
    s.product = products[static_cast<std::size_t>(number)];
    return s;
  }

  // Loads the first tiles of a segment, and then finds the tiles with which the next segment begins.
  Body begin_segment() {
    Statement begin = call("begin_tiles");
    if (has_ring(c)) {
      for (int tile = 0; tile < c.stages; ++tile) append(begin.inside, copy_tile(tile));
    } else {
      begin.inside = {make(Kind::Load, {"K"}, {"k"}), make(Kind::Load, {"V"}, {"v"})};
    }
    return {call("begin_queries"),  // This comes first, because issuing copies takes time.
            std::move(begin), when("none_behind", {make(Kind::Return, {}, {}, "ends")}), call("look_ahead"),
            make(Kind::Return, {}, {}, "goes_on")};
  }

  Statement wait_groups(std::int64_t pending) {
    Statement wait = with(make(Kind::Wait, {}, {}, "groups"), "pending", pending);
    wait.inside = {make(Kind::Barrier, {}, {}, "warp")};
    return wait;
  }
  Body await_tile() {
    if (has_rows) return {wait_groups(2 * c.stages - 1)};
    if (!has_boxes) return {};
    // Boxes are copied whole, so V is set to 0 behind the last key.
    return {with(make(Kind::Await, {"Ks", "Vs"}), "barrier", std::string("full")),
            when("cut", {make(Kind::Fill, {"Vs"}, {"Vs"}, "hidden")})};
  }
  // In a ring the newest copy takes the slot that this tile leaves.
  Body copy_ahead() {
    if (!has_ring(c)) return {make(Kind::Load, {"V"}, {"v"}, "values_next")};
    Statement copy = call("copy_ahead");
    copy.inside = copy_tile(c.stages);
    return {make(Kind::Barrier, {}, {}, "warp"), std::move(copy), call("advance")};
  }
  bool loads_facts() const { return has_key_scales(c) || c.merged_queries > 0; }
  Body attend_tile() {
    const bool scaled = has_key_scales(c);
    const std::string_view k = has_ring(c) ? "Ks" : "K", v = has_ring(c) ? "Vs" : "V";
    Body body = await_tile();
    append(body, {let("scores"), multiply(0, {"S"}, {"q", k}, "scores"), let("next")});
    if (!has_ring(c)) body.push_back(make(Kind::Load, {"K"}, {"k"}, "keys_next"));
    Statement mask = make(Kind::Mask, {"S"}, {"S"});
    mask.attributes = masked;
    append(body, {std::move(mask), make(Kind::Softmax, {"S", "rows", "O"}, {"S", "rows", "O"})});
    if (scaled) body.push_back(make(Kind::Rescale, {"S", "rows", "O"}, {"S", "rows", "O"}, "values"));
    if (loads_facts()) body.push_back(call("load_next_facts"));
    if (has_rows) body.push_back(wait_groups(2 * c.stages - 2));
    body.push_back(multiply(1, {"O"}, {"S", v}, "output"));
    append(body, copy_ahead());
    body.push_back(mark("tile"));
    return body;
  }
  Body attend() {
    const bool scaled = has_key_scales(c);
    Body body = {let(c.decode.fixed_parts ? "last_of_part" : "last"), make(Kind::Fill, {"rows"}, {}, "none"),
                 let("facts")};
    if (loads_facts()) body.push_back(call("begin_facts"));
    Statement tiles = loop("tiles", attend_tile());
    tiles.attributes = visited;
    append(body, {make(Kind::Fill, {"O"}), std::move(tiles)});
    if (scaled) body.push_back(make(Kind::Rescale, {"O"}, {"O", "rows"}, "units"));
    return body;
  }

  Statement warp() {
    Statement warp = with(role(Kind::Consumer, "", "segments.cuh"), "count", std::int64_t{c.decode.warps});
    warp.body = {body("begin_segment", begin_segment()), body("attend", attend())};
    return warp;
  }
};

struct Entries : Maker {
  const KernelConfig& c;

  // The next tiles and queries are loaded while the warps put together what they have. Parts of many rows lie in the
  // place of the rings, so loads begin there only when the parts have been put together.
  Body begin_next() const { return {when("has_next", {mark("segment"), mark("ends")})}; }
  Body segments() const {
    const bool many_rows = has_many_rows(c);
    Body loop_body = {when("begins_anew", {call("finish_queries")}),
                      let("output"),
                      let("rows"),
                      call("attend"),
                      let("done"),
                      let("end_of_part")};
    if (!many_rows) append(loop_body, begin_next());
    // The next launch begins no sooner: it would take all SMs without work of this launch.
    append(loop_body, {when("is_last", {call("begin_next_launch")}), make(Kind::Stage, {}, {"O", "rows"}, "part")});
    if (c.accumulate) loop_body.push_back(call("store_earlier"));
    append(loop_body, {call("sync_block"), make(Kind::Store, {"o"}, {"O", "rows"}),
                       when("is_last", {make(Kind::Return)}), call("sync_block")});
    if (many_rows) append(loop_body, begin_next());
    return {let("memory"),
            let("course"),
            when("no_segment", {make(Kind::Return)}),
            let("segment"),
            let(many_rows ? "parts_in_rings" : "parts_beside_rings"),
            let("warp_tiles"),
            let("operands"),
            let("ends"),
            let("goes_on"),
            loop("segments", std::move(loop_body))};
  }

  // Rows of Q of 16 bits come by way of shared memory, where parts lie later.
  Body share() const {
    const bool shares_queries = !has_scaled_queries(c);
    Body body = {let("memory"),      call("prefetch_table"),  let("item"), when("no_item", {make(Kind::Return)}),
                 let("share_tiles"), let("register_operands")};
    if (shares_queries) append(body, {let("queries_of_block"), call("copy_queries")});
    else body.push_back(call("begin_queries"));
    append(body, {call("begin_share_tiles"), let("shares"), when("pushes", {call("meet")})});
    if (shares_queries)
      append(body,
             {call("await_queries"), call("sync_block"), call("load_queries"), when("keeps", {call("sync_block")})});
    Body part = {let("output"), let("rows"), call("attend"), make(Kind::Stage, {}, {"O", "rows"}, "part_of_share")};
    if (c.accumulate) part.push_back(call("store_earlier_of_share"));
    append(part, {call("sync_block"), make(Kind::Store, {"o"}, {"O", "rows"}, "push"), mark("goes_on"),
                  when("goes_on", {call("sync_block")})});
    append(body, {call(shares_queries ? "finish_shared_queries" : "finish_queries"), let("parts_of_share"),
                  let("goes_on_unset"), loop("parts", std::move(part)), call("add_up_team")});
    return body;
  }

  Statement entry() const {
    Statement entry = make(Kind::Entry);
    entry.body = {body("decode_segments", segments())};
    if (c.decode.team > 1) entry.body.push_back(body("decode_share", share()));
    return entry;
  }
};

}  // namespace

Result<void> add_decode_loop(Program& program, const KernelConfig& config, const Attributes& visited,
                             const Attributes& masked) {
  Loop loop{{program, "pipeline_copies"}, config, visited, masked};
  Statement warp = loop.warp();
  FLASHJIT_TRY(loop.failed);
  program.body.push_back(std::move(warp));
  return {};
}

void add_decode_entries(Program& program, const KernelConfig& config) {
  program.body.push_back(Entries{{program, "pipeline_copies"}, config}.entry());
}

}  // namespace flashjit
