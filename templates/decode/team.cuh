// Teams are the blocks of a cluster that share the keys of a row tile, and add up its columns through each other's
// shared memory. This takes one barrier, where a second launch would have to begin and to read what the first has
// written.
#pragma once

#include "templates/decode/combine.cuh"
#include "templates/decode/tiles.cuh"

namespace flashjit {

// Determines which block of a team adds up which quads (four columns of a row), and where the others push these.
struct TeamShares {
  int rank, team, shift;
  int all;  // The number of quads of the row tile.
  // The parts of the row tile: with fixed parts there may be more parts than blocks, or only one.
  int parts;
  u32 memory, barrier;

  __device__ TeamShares(const KernelParams& params, const Segment& s, u32 shared)
      : rank(rank_in_team(params)),
        team(params.team),
        shift(team_shift(params)),
        all(rows_of(s) * (config.head_dim_v / 4)),
        parts(kFixedParts ? tiles_of(params, sequence_number(params, s.seq)).row_steps() : team),
        memory(shared + kLayout.team_offset),
        // A team adds up no lengths, so the scratch is free.
        barrier(shared + kLayout.scratch_offset) {}

  // Returns whether the blocks push their sums to each other. They do not if a block has several fixed parts, because
  // others would push into the memory of its next tiles. Such parts go through memory as they do to the second launch,
  // and are added up in the same way.
  __device__ bool pushes() const { return !kFixedParts || (parts > 1 && parts <= team); }
  // Waits until all blocks are there and can be pushed to, and announces how many bytes come.
  __device__ void meet() const {
    if (threadIdx.x == 0) {
      const int groups = all / kGroupedQuads, rest = all % kGroupedQuads;
      const int own = (groups + team - 1 - rank >> shift) * kGroupedQuads + ((groups & team - 1) == rank ? rest : 0);
      init_barrier(barrier, 1);
      publish_barriers();
      arrive_expecting(barrier, parts * own * kQuadBytes);
    }
    arrive_at_cluster();
    wait_for_cluster();
  }
  // The most quads that a block adds up.
  __device__ int of_block() const { return (all + kGroupedQuads * team - 1) >> shift & -kGroupedQuads; }
  __device__ u32 block_of(int quad) const { return quad / kGroupedQuads & (team - 1); }
  __device__ int number_of(int quad) const {
    return (quad / kGroupedQuads >> shift) * kGroupedQuads + quad % kGroupedQuads;
  }
  // It returns which quad has this number in this block.
  __device__ int quad_of(int number) const {
    return (number / kGroupedQuads << shift | rank) * kGroupedQuads + number % kGroupedQuads;
  }
  __device__ u32 address(int from, int number) const { return memory + (from * of_block() + number) * kQuadBytes; }

  // Pushes a quad as number `from` of those that are added up.
  __device__ void push(int from, int quad, const Quad& sum) const {
    const u32 to = address(from, number_of(quad));
    store_in(block_of(quad), to, sum.o, barrier);
    store_in(block_of(quad), to + 16, words_of(sum.state), barrier);
  }
  __device__ Quad pushed(int from, int number) const {
    const RowState state = state_of(load_floats(address(from, number) + 16));
    return {load_floats(address(from, number)), state};
  }
  // Returns the sum of what all blocks have pushed for one of this block's quads.
  __device__ Quad sum_of(int number) const {
    Quad parts[config.decode.team], sum;
    sum.clear();
#pragma unroll
    for (int i = 0; i < config.decode.team; ++i) {
      parts[i] = pushed(min(i, team - 1), number);
      sum.state.reference = fmaxf(sum.state.reference, parts[i].state.reference);
    }
#pragma unroll
    for (int i = 0; i < config.decode.team; ++i) {
      const float weight = i < team ? weight_of(parts[i].state.reference, sum.state.reference) : 0.0f;
      sum.state.sum += parts[i].state.sum * weight;
      sum.state.top = fmaxf(sum.state.top, parts[i].state.top);
      sum.state.earlier = parts[0].state.earlier;
      add_scaled(sum.o, parts[i].o, weight);
    }
    return sum;
  }
  // With fixed parts blocks are added one after the other, in the order of their numbers.
  __device__ Quad sum_in_order(int number) const {
    Quad sum = pushed(0, number);
#pragma unroll
    for (int i = 1; i < config.decode.team; ++i) {
      // Parts are added up without a branch, so that the weights of all parts are found at the same time.
      Quad more = sum;
      more.add(pushed(min(i, parts - 1), number));
      if (i < parts) sum = more;
    }
    return sum;
  }
};

// Adds up and stores the rows of a tile that several blocks have parts of.
__device__ inline void add_up_team(const KernelParams& params, const Segment& s, const TeamShares& shares,
                                   const float* parts) {
  constexpr int kQuads = config.head_dim_v / 4;
  if (shares.pushes()) wait_barrier(shares.barrier, 0);
  else if (shares.parts <= 1) return;  // The block of the only part has stored the rows.
  else sync_cluster();
  const int first_part =
      kFixedParts ? first_part_of(params, sequence_number(params, s.seq), s.row_lo / kTileRows, s.seq.hk) : 0;
  for (int number = static_cast<int>(threadIdx.x);; number += decode_threads(config)) {
    const int quad = shares.quad_of(number);
    if (quad >= shares.all) return;
    const int row = quad / kQuads, column = quad % kQuads * 4;
    const auto fixed_sum = [&] {
      if (shares.pushes()) return shares.sum_in_order(number);
      return add_fixed_parts(parts + static_cast<Int64>(first_part) * kPartFloats, shares.parts, row, column);
    };
    const Quad sum = kFixedParts ? fixed_sum() : shares.sum_of(number);
    store_quad(params, s.seq, s.row_lo + row, column, sum);
  }
}

}  // namespace flashjit
