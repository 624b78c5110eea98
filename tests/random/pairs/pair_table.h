// For one operation of a family: specs in which every pair of choices meets at least once, and the pairs that no spec can have.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tests/random/pairs/factors.h"

namespace flashjit::testing_random {

class PairTable {
 public:
  // Why the family computes no such spec; empty: it does.
  using WhyNot = std::function<std::string(const std::string& spec)>;

  PairTable(const SpecKind& kind, WhyNot why_not);

  // Specs that have every pair that is not covered yet and can be. `covered` and `impossible` then say of each which it is.
  std::vector<std::string> cover();
  // No kernel of the family came of the spec, which was found when it was compiled: its pairs are not covered by it, and the
  // next call of cover() looks for other specs that have them.
  void withdraw(const std::string& spec, const std::string& reason);

  std::size_t covered() const;
  // Lines "choice: reason" and "choice, choice: reason". Pairs of a choice that is impossible by itself have no lines.
  std::vector<std::string> impossible() const;

 private:
  // A value of a factor, and two of them, the lower factor first.
  struct Choice {
    std::size_t factor, value;
    auto operator<=>(const Choice&) const = default;
  };
  struct Pair {
    Choice a, b;
    auto operator<=>(const Pair&) const = default;
  };
  struct State {
    int covered_by = 0;  // specs
    int attempts = 0;
    std::string why_not;
  };

  const std::string& why_not(const Choices& choices);
  std::string text(const Choice& choice) const;
  // Makes the choices legal by changing one that is not `fixed`, if need be.
  bool repair(Choices& choices, const std::vector<std::size_t>& fixed);
  void find_companions();
  bool complete(const Pair& pair, Choices& choices);
  // Adds choices that meet others for the first time, as long as the spec stays legal.
  void fill(Choices& choices, const std::vector<std::size_t>& fixed);
  std::size_t new_pairs(const Choices& choices, std::size_t factor, std::size_t value) const;
  void each_pair(const Choices& choices, const std::function<void(State&)>& visit);

  const Operation operation_;
  const std::vector<Factor> factors_;
  const Choices first_;
  const WhyNot ask_;
  std::map<std::string, std::string> answers_;
  std::map<Choice, Choices> companions_;   // of a choice that is possible: a legal spec that has it
  std::map<Choice, std::string> refused_;  // choices that no spec can have
  std::map<Pair, State> pairs_;
  std::map<std::string, Choices> specs_;
  std::uint64_t turn_ = 0;
};

}  // namespace flashjit::testing_random
