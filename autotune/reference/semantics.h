// Semantics are the meaning of a mask and a score at one query and key, independent of how they are written: plain
// functions. They come either from the expressions of a spec (semantics_of), or from hand-written C++ (named.h, the
// random generator), which then checks the parser, the table of named rows and the evaluator as well.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string_view>
#include <vector>

#include "compiler/spec/spec.h"
#include "flashjit/flashjit.hpp"

namespace flashjit::reference {

// The reference computes these options (compiler/spec/operations/options.h), and refuses others.
std::span<const std::string_view> honoured_options();
Result<void> check_honoured(const AttentionSpec& spec);

// This is a number in two precisions at once: `f` is the result of 32-bit arithmetic, `d` that of exact arithmetic.
// Decisions (comparisons) follow f, as the language defines them. Values are compared with d.
struct Dual {
  float f = 0;
  double d = 0;
  Dual() = default;
  Dual(double exact) : f(static_cast<float>(exact)), d(exact) {}
  Dual(float single, double exact) : f(single), d(exact) {}
};

struct Position {
  std::int64_t q = 0, k = 0, b = 0, h = 0, hk = 0, q_len = 0, k_len = 0;
};

struct Semantics {
  std::function<bool(const Position&)> visible;      // If it is empty, everything is visible.
  std::function<Dual(const Position&, Dual)> score;  // If it is empty, the score stays as it is.
  // A bound of the mask hides keys from here on from every query, so they may not be read at all. Hidden keys before it
  // may be read: NaN in V of a tile that others see shows (compiler/SPEC.md).
  std::int64_t unseen_from = std::numeric_limits<std::int64_t>::max();
};

// Takes the semantics from the expressions of a spec; `arguments` must outlive the result.
Semantics semantics_of(const AttentionSpec& spec, const Arguments& arguments);

// This is one element of a tensor parameter, or a scalar.
struct Element {
  std::size_t param = 0;  // index in AttentionSpec::params
  // The elements of a tensor are numbered in the order of their indices, the last index first.
  std::int64_t number = 0;
  bool operator==(const Element&) const = default;
};

// Finds the elements that a score reads, and the score when one of them is another number. Both arguments must outlive
// it.
class ElementReads {
 public:
  ElementReads(const AttentionSpec& spec, const Arguments& arguments) : spec_(spec), arguments_(arguments) {}
  std::vector<Element> of(const Position& at, const Dual& s) const;  // Returns each element once.
  // Returns the score with `element` greater by `by`, in exact arithmetic alone: decisions stay as they are.
  double score(const Position& at, const Dual& s, const Element& element, double by) const;

 private:
  const AttentionSpec& spec_;
  const Arguments& arguments_;
};

}  // namespace flashjit::reference
