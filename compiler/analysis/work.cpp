// What a mask leaves to do: the analysis of interval.h, evaluated on a sample of query tiles.
#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "compiler/choice/cost_parts.h"

namespace flashjit {

namespace {

constexpr int kSampledQueryTiles = 16;
// Where in its sixteenth of the query tiles each sample lies, in sixteenths of that. Hardly ever the same place twice:
// masks with a period (chunks) may have theirs there. Eight on average, so that the mean over samples is the mean over
// tiles where the work grows evenly.
constexpr int kSamplePlaces[kSampledQueryTiles] = {1, 13, 5, 9, 3, 15, 7, 11, 2, 14, 6, 10, 4, 12, 8, 8};
constexpr int kSampledKvTiles = 16;  // per query tile, for masks with holes
constexpr int kLattice = 4;          // mixed tiles are sampled at 4x4 positions for the visible share

// An environment for head 0 of sequence 0 with zeros in every parameter.
struct SampleEnvironment {
  static constexpr std::int64_t kZero = 0;
  std::vector<ParamValue> values;
  Environment environment;

  SampleEnvironment(const AttentionSpec& spec, const Shape& shape) : values(spec.params.size()) {
    for (ParamValue& value : values) {
      value.data = &kZero;
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

// The keys that a query tile visits, and those of them that it sees without looking at the mask.
struct QueryTile {
  std::int64_t q_lo, q_hi, begin, end, full_begin, full_end;
};

// What becomes of them in tiles.
struct Visits {
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
Visits sample_tiles(const AttentionSpec& spec, const TileAnalysis& tiles, SampleEnvironment& sample, const QueryTile& t,
                    int tile_kv) {
  const std::int64_t first = t.begin / tile_kv, last = (t.end + tile_kv - 1) / tile_kv, count = last - first;
  sample.set(Variable::QLo, t.q_lo);
  sample.set(Variable::QHi, t.q_hi);
  const std::int64_t step = std::max<std::int64_t>(1, count / kSampledKvTiles);
  Visits visits;
  double sampled = 0;
  for (std::int64_t tile = first; tile < last; tile += step) {
    const std::int64_t k_lo = tile * tile_kv, k_hi = std::min((tile + 1) * tile_kv, t.end) - 1;
    sampled += 1;
    if (tiles.may_see) {
      sample.set(Variable::KLo, k_lo);
      sample.set(Variable::KHi, k_hi);
      if (!evaluate(tiles.may_see, sample.environment).integer) continue;
    }
    visits.visited += 1;
    if (k_lo >= t.full_begin && k_hi < t.full_end) {
      visits.visible_keys += static_cast<double>(k_hi - k_lo + 1);
      continue;
    }
    visits.mixed += 1;
    const double share = spec.mask ? visible_share(spec, sample, t.q_lo, t.q_hi, k_lo, k_hi) : 1;
    visits.visible_keys += share * static_cast<double>(k_hi - k_lo + 1);
  }
  const double scale = sampled > 0 ? static_cast<double>(count) / sampled : 0;
  return {visits.visited * scale, visits.mixed * scale, visits.visible_keys * scale};
}

// The range of a tile without holes, by arithmetic alone.
Visits count_tiles(const QueryTile& t, int tile_kv) {
  Visits visits;
  visits.visited = static_cast<double>((t.end + tile_kv - 1) / tile_kv - t.begin / tile_kv);
  const std::int64_t full = t.full_end / tile_kv - (t.full_begin + tile_kv - 1) / tile_kv;
  visits.mixed = visits.visited - static_cast<double>(std::max<std::int64_t>(0, full));
  const double inside = static_cast<double>(std::max<std::int64_t>(0, t.full_end - t.full_begin));
  visits.visible_keys = inside + (static_cast<double>(t.end - t.begin) - inside) / 2;
  return visits;
}

// What depends on the score is computed for every one. What depends on the key alone becomes an addend of the exponent,
// and only what is read from memory costs more: chosen so that alibi, softcap and bias are predicted as well as
// products without a score (300, 200 and 2 times; H200, 2026-11-22, tests/device/RESULTS.md).
struct SymbolicSlots {
  static constexpr double kOperation = 1, kFunction = 3, kAddend = 0.5, kLoad = 4;

  double slots = 0;
  bool has_addend = false;
  std::map<const Node*, bool> of_score;  // does it depend on the score?

  bool visit(const Expr& expr) {
    if (const auto known = of_score.find(expr.get()); known != of_score.end()) return known->second;
    bool depends = expr->op == Op::Variable && expr->variable == Variable::S;
    for (const Expr& argument : expr->args) depends |= visit(argument);
    const bool function = expr->op == Op::Exp || expr->op == Op::Log || expr->op == Op::Tanh || expr->op == Op::Sigmoid;
    if (depends && !expr->args.empty()) slots += function ? kFunction : kOperation;
    if (!depends && expr->op == Op::Load && uses(expr, Variable::K)) slots += kLoad;
    has_addend |= !depends && expr->op == Op::Variable && expr->variable == Variable::K;
    return of_score[expr.get()] = depends;
  }
};

double symbolic_slots(const Expr& score) {
  if (!score) return 0;
  SymbolicSlots counted;
  counted.visit(score);
  return counted.slots + (counted.has_addend ? SymbolicSlots::kAddend : 0);
}

}  // namespace

// Evaluating the analysis is the dear part, and does not depend on how many keys a tile has.
struct WorkSampler::Parts {
  const AttentionSpec& spec;
  const TileAnalysis& tiles;
  Shape shape;
  Work same;  // as far as it is the same for every tile_kv
  std::map<int, Work> known;
  SampleEnvironment sample;
  std::int64_t samples = 0;
  std::vector<QueryTile> visited;  // samples that see anything

  Parts(const AttentionSpec& spec, const TileAnalysis& tiles, const Shape& shape)
      : spec(spec), tiles(tiles), shape(shape), sample(spec, shape) {}

  void draw(int tile_q) {
    const std::int64_t query_tiles = (shape.q_len + tile_q - 1) / tile_q;
    samples = std::min<std::int64_t>(query_tiles, kSampledQueryTiles);
    for (std::int64_t i = 0; i < samples; ++i) {
      const int place = samples == kSampledQueryTiles ? kSamplePlaces[i] : 8;
      const std::int64_t tile = (16 * i + place) * query_tiles / (16 * samples);
      QueryTile t;
      t.q_lo = tile * tile_q;
      t.q_hi = std::min(t.q_lo + tile_q, shape.q_len) - 1;
      sample.set(Variable::QLo, t.q_lo);
      sample.set(Variable::QHi, t.q_hi);
      t.begin = std::clamp<std::int64_t>(sample.get(tiles.kv_begin), 0, shape.k_len);
      t.end = std::clamp<std::int64_t>(sample.get(tiles.kv_end), 0, shape.k_len);
      if (t.begin >= t.end) continue;
      t.full_begin = std::max(t.begin, sample.get(tiles.full_begin));
      t.full_end = std::min(t.end, sample.get(tiles.full_end));
      visited.push_back(t);
    }
  }
};

WorkSampler::WorkSampler(const AttentionSpec& spec, const TileAnalysis& tiles, const Shape& shape, int tile_q)
    : parts_(std::make_unique<Parts>(spec, tiles, shape)) {
  Work& work = parts_->same;
  work.row_is_range = tiles.row_is_range;
  work.mask_nodes = spec.mask ? static_cast<double>(node_count(spec.mask)) : 0;
  work.score_nodes = spec.score ? static_cast<double>(node_count(spec.score)) : 0;
  work.symbolic_slots = symbolic_slots(spec.score);
  work.exact = spec.mask.get() == nullptr || params_of(spec.mask).empty();
  if (shape.q_len >= 1 && shape.k_len >= 1) parts_->draw(tile_q);
}

WorkSampler::~WorkSampler() = default;

const Work& WorkSampler::with(int tile_kv) {
  Parts& p = *parts_;
  const auto [place, fresh] = p.known.try_emplace(tile_kv, p.same);
  Work& work = place->second;
  if (!fresh || p.samples == 0) return work;
  const double samples = static_cast<double>(p.samples), k_len = static_cast<double>(p.shape.k_len);
  double visible = 0;
  for (const QueryTile& tile : p.visited) {
    const Visits visits =
        p.tiles.may_see ? sample_tiles(p.spec, p.tiles, p.sample, tile, tile_kv) : count_tiles(tile, tile_kv);
    work.kv_tiles += visits.visited;
    work.kv_tiles_max = std::max(work.kv_tiles_max, visits.visited);
    work.mixed_tiles += visits.mixed;
    visible += visits.visible_keys;
  }
  if (work.kv_tiles == 0 && !work.exact) {
    // Zeros hide everything: count on the data to hide nothing.
    work.kv_tiles_max = std::ceil(k_len / tile_kv);
    work.kv_tiles = work.mixed_tiles = work.kv_tiles_max * samples;
    visible = samples * k_len;
  }
  work.kv_tiles /= samples;
  work.mixed_tiles /= samples;
  work.visible = visible / samples / k_len;
  return work;
}

Work work_of(const AttentionSpec& spec, const TileAnalysis& tiles, const Shape& shape, int tile_q, int tile_kv) {
  return WorkSampler(spec, tiles, shape, tile_q).with(tile_kv);
}

}  // namespace flashjit
