// The vocabulary of the warps that gather K, where TMA cannot: rows that queries have chosen one by one, and rows of 8 bits,
// which become those of products with their scales. Its lines stand in loop.gen.cuh. A thread holds the pieces of rows that
// come next, so that it waits for memory beside its own work and that of the warps which compute. Blocks of a cluster have a
// part of the rows each, and send them to each other.
#pragma once

#include "templates/cache_elements.cuh"
#include "templates/mla/producer.cuh"

namespace flashjit {

// A piece of a row in memory is 16 bytes. Four neighbouring pieces are a row of a panel once they are widened, and half of
// one if they have 16 bits already. A warp has a panel of eight rows at a time, and every third panel.
constexpr GatheredRow kRow = gathered_row(config);
constexpr int kGatherThreads = kMlaGatherers * 32, kPieceBytes = 16, kQuad = 4;
constexpr int kPanels = kPlaces.k.panels();
constexpr int kPanelsOfHalf = (kPanels - kHalfPanels + kMlaGatherers - 1) / kMlaGatherers;  // of a warp, at most
constexpr bool kHoldsRows = holds_rows(config), kCopiesRows = kRow.wide_panels > 0;
static_assert(2 * kQuad * kChunkBytes == kPanelWidth);
using RowElement = Either<is_scaled(config) || has_latent_rows(config), unsigned char, Stored>::type;

// Rows come in steps of so many of this block's, of which a thread has every eighth.
constexpr int kOwnRows = rows_of_block(config), kGroupRows = 8;
constexpr int kRowsOfThread = kHoldsRows && kCluster == 1 ? 2 : 4;  // where a block has all rows registers are short
constexpr int kStepRows = kRowsOfThread * kGroupRows, kSteps = kOwnRows / kStepRows;

// Scales are those of all keys, of each key, or of columns of a key.
constexpr bool kScalesColumns = has_latent_rows(config);
constexpr bool kScalesKeys = has_key_scales(config);
constexpr int kScaledRows = kScalesKeys || kScalesColumns ? kRowsOfThread : 1;

// Each lane knows where some of this block's rows lie, in pieces behind the begin of K, and their scales.
constexpr int kRowWords = kOwnRows / 32;
// Numbers of rows that queries have chosen are asked for some tiles before they are looked up, a line of memory at a time.
constexpr int kTilesOfNumbers = 3, kNumbersOfLine = kLineBytes / 4;
constexpr u32 kNoRow = ~0u;
struct FoundRows {
  u32 places[kRowWords];
  float scales[kScalesKeys ? kRowWords : 1];
};

// A row that is not there.
struct ZeroRow {
  uint4 pieces[kRow.pieces];
};
__device__ const ZeroRow kZeros = {};

__device__ inline int gathering_thread() { return static_cast<int>(recompute(threadIdx.x)); }

struct GathererState {
  const KernelParams& params;
  const SharedMemory& shared;
  Turn turn = {};

  // These are pieces of a half's panels, and the scales of their rows.
  uint4 held[kHoldsRows ? kPanelsOfHalf : 1][kRowsOfThread] = {};
  float scales[kScalesColumns ? kPanelsOfHalf : 1][kScaledRows] = {};
  FoundRows now = {}, next = {}, later = {};  // of this tile and of the two behind it

  __device__ static int first_own_row() { return static_cast<int>(cluster_rank()) * kOwnRows; }
  __device__ static bool is_wide(int panel) {
    if constexpr (kRow.wide_panels == 0) return false;
    else return kRow.narrow_panels == 0 || panel >= kRow.narrow_panels;
  }
  // The first panel of a half that a warp has, and the end of the half. A warp has every third panel of all.
  __device__ static int first_panel(int half, int warp) {
    return half == 0 ? warp : kHalfPanels + (warp + kMlaGatherers - kHalfPanels % kMlaGatherers) % kMlaGatherers;
  }
  __device__ static int end_panel(int half) { return half == 0 ? kHalfPanels : kPanels; }
  // The row, of eight, that a thread has pieces of. Two rows whose pieces are stored at once have chunks in different banks.
  __device__ static int row_of(int thread) {
    const int group = thread % 32 / kQuad;
    return kRow.narrow_panels > 0 ? group : group / 2 + group % 2 * (kGroupRows / 2);
  }

  // Behind the last key that some query sees there is no row, whatever memory has; nor is there one for a number that a
  // query has chosen and K has not.
  __device__ void look_up(const Segment& s, int tile, FoundRows& found, u32 ahead) const {
    const auto* first = static_cast<const RowElement*>(params.k) + key_begin(params.k_stride, s.seq);
    const KeyRows<RowElement> rows = key_rows(params, params.k_stride, first, s.seq);
    const int lane = gathering_thread() % 32;
#pragma unroll
    for (int word = 0; word < kTileWords; ++word) {
      const bool is_own = kRowWords == kTileWords || word == static_cast<int>(cluster_rank());
      if (!kChosen && !is_own) continue;
      const int key = tile * kTileKv + word * 32 + lane, of_block = kRowWords == kTileWords ? word : 0;
      bool is_there = tile <= s.last_tile && key < s.end;
      if constexpr (kChosen) {
        is_there = is_there && rows.has_row(key);
        const u32 seen = __ballot_sync(0xffffffff, is_there);
        if (gathering_thread() == 0) shared.seen(turn.count + ahead)[word] = seen;
        if (!is_own) continue;
      }
      found.places[of_block] = kNoRow;
      if (!is_there) continue;
      const auto* row = reinterpret_cast<const char*>(rows.row(key));
      found.places[of_block] = static_cast<u32>((row - static_cast<const char*>(params.k)) / kPieceBytes);
      if constexpr (kScalesKeys)
        found.scales[of_block] = key_scale(params, params.scale_k, params.scale_k_stride, s.seq, key);
    }
  }
  template <class T>
  __device__ static T of_row(const T* of_lanes, int row) {
    T value = __shfl_sync(0xffffffff, of_lanes[0], row % 32);
    if constexpr (kRowWords > 1) {
      const T other = __shfl_sync(0xffffffff, of_lanes[1], row % 32);
      value = row < 32 ? value : other;
    }
    return value;
  }

  // Asks for the narrow pieces of a half of a step's rows. Zeros are read, too: to write them into registers would wait for
  // all loads before.
  __device__ void fetch(int half, const FoundRows& found, int step) {
    if constexpr (!kHoldsRows) return;
    const int thread = gathering_thread(), first = step * kStepRows + row_of(thread);
    const int first_of_half = first_panel(half, thread / 32), end = min(end_panel(half), kRow.narrow_panels);
#pragma unroll
    for (int i = 0; i < kRowsOfThread; ++i) {
      const u32 place = of_row(found.places, first + i * kGroupRows);
      const uint4* row = place == kNoRow ? kZeros.pieces : static_cast<const uint4*>(params.k) + place;
      const uint4* pieces = row + first_of_half * kQuad + thread % kQuad;
#pragma unroll
      for (int j = 0; j < kPanelsOfHalf; ++j) {
        const int panel = first_of_half + j * kMlaGatherers;
        if (panel >= end) continue;
        held[j % (kHoldsRows ? kPanelsOfHalf : 1)][i] = __ldg(pieces + j * kMlaGatherers * kQuad);
        if constexpr (kScalesColumns) {
          const auto* of_columns = reinterpret_cast<const float*>(row + kRow.scales_at);
          scales[j][i] = __ldg(of_columns + panel / kRow.panels_of_scale);
        }
      }
      if constexpr (kScalesKeys) scales[0][i] = of_row(found.scales, first + i * kGroupRows);
    }
  }
  // Before the first tile of an item.
  __device__ void begin(const Segment& s, int tile) {
    look_up(s, tile, now, 0);
    look_up(s, visible_tile(params, s, tile + 1), next, 1);
    prefetch(next);
    if constexpr (is_scaled(config) && !kScalesKeys)
      scales[0][0] = scale_of(params.scale_k, params.scale_k_stride, s.seq.b, s.seq.hk, 0);
    fetch(0, now, 0);
  }
  __device__ void fetch_last_half() { fetch(kMlaConsumers - 1, now, 0); }
  // Finds the rows of the tile behind the next one and calls them from memory to L2, while pieces are on their way.
  __device__ void look_ahead(const Segment& s, int behind) {
    if constexpr (kChosen && !kHoldsRows) prefetch_numbers(s, behind + kTilesOfNumbers);
    look_up(s, behind, later, 2);
    prefetch(later);
  }
  __device__ void prefetch_numbers(const Segment& s, int tile) const {
    const int place = tile * kTileKv + gathering_thread() * kNumbersOfLine;
    if (gathering_thread() < kTileKv / kNumbersOfLine && place < s.end)
      prefetch_line(chosen_list(params, s.seq) + place);
  }
  __device__ void fetch_next() {
    fetch(0, next, 0);
    now = next, next = later;
  }

  // A narrow piece makes two of shared memory, which are neighbours there but for the swizzle.
  __device__ static uint4 widen(uint2 bytes, float scale) {
    constexpr Narrow kNarrow = has_latent_rows(config) ? Narrow::e4m3 : config.cache;
    const HalfPairs first = halves_of<kNarrow>(bytes.x), second = halves_of<kNarrow>(bytes.y);
    const auto scaled = [scale](u32 halves) {
      return pack<config.element>(float_from_f16(static_cast<u16>(halves)) * scale,
                                  float_from_f16(static_cast<u16>(halves >> 16)) * scale);
    };
    return {scaled(first.low), scaled(first.high), scaled(second.low), scaled(second.high)};
  }
  // Leaves a half of a tile where products find it: narrow panels that this thread holds, step by step, ...
  __device__ void gather(int half) {
    if constexpr (kCopiesRows) copy_rows(half);
#pragma unroll 1
    for (int step = 0; step + 1 < kSteps; ++step) {
      store(half, step);
      fetch(half, now, step + 1);
    }
    store(half, kSteps - 1);
    if (kCopiesRows && half == kMlaConsumers - 1) wait_copies<0>();
  }
  __device__ void store(int half, int step) const {
    const int thread = gathering_thread(), row = row_of(thread);
    const int first_of_half = first_panel(half, thread / 32), end = min(end_panel(half), kRow.narrow_panels);
    const u32 first_row = shared.k(turn.stage()) + (first_own_row() + step * kStepRows + row) * kPanelWidth;
    const u32 chunk = (2 * (thread % kQuad) ^ row) * kChunkBytes;
    // Row by row: ptxas widens whatever has no branch between at once, which there are no registers for.
#pragma unroll
    for (int i = 0; i < kRowsOfThread; ++i) {
#pragma unroll
      for (int j = 0; j < (kHoldsRows ? kPanelsOfHalf : 0); ++j) {
        const int panel = first_of_half + j * kMlaGatherers;
        if (panel >= end) break;
        const uint4& bytes = held[j][i];
        const float scale = scales[kScalesColumns ? j : 0][i % kScaledRows];
        const u32 to = first_row + panel * kPanelBytes + i * kGroupRows * kPanelWidth + chunk;
        store_shared(to, widen({bytes.x, bytes.y}, scale));
        store_shared(to ^ kChunkBytes, widen({bytes.z, bytes.w}, scale));
      }
    }
  }
  // ... and wide ones, which come from memory by themselves. Zeros stand for rows that are not there.
  __device__ void copy_rows(int half) const {
    const int thread = gathering_thread(), row = row_of(thread);
    const int first_of_half = first_panel(half, thread / 32);
    const u32 first_row = shared.k(turn.stage()) + (first_own_row() + row) * kPanelWidth;
    const u32 chunk = (thread % kQuad ^ row) * kChunkBytes;
#pragma unroll
    for (int i = 0; i < kSteps * kRowsOfThread; ++i) {
      const u32 place = of_row(now.places, i * kGroupRows + row);
      const bool is_there = place != kNoRow;
      const uint4* from = static_cast<const uint4*>(params.k) + (is_there ? place : 0) + kRow.wide_at + thread % kQuad;
#pragma unroll
      for (int j = 0; j < kPanelsOfHalf; ++j) {
        const int panel = first_of_half + j * kMlaGatherers;
        if (panel >= end_panel(half) || !is_wide(panel)) continue;
        const u32 to = first_row + i * kGroupRows * kPanelWidth + panel * kPanelBytes;
        const uint4* pieces = from + (panel - kRow.narrow_panels) * 2 * kQuad;
        copy_async<kPieceBytes>(to + chunk, pieces, is_there);
        copy_async<kPieceBytes>(to + (chunk ^ kQuad * kChunkBytes), pieces + kQuad, is_there);
      }
    }
    commit_copies();
  }
  __device__ static void await_first_half() { wait_copies<1>(); }
  __device__ static void await_last_half() { wait_copies<0>(); }

  __device__ void prefetch(const FoundRows& found) const {
    constexpr int kLines = (kRow.pieces * kPieceBytes + kLineBytes - 1) / kLineBytes;
#pragma unroll
    for (int word = 0; word < kRowWords; ++word) {
      const u32 place = found.places[word];
      const char* row = static_cast<const char*>(params.k) + static_cast<Int64>(place) * kPieceBytes;
      if (place == kNoRow) continue;
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
    const int thread = gathering_thread(), lane = thread % 32, stage = static_cast<int>(turn.stage());
    if constexpr (kCluster > 1) {
      const int panel = first_panel(half, thread / 32) + lane * kMlaGatherers;
      if (panel < end_panel(half)) {
        fence_async_proxy();
        const u32 from = shared.k(stage) + panel * kPanelBytes + first_own_row() * kPanelWidth;
        const u32 barrier = shared.full(stage, min(panel / kPiecePanels, kMlaPieces - 1));
        copy_to_block(cluster_rank() ^ 1, from, from, kOwnRows * kPanelWidth, barrier);
      }
    }
    if (lane >= kHalfPieces) return;
    const int piece = half * kHalfPieces + lane;
    const u32 barrier = shared.full(stage, piece);
    if (kCluster == 1 || thread >= 32) return arrive(barrier);
    const int panels = panels_before(piece + 1) - panels_before(piece);
    arrive_expecting(barrier, panels * (kMlaKeys - kOwnRows) * kPanelWidth);
  }
};

}  // namespace flashjit
