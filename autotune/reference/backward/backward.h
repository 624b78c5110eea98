// Gradients are computed by their definition in float64 (compiler/SPEC.md, "Gradients"), from the O and LSE that the
// call is given. Slopes of scores are differences of Semantics::score, independent of what the compiler derives.
// Derivatives by elements of parameters are differences, too, of the score with one element moved.
// The recipe of the error rule has products and sums in fp32. P and ds, without the factor of dropout, are rounded to
// the dtype before the products that sum them up, and gradients are rounded to their dtypes. Gradients of parameters
// and sinks are rounded to nothing but fp32.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "autotune/reference/reference.h"

namespace flashjit::reference {

// This is one row of dQ, dK or dV.
struct Gradient {
  std::vector<double> exact, variance;  // `variance` is that of the recipe's error.
  std::vector<float> recipe;
  std::vector<bool> tainted;  // infinity or NaN that a kernel may or may not multiply with 0
};

class Backward {
 public:
  // `problem` must outlive it.
  explicit Backward(const Problem& problem) : problem_(problem) {}

  struct Query {
    std::vector<double> exact;  // the numbers of `q`
    std::vector<float> q, d_o;
    double lse = 0, delta = 0;  // in natural units; delta is dO . O - dLSE
    double delta_error = 0;     // standard deviation of the error of fp32 arithmetic
    float recipe_delta = 0;
  };
  // All gradients of a batch and KV head come from this data.
  struct Group {
    std::int64_t b = 0, hk = 0;
    Problem::KeysValues kv;
    std::vector<Query> queries;  // [head of the group, query]
    // With lists these are, for each key, the queries that list it, each as often as it does.
    std::vector<std::vector<std::int64_t>> choosers;
  };
  Group group(std::int64_t b, std::int64_t hk) const;

  Gradient dq(const Group& group, std::int64_t head_in_group, std::int64_t q) const;
  // With v_in_k dK has the gradients of V in it.
  struct OfKey {
    Gradient dk, dv;
  };
  OfKey of_key(const Group& group, std::int64_t k) const;

  // A share is what one query of a group adds to the gradients of parameters, or to that of its head's sink. If a
  // tensor of 16 bits has an element for each key, the share may be ds as products take it, which has 16 bits, too.
  struct Share {
    Element element;
    double exact = 0, variance = 0, squares = 0, terms = 0;
    float recipe = 0;
    bool tainted = false;
  };
  std::vector<Share> of_parameters(const Group& group, std::int64_t head_in_group, std::int64_t q) const;
  Share of_sink(const Group& group, std::int64_t head_in_group, std::int64_t q) const;

 private:
  // A query and a key have P, and ds times the slope. Both lack the factor of dropout, which multiplies the sums: a
  // small number of fp16 loses more without it.
  struct Pair {
    bool counts = false;   // If it is false, the pair adds nothing.
    bool unclear = false;  // fp32 arithmetic then leaves open whether the pair adds something.
    bool dropped = false;  // P then multiplies no V, but it counts in ds.
    double p = 0, p_error = 0;
    double ds = 0, ds_error = 0;
    double in_common = 0;  // error of ds that all keys of the query share
    float recipe_p = 0, recipe_ds = 0;
    Dual s;  // the scaled product
    double s_error = 0;
    struct {
      double value = 0, error = 0, in_common = 0;
      float recipe = 0;
    } by_logit;  // ds before it is multiplied with the slope
  };
  Pair pair(const Query& query, const Position& at, const float* key, const float* value) const;
  Query query(const RowId& row) const;
  template <class Visit>
  void each_query(const Group& group, std::int64_t k, const Visit& visit) const;

  const Problem& problem_;
};

// Returns the largest error of rounding. Its variance is a third of its square. Small numbers of fp16 are evenly
// spaced.
double largest_rounding(Dtype dtype, double x);

// A slope is the derivative of the score by its s, and a bound on how far a derivative taken in fp32 differs from it if
// s is off by `error`. Both are not finite if there is no derivative.
struct Slope {
  double value = 1, error = 0;
};
Slope slope_of(const Semantics& semantics, const Position& at, const Dual& s, double error);
// Returns the slope of any function of how far its argument is moved from 0.
Slope slope_of(const std::function<double(double moved)>& score, double error);

}  // namespace flashjit::reference
