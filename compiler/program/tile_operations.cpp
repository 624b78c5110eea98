#include "compiler/program/tile_operations.h"

#include <algorithm>

namespace flashjit {

namespace {

constexpr TileOperation kTileOperations[] = {
    // Bodies
    {Kind::Body,
     "main_step",
     "void main_step(const WorkState& work, int tile, bool last)",
     {},
     "A tile of which every row has a reference: its scores, and under them O takes in the tile before."},
    {Kind::Body,
     "careful_step",
     "void careful_step(int& tile, bool changes)",
     {},
     "The step from one item to the next, and where the mask cuts: O takes in the tile before, then come the scores of\n"
     "`tile`, under which the O of the item before is written. Either product may be missing: at the beginning, at the\n"
     "end, around items that see no keys. It runs all the same, on whatever lies there, and nobody looks at the result:\n"
     "under a branch the compiler would run products one at a time."},
    {Kind::Body,
     "takes_main_step",
     "bool takes_main_step(const WorkState& work, int tile, int previous)",
     {},
     "May `tile`, which comes after `previous`, take the main step? With references of earlier tiles, every row must have\n"
     "one."},
    {Kind::Body,
     "main_steps",
     "void main_steps(const WorkState& work, int& tile)",
     {},
     "From `tile` on, down to the first that takes the main step."},
    {Kind::Body,
     "lower",
     "void lower()",
     {},
     "References rise so far that what was large becomes 1. O has taken in all tiles before the one in P."},
    {Kind::Body,
     "finish_item",
     "void finish_item(const WorkState& work, bool saw_keys)",
     {},
     "O is complete: check it, and write what the spec asks for."},
    {Kind::Body,
     "pass_copies",
     "void pass_copies()",
     {},
     "A tile that this warpgroup does not visit: its copies are given back unread, in step with the others. Those of V\n"
     "are still to be released. The fence is for ptxas, which learns from it that all lanes are here: else it would take\n"
     "a loop around this for one that lanes may leave at different times, and no longer keep the stage of the ring in\n"
     "uniform registers, in the main step as well (d=128 1.02, d=256 1.04 of the time; H200, 2026-11-22)."},
    {Kind::Body,
     "pass_tile",
     "void pass_tile(bool holds_values)",
     {},
     "In the middle of the step between the two items. The values of the item before, if there are any, go back first:\n"
     "the copies of this tile may need their place. Those of this tile are then what the step releases."},
    {Kind::Body,
     "pass_item",
     "void pass_item(const WorkState& work, int tile)",
     {},
     "Of an item that ends before this warpgroup's rows begin all but the first step is left out, whose result nobody\n"
     "looks at: the values as well, and the tiles from `tile` on."},
    {Kind::Body, "run", "void run()", {}, "All items of the block."},

    {Kind::Call, "main_step", "main_step(work, tile, tile == tiles.first);"},
    {Kind::Call, "lower", "lower();"},
    {Kind::Call, "finish_item", "finish_item(before, output);"},
    {Kind::Call, "pass_copies", "pass_copies();"},
    {Kind::Call, "pass_tile", "pass_tile(output);"},
    {Kind::Call, "look_up", "look_up(tile);"},
    {Kind::Call, "ask_scales", "scales.ask(params, work);"},
    {Kind::Call, "receive_scales", "scales.receive(params, work);"},
    {Kind::Call, "note_failure", "note_failure(work);"},
    {Kind::Call, "gather_warp", "__syncwarp();"},
    {Kind::Call, "await_stores", "wait_stores();"},
    {Kind::Call, "await_stores_read", "wait_stores_read();"},
    {Kind::Items, "", "take_items(*this);"},
    {Kind::Return, "", "return;"},
    {Kind::Return, "no", "return false;"},
    {Kind::Return, "yes", "return true;"},
    {Kind::Return, "if_all_have_references", "return all_have_references();"},
    {Kind::When, "", "if ({if}) {{", "}}"},
    {Kind::Otherwise, "", "else {{", "}}"},

    {Kind::Loop, "looks_inside", "#pragma unroll 1\ndo {{", "}} while (uniform(--tile >= first));"},
    {Kind::Loop, "looks_between", "do {{", "}} while (tile >= first);"},
    {Kind::Loop, "part", "#pragma unroll 1\nfor (; tile >= stop; --tile) {{", "}}"},
    {Kind::Loop, "all", "#pragma unroll 1\nfor (; tile >= first; --tile) {{", "}}"},
    {Kind::Loop, "visited", "#pragma unroll 1\nfor (; tile >= tiles.first; tile = next_tile(work, tile)) {{", "}}"},

    {Kind::Let, "work", "const WorkState& work = shared.work(q_ring.count);"},
    {Kind::Let, "before", "const WorkState& before = shared.work(q_ring.previous().count);"},
    {Kind::Let, "output", "const bool output = is_marked(kValues);"},
    {Kind::Let, "multiplied", "const Ring<kValueStages> multiplied = values();"},
    {Kind::Let, "scores", "const bool scores = is_marked(changes ? kValues << kNext : kValues);"},
    {Kind::Let, "mixed", "const bool mixed = uniform(scores && is_mixed(work, tile));"},
    {Kind::Let, "last", "const bool last = next_tile(work, tile) < tiles.first;"},
    {Kind::Let, "columns", "const Columns columns = mixed ? visible_columns(params, work, tile) : all_columns();"},
    {Kind::Let, "factor", "float factor[2];"},
    {Kind::Let, "kept", "Kept kept;"},
    {Kind::Let, "kept_bits", "const u32 kept = saw_keys ? 0xffffffff : 0;"},
    {Kind::Let, "on_top", "const bool on_top = joins_sum(tile);"},
    {Kind::Let, "here", "Tile here = {{params, work, tile, inputs, scales}};"},
    {Kind::Let, "keys_scale", "here.keys_scale = shared.scales(ring.count).k;"},
    {Kind::Let, "unit", "unit = unit_of(values());"},
    {Kind::Let, "unit_before", "unit = unit_of(multiplied);"},
    {Kind::Let, "no_unit", "unit = 1.0f;"},
    {Kind::Let, "first_full", "const int first = tiles.full_first;"},
    {Kind::Let, "first_of_all", "const int first = tiles.first;"},
    {Kind::Let, "this_tile", "const int stop = tile;"},
    {Kind::Let, "few_tiles", "const int stop = max(tile - kLooksAfter + 1, first);"},

    // Rings
    {Kind::Await, "", "wait_barrier(shared.{slot}_{barrier}({ring}.stage()), {ring}.parity());"},
    // A barrier that has been waited for: for nothing, but behind what depends on the sum, which is not below 0. What is
    // to be done before a wait for products ptxas would do behind it, but not what a branch needs.
    {Kind::Await, "behind_sum",
     "wait_barrier(shared.{slot}_{barrier}({ring}.stage()), {ring}.parity() ^ is_negative(sum));"},
    {Kind::Await, "inputs", "wait_barrier(inputs.full(), inputs.ring.parity());"},
    {Kind::Release, "", "release(shared.{slot}_empty({ring}.stage()));"},
    {Kind::Release, "by_threads", "arrive(shared.{slot}_empty({ring}.stage()));"},
    {Kind::Release, "inputs", "inputs.release();"},
    {Kind::Advance, "", "{ring}.advance();"},
    {Kind::BeginTurn, "", "begin_turn();"},
    {Kind::EndTurn, "", "end_turn();"},

    // Products
    {Kind::Fence, "", "begin_products();"},
    {Kind::Keep, "", "pin_registers({to});"},
    {Kind::Mma, "scores", "multiply_queries({to}, shared.q(q_ring.stage()), shared.k(ring.stage()));"},
    {Kind::Mma, "output",
     "multiply_output({to}, {from}, descriptor(values_at(), kLayout.v.panel_bytes()), !(marks & kFresh));"},
    {Kind::Mma, "tile", "multiply_output({to}, {from}, descriptor(values_at()), {on_top});"},
    {Kind::Mma, "piece", "multiply_output({to}, {from}, descriptor(values_at({piece})));"},
    {Kind::Mma, "ones", "multiply_ones({to}, {from}, shared.ones(), {on_top});"},
    {Kind::Mark, "begun", "marks &= ~kFresh;"},
    {Kind::Mark, "next_item", "marks >>= kNext;"},
    {Kind::Commit, "", "commit_products();"},
    {Kind::Wait, "", "wait_products<{pending}>();"},
    {Kind::TakeIn, "", "take_in<{piece}>({to}, {from});"},
    {Kind::TakeIn, "unit", "take_in<{piece}>({to}, {from}, unit);"},
    {Kind::TakeIn, "sums", "take_in_sums({to}, {from});"},
    {Kind::Fill, "", "clear({to});"},
    {Kind::Fill, "rows", "{to}.clear();"},

    // Scores and weights
    {Kind::Fragment, "kept_queries", "here.begin(&queries);"},
    {Kind::Fragment, "queries", "here.begin();"},
    {Kind::Score, "all", "apply_score_and_mask({to}, here, false, all_columns());"},
    {Kind::Score, "mixed", "apply_score_and_mask({to}, here, mixed, columns);"},
    {Kind::Softmax, "exact", "careful_softmax({to}, rows, columns, true, factor);"},
    {Kind::Softmax, "first", "careful_softmax({to}, rows, columns, is_marked(kExact), factor);"},
    {Kind::Softmax, "tile", "careful_softmax({to}, rows, all_columns(), false, factor);"},
    {Kind::Softmax, "quick", "quick_softmax({to}, rows, here, AllKeys());"},
    {Kind::Softmax, "quick_halfway", "quick_softmax({to}, rows, here, AllKeys(), [&](float sum) {{", "}});"},
    {Kind::Softmax, "quick_cut", "quick_softmax({to}, rows, here, visible_columns(params, work, tile));"},
    {Kind::Convert, "", "convert({to}, {from});"},
    {Kind::Convert, "linear", "rows.large = convert_linear({to}, {from});"},
    {Kind::Look, "", "rows.large = has_large({from});"},
    {Kind::Draw, "", "draw(kept, shared, work, tile);"},
    {Kind::Drop, "", "drop<WeightRows::queries>({to}, kept);"},
    {Kind::Rescale, "", "rescale({to}, factor);"},
    {Kind::Rescale, "sums", "rescale_sums({to}, factor);"},
    {Kind::Lower, "exponents", "lower_exponents({to}, s, rows, factor);"},
    {Kind::Lower, "sums", "lower_sums({to}, rows, o, factor);"},
    {Kind::Lower, "probabilities", "lower_probabilities({to}, s, rows, factor);"},

    // Items
    {Kind::Reduce, "products", "keep_sums({to}, saw_keys);"},
    {Kind::Reduce, "columns", "take_sums({to}, {from}, saw_keys);"},
    {Kind::Reduce, "quads", "add_up_quads({to});"},
    {Kind::Finalize, "", "normalise(params, work, rows, {to});"},
    {Kind::Store, "part", "store_part(part_of(work.rank), rows, {from}, saw_keys);"},
    {Kind::Store, "rows", "store_rows(params, work, {from});"},
    {Kind::Store, "sent",
     "send_output(maps.o, maps.o_steps, output_place(shared, q_ring.previous().stage()), work, {from}, kept);"},
    {Kind::Store, "stored", "store_output(params, work, {from}, kept);"},
};

struct Condition {
  std::string_view label, text;
};
constexpr Condition kConditions[] = {
    {"output", "output"},
    {"scores", "scores"},
    {"no_scores", "!scores"},
    {"changes", "changes"},
    {"last", "last"},
    {"adds_anew", "!on_top"},
    {"item", "is_marked(kItem)"},
    {"passes", "changes && is_marked(kPassesFirst | kPassesLast << kNext)"},
    {"asks", "changes && scores"},
    {"cut", "uniform(tile < tiles.full_first)"},
    {"rose", "rose(factor)"},
    {"none_large", "!uniform(has_large(p))"},
    {"large", "uniform(rows.large)"},
    {"large_sum", "uniform(has_large_sum(rows, o))"},
    {"large_sum_now", "tile % kLooksAfter == 0 && uniform(has_large_sum(rows, o))"},
    {"inputs_given", "inputs.given"},
    {"holds_values", "holds_values"},
    {"holds_no_values", "!holds_values"},
    {"tiles_left", "tile >= tiles.first"},
    {"failed", "saw_keys && !is_marked(kExact) && reference_failed(work, rows, o)"},
    {"exact", "is_marked(kExact)"},
    {"not_full", "tile < tiles.first || is_mixed(work, tile)"},
    {"behind_full", "tile < tiles.first || tile > last_full(work)"},
    {"all_begun", "is_marked(kAllBegun)"},
    {"all_begun_in_full", "is_marked(kAllBegun) && tile >= tiles.full_first"},
    {"was_full", "!is_mixed(work, previous)"},
    {"parts", "params.parts > 1"},
    {"first_warpgroup", "warpgroup_id() == 0"},
    {"last_warpgroup", "warpgroup_id() == kWarpgroups - 1"},
};

}  // namespace

const TileOperation* find_tile_operation(const Statement& s) {
  const auto found = std::ranges::find_if(kTileOperations, [&](const TileOperation& operation) {
    return operation.kind == s.kind && operation.form == s.form;
  });
  return found == std::ranges::end(kTileOperations) ? nullptr : &*found;
}

std::span<const TileOperation> tile_operations() { return kTileOperations; }

std::string_view condition(std::string_view label) {
  const auto found = std::ranges::find(kConditions, label, &Condition::label);
  return found == std::ranges::end(kConditions) ? std::string_view() : found->text;
}

}  // namespace flashjit
