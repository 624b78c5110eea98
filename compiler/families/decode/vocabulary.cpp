// The words of decode's programs.
#include "compiler/program/vocabulary.h"

#include "compiler/families/decode/roles.h"

namespace flashjit {

namespace {

constexpr TileOperation kOperations[] = {
    {Kind::Body,
     "begin_segment",
     "inline bool begin_segment(const KernelParams& params, const Segment& segment, int tile, Course& course,\n"
     "                                     int& next_tile, OperandsOfQueries& queries, KvTiles& tiles)",
     {},
     "Asks for the first tiles of a segment, and finds out which the one behind it begins with. Returns whether none is."},
    {Kind::Body,
     "attend",
     "inline void attend(const KernelParams& params, const Segment& s, const OperandsOfQueries& queries,\n"
     "                              KvTiles& tiles, int& tile, Output& o, SoftmaxRows& rows)",
     {},
     "This warp's tiles of a segment, or of the part that comes next, of which `tiles` has begun to load the first."},
    {Kind::Body,
     "decode_segments",
     "inline void decode_segments(const KernelParams& params, const TensorMaps* maps, float* parts)",
     {},
     "A block of the first launch: the segments of its range, or whole row tiles."},
    {Kind::Body,
     "decode_share",
     "inline void decode_share(const KernelParams& params, const TensorMaps* maps, float* parts)",
     {},
     "A block of a team of several: its share of a row tile, which may be none."},

    {Kind::Call, "begin_queries", "queries.begin(params, segment);"},
    {Kind::Call, "begin_tiles", "tiles.begin(segment, tile);"},
    {Kind::Call, "look_ahead", "look_ahead(params, course.segment, next_tile, tiles);"},
    {Kind::Call, "begin_facts", "facts.begin(params, s, tile);"},
    {Kind::Call, "load_next_facts", "facts.load(params, s, next);"},
    {Kind::Call, "copy_ahead", "tiles.copy_ahead(s);"},
    {Kind::Call, "advance", "tiles.advance();"},
    {Kind::Call, "finish_queries", "queries.finish(params, segment);"},
    {Kind::Call, "finish_shared_queries", "queries.finish<true>(params, segment);"},
    {Kind::Call, "attend", "attend(params, segment, queries, tiles, tile, o, rows);"},
    {Kind::Call, "begin_next_launch", "release_next_launch();"},
    {Kind::Call, "sync_block", "__syncthreads();"},
    {Kind::Call, "prefetch_table", "prefetch_table<kThreads>(params);"},
    {Kind::Call, "copy_queries", "of_block.copy(params, segment);"},
    {Kind::Call, "begin_share_tiles", "tiles.begin(segment, tile);"},
    {Kind::Call, "meet", "shares.meet();"},
    {Kind::Call, "await_queries", "wait_copies<kTileGroups>();"},
    {Kind::Call, "load_queries", "of_block.load(queries, params, segment);"},
    {Kind::Call, "store_earlier", "store_earlier(params, of_warps.of(warp_id()), done);"},
    {Kind::Call, "store_earlier_of_share", "store_earlier(params, of_warps.of(warp_id()), segment);"},
    {Kind::Call, "add_up_team", "add_up_team(params, segment, shares, parts);"},

    {Kind::Loop, "tiles", "#pragma unroll 1\nwhile (tile <= last) {{", "}}"},
    {Kind::Loop, "segments", "#pragma unroll 1\nwhile (true) {{", "}}"},
    {Kind::Loop, "parts", "#pragma unroll 1\ndo {{", "}} while (goes_on);"},
    {Kind::Return, "ends", "return true;"},
    {Kind::Return, "goes_on", "return false;"},

    {Kind::Let, "last", "const int last = s.last_tile;"},
    {Kind::Let, "last_of_part", "const int last = s.last_of_part;"},
    {Kind::Let, "facts", "KeyFacts facts;"},
    {Kind::Let, "scores", "Scores scores;"},
    {Kind::Let, "next", "const int next = next_of_warp(params, s, tile);"},
    {Kind::Let, "output", "Output o;"},
    {Kind::Let, "rows", "SoftmaxRows rows;"},
    {Kind::Let, "done", "const Segment done = segment;"},
    {Kind::Let, "memory", "extern __shared__ __align__(1024) unsigned char shared[];"},
    {Kind::Let, "course", "Course course = {{params}};"},
    {Kind::Let, "segment", "Segment segment = course.segment;"},
    {Kind::Let, "parts_beside_rings", "const WarpParts of_warps = parts_beside_rings(shared_address(shared));"},
    {Kind::Let, "parts_in_rings", "const WarpParts of_warps = parts_in_rings(shared_address(shared));"},
    {Kind::Let, "parts_of_share",
     "const WarpParts of_warps =\n    shares.pushes() ? parts_in_rings(shared_address(shared)) : parts_beside_rings(shared_address(shared));"},
    {Kind::Let, "warp_tiles",
     "KvTiles tiles(params, maps, shared);\n"
     "int tile = first_of_warp(params, segment), next_tile = 0;\n"
     "tiles.where.look_ahead(segment, tile);"},
    {Kind::Let, "share_tiles",
     "KvTiles tiles(params, maps, shared);\n"
     "int tile = first_of_warp(params, segment);\n"
     "tiles.where.look_ahead(segment, tile);"},
    {Kind::Let, "operands", "OperandsOfQueries queries(shared_address(shared) + kLayout.query_offset);"},
    {Kind::Let, "register_operands", "OperandsOfQueries queries;"},
    {Kind::Let, "queries_of_block",
     "const SharedQueries of_block = {{shared_address(shared) + kLayout.query_offset}};"},
    {Kind::Let, "ends", "bool ends = begin_segment(params, segment, tile, course, next_tile, queries, tiles);"},
    {Kind::Let, "goes_on", "bool goes_on = false;  // with the segment before"},
    {Kind::Let, "goes_on_unset", "bool goes_on;  // with the next fixed part"},
    {Kind::Let, "end_of_part",
     "goes_on = segment.next_part();\nconst bool is_last = !goes_on && ends, has_next = !goes_on && !ends;"},
    {Kind::Let, "item", "Segment segment;"},
    {Kind::Let, "shares", "const TeamShares shares(params, segment, shared_address(shared));"},
    {Kind::Mark, "tile", "tile = next;"},
    {Kind::Mark, "segment", "segment = course.segment;\ntile = next_tile;"},
    {Kind::Mark, "ends", "ends = begin_segment(params, segment, tile, course, next_tile, queries, tiles);"},
    {Kind::Mark, "goes_on", "goes_on = segment.next_part();"},

    // Copies
    {Kind::Await, "", "tiles.await();"},
    {Kind::Wait, "groups", "tiles.await_groups<{pending}>();"},
    {Kind::Barrier, "warp", "__syncwarp();"},
    {Kind::Fill, "hidden", "tiles.clear_hidden(s.end - tile * kTileKv);"},
    {Kind::Load, "keys_next", "tiles.load_keys(s, next);"},
    {Kind::Load, "values_next", "tiles.load_values(s, next);"},

    // Products, scores and rows
    {Kind::Fill, "none", "rows.clear();"},
    {Kind::Mma, "scores", "compute_scores({to}, queries, tiles);"},
    {Kind::Mma, "output", "accumulate_output({to}, scores, tiles);"},
    {Kind::Mask, "", "apply_score_and_mask({to}, queries, facts, params, s, tile);"},
    {Kind::Softmax, "", "softmax_step({to}, rows, o);"},
    {Kind::Rescale, "values", "apply_value_scales({to}, facts, rows, o);"},
    {Kind::Rescale, "units", "scale_output({to}, rows);"},
    {Kind::Stage, "part", "store_part(of_warps.of(warp_id()), done, o, rows);"},
    {Kind::Stage, "part_of_share", "store_part(of_warps.of(warp_id()), segment, o, rows);"},
    {Kind::Store, "", "store_sums(params, done, of_warps, parts);"},
    {Kind::Store, "push", "push_sums(params, segment, of_warps, shares, parts);"},
};

constexpr Condition kConditions[] = {
    {"none_behind", "!course.next()"},
    {"cut", "is_cut(s, tile)"},
    {"begins_anew", "!goes_on"},
    {"has_next", "has_next"},
    {"is_last", "is_last"},
    {"no_segment", "!course.begin(reinterpret_cast<int*>(shared + kLayout.scratch_offset))"},
    {"no_item", "!item_at<true>(params, static_cast<int>(blockIdx.x) >> team_shift(params), segment)"},
    {"pushes", "shares.pushes()"},
    {"keeps", "!shares.pushes()"},  // Parts lie in this memory, too.
    {"goes_on", "goes_on"},
};

}  // namespace

const Vocabulary kDecodeVocabulary = {"templates/decode/", kOperations, kConditions};

}  // namespace flashjit
