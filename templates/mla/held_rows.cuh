// The vocabulary of warps that gather rows of 8 bits; its lines stand in loop.gen.cuh. A thread holds pieces of rows
// until their slot is empty, so that it waits for memory while other warps compute. It widens the pieces on their way
// to the slot. Blocks of a cluster have half of the rows each, and send them to each other.
#pragma once

#include "templates/cache_elements.cuh"
#include "templates/mla/find_rows.cuh"

namespace flashjit {

// A warp has eight rows at a time, and four lanes have neighbouring pieces of each. A thread holds two parts of a tile:
// both halves of V for such rows, or one half of V for twice as many rows.
constexpr int kStepRows = 8, kSteps = kRowsOfWarp / kStepRows, kHeldParts = 2;
static_assert(kSteps <= 2 && kMlaConsumers == 2);

// The last panel may have 16 bits in memory already. Where registers are few, its pieces are loaded when others have
// been stored.
constexpr bool kTailIsWide = kRow.wide_panels > 0;
constexpr int kTailPieces = kTailIsWide ? 2 : 1;
constexpr int kTail = kPanels - 1;
static_assert(kRow.wide_panels <= 1 && kRow.narrow_panels + kRow.wide_panels == kPanels);
constexpr int kPartPanels = larger(held_panels(config, 0), held_panels(config, 1));
static_assert(kPartPanels <= kMostHeldPanels);
__device__ constexpr bool is_held(int half, int j) {
  constexpr bool kAlike = held_panels(config, 0) == held_panels(config, 1);
  return kAlike || j < held_panels(config, half);
}

// One scale belongs to all keys, to each key, or to columns of a key. Scales of columns come with the parts of a row if
// they lie in it.
constexpr bool kScalesColumns = has_latent_rows(config);
constexpr bool kScalesInRow = kScalesColumns && !kScalesBehind;
static_assert(!kScalesInRow || (kLatents.scale == LatentScale::number && kHalfPanels == 2 * kRow.panels_of_scale));
static_assert(!kScalesBehind || kRow.panels_of_scale == 1);

struct GathererState : RowFinder {
  struct Part {
    uint4 pieces[kPartPanels];
    float2 scales;
  };
  Part held[kHeldParts] = {};
  uint4 tails[kSteps][kTailPieces] = {};
  __device__ static int held_index(int half, int step) { return kSteps == 1 ? half : step; }

  __device__ static int row_of_lane() { return gathering_lane() / kQuad; }
  __device__ static int piece_of_lane() { return gathering_lane() % kQuad; }

  // Loads a piece of each panel of a half of the row.
  __device__ void fetch(int half, int step, const uint4* row) {
    Part& to = held[held_index(half, step)];
    const uint4* pieces = row + half * kHalfPanels * kQuad + piece_of_lane();
#pragma unroll
    for (int j = 0; j < kPartPanels; ++j)
      if (is_held(half, j)) to.pieces[j] = load_early(pieces + j * kQuad);
    if constexpr (kScalesInRow) to.scales = __ldg(reinterpret_cast<const float2*>(row + kRow.scales_at) + half);
  }
  __device__ void fetch_tail(int step, const uint4* row) {
    const uint4* pieces = row + (kTailIsWide ? kRow.wide_at : kTail * kQuad) + kTailPieces * piece_of_lane();
#pragma unroll
    for (int i = 0; i < kTailPieces; ++i) tails[step][i] = load_early(pieces + i);
  }
  // Returns the row of this lane in a step.
  __device__ const uint4* row_of_step(int step) const { return begin_of(step * kStepRows + row_of_lane()); }
  __device__ void fetch_half(int half) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) fetch(half, step, row_of_step(step));
  }
  __device__ void fetch_tails() {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) fetch_tail(step, row_of_step(step));
  }
  __device__ void fetch_rows() {
    if constexpr (kSteps > 1) return fetch_half(0);
    const uint4* row = row_of_step(0);
    fetch(0, 0, row);
    fetch(1, 0, row);
    fetch_tail(0, row);
  }

  // Prepares the first tile of an item: finds where its rows lie, and loads them.
  __device__ void begin(const Segment& s, int tile) {
    if constexpr (is_scaled(config) && !kScalesKeys)
      scale = next_scale = scale_of(params.scale_k, params.scale_k_stride, s.seq.b, s.seq.hk, 0);
    find_first_rows(s, tile);
  }

  // Widens a narrow piece. It becomes two pieces of shared memory, which are neighbours there but for the swizzle.
  __device__ static uint4 widen(u32 low, u32 high, float scale) {
    constexpr Narrow kNarrow = has_latent_rows(config) ? Narrow::e4m3 : config.cache;
    const HalfPairs first = halves_of<kNarrow>(low), second = halves_of<kNarrow>(high);
    const auto scaled = [scale](u32 halves) {
      return pack<config.element>(float_from_f16(static_cast<u16>(halves)) * scale,
                                  float_from_f16(static_cast<u16>(halves >> 16)) * scale);
    };
    return {scaled(first.low), scaled(first.high), scaled(second.low), scaled(second.high)};
  }
  __device__ static void store_widened(u32 to, const uint4& bytes, float scale) {
    store_shared(to, widen(bytes.x, bytes.y, scale));
    store_shared(to ^ kChunkBytes, widen(bytes.z, bytes.w, scale));
  }

  // Stores a half of the warp's rows where products find it. The last panel goes with the last half.
  __device__ void gather(int half) {
    store(half, 0);
    if (half == 1 && kSteps > 1) fetch_tails();
    if constexpr (kSteps > 1) store(half, 1);
    if (half == 1) store_tails();
  }
  // Returns where pieces of a row of the tile lie in the first panel.
  __device__ u32 first_chunk(int panel, int step) const {
    const int lane = gathering_lane(), row = lane / kQuad, piece = lane % kQuad;
    return shared.k(turn.stage()) + panel * kPanelBytes + (own_row() + step * kStepRows + row) * kPanelWidth +
           (2 * piece ^ row) * kChunkBytes;
  }
  __device__ float scale_of_key(int step) const {
    return kScalesKeys ? __shfl_sync(0xffffffff, scale, step * kStepRows + row_of_lane()) : scale;
  }
  // Returns the scales of a part's columns, a byte for each panel.
  __device__ u32 exponents_of_row(int half, int step) const {
    if constexpr (!kScalesBehind) return 0;
    return __shfl_sync(0xffffffff, half == 0 ? exponents.x : exponents.y, step * kStepRows + row_of_lane());
  }
  // This is never true, but ptxas does not know that. Without the branch it widens all panels at once, for which
  // registers do not suffice. Where blocks have all rows, registers do not even suffice for two panels.
  __device__ bool is_over(int piece) const { return turn.count == ~static_cast<u32>(piece); }
  __device__ void store(int half, int step) const {
    const Part& from = held[held_index(half, step)];
    const u32 first = first_chunk(half * kHalfPanels, step);
    const float of_key = scale_of_key(step);
    const u32 of_panels = exponents_of_row(half, step);
#pragma unroll
    for (int j = 0; j < kPartPanels; ++j) {
      if (!is_held(half, j)) continue;
      const float in_row = j < kRow.panels_of_scale ? from.scales.x : from.scales.y;
      const float behind = __uint_as_float(latent_scale_bits(static_cast<unsigned char>(of_panels >> 8 * j)));
      store_widened(first + j * kPanelBytes, from.pieces[j], kScalesBehind ? behind : kScalesInRow ? in_row : of_key);
      if ((kSteps > 1 || j % 2 != 0) && is_over(step * kHalfPanels + j)) return;
    }
  }
  __device__ void store_tails() const {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const u32 to = first_chunk(kTail, step);
      if constexpr (kTailIsWide) {
        store_shared(to, tails[step][0]);
        store_shared(to ^ kChunkBytes, tails[step][kTailPieces - 1]);
      } else {
        store_widened(to, tails[step][0], scale_of_key(step));
      }
    }
  }

  // Sends the panels of a half to the other block of a cluster. One lane copies all of them, because ptxas then knows
  // that addresses belong to a whole warp; where each lane had a panel, a copy took 100 clocks.
  __device__ void send_half(int half) const {
    const u32 stage = turn.stage(), other = cluster_rank() ^ 1;
    const u32 from = uniform(static_cast<int>(shared.k(stage) + own_row() * kPanelWidth));
    const u32 barrier = uniform(static_cast<int>(shared.full(stage, 0)));
    if (!is_elected()) return;
#pragma unroll
    for (int panel = panels_before(half * kHalfPieces); panel < panels_before((half + 1) * kHalfPieces); ++panel) {
      const u32 rows = from + panel * kPanelBytes;
      const int piece = min(panel / kPiecePanels, kMlaPieces - 1);
      copy_to_block(other, rows, rows, kRowsOfWarp * kPanelWidth, barrier + piece * 8);
    }
  }
  // This warp has stored its rows of a half. The other block sends as many.
  __device__ void complete_half(int half) const {
    if constexpr (kCluster > 1) send_half(half);
    const int lane = gathering_lane(), stage = static_cast<int>(turn.stage()), first = half * kHalfPieces;
    if (lane >= kHalfPieces) return;
    const int piece = first + lane, sent = panels_before(piece + 1) - panels_before(piece);
    const u32 barrier = shared.full(stage, piece);
    if constexpr (kCluster > 1) arrive_expecting(barrier, sent * kRowsOfWarp * kPanelWidth);
    else arrive(barrier);
  }
};

}  // namespace flashjit
