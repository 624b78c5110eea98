// The vocabulary of warps that gather rows of 8 bits. Its lines stand in loop.gen.cuh. A thread holds pieces of rows until
// their place is empty, so that it waits for memory beside the warps which compute, and widens them on their way there.
// Blocks of a cluster have half of the rows each, and send them to each other.
#pragma once

#include "templates/cache_elements.cuh"
#include "templates/mla/find_rows.cuh"

namespace flashjit {

// A warp has eight rows at a time: four lanes have neighbouring pieces of each. A thread holds two parts of a tile, which are
// both halves of the columns of such rows, or a half of two such rows.
constexpr int kStepRows = 8, kSteps = kRowsOfWarp / kStepRows, kHeldParts = 2;
static_assert(kSteps <= 2 && kMlaConsumers == 2);

// Panels of a half that have 8 bits in memory, and those that are wide already, which are the last.
constexpr int narrow_panels_of(int half) { return half == 0 ? kHalfPanels : kRow.narrow_panels - kHalfPanels; }
constexpr int kMostNarrowPanels = narrow_panels_of(1) > kHalfPanels ? narrow_panels_of(1) : kHalfPanels;
constexpr int kWidePieces = 2 * kRow.wide_panels;
static_assert(kRow.wide_panels <= 1);

// Scales are those of all keys, of each key, or of columns of a key.
constexpr bool kScalesColumns = has_latent_rows(config);
constexpr int kScalesOfHalf = kScalesColumns ? kHalfPanels / kRow.panels_of_scale : 1;
static_assert(!kScalesColumns || kScalesOfHalf == 2);

struct GathererState : RowFinder {
  struct Part {
    uint4 narrow[kMostNarrowPanels];
    uint4 wide[kWidePieces > 0 ? kWidePieces : 1];
    float2 scales;
  };
  Part held[kHeldParts] = {};
  __device__ static int place_of(int half, int step) { return kSteps == 1 ? half : step; }

  __device__ static int row_of_lane() { return gathering_lane() / kQuad; }

  __device__ void fetch(int half, int step) {
    Part& to = held[place_of(half, step)];
    const int row_of_warp = step * kStepRows + row_of_lane(), piece = gathering_lane() % kQuad;
    const uint4* row = begin_of(row_of_warp);
#pragma unroll
    for (int j = 0; j < narrow_panels_of(half); ++j)
      to.narrow[j] = load_early(row + (half * kHalfPanels + j) * kQuad + piece);
#pragma unroll
    for (int i = 0; i < (half == 1 ? kWidePieces : 0); ++i)
      to.wide[i] = load_early(row + kRow.wide_at + kWidePieces * piece + i);
    if constexpr (kScalesColumns) to.scales = __ldg(reinterpret_cast<const float2*>(row + kRow.scales_at) + half);
    if constexpr (kScalesKeys) to.scales.x = __shfl_sync(0xffffffff, scale, row_of_warp);
  }
  __device__ void fetch_rows() {
#pragma unroll
    for (int part = 0; part < kHeldParts; ++part) fetch(part / kSteps, part % kSteps);
  }
  // Where a thread holds no more than one half.
  __device__ void fetch_half(int half) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) fetch(half, step);
  }

  // Before the first tile of an item: where its rows are, and then these.
  __device__ void begin(const Segment& s, int tile) {
    if constexpr (is_scaled(config) && !kScalesKeys)
      scale = next_scale = scale_of(params.scale_k, params.scale_k_stride, s.seq.b, s.seq.hk, 0);
    find_first_rows(s, tile);
  }

  // A narrow piece makes two of shared memory, which are neighbours there but for the swizzle.
  __device__ static uint4 widen(u32 low, u32 high, float scale) {
    constexpr Narrow kNarrow = has_latent_rows(config) ? Narrow::e4m3 : config.cache;
    const HalfPairs first = halves_of<kNarrow>(low), second = halves_of<kNarrow>(high);
    const auto scaled = [scale](u32 halves) {
      return pack<config.element>(float_from_f16(static_cast<u16>(halves)) * scale,
                                  float_from_f16(static_cast<u16>(halves >> 16)) * scale);
    };
    return {scaled(first.low), scaled(first.high), scaled(second.low), scaled(second.high)};
  }
  // Leaves a half of the warp's rows where products find it.
  __device__ void gather(int half) const {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) store(half, step);
  }
  __device__ void store(int half, int step) const {
    const Part& from = held[place_of(half, step)];
    const int row = row_of_lane(), piece = gathering_lane() % kQuad;
    const u32 chunk = (2 * piece ^ row) * kChunkBytes;
    const u32 first = shared.v(turn.stage(), half) + (own_row() + step * kStepRows + row) * kPanelWidth + chunk;
#pragma unroll
    for (int j = 0; j < narrow_panels_of(half); ++j) {
      const float of_columns = j / kRow.panels_of_scale % 2 == 0 ? from.scales.x : from.scales.y;
      const float of_piece = kScalesColumns ? of_columns : kScalesKeys ? from.scales.x : scale;
      const uint4& bytes = from.narrow[j];
      const u32 to = first + j * kPanelBytes;
      store_shared(to, widen(bytes.x, bytes.y, of_piece));
      store_shared(to ^ kChunkBytes, widen(bytes.z, bytes.w, of_piece));
    }
#pragma unroll
    for (int i = 0; i < (half == 1 ? kWidePieces : 0); ++i)
      store_shared((first + narrow_panels_of(half) * kPanelBytes) ^ i * kChunkBytes, from.wide[i]);
  }

  // This warp has left its rows of a half. The other block of a cluster gets them from here, a panel by each lane that has
  // one, and sends as many.
  __device__ void complete_half(int half) const {
    const int lane = gathering_lane(), stage = static_cast<int>(turn.stage());
    const int first = half * kHalfPieces, panels = panels_before(first + kHalfPieces) - panels_before(first);
    if constexpr (kCluster > 1) {
      if (lane < panels) {
        const int panel = panels_before(first) + lane, piece = min(panel / kPiecePanels, kMlaPieces - 1);
        const u32 from = shared.k(stage) + panel * kPanelBytes + own_row() * kPanelWidth;
        copy_to_block(cluster_rank() ^ 1, from, from, kRowsOfWarp * kPanelWidth, shared.full(stage, piece));
      }
    }
    if (lane >= kHalfPieces) return;
    const int piece = first + lane, sent = panels_before(piece + 1) - panels_before(piece);
    const u32 barrier = shared.full(stage, piece);
    if constexpr (kCluster > 1) arrive_expecting(barrier, sent * kRowsOfWarp * kPanelWidth);
    else arrive(barrier);
  }
};

}  // namespace flashjit
