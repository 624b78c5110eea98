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
constexpr int kPanels = kPlaces.k.panels(), kHeldPanels = held_panels(config), kHeldQuads = quads_of_panel(config);
static_assert(2 * kQuad * kChunkBytes == kPanelWidth);
using RowElement = Either<is_scaled(config) || has_latent_rows(config), unsigned char, Stored>::type;

// Rows come in steps of so many of this block's, of which a thread has every eighth.
constexpr int kOwnRows = rows_of_block(config), kRowsOfThread = held_rows(config), kGroupRows = 8;
constexpr int kStepRows = kRowsOfThread * kGroupRows, kSteps = gather_steps(config);

// Scales are those of all keys, of each key, or of columns of a key.
constexpr bool kScalesColumns = has_latent_rows(config);
constexpr bool kScalesKeys = has_key_scales(config);
constexpr int kHeldScales = kScalesKeys ? kRowsOfThread : 1, kHeldColumnScales = kScalesColumns ? kRowsOfThread : 1;

// Each lane knows where some of this block's rows lie, in pieces behind the begin of K, and their scales.
constexpr int kRowWords = kOwnRows / 32, kTileWords = kMlaKeys / 32;
constexpr u32 kNoRow = ~0u;
struct FoundRows {
  u32 places[kRowWords];
  float scales[kScalesKeys ? kRowWords : 1];
  u32 seen[kTileWords];  // a bit for each key of the tile: its row is there
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

  uint4 held[kHeldPanels][kHeldQuads][kRowsOfThread] = {};
  float scales[kHeldScales] = {};
  uint4 column_scales[kHeldColumnScales] = {};
  FoundRows now = {}, next = {};  // of this tile and of the one behind it

  __device__ static int first_own_row() { return static_cast<int>(cluster_rank()) * kOwnRows; }
  __device__ static bool is_wide(int panel) { return panel >= kRow.narrow_panels; }
  __device__ static int first_piece(int panel) {
    return is_wide(panel) ? kRow.wide_at + (panel - kRow.narrow_panels) * 2 * kQuad : panel * kQuad;
  }
  __device__ static bool is_of_half(int panel, int half) {
    return panel < kPanels && (panel < kHalfPanels) == (half == 0);
  }
  // The row, of eight, that a thread has pieces of. Two rows whose pieces are stored at once have chunks in different banks.
  __device__ static int row_of(int thread) {
    const int group = thread % 32 / kQuad;
    return kRow.narrow_panels > 0 ? group : group / 2 + group % 2 * (kGroupRows / 2);
  }

  // Behind the last key that some query sees there is no row, whatever memory has; nor is there one for a number that a
  // query has chosen and K has not.
  __device__ void look_up(const Segment& s, int tile, FoundRows& found) const {
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
        found.seen[word] = __ballot_sync(0xffffffff, is_there);
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

  // Asks for the pieces of a step's rows. Zeros are read, too: to write them into registers would wait for all loads before.
  __device__ void fetch(const FoundRows& found, int step) {
    const int thread = gathering_thread(), warp = thread / 32, first = step * kStepRows + row_of(thread);
#pragma unroll
    for (int i = 0; i < kRowsOfThread; ++i) {
      const u32 place = of_row(found.places, first + i * kGroupRows);
      const uint4* row = place == kNoRow ? kZeros.pieces : static_cast<const uint4*>(params.k) + place;
#pragma unroll
      for (int j = 0; j < kHeldPanels; ++j) {
        const int panel = warp + j * kMlaGatherers;
        if (panel >= kPanels) continue;
        const uint4* pieces = row + first_piece(panel) + thread % kQuad;
        held[j][0][i] = __ldg(pieces);
        if (kHeldQuads > 1 && is_wide(panel)) held[j][kHeldQuads - 1][i] = __ldg(pieces + kQuad);
      }
      if constexpr (kScalesKeys) scales[i] = of_row(found.scales, first + i * kGroupRows);
      if constexpr (kScalesColumns) column_scales[i] = __ldg(row + kRow.scales_at);
    }
  }
  // Before the first tile of an item.
  __device__ void begin(const Segment& s, int tile) {
    look_up(s, tile, now);
    look_up(s, visible_tile(params, s, tile + 1), next);
    if constexpr (is_scaled(config) && !kScalesKeys)
      scales[0] = scale_of(params.scale_k, params.scale_k_stride, s.seq.b, s.seq.hk, 0);
    fetch(now, 0);
  }
  // Asks for the first step of the next tile, and finds the rows of the one behind.
  __device__ void fetch_next(const Segment& s, int behind) {
    fetch(next, 0);
    now = next;
    look_up(s, behind, next);
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
  __device__ float scale_of_panel(int i, int panel) const {
    if constexpr (!kScalesColumns) return scales[i % kHeldScales];
    const int number = panel / kRow.panels_of_scale;
    const uint4& four = column_scales[i % kHeldColumnScales];
    return __uint_as_float(number == 0 ? four.x : number == 1 ? four.y : number == 2 ? four.z : four.w);
  }
  // Leaves a half of a step where products find it.
  __device__ void gather(int half, int step) const {
    const int thread = gathering_thread(), warp = thread / 32, row = row_of(thread), piece = thread % kQuad;
    const u32 first_row = shared.k(turn.stage()) + (first_own_row() + step * kStepRows + row) * kPanelWidth;
#pragma unroll
    for (int j = 0; j < kHeldPanels; ++j) {
      const int panel = warp + j * kMlaGatherers;
      if (!is_of_half(panel, half)) continue;
      const u32 of_panel = first_row + panel * kPanelBytes;
      const u32 narrow = (2 * piece ^ row) * kChunkBytes, wide = (piece ^ row) * kChunkBytes;
#pragma unroll
      for (int i = 0; i < kRowsOfThread; ++i) {
        const uint4& bytes = held[j][0][i];
        const u32 of_row = of_panel + i * kGroupRows * kPanelWidth;
        if (is_wide(panel)) {
          store_shared(of_row + wide, bytes);
          store_shared(of_row + (wide ^ kQuad * kChunkBytes), held[j][kHeldQuads - 1][i]);
        } else {
          const float scale = scale_of_panel(i, panel);
          store_shared(of_row + narrow, widen({bytes.x, bytes.y}, scale));
          store_shared(of_row + (narrow ^ kChunkBytes), widen({bytes.z, bytes.w}, scale));
        }
      }
    }
  }
  // All steps of a tile but the last one.
  __device__ void gather_first_steps() {
#pragma unroll 1
    for (int step = 0; step + 1 < kSteps; ++step) {
#pragma unroll
      for (int half = 0; half < kMlaConsumers; ++half) gather(half, step);
      fetch(now, step + 1);
    }
  }

  // Calls the rows of the next tile from memory to L2.
  __device__ void prefetch_rows() const {
    constexpr int kLines = (kRow.pieces * kPieceBytes + kLineBytes - 1) / kLineBytes;
#pragma unroll
    for (int word = 0; word < kRowWords; ++word) {
      const u32 place = next.places[word];
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
  // one; the first warp tells how much comes from there, and which keys are seen.
  __device__ void complete_half(int half) const {
    const int thread = gathering_thread(), lane = thread % 32, stage = static_cast<int>(turn.stage());
    if constexpr (kCluster > 1) {
      const int panel = thread / 32 + lane * kMlaGatherers;
      if (lane < kHeldPanels && is_of_half(panel, half)) {
        fence_async_proxy();
        const u32 from = shared.k(stage) + panel * kPanelBytes + first_own_row() * kPanelWidth;
        const u32 barrier = shared.full(stage, min(panel / kPiecePanels, kMlaPieces - 1));
        copy_to_block(cluster_rank() ^ 1, from, from, kOwnRows * kPanelWidth, barrier);
      }
    }
    if (kChosen && thread == 0 && half == 0) shared.seen(stage) = make_uint2(now.seen[0], now.seen[1]);
    if (lane >= kHalfPieces) return;
    const int piece = half * kHalfPieces + lane;
    const u32 barrier = shared.full(stage, piece);
    if (kCluster == 1 || thread >= 32) return arrive(barrier);
    const int panels = panels_before(piece + 1) - panels_before(piece);
    arrive_expecting(barrier, panels * (kMlaKeys - kOwnRows) * kPanelWidth);
  }
};

}  // namespace flashjit
