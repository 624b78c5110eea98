// The words of mla's programs.
#include "compiler/program/vocabulary.h"

#include "compiler/families/mla/roles.h"

namespace flashjit {

namespace {

constexpr TileOperation kOperations[] = {
    {Kind::Body,
     "follow",
     "void follow(int before, int end)",
     {},
     "P of the other's tile is there, and this one's part of O follows its references."},
    {Kind::Body,
     "add_other_tile",
     "void add_other_tile(int before, int end, bool follows)",
     {},
     "P V of the tile before, which is the other's, is issued."},
    {Kind::Body,
     "step",
     "void step(const Segment& segment, int tile, int before, int end, bool follows, bool mixed)",
     {},
     "A tile of its own: scores, softmax and P V, and P for the other one. `follows`: there is a tile before, the other's."},
    {Kind::Body,
     "attend",
     "void attend(const Segment& segment)",
     {},
     "All tiles of an item. Where none is before the first, what happens to lie there is added, and own products replace it:\n"
     "code of its own for the first step would come from memory."},
    {Kind::Body, "consume", "void consume(const Progress* all)", {}, "All items of the block."},
    {Kind::Body,
     "copy_tile",
     "void copy_tile(const BoxPlace& at)",
     {},
     "The halves of a tile, each as soon as its place is empty."},
    {Kind::Body,
     "produce_keys",
     "void produce_keys(Progress& at)",
     {},
     "All tiles of all items. First memory has been asked for Q: it would come behind the first tiles of all blocks otherwise,\n"
     "which nobody can use before."},
    {Kind::Body,
     "produce_queries",
     "void produce_queries(Progress* all) const",
     {},
     "Q of each item, and where it is, while consumers are at the item before."},
    {Kind::Body,
     "mla_forward",
     "inline void mla_forward(const KernelParams& params, const TensorMaps& maps, float* parts)",
     {},
     "Two warpgroups that compute, and one of warps that copy K, copy Q, and call K to L2. The keys of a call are cut into as\n"
     "many ranges as there are clusters."},

    {Kind::Call, "follow", "follow(before, end);"},
    {Kind::Call, "add_other_tile", "add_other_tile(before, end, follows);"},
    {Kind::Call, "step", "step(segment, tile, before, end, follows, mixed);"},
    {Kind::Call, "attend", "attend(at.segment);"},
    {Kind::Call, "sync_group", "sync_group();"},
    {Kind::Call, "begin_next_launch", "release_next_launch();"},
    {Kind::Call, "copy_tile", "copy_tile(place);"},
    {Kind::Call, "next_item", "at.advance_warp();"},
    {Kind::Call, "await_asked", "sync_named(kAskedBarrier, kAskedThreads);"},
    {Kind::Call, "tell_asked", "arrive_named(kAskedBarrier, kAskedThreads);"},
    {Kind::Call, "find_next", "find_next(next, at);"},
    {Kind::Call, "prefetch_queries", "prefetch(next.segment);"},
    {Kind::Call, "ask_ahead", "ask_ahead(params, maps);"},
    {Kind::Call, "set_up", "set_up(shared);"},
    {Kind::Call, "meet_cluster", "arrive_at_cluster(), wait_for_cluster();"},
    {Kind::Call, "leave_cluster", "sync_cluster();"},
    {Kind::Call, "shrink_registers", "shrink_registers<kMlaProducerRegisters>();"},
    {Kind::Call, "grow_registers", "grow_registers<kMlaConsumerRegisters>();"},
    {Kind::Call, "produce_keys", "Producer{{{{params, maps, shared}}}}.produce_keys(progress[0]);"},
    {Kind::Call, "produce_queries", "QueriesProducer{{{{params, maps, shared}}}}.produce_queries(progress_of_rows);"},
    {Kind::Call, "call_keys", "Prefetcher{{params, shared}}.run(progress[1]);"},
    {Kind::Call, "consume_first", "FirstConsumer{{{{params, shared, parts}}}}.consume(progress_of_rows);"},
    {Kind::Call, "consume_second", "SecondConsumer{{{{params, shared, parts}}}}.consume(progress_of_rows);"},

    {Kind::Loop, "items", "for (u32 number = 0;; ++number) {{", "}}"},
    {Kind::Loop, "items_of_queries", "#pragma unroll 1\nfor (u32 number = 0;; ++number) {{", "}}"},
    {Kind::Loop, "items_of_warp", "do {{", "}} while (at.more);"},
    {Kind::Loop, "steps", "#pragma unroll 1\nwhile (tile <= s.last_tile) {{", "}}"},
    {Kind::Loop, "alternating", "#pragma unroll 1\nwhile (true) {{", "}}"},

    {Kind::Let, "memory", "extern __shared__ __align__(1024) unsigned char memory[];"},
    {Kind::Let, "scratch", "int* scratch = reinterpret_cast<int*>(memory + kPlaces.scratch_offset);"},
    {Kind::Let, "range",
     "const Ranges ranges = ranges_of(params, count_steps<kMlaThreads>(params, scratch));\n"
     "const int range = blockIdx.x / kCluster;"},
    {Kind::Let, "steps", "const int step = ranges.begin(range), end = ranges.begin(range + 1);"},
    {Kind::Let, "segments",
     "const Segments segments = {{&params, range, step, end, place_of<kMlaThreads>(params, step, scratch)}};"},
    {Kind::Let, "progress",
     "Progress* progress = reinterpret_cast<Progress*>(memory + kPlaces.progress_offset);\n"
     "Progress* progress_of_rows = progress + kMlaCopies;"},
    {Kind::Mark, "first_item",
     "progress[0] = progress[1] = progress_of_rows[0] = {{segments, segments.first(), true}};"},
    {Kind::Let, "segment", "const Progress& at = all[number % kMlaSegments];"},
    {Kind::Let, "segment_of_warp", "const Segment& s = at.segment;"},
    {Kind::Let, "next_segment", "Progress& next = all[(number + 1) % kMlaSegments];"},
    {Kind::Let, "first_tile", "int tile = visible_tile(params, s, s.first_tile);"},
    {Kind::Let, "box_place", "BoxPlace place = {{}};"},
    {Kind::Let, "operands", "u32 q = queries(), k = keys();"},
    {Kind::Let, "parity", "const u32 parity = Turn{{turn.count + follows}}.parity();"},
    {Kind::Let, "values_before", "const u32 v = values(kOther);"},
    {Kind::Return, "from_loop", "break;"},
    {Kind::Let, "factor", "float factor[2];"},
    {Kind::Let, "tiles",
     "const int last = uniform(segment.last_tile), end = uniform(segment.end);\n"
     "int before = next_tile(segment, uniform(segment.first_tile)), tile = before;"},
    {Kind::Let, "follows", "bool follows = turn.stage() != kOwn;"},
    {Kind::Let, "mixed", "const bool mixed = is_mixed(segment, tile);"},
    {Kind::Let, "last", "const bool last = uniform(at.at_last());"},
    {Kind::Mark, "box_place", "place = place_of_tile(s, tile);"},
    {Kind::Mark, "next_tile", "tile = visible_tile(params, s, tile + 1);"},
    {Kind::Mark, "operands", "q = queries(), k = keys();"},
    {Kind::Mark, "tile", "tile = next_tile(segment, before + 1);"},
    {Kind::Mark, "before", "before = next_tile(segment, tile + 1);"},
    {Kind::Mark, "follows", "follows = true;"},

    // Barriers
    {Kind::Await, "place", "wait_barrier(shared.{barrier}(turn.stage(), {ring}), turn.parity() ^ 1);"},
    {Kind::Await, "queries", "wait_barrier(shared.queries_{barrier}(), number % 2);"},
    {Kind::Await, "queries_next", "wait_barrier(shared.queries_{barrier}(), number % 2);"},
    {Kind::Expect, "queries_next", "expect();"},
    {Kind::Await, "piece", "wait_barrier(shared.{barrier}(kOwn, {slot}), parity);"},
    {Kind::Await, "half_before", "await_{barrier}_half(kOther, turn.parity());"},
    {Kind::Await, "weights_before", "sync_named(kReadyBarrier + kOther, kConsumerThreads);"},
    {Kind::Complete, "weights", "arrive_named(kReadyBarrier + kOwn, kConsumerThreads);"},
    {Kind::Barrier, "", "sync_named(kConsumersBarrier, kConsumerThreads);"},
    {Kind::Release, "", "release(kOwn);"},
    {Kind::Release, "before", "release(kOther);"},
    {Kind::Release, "in_cluster", "release_in_cluster(kOwn);"},
    {Kind::Release, "in_cluster_before", "release_in_cluster(kOther);"},
    {Kind::Release, "queries", "release_queries();"},
    {Kind::Expect, "pieces", "expect_half({ring});"},
    {Kind::Expect, "queries", "expect();"},
    {Kind::Advance, "", "++turn.count;"},
    {Kind::Advance, "if_follows", "turn.count += follows;"},
    {Kind::Advance, "copied", "count_tile();"},

    // Copies
    {Kind::Load, "half", "copy_half({ring}, at);"},
    {Kind::Load, "queries", "copy(all[0].segment);"},
    {Kind::Load, "queries_next", "copy(next.segment);"},

    // Products
    {Kind::Keep, "fragments", "pin_fragments({to});"},
    {Kind::Mma, "piece", "multiply_piece<{from}>(q, k);"},
    {Kind::Mma, "output", "multiply_output({to}, p, values(kOwn), follows);"},
    {Kind::Mma, "output_before", "multiply_output_of_other({to}, weights_of_other(), v);"},

    // Scores, weights and rows
    {Kind::Fill, "none", "rows.clear();"},
    {Kind::Fill, "begin", "rows.begin(s);"},
    {Kind::Fill, "hidden", "clear_hidden(tile, end, kOwn);"},
    {Kind::Fill, "hidden_before", "clear_hidden(before, end, kOther);"},
    {Kind::Mask, "", "apply_score_and_mask(s, params, segment, tile, mixed);"},
    {Kind::Softmax, "", "const bool rose = softmax_step(s, p, rows, factor);"},
    {Kind::Rescale, "", "rescale(o, factor);"},
    {Kind::Rescale, "of_before", "follow_references();"},
    {Kind::Stage, "rises", "tell_references(rose || !follows, factor);"},
    {Kind::Stage, "weights", "store_probabilities(shared.p(kOwn), p);"},
    {Kind::Stage, "sums", "tell_sums();"},
    {Kind::Reduce, "", "take_sums();"},
    {Kind::Store, "", "store(at.segment);"},
};

constexpr Condition kConditions[] = {
    {"follows", "follows"},
    {"starts", "!follows"},
    {"none_before", "before > last"},
    {"tiles_end", "tile > last"},
    {"mixed", "mixed"},
    {"rose", "rose"},
    {"last_item", "last"},
    {"is_last_item", "at.at_last()"},
    {"any_tile", "tile <= s.last_tile"},
    {"no_range", "range >= ranges.count"},  // with all of its cluster
    {"no_steps", "step == end"},
    {"first_thread", "threadIdx.x == 0"},
    {"copying_warpgroup", "threadIdx.x < 128"},
    {"first_half", "threadIdx.x < 256"},
    {"warp_0", "threadIdx.x < 32"},
    {"warp_1", "threadIdx.x < 64"},
    {"warp_2", "threadIdx.x < 96"},
};

}  // namespace

const Vocabulary kMlaVocabulary = {"templates/mla/", kOperations, kConditions};

}  // namespace flashjit
