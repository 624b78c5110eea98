// Gradients by their definition in float64 (compiler/SPEC.md, "Gradients"), from the O and LSE that the call is given.
// Slopes of scores are differences of Semantics::score, apart from what the compiler derives.
//
// So are derivatives by elements of parameters: differences of the score with one of them moved.
//
// The recipe of the error rule: products and sums in fp32, P and ds, without the factor of dropout, rounded to the dtype before
// the products that sum them up, gradients rounded to theirs. For gradients of parameters and sinks nothing is rounded but to fp32.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "autotune/reference/reference.h"

namespace flashjit::reference {

// One row of dQ, dK or dV.
struct Gradient {
  std::vector<double> exact, variance;  // variance: of the recipe's error
  std::vector<float> recipe;
  std::vector<bool> tainted;  // infinity or NaN that a kernel may or may not multiply with 0
};

class Backward {
 public:
  // `problem` must outlive it.
  explicit Backward(const Problem& problem) : problem_(problem) {}

  struct Query {
    std::vector<double> exact;  // as `q`
    std::vector<float> q, d_o;
    double lse = 0, delta = 0;  // natural units; delta is dO . O - dLSE
    double delta_error = 0;     // standard deviation of what fp32 arithmetic makes of it
    float recipe_delta = 0;
  };
  // All gradients of a batch and KV head come from this data.
  struct Group {
    std::int64_t b = 0, hk = 0;
    Problem::KeysValues kv;
    std::vector<Query> queries;  // [head of the group, query]
    // With lists: for each key the queries that have it in theirs, each as often as it is there.
    std::vector<std::vector<std::int64_t>> choosers;
  };
  Group group(std::int64_t b, std::int64_t hk) const;

  Gradient dq(const Group& group, std::int64_t head_in_group, std::int64_t q) const;
  struct OfKey {
    Gradient dk, dv;
  };
  OfKey of_key(const Group& group, std::int64_t k) const;

  // A share is what one query of a group adds to the gradients of parameters, or to that of its head's sink. Where a tensor of
  // 16 bits has an element for each key, the share may be ds as products take it, which is of 16 bits as well.
  struct Share {
    Element element;
    double exact = 0, variance = 0, squares = 0, terms = 0;
    float recipe = 0;
    bool tainted = false;
  };
  std::vector<Share> of_parameters(const Group& group, std::int64_t head_in_group, std::int64_t q) const;
  Share of_sink(const Group& group, std::int64_t head_in_group, std::int64_t q) const;

 private:
  // A query and a key: P, and ds times the slope, both without the factor of dropout, which sums are multiplied with: a
  // small number of fp16 loses more without it.
  struct Pair {
    bool counts = false;   // else nothing is added ...
    bool unclear = false;  // ... or fp32 arithmetic says nothing about it
    bool dropped = false;  // P then is none of V's; it counts in ds
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

// The largest error of rounding, a third of whose square is its variance. Small numbers of fp16 are evenly spaced.
double largest_rounding(Dtype dtype, double x);

// A slope is the derivative of the score by its s, and a bound on how far a derivative taken in fp32 differs from it if
// s is off by `error`. Both are not finite where there is none.
struct Slope {
  double value = 1, error = 0;
};
Slope slope_of(const Semantics& semantics, const Position& at, const Dual& s, double error);
// Returns the slope of any function of how far it is moved from 0.
Slope slope_of(const std::function<double(double moved)>& score, double error);

}  // namespace flashjit::reference
