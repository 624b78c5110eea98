// Analysis of masks that read tensors: the pairs of a tile of queries and a tile of keys that such a mask lets through.
// TileAnalysis (interval.h) answers from the ends of the tiles alone, and knows nothing of a value that is read:
// document numbers, ends of blocks, lengths of single rows. Here each value that is read along one axis is known, for
// each tile of this axis, by its least and its most. A call finds these first, and then decides for each pair of tiles
// whether it has to be visited, and masked. A value that is read for each query and key is looked at once for all pairs
// of two tiles.
#pragma once

#include <optional>
#include <vector>

#include "compiler/analysis/interval.h"

namespace flashjit {

// An int that changes along one axis only. Each tile of that axis has a least and a most of it, and two int scalars
// stand for these in `sees` and `full`.
struct TileValue {
  Axis axis = Axis::Keys;
  Expr value;  // It depends on the position on this axis, and on the head and sequence.
  Param least, most;
};

// A condition that reads a tensor at each pair of positions. It is evaluated for all pairs of two tiles where `sees`
// may be true with it, and two int scalars stand for the answer: `some` is 1 if it holds for some pair, `all` if it
// holds for each.
struct TileCondition {
  Expr condition;
  Param some, all;
  int step_q = 1;  // So many queries, from the first of a tile on, have the same answers.
};

struct PairAnalysis {
  std::vector<TileValue> values;
  std::vector<TileCondition> conditions;
  // The expressions are over the ends q_lo q_hi k_lo k_hi of both tiles and over the scalars. Tiles begin at multiples
  // of their sizes and end before the lengths.
  Expr sees;             // It is false only if no query of the tile sees any of the keys.
  Expr full;             // It is true only if each query of the tile sees all of the keys.
  bool by_head = false;  // If it is false, all heads of a sequence have the same answers.
};

// Returns nothing if tensors decide nothing: the mask reads none, or reads them in a way that is not understood.
std::optional<PairAnalysis> analyse_pairs(const Expr& mask, int tile_q, int tile_kv);

}  // namespace flashjit
