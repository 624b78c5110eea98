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

// Do the blocks of a team push what they have of a row tile to each other? Not several fixed parts of a block: the place of
// what others push is that of its next tiles. Those go through memory as they do to the second launch, and are added up as
// there; a block alone adds each to those before.
__device__ inline bool pushes_parts(const KernelParams& params, const Segment& s) {
  if (!kHasTeams || params.team <= 1) return false;
  if (!kFixedParts) return true;
  const int parts = tiles_of(params, s.seq.b).row_steps();
  return parts > 1 && parts <= params.team;
}
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

  // As number `from` of those that are added up.
  __device__ void push(int from, int place, const Quad& quad) const {
    const u32 to = address(from, number_of(place));
    store_in(block_of(place), to, quad.o);
    store_in(block_of(place), to + 16, make_float4(quad.state.reference, quad.state.sum, quad.state.top, 0.0f));
  }
  __device__ Quad pushed(int from, int number) const {
    const float4 state = load_floats(address(from, number) + 16);
    return {load_floats(address(from, number)), {state.x, state.y, state.z}};
  }
  // What all blocks have pushed of one of this block's places.
  __device__ Quad sum_of(int number) const {
    Quad parts[config.team], sum;
    sum.clear();
#pragma unroll
    for (int i = 0; i < config.team; ++i) {
      parts[i] = pushed(min(i, team - 1), number);
      sum.state.reference = fmaxf(sum.state.reference, parts[i].state.reference);
    }
#pragma unroll
    for (int i = 0; i < config.team; ++i) {
      const float weight = i < team ? weight_of(parts[i].state.reference, sum.state.reference) : 0.0f;
      sum.state.sum += parts[i].state.sum * weight;
      sum.state.top = fmaxf(sum.state.top, parts[i].state.top);
      add_scaled(sum.o, parts[i].o, weight);
    }
    return sum;
  }
  // The same of `count` fixed parts, one after the other.
  __device__ Quad sum_in_order(int number, int count) const {
    Quad sum = pushed(0, number);
#pragma unroll
    for (int i = 1; i < config.team; ++i) {
      const Quad part = pushed(min(i, count - 1), number);
      if (i < count) sum.add(part);
    }
    return sum;
  }
};

// The rows of a tile that several blocks have parts of.
__device__ inline void add_up_team(const KernelParams& params, const Segment& s, const TeamShares& shares, bool pushed,
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
    const auto fixed_sum = [&] {
      if (pushed) return shares.sum_in_order(number, fixed_parts);
      return add_fixed_parts(parts + static_cast<Int64>(first_part) * kPartFloats, fixed_parts, row, column);
    };
    const Quad sum = kFixedParts ? fixed_sum() : shares.sum_of(number);
    store_quad(params, s.seq, s.row_lo + row, column, sum);
  }
}

}  // namespace flashjit
