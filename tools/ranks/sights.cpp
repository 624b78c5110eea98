#include "tools/ranks/sights.h"

#include <algorithm>

#include "compiler/analysis/interval.h"

namespace flashjit {
namespace {

constexpr int kSamples = 16;  // number of groups of queries of a run whose keys are asked for

// The queries of a group see some of the keys from begin to end, and all of them from full_begin to full_end.
struct SeenKeys {
  std::int64_t begin = 0, end = 0, full_begin = 0, full_end = 0;
};

// These keys of a run have to be sent.
struct Span {
  std::int64_t first = 0, last = 0;
};

// The tokens are cut into as many runs as all ranks have together.
struct Runs {
  int count = 0;
  std::int64_t queries = 0, keys = 0;  // tokens of one run
  int of_key(std::int64_t key) const { return static_cast<int>(std::clamp<std::int64_t>(key / keys, 0, count - 1)); }
};

std::int64_t overlap(std::int64_t a, std::int64_t b, std::int64_t c, std::int64_t d) {
  return std::max<std::int64_t>(0, std::min(b, d) - std::max(a, c));
}

SeenKeys seen_keys(const TileAnalysis& tiles, Environment& environment, std::int64_t first, std::int64_t last) {
  environment.variables[static_cast<int>(Variable::QLo)] = first;
  environment.variables[static_cast<int>(Variable::QHi)] = last;
  const auto get = [&](const Expr& expr) { return evaluate(expr, environment).integer; };
  SeenKeys seen{get(tiles.begin), get(tiles.end), get(tiles.full_begin), get(tiles.full_end)};
  seen.end = std::max(seen.begin, seen.end);
  seen.full_begin = std::clamp(seen.full_begin, seen.begin, seen.end);
  seen.full_end = std::clamp(seen.full_end, seen.full_begin, seen.end);
  return seen;
}

// If both are known the mask is a band, whose edge cuts through a group, and half of the group is seen there.
double seen_of(const SeenKeys& seen, std::int64_t begin, std::int64_t end) {
  const auto some = static_cast<double>(overlap(seen.begin, seen.end, begin, end));
  const auto all = static_cast<double>(overlap(seen.full_begin, seen.full_end, begin, end));
  return all + (some - all) / 2;
}

}  // namespace

std::string_view name(TokenOrder order) { return order == TokenOrder::Zigzag ? "zigzag" : "contiguous"; }

Sights::Sights(const AttentionSpec& spec, const Shape& whole, int ranks, TokenOrder order)
    : ranks_(ranks),
      order_(order),
      seen_(static_cast<std::size_t>(ranks) * static_cast<std::size_t>(ranks)),
      needed_(seen_.size()) {
  const bool reads = spec.mask && !params_of(spec.mask).empty();
  const TileAnalysis tiles = analyse_tiles(reads ? Expr() : spec.mask);
  Environment environment;
  environment.variables[static_cast<int>(Variable::QLen)] = whole.q_len;
  environment.variables[static_cast<int>(Variable::KLen)] = whole.k_len;
  const Runs runs{2 * ranks, whole.q_len / (2 * ranks), whole.k_len / (2 * ranks)};
  const double scores = 4 * static_cast<double>(runs.queries) * static_cast<double>(runs.keys);
  const std::int64_t group = std::max<std::int64_t>(1, (runs.queries + kSamples - 1) / kSamples);
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<Span> asked(static_cast<std::size_t>(runs.count), {runs.keys, 0});
    for (const int run : {first_run(rank), second_run(rank)}) {
      for (std::int64_t q = 0; q < runs.queries; q += group) {
        const std::int64_t size = std::min(group, runs.queries - q), begin = run * runs.queries + q;
        const SeenKeys seen = seen_keys(tiles, environment, begin, begin + size - 1);
        for (int j = runs.of_key(seen.begin); seen.begin < seen.end && j <= runs.of_key(seen.end - 1); ++j) {
          const std::int64_t from = j * runs.keys;
          const double share = seen_of(seen, from, from + runs.keys) * static_cast<double>(size);
          seen_[at(rank, owner(j))] += share / scores;
          Span& span = asked[static_cast<std::size_t>(j)];
          span.first = std::min(span.first, std::max<std::int64_t>(seen.begin - from, 0));
          span.last = std::max(span.last, std::min(seen.end - from, runs.keys));
        }
      }
    }
    for (int j = 0; j < runs.count; ++j) {
      const Span& span = asked[static_cast<std::size_t>(j)];
      needed_[at(rank, owner(j))] +=
          static_cast<double>(std::max<std::int64_t>(0, span.last - span.first)) / (2 * static_cast<double>(runs.keys));
    }
  }
}

int Sights::first_run(int rank) const { return order_ == TokenOrder::Zigzag ? rank : 2 * rank; }
int Sights::second_run(int rank) const { return order_ == TokenOrder::Zigzag ? 2 * ranks_ - 1 - rank : 2 * rank + 1; }
int Sights::owner(int run) const {
  if (order_ == TokenOrder::Contiguous) return run / 2;
  return run < ranks_ ? run : 2 * ranks_ - 1 - run;
}

double Sights::mean_seen() const {
  double all = 0;
  for (const double share : seen_) all += share;
  return all / static_cast<double>(seen_.size());
}

double Sights::most_seen() const {
  double most = 0;
  for (int queries = 0; queries < ranks_; ++queries) {
    double all = 0;
    for (int keys = 0; keys < ranks_; ++keys) all += seen(queries, keys);
    most = std::max(most, all / ranks_);
  }
  return most;
}

}  // namespace flashjit
