// What a mask leaves to do: the analysis of interval.h, evaluated on a sample of query tiles.
#include <algorithm>
#include <cmath>
#include <vector>

#include "compiler/cost_model.h"

namespace flashjit {

namespace {

constexpr int kSampledQueryTiles = 8;
// Where in its eighth of the query tiles each sample lies, in sixteenths. Never the same place twice: masks with a period (chunks) may have
// theirs there. Eight on average, so that the mean over samples is the mean over tiles where the work grows evenly.
constexpr int kSamplePlaces[kSampledQueryTiles] = {1, 13, 5, 9, 3, 15, 7, 11};
constexpr int kSampledKvTiles = 16;   // per query tile, for masks with holes
constexpr int kLattice = 4;           // mixed tiles are sampled at 4x4 positions for the visible share

// An environment for head 0 of sequence 0 with zeros in every parameter.
struct SampleEnvironment {
  std::int64_t zero = 0;
  std::vector<ParamValue> values;
  Environment environment;

  SampleEnvironment(const AttentionSpec& spec, const Shape& shape) : values(spec.params.size()) {
    for (ParamValue& value : values) {
      value.data = &zero;
      for (std::int64_t& extent : value.shape) extent = SizeBound::kLargest;
    }
    environment.params = &spec.params;
    environment.values = values.data();
    set(Variable::QLen, shape.q_len);
    set(Variable::KLen, shape.k_len);
  }
  void set(Variable variable, std::int64_t value) { environment.variables[static_cast<int>(variable)] = value; }
  std::int64_t get(const Expr& expr) const { return evaluate(expr, environment).integer; }
};

// One query tile against the keys it visits.
struct Row {
  double visited = 0, mixed = 0, visible_keys = 0;  // tiles, tiles, keys per query (mean)
};

double visible_share(const AttentionSpec& spec, SampleEnvironment& sample, std::int64_t q_lo, std::int64_t q_hi,
                     std::int64_t k_lo, std::int64_t k_hi) {
  int seen = 0;
  for (int i = 0; i < kLattice; ++i) {
    sample.set(Variable::Q, q_lo + (q_hi - q_lo) * (2 * i + 1) / (2 * kLattice));
    for (int j = 0; j < kLattice; ++j) {
      sample.set(Variable::K, k_lo + (k_hi - k_lo) * (2 * j + 1) / (2 * kLattice));
      seen += evaluate(spec.mask, sample.environment).integer != 0;
    }
  }
  return static_cast<double>(seen) / (kLattice * kLattice);
}

// Visits a sample of the KV tiles first..last-1 and scales up; only for masks with holes or for the visible share.
Row sample_tiles(const AttentionSpec& spec, const TileAnalysis& tiles, SampleEnvironment& sample, std::int64_t q_lo,
                 std::int64_t q_hi, std::int64_t begin, std::int64_t end, std::int64_t full_begin,
                 std::int64_t full_end, int tile_kv) {
  const std::int64_t first = begin / tile_kv, last = (end + tile_kv - 1) / tile_kv, count = last - first;
  const std::int64_t step = std::max<std::int64_t>(1, count / kSampledKvTiles);
  Row row;
  double sampled = 0;
  for (std::int64_t tile = first; tile < last; tile += step) {
    const std::int64_t k_lo = tile * tile_kv, k_hi = std::min((tile + 1) * tile_kv, end) - 1;
    sampled += 1;
    if (tiles.may_see) {
      sample.set(Variable::KLo, k_lo);
      sample.set(Variable::KHi, k_hi);
      if (!evaluate(tiles.may_see, sample.environment).integer) continue;
    }
    row.visited += 1;
    if (k_lo >= full_begin && k_hi < full_end) {
      row.visible_keys += static_cast<double>(k_hi - k_lo + 1);
      continue;
    }
    row.mixed += 1;
    const double share = spec.mask ? visible_share(spec, sample, q_lo, q_hi, k_lo, k_hi) : 1;
    row.visible_keys += share * static_cast<double>(k_hi - k_lo + 1);
  }
  const double scale = sampled > 0 ? static_cast<double>(count) / sampled : 0;
  return {row.visited * scale, row.mixed * scale, row.visible_keys * scale};
}

// The range of a tile without holes, by arithmetic alone.
Row count_tiles(std::int64_t begin, std::int64_t end, std::int64_t full_begin, std::int64_t full_end, int tile_kv) {
  Row row;
  row.visited = static_cast<double>((end + tile_kv - 1) / tile_kv - begin / tile_kv);
  const std::int64_t full = full_end / tile_kv - (full_begin + tile_kv - 1) / tile_kv;
  row.mixed = row.visited - static_cast<double>(std::max<std::int64_t>(0, full));
  const double inside = static_cast<double>(std::max<std::int64_t>(0, full_end - full_begin));
  row.visible_keys = inside + (static_cast<double>(end - begin) - inside) / 2;
  return row;
}

}  // namespace

Work work_of(const AttentionSpec& spec, const TileAnalysis& tiles, const Shape& shape, int tile_q, int tile_kv) {
  Work work;
  work.mask_nodes = spec.mask ? static_cast<double>(node_count(spec.mask)) : 0;
  work.score_nodes = spec.score ? static_cast<double>(node_count(spec.score)) : 0;
  work.exact = spec.mask.get() == nullptr || params_of(spec.mask).empty();
  if (shape.q_len < 1 || shape.k_len < 1) return work;
  SampleEnvironment sample(spec, shape);
  const std::int64_t query_tiles = (shape.q_len + tile_q - 1) / tile_q;
  const std::int64_t samples = std::min<std::int64_t>(query_tiles, kSampledQueryTiles);
  double visible = 0;
  for (std::int64_t i = 0; i < samples; ++i) {
    const int place = samples == kSampledQueryTiles ? kSamplePlaces[i] : 8;
    const std::int64_t tile = (16 * i + place) * query_tiles / (16 * samples);
    const std::int64_t q_lo = tile * tile_q, q_hi = std::min(q_lo + tile_q, shape.q_len) - 1;
    sample.set(Variable::QLo, q_lo);
    sample.set(Variable::QHi, q_hi);
    const std::int64_t begin = std::clamp<std::int64_t>(sample.get(tiles.kv_begin), 0, shape.k_len);
    const std::int64_t end = std::clamp<std::int64_t>(sample.get(tiles.kv_end), 0, shape.k_len);
    if (begin >= end) continue;
    const std::int64_t full_begin = std::max(begin, sample.get(tiles.full_begin));
    const std::int64_t full_end = std::min(end, sample.get(tiles.full_end));
    const Row row = tiles.may_see
                        ? sample_tiles(spec, tiles, sample, q_lo, q_hi, begin, end, full_begin, full_end, tile_kv)
                        : count_tiles(begin, end, full_begin, full_end, tile_kv);
    work.kv_tiles += row.visited;
    work.kv_tiles_max = std::max(work.kv_tiles_max, row.visited);
    work.mixed_tiles += row.mixed;
    visible += row.visible_keys;
  }
  if (work.kv_tiles == 0 && !work.exact) {
    // Zeros hide everything: count on the data to hide nothing.
    work.kv_tiles_max = std::ceil(static_cast<double>(shape.k_len) / tile_kv);
    work.kv_tiles = work.mixed_tiles = work.kv_tiles_max * static_cast<double>(samples);
    visible = static_cast<double>(samples * shape.k_len);
  }
  work.kv_tiles /= static_cast<double>(samples);
  work.mixed_tiles /= static_cast<double>(samples);
  work.visible = visible / static_cast<double>(samples) / static_cast<double>(shape.k_len);
  return work;
}

}  // namespace flashjit
