// Finds the work that a mask leaves, by evaluating the analysis of interval.h on a sample of tiles.
#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "compiler/choice/cost_common.h"
#include "templates/block_lists/layout.h"

namespace flashjit {

namespace {

constexpr int kSampledTiles = 16;
// The samples divide the tiles into sixteenths. These are their offsets, in sixteenths of such a sixteenth. Nearly all
// offsets differ, because masks with a period (chunks) may have it there. Their mean is eight, so that the mean over
// samples is the mean over tiles where the work grows evenly.
constexpr int kSampleOffsets[kSampledTiles] = {1, 13, 5, 9, 3, 15, 7, 11, 2, 14, 6, 10, 4, 12, 8, 8};
// The sampling of a mask with holes: so many tiles are visited, and lattice x lattice positions of a mixed tile give
// its share.
struct Density {
  int visits = 16, lattice = 4;
};
// Masks of many operations are evaluated less often, because planning would take seconds otherwise.
constexpr int kFewOperations = 64, kOperations = 4096;

Density density_of(const Expr& mask) {
  Density density;
  if (!mask || mask->tree_nodes <= kFewOperations) return density;
  return {.visits = std::clamp(kOperations / mask->tree_nodes, 2, density.visits), .lattice = density.lattice / 2};
}

// An environment for head 0 of sequence 0 with zeros in every parameter. Where lists tell which blocks are seen, all
// blocks are listed.
struct SampleEnvironment {
  static constexpr std::int64_t kZero = 0;
  static constexpr unsigned char kListed = kBlockListed;
  std::vector<ParamValue> values;
  Environment environment;

  SampleEnvironment(const AttentionSpec& spec, const Shape& shape) : values(spec.params.size()) {
    for (ParamValue& value : values) {
      value.data = &kZero;
      for (std::int64_t& extent : value.shape) extent = SizeBound::kLargest;
    }
    if (has_blocks(spec)) values.back().data = &kListed;
    environment.params = &spec.params;
    environment.values = values.data();
    set(Variable::QLen, shape.q_len);
    set(Variable::KLen, shape.k_len);
  }
  void set(Variable variable, std::int64_t value) { environment.variables[static_cast<int>(variable)] = value; }
  std::int64_t get(const Expr& expr) const { return evaluate(expr, environment).integer; }
};

std::int64_t length(const Shape& shape, Axis axis) { return axis == Axis::Keys ? shape.k_len : shape.q_len; }

// A tile across the axis of the analysis: the range of positions along the axis that it visits, and the range that it
// sees without evaluating the mask.
struct SampledTile {
  std::int64_t lo, hi, begin, end, full_begin, full_end;
};

// The tiles that the range of a SampledTile makes.
struct Visits {
  // Tiles, tiles, and the mean number of positions that a position of the tile sees.
  double visited = 0, mixed = 0, visible = 0;
};

double visible_share(const AttentionSpec& spec, Axis along, SampleEnvironment& sample, const SampledTile& t,
                     std::int64_t lo, std::int64_t hi, int lattice) {
  int seen = 0;
  for (int i = 0; i < lattice; ++i) {
    sample.set(variables_of(other(along)).position, t.lo + (t.hi - t.lo) * (2 * i + 1) / (2 * lattice));
    for (int j = 0; j < lattice; ++j) {
      sample.set(variables_of(along).position, lo + (hi - lo) * (2 * j + 1) / (2 * lattice));
      seen += evaluate(spec.mask, sample.environment).integer != 0;
    }
  }
  return static_cast<double>(seen) / (lattice * lattice);
}

// Visits a sample of the tiles first..last-1 along the axis and scales up. Only masks with holes need it.
Visits sample_tiles(const AttentionSpec& spec, const TileAnalysis& tiles, SampleEnvironment& sample,
                    const SampledTile& t, int size) {
  const AxisVariables along = variables_of(tiles.along), across = variables_of(other(tiles.along));
  const std::int64_t first = t.begin / size, last = (t.end + size - 1) / size, count = last - first;
  sample.set(across.lo, t.lo);
  sample.set(across.hi, t.hi);
  const Density density = density_of(spec.mask);
  const std::int64_t step = std::max<std::int64_t>(1, count / density.visits);
  Visits visits;
  double sampled = 0;
  for (std::int64_t tile = first; tile < last; tile += step) {
    const std::int64_t lo = tile * size, hi = std::min((tile + 1) * size, t.end) - 1;
    sampled += 1;
    if (tiles.may_see) {
      sample.set(along.lo, lo);
      sample.set(along.hi, hi);
      if (!evaluate(tiles.may_see, sample.environment).integer) continue;
    }
    visits.visited += 1;
    if (lo >= t.full_begin && hi < t.full_end) {
      visits.visible += static_cast<double>(hi - lo + 1);
      continue;
    }
    visits.mixed += 1;
    const double share = spec.mask ? visible_share(spec, tiles.along, sample, t, lo, hi, density.lattice) : 1;
    visits.visible += share * static_cast<double>(hi - lo + 1);
  }
  const double scale = sampled > 0 ? static_cast<double>(count) / sampled : 0;
  return {visits.visited * scale, visits.mixed * scale, visits.visible * scale};
}

// Counts the tiles of a range without holes, by arithmetic alone.
Visits count_tiles(const SampledTile& t, int size) {
  Visits visits;
  visits.visited = static_cast<double>((t.end + size - 1) / size - t.begin / size);
  const std::int64_t full = t.full_end / size - (t.full_begin + size - 1) / size;
  visits.mixed = visits.visited - static_cast<double>(std::max<std::int64_t>(0, full));
  const double inside = static_cast<double>(std::max<std::int64_t>(0, t.full_end - t.full_begin));
  visits.visible = inside + (static_cast<double>(t.end - t.begin) - inside) / 2;
  return visits;
}

// Terms that depend on the score are computed for every score. A term that depends on the key alone becomes an addend
// of the exponent, and costs more only where it is read from memory. The slots are chosen so that alibi, softcap and
// bias are predicted as well as products without a score [M5].
struct SymbolicSlots {
  static constexpr double kOperation = 1, kFunction = 3, kAddend = 0.5, kLoad = 4;

  double slots = 0;
  bool has_addend = false;
  std::map<const Node*, bool> of_score;  // It is true for nodes that depend on the score.

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

// Evaluating the analysis takes most of the time, and does not depend on the length of the visited tiles.
struct WorkSampler::State {
  const AttentionSpec& spec;
  const TileAnalysis& tiles;
  Shape shape;
  Work same;  // The part that is the same for visited tiles of all lengths.
  std::map<int, Work> known;
  SampleEnvironment sample;
  std::int64_t samples = 0;
  std::vector<SampledTile> visited;  // The samples that see anything.

  State(const AttentionSpec& spec, const TileAnalysis& tiles, const Shape& shape)
      : spec(spec), tiles(tiles), shape(shape), sample(spec, shape) {}

  void draw(int size) {
    const AxisVariables across = variables_of(other(tiles.along));
    const std::int64_t along_length = length(shape, tiles.along), across_length = length(shape, other(tiles.along));
    const std::int64_t count = (across_length + size - 1) / size;
    samples = std::min<std::int64_t>(count, kSampledTiles);
    for (std::int64_t i = 0; i < samples; ++i) {
      const int offset = samples == kSampledTiles ? kSampleOffsets[i] : 8;
      const std::int64_t tile = (16 * i + offset) * count / (16 * samples);
      SampledTile t;
      t.lo = tile * size;
      t.hi = std::min(t.lo + size, across_length) - 1;
      sample.set(across.lo, t.lo);
      sample.set(across.hi, t.hi);
      t.begin = std::clamp<std::int64_t>(sample.get(tiles.begin), 0, along_length);
      t.end = std::clamp<std::int64_t>(sample.get(tiles.end), 0, along_length);
      if (t.begin >= t.end) continue;
      t.full_begin = std::max(t.begin, sample.get(tiles.full_begin));
      t.full_end = std::min(t.end, sample.get(tiles.full_end));
      visited.push_back(t);
    }
  }
};

WorkSampler::WorkSampler(const AttentionSpec& spec, const TileAnalysis& tiles, const Shape& shape, int sampled)
    : state_(std::make_unique<State>(spec, tiles, shape)) {
  Work& work = state_->same;
  work.row_is_range = tiles.line_is_range;
  work.mask_nodes = spec.mask ? static_cast<double>(node_count(spec.mask)) : 0;
  work.score_nodes = spec.score ? static_cast<double>(node_count(spec.score)) : 0;
  work.symbolic_slots = symbolic_slots(spec.score);
  work.exact = spec.mask.get() == nullptr || params_of(spec.mask).empty();
  if (shape.q_len >= 1 && shape.k_len >= 1) state_->draw(sampled);
}

WorkSampler::~WorkSampler() = default;

const Work& WorkSampler::with(int visited) {
  State& p = *state_;
  const auto [known, fresh] = p.known.try_emplace(visited, p.same);
  Work& work = known->second;
  if (!fresh || p.samples == 0) return work;
  const double samples = static_cast<double>(p.samples),
               positions = static_cast<double>(length(p.shape, p.tiles.along));
  double visible = 0;
  for (const SampledTile& tile : p.visited) {
    const Visits visits =
        p.tiles.may_see ? sample_tiles(p.spec, p.tiles, p.sample, tile, visited) : count_tiles(tile, visited);
    work.kv_tiles += visits.visited;
    work.kv_tiles_max = std::max(work.kv_tiles_max, visits.visited);
    work.mixed_tiles += visits.mixed;
    visible += visits.visible;
  }
  if (work.kv_tiles == 0 && !work.exact) {
    // Zeros hide everything, so the data are assumed to hide nothing.
    work.kv_tiles_max = std::ceil(positions / visited);
    work.kv_tiles = work.mixed_tiles = work.kv_tiles_max * samples;
    visible = samples * positions;
  }
  work.kv_tiles /= samples;
  work.mixed_tiles /= samples;
  work.visible = visible / samples / positions;
  return work;
}

std::int64_t seen_keys(const AttentionSpec& spec, const TileAnalysis& tiles, const Shape& shape) {
  // So many keys are looked at together, where a mask has holes.
  constexpr std::int64_t kGroup = 16, kMostGroups = 4096;
  if (!spec.mask || tiles.along != Axis::Keys || shape.q_len < 1 || shape.k_len < 1) return shape.k_len;
  SampleEnvironment sample(spec, shape);
  const AxisVariables along = variables_of(Axis::Keys), across = variables_of(Axis::Queries);
  sample.set(across.lo, 0);
  sample.set(across.hi, shape.q_len - 1);
  const auto known = [](const Expr& expr) { return params_of(expr).empty(); };
  const auto bound = [&](const Expr& expr, std::int64_t unknown) {
    return known(expr) ? std::clamp<std::int64_t>(sample.get(expr), 0, shape.k_len) : unknown;
  };
  const std::int64_t begin = bound(tiles.begin, 0), end = std::max(begin, bound(tiles.end, shape.k_len));
  if (!tiles.may_see || !known(tiles.may_see)) return end - begin;
  const std::int64_t group = std::max(kGroup, (end - begin + kMostGroups - 1) / kMostGroups);
  std::int64_t seen = 0;
  for (std::int64_t lo = begin; lo < end; lo += group) {
    const std::int64_t keys = std::min(group, end - lo);
    sample.set(along.lo, lo);
    sample.set(along.hi, lo + keys - 1);
    if (sample.get(tiles.may_see)) seen += keys;
  }
  return seen;
}

Work work_of(const AttentionSpec& spec, const TileAnalysis& tiles, const Shape& shape, int tile_q, int tile_kv) {
  const bool keys = tiles.along == Axis::Keys;
  return WorkSampler(spec, tiles, shape, keys ? tile_q : tile_kv).with(keys ? tile_kv : tile_q);
}

}  // namespace flashjit
