// Semantics are what a mask and a score mean at one query and key, apart from how they are written: plain functions. They come
// either from the expressions of a spec (semantics_of), or from hand-written C++ (named.h, the random generator), which
// then checks the parser, the table of named rows and the evaluator as well.
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

// The options that the reference computes (compiler/spec/operations/options.h); it refuses others.
std::span<const std::string_view> honoured_options();
Result<void> check_honoured(const AttentionSpec& spec);

// A number in two precisions at once: `f` is what 32-bit arithmetic makes of it, `d` what exact arithmetic would.
// Decisions (comparisons) follow f, as the language defines them; values are compared with d.
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
  std::function<bool(const Position&)> visible;      // empty: everything
  std::function<Dual(const Position&, Dual)> score;  // empty: the score itself
  // Keys from here on are hidden from every query by a bound of the mask, so what lies there may not be seen at all.
  // Hidden keys before it may: NaN in V of a tile that others see (compiler/SPEC.md).
  std::int64_t unseen_from = std::numeric_limits<std::int64_t>::max();
};

// From the expressions of a spec; `arguments` must outlive the result.
Semantics semantics_of(const AttentionSpec& spec, const Arguments& arguments);

// One element of a tensor parameter, or a scalar.
struct Element {
  std::size_t param = 0;    // in AttentionSpec::params
  std::int64_t number = 0;  // all of the tensor in the order of their indices, the last one first
  bool operator==(const Element&) const = default;
};

// Says which elements a score reads, and what it is where one of them is another number. Both must outlive it.
class ElementReads {
 public:
  ElementReads(const AttentionSpec& spec, const Arguments& arguments) : spec_(spec), arguments_(arguments) {}
  std::vector<Element> of(const Position& at, const Dual& s) const;  // each once
  // `element` greater by `by`, in exact arithmetic alone: decisions stay as they are.
  double score(const Position& at, const Dual& s, const Element& element, double by) const;

 private:
  const AttentionSpec& spec_;
  const Arguments& arguments_;
};

}  // namespace flashjit::reference
