// Teams: the blocks of a cluster have the keys of a row tile among them, and add up its columns through each other's
// shared memory. That takes one barrier, where a second launch has to begin and to read what the first has written.
#pragma once

#include "templates/decode/combine.cuh"

namespace flashjit {

__device__ inline float4 load_floats(u32 address) {
  const uint4 bits = load_shared(address);
  return make_float4(__uint_as_float(bits.x), __uint_as_float(bits.y), __uint_as_float(bits.z),
                     __uint_as_float(bits.w));
}

// Fixed parts go through memory as they do to the second launch, and are added up as there; a block alone adds each to
// those before.
__device__ inline bool pushes_parts(const KernelParams& params) { return kHasTeams && !kFixedParts && params.team > 1; }
__device__ inline bool folds_parts(const KernelParams& params) { return kHasTeams && kFixedParts && params.team == 1; }

// Who of a team adds up which places (four columns of a row), and where he gets them from the others.
struct TeamShares {
  int rank, team, shift;
  int all;  // places of the row tile
  u32 memory;

  __device__ TeamShares(const KernelParams& params, int rows, u32 memory)
      : rank(rank_in_team(params)),
        team(params.team),
        shift(__ffs(team) - 1),
        all(rows * (config.head_dim_v / 4)),
        memory(memory) {}
  __device__ int of_block() const { return (all + kGroupedPlaces * team - 1) >> shift & -kGroupedPlaces; }  // at most
  __device__ u32 block_of(int place) const { return place / kGroupedPlaces & (team - 1); }
  __device__ int number_of(int place) const {
    return (place / kGroupedPlaces >> shift) * kGroupedPlaces + place % kGroupedPlaces;
  }
  __device__ int place_of(int number) const {  // of this block
    return (number / kGroupedPlaces << shift | rank) * kGroupedPlaces + number % kGroupedPlaces;
  }
  __device__ u32 address(int from, int number) const { return memory + (from * of_block() + number) * kPlaceBytes; }

  __device__ void push(int place, const Quad& quad) const {
    const u32 to = address(rank, number_of(place));
    store_in(block_of(place), to, quad.o);
    store_in(block_of(place), to + 16, make_float4(quad.state.reference, quad.state.sum, quad.state.top, 0.0f));
  }
  // What all blocks have pushed of one of this block's places.
  __device__ Quad sum_of(int number) const {
    float4 columns[config.team], states[config.team];
    Quad sum;
    sum.clear();
#pragma unroll
    for (int i = 0; i < config.team; ++i) {
      const u32 from = address(min(i, team - 1), number);
      columns[i] = load_floats(from);
      states[i] = load_floats(from + 16);
      sum.state.reference = fmaxf(sum.state.reference, states[i].x);
    }
#pragma unroll
    for (int i = 0; i < config.team; ++i) {
      const float weight = i < team ? weight_of(states[i].x, sum.state.reference) : 0.0f;
      sum.state.sum += states[i].y * weight;
      sum.state.top = fmaxf(sum.state.top, states[i].z);
      add_scaled(sum.o, columns[i], weight);
    }
    return sum;
  }
};

// The rows of a tile that several blocks have parts of.
__device__ inline void add_up_team(const KernelParams& params, const Segment& s, const TeamShares& shares,
                                   const float* parts) {
  constexpr int kQuads = config.head_dim_v / 4;
  const int fixed_parts = kFixedParts ? tiles_of(params, s.seq.b).row_steps() : 0;
  if (kFixedParts && fixed_parts <= 1) return;  // its block has stored the rows
  sync_cluster();
  const int first_part = kFixedParts ? first_part_of(params, s.seq.b, s.row_lo / kTileRows, s.seq.hk) : 0;
  for (int number = static_cast<int>(threadIdx.x);; number += decode_threads(config)) {
    const int place = shares.place_of(number);
    if (place >= shares.all) return;
    const int row = place / kQuads, column = place % kQuads * 4;
    const Quad sum =
        kFixedParts ? add_fixed_parts(parts + static_cast<Int64>(first_part) * kPartFloats, fixed_parts, row, column)
                    : shares.sum_of(number);
    store_quad(params, s.seq, s.row_lo + row, column, sum);
  }
}

}  // namespace flashjit
