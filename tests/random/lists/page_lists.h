// Lists of pages for drawn cases with select=pages.
#pragma once

#include "compiler/spec/spec.h"
#include "tests/random/case.h"
#include "tests/random/random.h"

namespace flashjit::testing_random {

// The pages of a pool whose rows hold keys up to the last, and those that hold some, with how many. Other rows are poisoned.
struct HeldPages {
  struct Page {
    std::int64_t number, keys;
  };
  std::vector<std::int64_t> full;
  std::vector<Page> partial;
  std::int64_t count = 0;  // numbers from here on are those of no page
};
// `rows`: the numbers of rows that hold keys.
HeldPages pages_that_hold(const std::vector<std::int64_t>& rows, std::int64_t pages, std::int64_t page_size);

// page_index and, now and then, key_count, for queries of this shape: [batch, tokens] or [tokens].
void add_page_lists(Case& c, const AttentionSpec& spec, std::vector<std::int64_t> shape, const HeldPages& pages,
                    Random& random);

}  // namespace flashjit::testing_random
