// Attention is computed here by its definition, one row at a time, in float64. It is written plainly and apart from the
// compiler: from a spec it takes the fields, never how something is computed.
//
// Beside the exact result there is the *recipe*: what a careful user of the same dtype gets without a fused kernel
// (scores and softmax in fp32, probabilities rounded to the dtype before the second product, output rounded). The error
// rule compares the error of a kernel with the error of the recipe. If the dtype has 8 bits, the inputs are taken as
// they are, and there are two recipes: probabilities are rounded to fp16, which caches of 8 bits do, too, or to e4m3.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "compiler/result.h"
#include "compiler/spec/spec.h"
#include "flashjit/flashjit.hpp"
#include "autotune/reference/arithmetic.h"
#include "autotune/reference/dropout.h"
#include "autotune/reference/caches/latents.h"
#include "autotune/reference/semantics.h"

namespace flashjit::reference {

// Returns the tensor's strides, or those of a contiguous tensor if it has none.
inline std::vector<std::int64_t> strides_of(const Tensor& tensor) {
  std::vector<std::int64_t> s = tensor.strides;
  if (!s.empty()) return s;
  s.assign(tensor.shape.size(), 1);
  for (int i = static_cast<int>(s.size()) - 2; i >= 0; --i) s[i] = s[i + 1] * tensor.shape[i + 1];
  return s;
}

// Returns the name in `params` for a copy of what a tensor held before the call. The reference of a spec with
// accumulate needs such copies.
std::string earlier(std::string_view name);

// Returns V^T in the form of V: its rows, whose elements then lie apart.
Tensor rows_of_columns(const Tensor& v, Layout layout);

// This is one query row. q counts from the start of its sequence.
struct RowId {
  std::int64_t b = 0, h = 0, q = 0;
};

struct ExactRow {
  std::vector<double> o;         // [d_v]
  std::vector<double> variance;  // variance of the recipe's error in each element, from the sizes of its roundings
  std::vector<bool> tainted;     // A hidden key has inf or NaN in this column of V, and 0 * inf depends on the tiling.
  double lse = 0;                // in natural units, whatever the spec asks for
  double max_logit = 0;          // maximum over the visible keys, in natural units, without the sink
  double logit_error = 0;        // how far fp32 arithmetic may move one logit
  double lse_doubt = 0;          // how far elements in doubt (Doubts), each by itself, move lse
  double max_doubt = 0;          // how far they move max_logit
  std::vector<double> o_doubt;   // how far they move o; empty if there are none
  bool nan_logit = false;        // If it is true, max_logit is not defined.
};

// Elements of Q and K, in the order in which they lie, have a doubt: the distance to another value to which fp32 may
// have rounded when rows that had been turned (`rope`) became 8 bits. Angles are right to 1e-6, and a few elements
// depend on that.
struct Doubts {
  std::vector<float> q, k;
};

struct RecipeRow {
  std::vector<double> o;
};

// A problem is a spec together with its arguments (host pointers), and finds their elements.
class Problem {
 public:
  // `semantics` gives the meaning of mask and score. Arguments must outlive the problem.
  static Result<Problem> create(const AttentionSpec& spec, const Arguments& arguments, Semantics semantics);
  static Result<Problem> create(const AttentionSpec& spec, const Arguments& arguments) {
    return create(spec, arguments, semantics_of(spec, arguments));
  }

  // Sets the dtype to which the recipe rounds probabilities. It is that of the inputs, or fp16 for a dtype of 8 bits,
  // unless a kernel says that it is another (Facts::weights).
  void round_weights_to(std::string_view dtype);
  Dtype weights() const { return weights_; }
  // Q and K have to be contiguous then. `doubts` must outlive the problem.
  void set_doubts(const Doubts& doubts) { doubts_ = &doubts; }

  const AttentionSpec& spec() const { return *spec_; }
  const Arguments& arguments() const { return *arguments_; }
  std::int64_t batch() const { return batch_; }
  std::int64_t q_len(std::int64_t b) const;
  std::int64_t k_len(std::int64_t b) const;  // For a merge these are the parts.
  std::vector<RowId> rows() const;           // all rows, by batch, then head, then query

  // These are K and V of one (batch, KV head) as floats, without their scales, which are given by key. A merge has
  // none, and an index has no V.
  struct KeysValues {
    std::vector<float> k, v, scale_k, scale_v;
  };
  KeysValues keys_values(std::int64_t b, std::int64_t hk) const;
  // Returns the keys of a row, in the order in which they are added up: all keys of its sequence, or the existing ones
  // of its list.
  std::vector<std::int64_t> keys_of(const RowId& row) const;
  // Returns the number of a key's row, as lists have it.
  std::int64_t row_number(std::int64_t b, std::int64_t hk, std::int64_t k) const;
  // Returns the same of a cache whose rows are bytes.
  KeysValues latents(std::int64_t b) const;
  std::int64_t kv_head(std::int64_t h) const { return h / (spec_->heads_q / spec_->heads_kv); }

  ExactRow exact(const RowId& row, const KeysValues& kv) const { return exact(row, kv, true); }
  // Computes only a row's O and LSE. `variance` and doubts, which errors are held against, take longer than the rest.
  ExactRow result_alone(const RowId& row, const KeysValues& kv) const { return exact(row, kv, false); }
  RecipeRow recipe(const RowId& row, const KeysValues& kv) const;

  // These functions read tensors with the rows of Q, of K, or with a number for each row of Q. For bwd some of them lie
  // in params.
  std::vector<double> query_row(const Tensor& tensor, const RowId& row) const {
    return elements(tensor, query_offset(tensor, row), static_cast<int>(tensor.shape.back()));
  }
  std::vector<double> key_row(const Tensor& tensor, std::int64_t b, std::int64_t hk, std::int64_t k) const {
    return elements(tensor, key_offset(tensor, b, hk, k), static_cast<int>(tensor.shape.back()));
  }
  double statistic(const Tensor& tensor, const RowId& row) const;
  const Semantics& semantics() const { return semantics_; }
  const Dropout& dropout() const { return dropout_; }
  Position position(const RowId& row) const;

  // These functions return what the kernel wrote.
  double output(const RowId& row, int column) const;
  double output_lse(const RowId& row) const { return statistic(arguments_->lse, row); }
  double output_max_logit(const RowId& row) const { return statistic(arguments_->max_logit, row); }
  // Returns the first element of a new row that is wrong in K or V after the call, or an empty text if there is none.
  std::string wrong_append() const;

 private:
  std::int64_t offset(const Tensor& tensor, std::int64_t start, const RowId& at) const;
  std::int64_t key_offset(const Tensor& tensor, std::int64_t b, std::int64_t hk, std::int64_t k) const;
  std::pair<std::int64_t, std::int64_t> page_and_token(std::int64_t b, std::int64_t hk, std::int64_t k) const;
  std::int64_t statistic_offset(const Tensor& tensor, const RowId& row) const;
  std::vector<double> query(const RowId& row) const;  // rotated, if the spec says so, and not rounded
  std::vector<double> elements(const Tensor& tensor, std::int64_t offset, int count) const;
  std::int64_t query_offset(const Tensor& tensor, const RowId& row) const;
  // It is negative if the token is not in the cache.
  std::int64_t token_position(std::int64_t b, std::int64_t q) const;
  // Checks the rows of a new token and a KV head, which is `token.h`.
  std::string wrong_append(const RowId& token) const;
  std::string wrong_row(const char* name, const Tensor& cache, const RowId& token, const std::vector<double>& wanted,
                        double size, float scale) const;
  std::string wrong_latent(const RowId& token, const std::vector<double>& wanted, double size) const;
  LatentRow latent_row_of(std::int64_t b, std::int64_t k) const;
  // Returns how far elements in doubt move the product of a query and a key.
  double doubt(const RowId& row, std::int64_t k, const std::vector<double>& query, const float* key) const;
  std::vector<Logit> exact_logits(const RowId& row, const KeysValues& kv, ExactRow& result) const;
  ExactRow exact(const RowId& row, const KeysValues& kv, bool with_errors) const;
  ExactRow finish(const RowId& row, std::vector<Logit> logits, const std::vector<float>& values,
                  const std::vector<float>& scale_v, ExactRow result, bool with_errors) const;
  RecipeRow merged_recipe(const RowId& row) const;
  // These functions add the earlier results of the row.
  ExactRow continued(const RowId& row, ExactRow own) const;
  RecipeRow continued(const RowId& row, RecipeRow own, float lse) const;
  double earlier_lse(const RowId& row) const;  // in natural units
  std::vector<double> earlier_output(const RowId& row) const;
  // Mask and score then see where rows stand in the whole sequence.
  void shift_positions();
  bool shows_position(const RowId& row, std::int64_t entry, std::int64_t of_entry) const;
  bool shares(std::int64_t b) const;
  double largest_of_parts(const RowId& row) const;
  std::vector<float> part_lse(const RowId& row) const;  // in natural units
  std::vector<float> part_rows(const RowId& row) const;
  float sink(const RowId& row) const;
  float query_scale(const RowId& row) const { return element_scale("scale_q", row.b, row.h, row.q); }
  float element_scale(const std::string& name, std::int64_t b, std::int64_t head, std::int64_t row) const;
  float rounded_weight(float p, float sum, float largest) const;

  const AttentionSpec* spec_ = nullptr;
  const Arguments* arguments_ = nullptr;
  Semantics semantics_;
  // The mask, if it needs positions that a call gives.
  std::function<bool(const Position&)> shows_listed_;
  Dropout dropout_;
  const Doubts* doubts_ = nullptr;
  Dtype weights_ = Dtype::F32;
  std::int64_t batch_ = 0;
};

}  // namespace flashjit::reference
