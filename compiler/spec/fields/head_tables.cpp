#include "compiler/spec/fields/head_tables.h"

namespace flashjit {

Result<void> check_head_tables(const AttentionSpec& spec) {
  if (!spec.head_tables) return {};
  if (selects(spec)) {
    return invalid(
        "head_tables: with select= lists say where keys lie, for each KV head, and there is no block_table; leave one "
        "of the two out");
  }
  if (!is_paged(spec)) {
    return invalid("head_tables: block_table is that of a pool, and the layout has none; use layout=paged(64)");
  }
  if (!spec.shared_prefix) return {};
  return invalid(
      "head_tables: with shared_prefix the first pages of a sequence are those of all its heads; leave one of the two "
      "out");
}

}  // namespace flashjit
