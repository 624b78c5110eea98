// The passes of several families share these functions.
#pragma once

#include <span>
#include <string_view>

#include "compiler/program/passes.h"
#include "compiler/program/product.h"

namespace flashjit {

// The tiles of S, P, O and the rows' state.
void size_tiles(Program& p, const KernelConfig& c, int output_columns);

// S, P, O and the state of rows are spread over the threads that own the rows, as matrix instructions have them.
void spread_tiles(Program& p);

// Every matrix product becomes the one of these that has its target.
Result<void> assign_products(Program& p, std::span<const Product> products);

// Sets what a block takes, which must fit it.
Result<void> set_shared_memory(Program& p, const Target& target, int bytes);

// The loop's operands come from shared memory: K and V are loaded right before their product. `queries`: the buffer
// that Q is read from.
void load_operands(Program& p, std::string_view queries);

// "need/limit", for the reader; Internal if candidates let something through that does not fit.
Result<void> set_registers(Program& p, int needed, int budget);

// Every attribute of the program must be one that the loop of a family honours: its name, or "name=value" where the
// loop does only that.
Result<void> check_honoured(const Program& p, std::string_view family, std::span<const std::string_view> honoured);

}  // namespace flashjit
