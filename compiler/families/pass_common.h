// Functions that the passes of several families share.
#pragma once

#include <span>
#include <string_view>

#include "compiler/program/passes.h"
#include "compiler/program/product.h"

namespace flashjit {

// Sets the sizes of S, P, O and of the rows' state.
void size_tiles(Program& p, const KernelConfig& c, int output_columns);

// Spreads S, P, O and the state of rows over the threads that own the rows, as matrix instructions do.
void spread_tiles(Program& p);

// Replaces every matrix product by the one of `products` that has its target.
Result<void> assign_products(Program& p, std::span<const Product> products);

// Sets the shared memory of a block, which must fit it.
Result<void> set_shared_memory(Program& p, const Target& target, int bytes);

// Reads the loop's operands from shared memory. K and V are loaded right before their product, and Q is read from the
// buffer `queries`.
void load_operands(Program& p, std::string_view queries);

// Sets "need/limit" for the reader. It is an internal error if candidates let through a schedule that does not fit.
Result<void> set_registers(Program& p, int needed, int budget);

// Checks that the family's loop honours every attribute of the program, by its name, or by "name=value" where the loop
// honours that value alone.
Result<void> check_honoured(const Program& p, std::string_view family, std::span<const std::string_view> honoured);

}  // namespace flashjit
