// Applies a mask beside lists of keys or pages (select= in a spec) on a processor: the lists are copied, key by key,
// with -1 in place of keys that the mask hides.
#pragma once

#include <cstdint>
#include <memory>

#include "codegen/host/backend.h"

namespace flashjit::host {

class Code;
class Ir;

// These are the arguments of a call of flashjit_shown_keys, for the list of a query and a KV head. Generated code reads
// them through offsetof.
struct ShownKeysCall {
  const void* params;  // They are KernelParams.
  std::int64_t b, h, hk, q, q_len, k_len;
  std::int64_t numbers;  // Numbers from this one on belong to no row, or to no page.
  const int* list;
  const int* positions;  // The positions of its entries' keys, or first keys; null if numbers are positions.
  int* shown;
};
using ShownKeysFunction = void (*)(const ShownKeysCall*);
inline constexpr char kShownKeysName[] = "flashjit_shown_keys";

// Emits void flashjit_shown_keys(const ShownKeysCall*).
void emit_shown_keys(Ir& ir, const Plan& plan);

// Returns a kernel that copies all lists and then runs `attention` on the copy. `attention` owns the code.
Result<std::unique_ptr<HostKernel>> kernel_of_shown_keys(const AttentionSpec& spec, const Code& code,
                                                         std::unique_ptr<HostKernel> attention);

}  // namespace flashjit::host
