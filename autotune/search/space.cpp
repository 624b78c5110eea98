#include "autotune/search/space.h"

#include <algorithm>
#include <map>
#include <tuple>

#include <fmt/format.h>

#include "compiler/choice/candidates.h"
#include "compiler/families/family.h"
#include "runtime/tuned/records.h"

namespace flashjit {
namespace {

constexpr int kPerTileShape = 2;

// "about 312 registers are needed" and "about 280 ..." become one reason.
std::string without_numbers(const std::string& text) {
  std::string out;
  const auto digit = [](char c) { return c >= '0' && c <= '9'; };
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool begins =
        digit(text[i]) && (i == 0 || text[i - 1] == ' ' || text[i - 1] == '(');  // Digits of a name, as in sm_80, stay.
    if (!begins) {
      out += text[i];
      continue;
    }
    out += 'N';
    while (i + 1 < text.size() && digit(text[i + 1])) ++i;
  }
  return out;
}

double predicted(const Problem& problem, const Shape& shape, const Schedule& s) {
  return predict(problem, s, shape, work_of(problem, shape, s)).total;
}

bool by_time(const Candidate& a, const Candidate& b) { return a.predicted_us < b.predicted_us; }

// Sets `field` to each of `values` except its own value, if the field is free.
template <class T>
void vary(const Schedule& from, const Schedule& pins, std::optional<T> Schedule::* field,
          std::initializer_list<T> values, std::vector<Schedule>& out) {
  if (pins.*field || !(from.*field)) return;
  for (const T value : values) {
    if (from.*field == value) continue;
    Schedule s = from;
    s.*field = value;
    out.push_back(s);
  }
}

}  // namespace

SearchSpace space_of(const AttentionSpec& spec, const Target& target, const Schedule& pins, const TileAnalysis& tiles,
                     const Shape& shape, const Schedule& untuned) {
  const Problem problem(spec, target, tiles);
  SearchSpace space;
  std::map<std::string, int> cut;
  bool has_untuned = false;
  for (Candidate& candidate : candidates(problem, pins, shape)) {
    ++space.size;
    std::string why = why_illegal(problem, candidate.schedule);
    if (why.empty() && spec.numerics != Numerics::Fast) {
      const std::string_view field = changed_numerics(untuned, candidate.schedule);
      if (!field.empty()) why = fmt::format("{}: would change the bits, which the spec's numerics pins", field);
    }
    if (why.empty()) {
      has_untuned |= candidate.schedule == untuned;
      space.schedules.push_back(std::move(candidate));
    } else {
      ++cut[without_numbers(why)];
    }
  }
  if (!has_untuned) {
    ++space.size;
    space.schedules.push_back({untuned, predicted(problem, shape, untuned), 1});
    std::stable_sort(space.schedules.begin(), space.schedules.end(), by_time);
  }
  for (const auto& [why, count] : cut) space.cut.push_back({why, count});
  std::stable_sort(space.cut.begin(), space.cut.end(),
                   [](const CutReason& a, const CutReason& b) { return a.count > b.count; });
  return space;
}

std::vector<Candidate> neighbours(const AttentionSpec& spec, const Target& target, const Schedule& pins,
                                  const TileAnalysis& tiles, const Shape& shape, const Schedule& from) {
  const Problem problem(spec, target, tiles);
  std::vector<Schedule> all;
  vary(from, pins, &Schedule::order, {TileOrder::natural, TileOrder::longest_first}, all);
  vary(from, pins, &Schedule::stages, {1, 2, 3, 4}, all);
  vary(from, pins, &Schedule::q_stages, {1, 2}, all);
  vary(from, pins, &Schedule::overlap, {Overlap::none, Overlap::qk_pv}, all);
  vary(from, pins, &Schedule::exclusive, {Exclusive::none, Exclusive::issue}, all);
  vary(from, pins, &Schedule::grid, {GridKind::tiles, GridKind::persistent}, all);
  vary(from, pins, &Schedule::unroll_d, {1, 2, 4, 8}, all);
  if (!from.family->gpu) {
    vary(from, pins, &Schedule::tile_q, {16, 32, 64, 128, 256}, all);
    vary(from, pins, &Schedule::tile_kv, {64, 128, 256, 512, 1024}, all);
  } else if (!pins.tile_kv) {
    for (const int step : {-16, 16, 32}) {
      Schedule s = from;
      s.tile_kv = *from.tile_kv + step;
      all.push_back(s);
    }
  }
  std::vector<Candidate> out;
  for (const Schedule& s : all) {
    if (!is_legal(problem, s)) continue;
    if (spec.numerics != Numerics::Fast && !changed_numerics(from, s).empty()) continue;
    out.push_back({s, predicted(problem, shape, s), 1});
  }
  std::stable_sort(out.begin(), out.end(), by_time);
  return out;
}

std::vector<std::size_t> shortlist(const std::vector<Candidate>& schedules, std::size_t count,
                                   const std::vector<Schedule>& taken) {
  const auto shape_of = [](const Schedule& s) { return std::tuple(s.family, s.tile_q, s.tile_kv); };
  std::map<decltype(shape_of(Schedule{})), int> of_shape;
  std::vector<std::size_t> list;
  for (std::size_t i = 0; i < schedules.size() && list.size() < count; ++i) {
    const Schedule& s = schedules[i].schedule;
    if (std::ranges::find(taken, s) != taken.end() || ++of_shape[shape_of(s)] > kPerTileShape) continue;
    list.push_back(i);
  }
  return list;
}

}  // namespace flashjit
