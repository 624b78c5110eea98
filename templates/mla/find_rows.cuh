// The warps that gather K, where TMA cannot copy it: rows that queries have chosen one by one, and rows of 8 bits,
// which are widened with their scales. This file holds what they share: each warp finds its own rows, some tiles before
// their turn. held_rows.cuh and copied_rows.cuh bring the rows from memory.
#pragma once

#include "templates/latents/row_pointers.cuh"
#include "templates/mla/queries.cuh"

namespace flashjit {

// A piece of a row in memory is 16 bytes. Four neighbouring pieces are a row of a panel once they are widened, or half
// of one if they have 16 bits already.
constexpr GatheredRow kRow = gathered_row(config);
constexpr int kPieceBytes = 16, kQuad = 4;
constexpr int kPanels = kLayout.k.panels();
static_assert(2 * kQuad * kChunkBytes == kPanelWidth);
using RowElement = Either<is_scaled(config) || has_latent_rows(config), unsigned char, Stored>::type;

// A warp has neighbouring rows of its block's share of a tile, in all of their panels.
constexpr int kOwnRows = rows_of_block(config), kRowsOfWarp = kOwnRows / kMlaGatherers;
constexpr bool kScalesKeys = has_key_scales(config);
constexpr u32 kNoRow = ~0u;

// Scales of columns lie in the row, or behind its page. Scales behind a page are exponents, and a lane reads all of them
// when it finds the row.
constexpr bool kScalesBehind = has_latent_rows(config) && kLatents.scales_behind_page;
static_assert(!kScalesBehind || (kLatents.scale == LatentScale::exponent && kLatents.scale_bytes == sizeof(uint2)));

// Zeros that stand for a row that does not exist. They are read from memory, because writing zeros to registers would
// wait for all earlier loads.
struct ZeroRow {
  uint4 pieces[kRow.pieces];
};
__device__ const ZeroRow kZeros = {};

struct RowFinder : QueriesProducerState {
  Turn turn = {};

  // Rows are found in stages, so that no instruction waits for memory: a lane loads the number of a row or page, one
  // tile later it knows where the row lies, and one tile later the row is read.
  u32 asked = 0;
  // It is kept where a mask has holes. Otherwise the next tile follows from this one.
  int asked_tile = 0;
  // These are where rows lie, as numbers of pieces from the begin of K.
  u32 now = kNoRow, next = kNoRow;
  float scale = 1.0f, next_scale = 1.0f;
  uint2 exponents = {}, next_exponents = {};

  // The lane and the warp are derived anew, and take no registers.
  __device__ static int gathering_lane() { return static_cast<int>(thread_number() % 32); }
  __device__ static int gathering_warp() { return static_cast<int>(thread_number() / 32); }
  __device__ static int own_row() {
    return static_cast<int>(cluster_rank()) * kOwnRows + gathering_warp() * kRowsOfWarp;
  }
  // Lanes of the first half have the warp's rows. The others have keys of the whole tile, because each block of a
  // cluster has to know which of all rows exist.
  __device__ static int key_of_lane(int tile) {
    constexpr int kSeenOfWarp = kMlaKeys / kMlaGatherers;
    const int lane = gathering_lane();
    const int own = own_row() + lane % kRowsOfWarp, seen = gathering_warp() * kSeenOfWarp + lane % kSeenOfWarp;
    return tile * kTileKv + (lane < 16 ? own : seen);
  }
  __device__ auto rows_of(const Segment& s) const {
    const auto* first = static_cast<const RowElement*>(params.k) + key_begin(params.k_stride, s.seq);
    return key_rows(params, params.k_stride, first, s.seq);
  }

  // Behind the last key that some query sees there is no row, whatever memory holds.
  __device__ static bool is_inside(const Segment& s, int tile) {
    return tile <= s.last_tile && key_of_lane(tile) < s.end;
  }
  // Returns the number of this lane's row in a tile. A lane loads it some time before it needs the row.
  __device__ u32 number_of_row(const Segment& s, int tile) const {
    return is_inside(s, tile) ? rows_of(s).number_of(key_of_lane(tile)) : 0;
  }
  // Finds the row of this number, in a tile that is `ahead` tiles ahead of the current one. A number that a query has
  // chosen may belong to no row of K.
  __device__ void find(const Segment& s, int found_tile, u32 number, int ahead) {
    const auto rows = rows_of(s);
    const int key = key_of_lane(found_tile);
    bool is_there = is_inside(s, found_tile);
    if constexpr (kChosen) {
      is_there = is_there && rows.has_number(number);
      const u32 seen = __ballot_sync(0xffffffff, is_there) >> 16;
      if (gathering_lane() == 0)
        reinterpret_cast<u16*>(shared.seen(turn.count + static_cast<u32>(ahead)))[gathering_warp()] =
            static_cast<u16>(seen);
    }
    next = kNoRow;
    // Zeros that stand for a row stay zeros.
    if constexpr (kScalesBehind) next_exponents = {};
    if (!is_there) return;
    const char* row;
    if constexpr (kScalesBehind) {
      const LatentRow latent = numbered_latent_row(rows, params.k_stride.token, number, key);
      row = reinterpret_cast<const char*>(latent.data);
      next_exponents = __ldg(reinterpret_cast<const uint2*>(latent.scales));
    } else {
      row = reinterpret_cast<const char*>(rows.numbered_row(number, key));
    }
    next = static_cast<u32>((row - static_cast<const char*>(params.k)) / kPieceBytes);
    if constexpr (kScalesKeys) next_scale = key_scale(params, params.scale_k, params.scale_k_stride, s.seq, key);
  }
  __device__ void call_rows() const {
    // Copies begin long before anybody reads the rows.
    if constexpr (copies_rows(config)) return;
    constexpr int kLines = (kRow.pieces * kPieceBytes + kLineBytes - 1) / kLineBytes;
    if (next == kNoRow || gathering_lane() >= kRowsOfWarp) return;
    const char* row = static_cast<const char*>(params.k) + static_cast<Int64>(next) * kPieceBytes;
#pragma unroll
    for (int line = 0; line < kLines; ++line) prefetch_line(row + line * kLineBytes);
  }

  __device__ void take_found() { now = next, scale = next_scale, exponents = next_exponents; }
  // Finds the rows of an item's first two tiles. Their numbers are loaded together.
  __device__ void find_first_rows(const Segment& s, int tile) {
    const int second_tile = visible_tile(params, s, tile + 1);
    const u32 first = number_of_row(s, tile), second = number_of_row(s, second_tile);
    find(s, tile, first, 0);
    call_rows();
    take_found();
    find(s, second_tile, second, 1);
    call_rows();
    ask(s, second_tile + 1);
  }
  // Finds rows of the tile after the next one, and prefetches them to L2.
  __device__ void find_next_rows(const Segment& s, int tile) {
    take_found();
    const int found_tile = config.mask_has_holes ? asked_tile : tile + 2;
    find(s, found_tile, asked, 2);
    call_rows();
    ask(s, found_tile + 1);
  }
  __device__ void ask(const Segment& s, int behind) {
    const int tile = visible_tile(params, s, behind);
    if constexpr (config.mask_has_holes) asked_tile = tile;
    asked = number_of_row(s, tile);
  }
  // Returns where a row of this warp begins.
  __device__ const uint4* begin_of(int row) const {
    const u32 at = __shfl_sync(0xffffffff, now, row);
    return at == kNoRow ? kZeros.pieces : static_cast<const uint4*>(params.k) + at;
  }

  // Tells consumers the position of the item whose Q comes next.
  __device__ void publish(Progress& at) const {
    // The first warp's progress is the first of all.
    Progress* all = &at + mla_copies(config);
    if (lane_id() == 0) all[at.number % kMlaSegments] = at;
  }
};

}  // namespace flashjit
