// Brings KV tiles of a warp to the registers that matrix instructions read: directly, or through a ring of the warp in
// shared memory. In neither way does a warp depend on other warps.
//
// Fragments need no transposition. Lane 4 g + i has key g of K and takes the columns 32 j + 8 i .. + 7 for two
// instructions. These are the columns of K in another order, which Q has as well. The lane has four keys of V and takes
// the columns 64 j + 8 g .. + 7: the instruction's rows are the columns of V in another order. With elements of 8 bits
// the columns are 64 j + 16 i .. + 15 of K and 128 j + 16 g .. + 15 of V.
#pragma once

#include "templates/decode/work.cuh"
#include "templates/hopper/rows.cuh"
#include "templates/kv_rows.cuh"
#include "templates/tile_walk.cuh"

namespace flashjit {

constexpr DecodeLayout kLayout = decode_layout(config);
constexpr int kThreads = decode_threads(config);

constexpr int kLaneColumns = lane_columns(config);
constexpr int kKeyColumns = key_columns(config), kValueColumns = value_columns(config);
constexpr int kKeyPieces = key_pieces(config), kValuePieces = value_pieces(config);
constexpr int kKeyOctets = kTileKv / 8, kKeyPairs = kTileKv / 16;

__device__ inline int lane_id() { return static_cast<int>(threadIdx.x % 32); }
__device__ inline int warp_id() { return static_cast<int>(threadIdx.x / 32); }

// Loads 16 bytes that are read once.
__device__ inline uint4 load_once(const void* address) {
  uint4 value;
  asm volatile("ld.global.L1::no_allocate.L2::128B.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(address));
  return value;
}

// Returns the policy by which L2 keeps lines of K and V. These leave L2 before other lines if the call has room for no
// more keys than evict_first_mb hold, and are kept like any others otherwise.
constexpr bool kMayEvictFirst = config.decode.evict_first_mb > 0;
__device__ inline u64 policy_of_rows(const KernelParams& p) {
  constexpr int kKeyBytes = config.heads_kv * (config.head_dim_qk + config.head_dim_v) * cache_bytes(config);
  const Int64 bytes = Int64{p.batch} * p.k_len * kKeyBytes;
  return kMayEvictFirst && bytes <= Int64{config.decode.evict_first_mb} << 20 ? kEvictFirst : kEvictNormal;
}
// Copies 16 bytes that are read once to shared memory, by cp.async, or zeros if they are not there.
__device__ inline void copy_once(u32 shared, const void* global, u64 policy, bool there) {
  if constexpr (kMayEvictFirst) {
    asm volatile(
        "{\n .reg .pred none;\n setp.eq.u32 none, %3, 0;\n"
        " cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, none, %2;\n}" ::"r"(shared),
        "l"(global), "l"(policy), "r"(static_cast<u32>(there))
        : "memory");
  } else {
    copy_async<16>(shared, global, there);
  }
}

// Return a lane's first column in a row of K or of Q, and in a row of V.
__device__ inline int key_column() { return lane_id() % 4 * kLaneColumns; }
__device__ inline int value_column() { return lane_id() / 4 * kLaneColumns; }

// Returns whether piece j lies in the head dim, where all lanes together have `columns` columns of each piece.
template <int head_dim, int columns>
__device__ inline bool is_inside(int j, int column) {
  return (j + 1) * columns <= head_dim || j * columns + column < head_dim;
}
// Returns piece j of the row whose share for this lane begins at `row`. Beyond the head dim it is some existing piece,
// which is not used.
template <int head_dim, int columns, class T>
__device__ inline const T* piece_of(const T* row, int j, int column) {
  return is_inside<head_dim, columns>(j, column) ? row + j * columns : row - column;
}
template <class T>
__device__ inline const T* key_piece_of(const T* row, int j) {
  return piece_of<config.head_dim_qk, kKeyColumns>(row, j, key_column());
}
__device__ inline const Cached* value_piece_of(const Cached* row, int j) {
  return piece_of<config.head_dim_v, kValueColumns>(row, j, value_column());
}
// Replaces what lies beyond the head dim of Q and K by zeros.
__device__ inline uint4 inside_key(uint4 piece, int j) {
  return is_inside<config.head_dim_qk, kKeyColumns>(j, key_column()) ? piece : make_uint4(0, 0, 0, 0);
}

// Returns which key of eight column n of S is. Panels rotate each row by its number. In panels, the lanes of a quarter
// warp meet no bank twice if the rows of columns 2 i and 2 i + 1 differ in 4, and if even columns, like odd ones, have
// rows in different halves.
__device__ inline int key_of_column(int n) { return has_ring(config) ? n ^ (n & 1) << 2 : n; }
// Returns the key of a lane's element e (0 or 1) in an octet of S.
__device__ inline int score_key(int e) { return key_of_column(lane_id() % 4 * 2 + e); }
// Return the row of a lane in octet `octet` of a tile of K, and its row `i` (of four) in 16 keys of V.
__device__ inline int key_row_of(int octet) { return octet * 8 + key_of_column(lane_id() / 4); }
__device__ inline int value_row_of(int pair, int i) { return pair * 16 + i / 2 * 8 + score_key(i % 2); }

// Returns whether each row of the tile has to be found by itself: the end of the keys cuts the tile, or it may lie in
// several pages.
__device__ inline bool is_cut(const Segment& s, int tile) { return (tile + 1) * kTileKv > s.end; }
constexpr bool kTileInPieces = kKeyRows == Rows::chosen || (kKeysInPages && config.page_size % kTileKv != 0);
constexpr bool kTileInPage = kKeysInPages && !kTileInPieces;

// The warps that share a segment take its tiles by turns, and step over tiles in holes of the mask.
// visible_tile() returns a tile behind the last one if none is left.
__device__ inline int tiles_apart(const Segment& s) { return config.decode.warps << s.sharing; }
__device__ inline int visible_tile(const KernelParams& p, const Segment& s, int tile) {
  return skip_holes<Walk::up, kTileKv>(p, s.seq, s.q_lo(), s.q_hi(), tile, s.last_tile, tiles_apart(s));
}
__device__ inline int first_of_warp(const KernelParams& p, const Segment& s) {
  return visible_tile(p, s, s.first_tile + warp_id());
}
__device__ inline int next_of_warp(const KernelParams& p, const Segment& s, int tile) {
  return visible_tile(p, s, tile + tiles_apart(s));
}

// Finds where the rows of a warp's tiles lie. Keys at the end that no query sees are replaced by the last key that a
// query sees: rows behind the end, or hidden there, are never read.
template <class Rows>
struct TileRowsIn {
  const KernelParams& params;
  // With pages: each lane keeps in `page` the page of one of the warp's next tiles, so that copies need not wait for
  // the numbers; `next_page` has the pages of the first tiles of the next segment.
  // With merged lists the same is kept of how many tokens of the page count.
  int first = 0;
  u32 page = 0, next_page = 0;
  int room = 0, next_room = 0;

  __device__ int room_of_lane(const Segment& s, int tile) const {
    if constexpr (kListsAreMerged) {
      const int of_lane = tile + lane_id() * tiles_apart(s), key = first_key(s, of_lane);
      return of_lane <= s.last_tile ? room_of_page(params, s.seq, key / static_cast<int>(Rows::kPage)) : 0;
    } else {
      return 0;
    }
  }
  __device__ u32 page_of_lane(const Segment& s, int tile) const {
    if constexpr (kTileInPage) {
      const int of_lane = tile + lane_id() * tiles_apart(s);
      return keys_of(params.k, params.k_stride, s)
          .page_id(first_key(s, of_lane) / static_cast<int>(Rows::kPage), of_lane <= s.last_tile);
    } else {
      return 0;
    }
  }
  __device__ void look_ahead(const Segment& s, int tile) {
    next_page = page_of_lane(s, tile);
    next_room = room_of_lane(s, tile);
  }
  __device__ void begin(int tile) {
    page = next_page;
    room = next_room;
    first = tile;
  }
  __device__ Rows keys_of(const void* tensor, const Strides& strides, const Segment& s) const {
    return key_rows(params, strides, static_cast<const Cached*>(tensor) + key_begin(strides, s.seq), s.seq);
  }
  __device__ static int first_key(const Segment& s, int tile) { return min(tile * kTileKv, s.end - 1); }
  // Returns the number of the page that a tile begins in.
  __device__ u32 page_of(const Segment& s, int tile) {
    if constexpr (!kTileInPage) return 0;
    if (tile - first >= 32 * tiles_apart(s)) {
      page = page_of_lane(s, tile);
      room = room_of_lane(s, tile);
      first = tile;
    }
    return __shfl_sync(0xffffffff, page, (tile - first >> s.sharing) / config.decode.warps);
  }
  // Returns the number of rows of a tile that some query sees, where page_of() has been asked for the tile.
  __device__ int rows_of(const Segment& s, int tile) const {
    const int key = first_key(s, tile), left = s.end - key;
    if constexpr (kListsAreMerged) {
      const int of_page = __shfl_sync(0xffffffff, room, (tile - first >> s.sharing) / config.decode.warps);
      return min(left, of_page - key % static_cast<int>(Rows::kPage));
    } else {
      return left;
    }
  }
  // Returns the first row of a tile of this segment, in K or V.
  __device__ const Cached* tile_begin(const void* tensor, const Strides& strides, const Segment& s, int tile,
                                      u32 page) const {
    const Rows rows = keys_of(tensor, strides, s);
    const int key = first_key(s, tile);
    if constexpr (kTileInPage) return rows.begin_of(page) + key % static_cast<int>(Rows::kPage) * strides.token;
    else return rows.row(key);
  }
  // Returns row `row` of the tile that begins there.
  __device__ const Cached* row(const Cached* begin, const void* tensor, const Strides& strides, const Segment& s,
                               int tile, int row) const {
    const int key = first_key(s, tile), inside = min(row, s.end - 1 - key);
    return kTileInPieces ? keys_of(tensor, strides, s).row(key + inside) : begin + inside * strides.token;
  }
  // Returns whether the row exists. Lists may have numbers of no row, which are replaced by zeros; tiles in a page that
  // does not exist are not visited.
  __device__ bool has_row(const Segment& s, int tile, int row) const {
    return !kChosen || kTileInPage || is_chosen(params, s.seq, min(first_key(s, tile) + row, s.end - 1));
  }
};
using TileRows = TileRowsIn<KeyRows<Cached>>;

// A tile in registers. K of the next tile is loaded when the scores of this one are computed, V when it has been
// multiplied.
struct RegisterTiles {
  TileRows where;
  uint4 keys[kKeyOctets][kKeyPieces], values[kKeyPairs][kValuePieces][4];

  __device__ RegisterTiles(const KernelParams& params, const TensorMaps*, unsigned char*) : where{params} {}

  // Lanes have rows at the same distances from their first ones, unless the tile is cut.
  template <bool cut>
  __device__ void load_key_rows(const Segment& s, int tile) {
    const KernelParams& p = where.params;
    const Cached* begin = where.tile_begin(p.k, p.k_stride, s, tile, where.page_of(s, tile));
    const Cached* first = begin + key_row_of(0) * p.k_stride.token;
#pragma unroll
    for (int octet = 0; octet < kKeyOctets; ++octet) {
      const Cached* row =
          cut ? where.row(begin, p.k, p.k_stride, s, tile, key_row_of(octet)) : first + octet * 8 * p.k_stride.token;
#pragma unroll
      for (int j = 0; j < kKeyPieces; ++j)
        keys[octet][j] = where.has_row(s, tile, key_row_of(octet)) ? load_once(key_piece_of(row + key_column(), j))
                                                                   : make_uint4(0, 0, 0, 0);
    }
  }
  template <bool cut>
  __device__ void load_value_rows(const Segment& s, int tile) {
    const KernelParams& p = where.params;
    const Cached* begin = where.tile_begin(p.v, p.v_stride, s, tile, where.page_of(s, tile));
    const Cached* first = begin + value_row_of(0, 0) * p.v_stride.token;
#pragma unroll
    for (int pair = 0; pair < kKeyPairs; ++pair)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const Cached* row = cut ? where.row(begin, p.v, p.v_stride, s, tile, value_row_of(pair, i))
                                : first + (pair * 16 + i / 2 * 8 + i % 2) * p.v_stride.token;
#pragma unroll
        for (int j = 0; j < kValuePieces; ++j)
          values[pair][j][i] = where.has_row(s, tile, value_row_of(pair, i))
                                   ? load_once(value_piece_of(row + value_column(), j))
                                   : make_uint4(0, 0, 0, 0);
      }
  }
  __device__ void load_keys(const Segment& s, int tile) {
    if (tile > s.last_tile) return;
    if (kTileInPieces || is_cut(s, tile)) load_key_rows<true>(s, tile);
    else load_key_rows<false>(s, tile);
  }
  __device__ void load_values(const Segment& s, int tile) {
    if (tile > s.last_tile) return;
    if (kTileInPieces || is_cut(s, tile)) load_value_rows<true>(s, tile);
    else load_value_rows<false>(s, tile);
  }

  __device__ void begin(const Segment& s, int first) {
    where.begin(first);
    load_keys(s, first);
    load_values(s, first);
  }
  __device__ uint4 key_piece(int octet, int j) const { return inside_key(keys[octet][j], j); }
  __device__ uint4 value_piece(int pair, int j, int i) const { return values[pair][j][i]; }
};

// A ring of tiles in shared memory. It has the members that both ways to fill the ring need, in this order: in another
// order some kernels have other instructions.
struct RingTiles {
  TileRows where;
  const TensorMaps* maps;
  u64 policy;          // L2 keeps what lanes copy by this policy.
  u32 ring, barriers;  // The addresses of this warp's ring and barriers.
  int ahead = -1;      // The next tile to copy.
  u32 stage = 0, parity = 0;

  __device__ RingTiles(const KernelParams& params, const TensorMaps* maps, unsigned char* shared)
      : where{params},
        maps(maps),
        policy(policy_of_rows(params)),
        ring(shared_address(shared) + warp_id() * kLayout.ring_bytes),
        barriers(shared_address(shared) + kLayout.barrier_offset + warp_id() * config.stages * 8) {}

  __device__ u32 keys() const { return ring + stage * kLayout.stage_bytes; }
  __device__ u32 values() const { return keys() + kLayout.k.bytes(); }
  // Returns the offset of 16 bytes in a panel.
  __device__ static u32 offset_of(int row, int chunk) { return row * kPanelWidth + ((chunk ^ (row & 7)) << 4); }

  __device__ void advance() {
    if (++stage < config.stages) return;
    stage = 0;
    parity ^= 1;
  }

  // Copies begin at the current slot of the ring: all copies of the segment before are done.
  template <class Ring>
  __device__ static void begin(Ring& ring, const Segment& s, int first) {
    ring.ahead = first;
    ring.where.begin(first);
    const u32 back_to = ring.stage;
#pragma unroll 1
    for (int i = 0; i < config.stages; ++i) {
      ring.copy_ahead(s);
      ring.stage = ring.stage + 1 < config.stages ? ring.stage + 1 : 0;
    }
    ring.stage = back_to;
  }
  __device__ uint4 key_piece(int octet, int j) const {
    return inside_key(
        load_shared(keys() + j / 2 * kLayout.k.panel_bytes() + offset_of(key_row_of(octet), j % 2 * 4 + lane_id() % 4)),
        j);
  }
  __device__ uint4 value_piece(int pair, int j, int i) const {
    return load_shared(values() + j * kLayout.v.panel_bytes() + offset_of(value_row_of(pair, i), lane_id() / 4));
  }
};

// A ring that TMA fills box by box.
struct BoxTiles : RingTiles {
  __device__ BoxTiles(const KernelParams& params, const TensorMaps* maps, unsigned char* shared)
      : RingTiles(params, maps, shared) {
    if (lane_id() < config.stages) init_barrier(barriers + lane_id() * 8, 1);
    publish_barriers();
    fence_async_proxy();
    __syncwarp();
  }

  // One lane starts the copies of all panels.
  __device__ void copy_boxes(const Segment& s) const {
    if (lane_id() != 0) return;
    const u32 barrier = barriers + stage * 8;
    arrive_expecting(barrier, kLayout.stage_bytes);
#pragma unroll
    for (int i = 0; i < kLayout.k.panels(); ++i)
      copy_keys(keys() + i * kLayout.k.panel_bytes(), maps->k, barrier, s.seq, i * kLayout.k.panel_columns(),
                ahead * kTileKv, kEvictFirst);
#pragma unroll
    for (int i = 0; i < kLayout.v.panels(); ++i)
      copy_keys(values() + i * kLayout.v.panel_bytes(), maps->v, barrier, s.seq, i * kLayout.v.panel_columns(),
                ahead * kTileKv, kEvictFirst);
  }
  // Copies the next tile to the current slot of the ring.
  __device__ void copy_ahead(const Segment& s) {
    if (ahead > s.last_tile) return;
    copy_boxes(s);
    ahead = next_of_warp(where.params, s, ahead);
  }
  __device__ void begin(const Segment& s, int first) { RingTiles::begin(*this, s, first); }
  __device__ void await() const { wait_barrier(barriers + stage * 8, parity); }
  // Boxes are copied whole, so this clears the rows of V from `first` on.
  __device__ void clear_hidden(int first) const {
    for (int i = lane_id(); i < kLayout.v.panels() * kTileKv * 8; i += 32) {
      const int row = i / 8 % kTileKv;
      if (row >= first)
        store_shared(values() + i / 8 / kTileKv * kLayout.v.panel_bytes() + offset_of(row, i % 8),
                     make_uint4(0, 0, 0, 0));
    }
    fence_async_proxy();
    __syncwarp();
  }
};

// A ring that all lanes fill, row after row. The first of many tiles come later than boxes do, but L2 gives whole rows
// faster than halves [M66].
struct RowTiles : RingTiles {
  __device__ RowTiles(const KernelParams& params, const TensorMaps* maps, unsigned char* shared)
      : RingTiles(params, maps, shared) {}

  // Lanes have neighbouring pieces of a row, and copy as many rows at a time as there are lanes for. Where the number
  // of a row's pieces is no power of two, some lanes have nothing to do.
  template <int head_dim>
  __device__ void copy_rows(u32 to, const void* tensor, const Strides& strides, const Segment& s, u32 page, int rows) {
    constexpr int kChunks = head_dim / kLaneColumns, kLanes = lanes_of_row(config, head_dim);
    constexpr int kRowsAtOnce = 32 / kLanes;
    const Cached* begin = where.tile_begin(tensor, strides, s, ahead, page);
    // Offsets in the tile are found anew for each tile: kept from tile to tile, they would take some thirty registers.
    const int lane = static_cast<int>(recompute(threadIdx.x) % 32), first = lane / kLanes, chunk = lane % kLanes;
    if (kChunks < kLanes && chunk >= kChunks) return;
    to += chunk / 8 * kLayout.k.panel_bytes();
    const int column = chunk * kLaneColumns;
    if constexpr (kTileInPieces) {
#pragma unroll 2
      for (int row = first; row < kTileKv; row += kRowsAtOnce)
        copy_once(to + offset_of(row, chunk % 8), where.row(begin, tensor, strides, s, ahead, row) + column, policy,
                  where.has_row(s, ahead, row));
    } else {
      // Tiles that are cut have no code of their own, because it would lie between a kernel's begin and its first
      // copies. The bits of the first row's number are none of the bits of a distance to another row.
      const u32 offset = offset_of(first, chunk % 8);
      const int left = rows - first;
      const Cached* from = begin + first * strides.token + column;
#pragma unroll
      for (int row = 0; row < kTileKv; row += kRowsAtOnce, from += kRowsAtOnce * strides.token)
        copy_once(to + (offset ^ (row & 7) << 4) + row * kPanelWidth, from, policy, row < left);
    }
  }

  // Copies the next tile to the current slot of the ring. It commits even where nothing is left to copy, because
  // waiting counts groups, and K and V have one group each.
  __device__ void copy_ahead(const Segment& s) {
    if (ahead <= s.last_tile) {
      const KernelParams& p = where.params;
      const u32 page = where.page_of(s, ahead);
      const int rows = where.rows_of(s, ahead);
      copy_rows<config.head_dim_qk>(keys(), p.k, p.k_stride, s, page, rows);
      commit_copies();
      copy_rows<config.head_dim_v>(values(), p.v, p.v_stride, s, page, rows);
      ahead = next_of_warp(where.params, s, ahead);
    } else {
      commit_copies();
    }
    commit_copies();
  }
  __device__ void begin(const Segment& s, int first) { RingTiles::begin(*this, s, first); }
  // V arrives later than K, and scores do not need it. If both were waited for together, a block with one tile for each
  // warp would take longer [M67].
  template <int pending>
  __device__ static void await_groups() {
    wait_copies<pending>();
    __syncwarp();
  }
};

constexpr int kTileGroups =
    // This number of groups is under way at once.
    has_ring(config) && config.decode.copies == Copies::rows ? 2 * config.stages : 0;
using RingOfTiles = Either<config.decode.copies == Copies::boxes, BoxTiles, RowTiles>::type;
using KvTiles = Either<has_ring(config), RingOfTiles, RegisterTiles>::type;

}  // namespace flashjit
