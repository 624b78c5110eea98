// The textbook version of gradients: it keeps P and dS of all queries and keys in memory, and runs plain loops over
// them.
#pragma once

#include "codegen/host/backend.h"
#include "codegen/host/config.h"
#include "codegen/host/emit/ir.h"
#include "codegen/host/jit.h"

namespace flashjit::host {

// These are the arguments for one query of one head: its rows of P and dS, and its gradient.
struct NaiveQueryCall {
  const void* params;
  const void* q;
  const void* d_o;
  const void* o;
  const void* const* k_rows;  // By key.
  const void* const* v_rows;
  const float* lse;
  const float* d_lse;    // It is set where the spec has it.
  float* probabilities;  // They have k_len floats.
  float* gradients;
  void* dq;
  std::int64_t b, h, hk, q_len, k_len, q_row;
  FourWords key;  // The key of dropout.
};

// These are the arguments for one key of one KV head: its gradients, from all queries of the heads that it serves.
struct NaiveKeyCall {
  const void* const* q_rows;  // By query.
  const void* const* do_rows;
  const float* const* probabilities;  // Rows of P and dS, by query.
  const float* const* gradients;
  void* dk;
  void* dv;
  std::int64_t queries, key;
};

using NaiveQueryFunction = void (*)(const NaiveQueryCall*);
using NaiveKeyFunction = void (*)(const NaiveKeyCall*);

inline constexpr char kNaiveQueryGradientsName[] = "flashjit_naive_query_gradients";
inline constexpr char kNaiveKeyGradientsName[] = "flashjit_naive_key_gradients";

Result<void> emit_naive_gradients(Ir& ir, const Plan& plan);
Result<std::unique_ptr<HostKernel>> naive_gradients_kernel(const Plan& plan, const HostConfig& config,
                                                           std::unique_ptr<Code> code);

}  // namespace flashjit::host
