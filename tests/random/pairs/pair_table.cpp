#include "tests/random/pairs/pair_table.h"

#include <algorithm>
#include <numeric>

#include "fmt/format.h"
#include "tests/random/random.h"

namespace flashjit::testing_random {

namespace {

constexpr int kMostAttempts =
    3;  // of a pair, each with another spec: that kernels do not compile may be the other choices' fault

bool contains(const std::vector<std::size_t>& list, std::size_t value) {
  return std::ranges::find(list, value) != list.end();
}

}  // namespace

PairTable::PairTable(const SpecKind& kind, WhyNot why_not)
    : operation_(kind.operation),
      factors_(factors_of(operation_)),
      first_(first_choices(*kind.family, factors_)),
      ask_(std::move(why_not)) {
  find_companions();
  for (std::size_t i = 0; i < factors_.size(); ++i) {
    for (std::size_t j = i + 1; j < factors_.size(); ++j) {
      for (std::size_t x = 0; x < factors_[i].values.size(); ++x) {
        for (std::size_t y = 0; y < factors_[j].values.size(); ++y) {
          const Pair pair = {{i, x}, {j, y}};
          if (companions_.contains(pair.a) && companions_.contains(pair.b)) pairs_[pair];
        }
      }
    }
  }
}

const std::string& PairTable::why_not(const Choices& choices) {
  const std::string spec = spec_of(operation_, factors_, choices);
  const auto known = answers_.find(spec);
  return known != answers_.end() ? known->second : answers_[spec] = ask_(spec);
}

std::string PairTable::text(const Choice& choice) const {
  const Factor& factor = factors_[choice.factor];
  const std::string& word = factor.values[choice.value];
  return word.empty() ? "no " + factor.name : word;
}

bool PairTable::repair(Choices& choices, const std::vector<std::size_t>& fixed) {
  if (why_not(choices).empty()) return true;
  for (std::size_t i = 0; i < factors_.size(); ++i) {
    if (contains(fixed, i)) continue;
    Choices changed = choices;
    for (std::size_t value = 0; value < factors_[i].values.size(); ++value) {
      changed[i] = value;
      if (value == choices[i] || !why_not(changed).empty()) continue;
      choices = changed;
      return true;
    }
  }
  return false;
}

// From the first choices, or with those of another choice that the family can have: `token_scales` needs kv=e4m3.
void PairTable::find_companions() {
  std::vector<Choice> left;
  const auto find = [&](const Choice& choice, Choices begin) {
    begin[choice.factor] = choice.value;
    const bool legal = repair(begin, {choice.factor});
    if (legal) companions_[choice] = begin;
    return legal;
  };
  for (std::size_t i = 0; i < factors_.size(); ++i) {
    for (std::size_t x = 0; x < factors_[i].values.size(); ++x) {
      if (!find({i, x}, first_)) left.push_back({i, x});
    }
  }
  const std::map<Choice, Choices> known = companions_;
  for (const Choice& choice : left) {
    const bool legal = std::ranges::any_of(known, [&](const auto& other) { return find(choice, other.second); });
    if (legal) continue;
    Choices alone = first_;
    alone[choice.factor] = choice.value;
    refused_[choice] = why_not(alone);
  }
}

bool PairTable::complete(const Pair& pair, Choices& choices) {
  const std::vector<std::size_t> fixed = {pair.a.factor, pair.b.factor};
  const Choices &of_a = companions_.at(pair.a), &of_b = companions_.at(pair.b);
  const auto attempt = [&](const Choices& begin) {
    choices = begin;
    choices[pair.a.factor] = pair.a.value;
    choices[pair.b.factor] = pair.b.value;
    return repair(choices, fixed);
  };
  Choices both = first_;
  for (std::size_t i = 0; i < both.size(); ++i) {
    if (of_a[i] != first_[i]) both[i] = of_a[i];
    if (of_b[i] != first_[i]) both[i] = of_b[i];
  }
  return attempt(both) || attempt(of_a) || attempt(of_b) || attempt(first_);
}

std::size_t PairTable::new_pairs(const Choices& choices, std::size_t factor, std::size_t value) const {
  std::size_t count = 0;
  for (std::size_t other = 0; other < choices.size(); ++other) {
    if (other == factor) continue;
    const Choice here = {factor, value}, there = {other, choices[other]};
    const auto pair = pairs_.find(factor < other ? Pair{here, there} : Pair{there, here});
    count += pair != pairs_.end() && pair->second.covered_by == 0 && pair->second.why_not.empty();
  }
  return count;
}

void PairTable::fill(Choices& choices, const std::vector<std::size_t>& fixed) {
  constexpr int kTried = 3;  // values of a factor, the best ones first
  Random random(++turn_);
  std::vector<std::size_t> order(factors_.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  for (std::size_t i = order.size(); i-- > 1;)
    std::swap(order[i], order[static_cast<std::size_t>(random.integer(0, static_cast<std::int64_t>(i)))]);
  for (const std::size_t factor : order) {
    if (contains(fixed, factor)) continue;
    const std::size_t before = choices[factor];
    std::vector<std::pair<std::size_t, std::size_t>> values;
    for (std::size_t value = 0; value < factors_[factor].values.size(); ++value)
      values.emplace_back(new_pairs(choices, factor, value), value);
    std::ranges::sort(values, std::greater());
    int tried = 0;
    for (const auto& [gain, value] : values) {
      if (value == before || gain == 0 || gain <= new_pairs(choices, factor, before) || tried++ == kTried) break;
      choices[factor] = value;
      if (why_not(choices).empty()) break;
      choices[factor] = before;
    }
  }
}

void PairTable::each_pair(const Choices& choices, const std::function<void(State&)>& visit) {
  for (std::size_t i = 0; i < choices.size(); ++i) {
    for (std::size_t j = i + 1; j < choices.size(); ++j) {
      const auto pair = pairs_.find({{i, choices[i]}, {j, choices[j]}});
      if (pair != pairs_.end()) visit(pair->second);
    }
  }
}

std::vector<std::string> PairTable::cover() {
  std::vector<std::string> added;
  for (auto& [pair, state] : pairs_) {
    if (state.covered_by > 0 || !state.why_not.empty()) continue;
    Choices choices;
    if (!complete(pair, choices)) {
      // The reason of the spec that has the two and else what either needs.
      Choices alone = companions_.at(pair.b);
      alone[pair.a.factor] = pair.a.value;
      state.why_not = why_not(alone).empty() ? "no legal spec was found" : why_not(alone);
      continue;
    }
    fill(choices, {pair.a.factor, pair.b.factor});
    const std::string spec = spec_of(operation_, factors_, choices);
    specs_[spec] = choices;
    each_pair(choices, [](State& of) { ++of.covered_by; });
    added.push_back(spec);
  }
  return added;
}

void PairTable::withdraw(const std::string& spec, const std::string& reason) {
  const auto found = specs_.find(spec);
  if (found == specs_.end()) return;
  answers_[spec] = reason;
  each_pair(found->second, [&](State& state) {
    --state.covered_by;
    if (++state.attempts >= kMostAttempts && state.covered_by == 0) state.why_not = reason;
  });
  specs_.erase(found);
}

std::size_t PairTable::covered() const {
  return static_cast<std::size_t>(
      std::ranges::count_if(pairs_, [](const auto& entry) { return entry.second.covered_by > 0; }));
}

std::vector<std::string> PairTable::impossible() const {
  std::vector<std::string> lines;
  for (const auto& [choice, reason] : refused_) lines.push_back(fmt::format("{}: {}", text(choice), reason));
  for (const auto& [pair, state] : pairs_) {
    if (!state.why_not.empty()) lines.push_back(fmt::format("{}, {}: {}", text(pair.a), text(pair.b), state.why_not));
  }
  return lines;
}

}  // namespace flashjit::testing_random
