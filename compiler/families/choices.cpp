#include "compiler/families/choices.h"

#include "compiler/analysis/score_inputs.h"

namespace flashjit {

int score_registers(const AttentionSpec& spec) {
  constexpr int kAddressesAndValues = 60;
  return loads_per_key(spec.score) ? kAddressesAndValues : 0;
}

}  // namespace flashjit
