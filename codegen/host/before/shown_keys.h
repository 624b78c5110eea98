// A mask beside lists of keys or pages (select= in a spec) on a processor: the lists are copied, key by key, with -1 in place of
// keys that it hides.
#pragma once

#include <cstdint>
#include <memory>

#include "codegen/host/backend.h"

namespace flashjit::host {

class Code;
class Ir;

// One call of flashjit_shown_keys: the list of a query and a KV head. Read by generated code through offsetof.
struct ShownKeysCall {
  const void* params;  // KernelParams
  std::int64_t b, h, hk, q, q_len, k_len;
  std::int64_t numbers;  // from here on they are those of no row, or of no page
  const int* list;
  const int* positions;  // of the keys of its entries, or of the first ones; null: numbers are positions
  int* shown;
};
using ShownKeysFunction = void (*)(const ShownKeysCall*);
inline constexpr char kShownKeysName[] = "flashjit_shown_keys";

// void flashjit_shown_keys(const ShownKeysCall*).
void emit_shown_keys(Ir& ir, const Plan& plan);

// A kernel that copies all lists and then runs `attention` on the copy. `attention` owns the code.
Result<std::unique_ptr<HostKernel>> kernel_of_shown_keys(const AttentionSpec& spec, const Code& code,
                                                         std::unique_ptr<HostKernel> attention);

}  // namespace flashjit::host
