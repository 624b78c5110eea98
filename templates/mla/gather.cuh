// The vocabulary of the warps that gather K: where rows of a tile have elements of 8 bits, which become those of products
// with their scales. Its lines stand in loop.gen.cuh. A thread holds the pieces of the half of a tile that comes next while
// it widens those of this one, so that it waits for memory beside its own work. Blocks of a cluster have a part of the rows
// each, and leave them in all of them.
#pragma once

#include "templates/cache_elements.cuh"
#include "templates/mla/producer.cuh"

namespace flashjit {

constexpr int kGatherThreads = kMlaGatherers * 32;

// A piece of a row in memory is 16 bytes. A warp has the same four of eight rows at a time: what eight neighbouring threads
// store then lies in different banks, as two rows have chunks of different parity.
constexpr int kGatheredBytes = 16, kGatheredColumns = kGatheredBytes / cache_bytes(config), kQuad = 4;
// Rows come in steps of so many of this block's, of which a thread has every eighth.
constexpr int kOwnRows = rows_of_block(config), kStepRows = kCluster > 1 ? 32 : 16, kRowSteps = kOwnRows / kStepRows;
constexpr int kRowsOfThread = kStepRows / kSwizzledRows;
constexpr int kHeldScales = has_key_scales(config) ? kRowsOfThread : 1;  // else all rows share one

// The quads of pieces of a row, of which a warp has every third: a quad that is widened is a row of a panel. The columns
// behind V come with the last half.
constexpr int kQuadsOfHalf = half_columns(config) / (kQuad * kGatheredColumns);
constexpr int kQuadsOfRow = config.head_dim_qk / (kQuad * kGatheredColumns);
constexpr int kHeldQuads = (kQuadsOfRow + kMlaGatherers - 1) / kMlaGatherers;
static_assert(2 * kQuad * kChunkBytes == kPanelWidth && kQuadsOfHalf == kHalfPanels);

__device__ inline int gathering_thread() { return static_cast<int>(recompute(threadIdx.x)); }
// Each lane knows where some of this block's rows lie: in pieces behind the begin of K.
constexpr int kRowWords = kOwnRows / 32;
constexpr u32 kNoRow = ~0u;
using RowPlaces = u32[kRowWords];

// A row that is not there.
struct ZeroRow {
  uint4 pieces[kQuadsOfRow * kQuad];
};
__device__ const ZeroRow kZeros = {};

struct GathererState {
  const KernelParams& params;
  const SharedMemory& shared;
  Turn turn = {};

  uint4 held[kHeldQuads][kRowsOfThread] = {};
  float scales[kHeldScales] = {};
  RowPlaces now = {}, next = {};  // of this tile and of the one behind it

  __device__ static int first_own_row() { return static_cast<int>(cluster_rank()) * kOwnRows; }
  // Has this warp the quad, and is it of that half?
  __device__ static bool is_of_half(int quad, int half) {
    return half == 0 ? quad < kQuadsOfHalf : quad >= kQuadsOfHalf && quad < kQuadsOfRow;
  }

  // Behind the last key that some query sees there is no row, whatever memory has.
  __device__ void look_up(const Segment& s, int tile, RowPlaces& places) const {
    const Cached* first = static_cast<const Cached*>(params.k) + key_begin(params.k_stride, s.seq);
    const KeyRows<Cached> rows = key_rows(params, params.k_stride, first, s.seq);
#pragma unroll
    for (int i = 0; i < kRowWords; ++i) {
      const int key = tile * kTileKv + first_own_row() + i * 32 + gathering_thread() % 32;
      places[i] = kNoRow;
      if (tile <= s.last_tile && key < s.end)
        places[i] = static_cast<u32>((rows.row(key) - static_cast<const Cached*>(params.k)) / kGatheredColumns);
    }
  }
  __device__ static u32 place_of(const RowPlaces& places, int row) {
    u32 place = __shfl_sync(0xffffffff, places[0], row % 32);
    if constexpr (kRowWords > 1) {
      const u32 other = __shfl_sync(0xffffffff, places[1], row % 32);
      place = row < 32 ? place : other;
    }
    return place;
  }

  // Asks for the pieces of a step's rows. Zeros are read, too: to write them into registers would wait for all loads before.
  __device__ void fetch(const RowPlaces& places, int step) {
    const int thread = gathering_thread(), warp = thread / 32;
#pragma unroll
    for (int i = 0; i < kRowsOfThread; ++i) {
      const u32 place = place_of(places, step * kStepRows + i * kSwizzledRows + thread % 32 / kQuad);
      const uint4* row = place == kNoRow ? kZeros.pieces : static_cast<const uint4*>(params.k) + place;
      row += warp * kQuad + thread % kQuad;
#pragma unroll
      for (int j = 0; j < kHeldQuads; ++j) {
        if (warp + j * kMlaGatherers < kQuadsOfRow) held[j][i] = __ldg(row + j * kMlaGatherers * kQuad);
      }
    }
  }
  // The first tile of an item is on its way, and the rows of the next ones are found.
  __device__ void begin(const Segment& s, int tile) {
    look_up(s, tile, now);
    look_up(s, visible_tile(params, s, tile + 1), next);
    scales[0] = scale_of(params.scale_k, params.scale_k_stride, s.seq.b, s.seq.hk, 0);
    fetch(now, 0);
  }
  // Asks for the first step of the next tile, and finds the rows of the one behind.
  __device__ void fetch_next(const Segment& s, int behind) {
    fetch(next, 0);
#pragma unroll
    for (int i = 0; i < kRowWords; ++i) now[i] = next[i];
    look_up(s, behind, next);
  }

  // A piece makes two of shared memory, which are neighbours there but for the swizzle.
  __device__ static uint4 widen(uint2 bytes, float scale) {
    const HalfPairs first = halves_of<config.cache>(bytes.x), second = halves_of<config.cache>(bytes.y);
    const auto scaled = [scale](u32 halves) {
      return pack<config.element>(float_from_f16(static_cast<u16>(halves)) * scale,
                                  float_from_f16(static_cast<u16>(halves >> 16)) * scale);
    };
    return {scaled(first.low), scaled(first.high), scaled(second.low), scaled(second.high)};
  }
  // Leaves a half of a step where products find it.
  __device__ void gather(int half, int step) const {
    const int thread = gathering_thread(), warp = thread / 32, row = thread % 32 / kQuad;
    const u32 chunk = (2 * (thread % kQuad) ^ row) * kChunkBytes;
    const u32 first_row = shared.k(turn.stage()) + (first_own_row() + step * kStepRows + row) * kPanelWidth;
#pragma unroll
    for (int j = 0; j < kHeldQuads; ++j) {
      if (!is_of_half(warp + j * kMlaGatherers, half)) continue;
#pragma unroll
      for (int i = 0; i < kRowsOfThread; ++i) {
        const uint4& bytes = held[j][i];
        const float scale = scales[i % kHeldScales];
        const u32 to = first_row + (warp + j * kMlaGatherers) * kPanelBytes + i * kSwizzledRows * kPanelWidth;
        store_shared(to + chunk, widen({bytes.x, bytes.y}, scale));
        store_shared(to + (chunk ^ kChunkBytes), widen({bytes.z, bytes.w}, scale));
      }
    }
  }
  // All steps of a tile but the last one: there is one alone where blocks of a cluster share the rows.
  __device__ void gather_first_steps() {
#pragma unroll 1
    for (int step = 0; step + 1 < kRowSteps; ++step) {
#pragma unroll
      for (int half = 0; half < kMlaConsumers; ++half) gather(half, step);
      fetch(now, step + 1);
    }
  }

  // Calls the rows of the next tile from memory to L2.
  __device__ void prefetch_rows() const {
    constexpr int kLines = (config.head_dim_qk * cache_bytes(config) + kLineBytes - 1) / kLineBytes;
#pragma unroll
    for (int i = 0; i < kRowWords; ++i) {
      const char* row = static_cast<const char*>(params.k) + static_cast<Int64>(next[i]) * kGatheredBytes;
      if (next[i] == kNoRow) continue;
#pragma unroll
      for (int first = 0; first < kLines; first += kMlaGatherers) {
        const int line = first + gathering_thread() / 32;
        if (line < kLines) prefetch_line(row + line * kLineBytes);
      }
    }
  }

  // This warp has left its share of a half. The other block of a cluster gets it from here, a panel by each lane that has
  // one; the first warp tells how much comes from there.
  __device__ void complete_half(int half) const {
    const int thread = gathering_thread(), lane = thread % 32, panel = thread / 32 + lane * kMlaGatherers;
    if constexpr (kCluster > 1) {
      if (lane < kHeldQuads && is_of_half(panel, half)) {
        fence_async_proxy();
        const u32 from = shared.k(turn.stage()) + panel * kPanelBytes + first_own_row() * kPanelWidth;
        const u32 barrier = shared.full(turn.stage(), min(panel / kPiecePanels, kMlaPieces - 1));
        copy_to_block(cluster_rank() ^ 1, from, from, kOwnRows * kPanelWidth, barrier);
      }
    }
    if (lane >= kHalfPieces) return;
    const int piece = half * kHalfPieces + lane;
    const u32 barrier = shared.full(turn.stage(), piece);
    if (kCluster == 1 || thread >= 32) return arrive(barrier);
    const int panels = panels_before(piece + 1) - panels_before(piece);
    arrive_expecting(barrier, panels * (kMlaKeys - kOwnRows) * kPanelWidth);
  }
};

}  // namespace flashjit
