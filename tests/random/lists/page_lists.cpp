#include "tests/random/lists/page_lists.h"

#include <algorithm>
#include <map>
#include <set>

#include "tests/random/lists/ints.h"

namespace flashjit::testing_random {
namespace {

struct PageList {
  std::vector<std::int64_t> numbers;
  std::int64_t count;  // of keys
};

std::int64_t no_page(const HeldPages& pages, Random& random) {
  return random.pick<std::int64_t>({-1, pages.count, 0x7fffffff, -0x7fffffff - 1});
}

// All pages that the list has are full but the one in which its count ends. `counted`: else all that it has room for are seen.
PageList draw_list(const AttentionSpec& spec, const HeldPages& pages, double none, bool counted, Random& random) {
  // A page is in a list a few times at most: sums of one number many times round it the same way each time.
  constexpr int kMostTimes = 2;
  PageList list{{}, listed_keys(spec)};
  std::map<std::int64_t, int> times;
  for (int i = 0; i < spec.selected; ++i) {
    const auto last = static_cast<std::int64_t>(pages.full.size()) - 1;
    const std::int64_t drawn = last < 0 ? -1 : pages.full[static_cast<std::size_t>(random.integer(0, last))];
    const bool is_none = last < 0 || random.chance(none) || ++times[drawn] > kMostTimes;
    list.numbers.push_back(is_none ? no_page(pages, random) : drawn);
  }
  if (!counted) return list;
  list.count = random.integer(0, listed_keys(spec));
  if (pages.partial.empty() || random.chance(0.4)) {
    if (random.chance(0.2)) list.count = random.pick<std::int64_t>({0, -1, 1 << 30, 1});
    return list;
  }
  const HeldPages::Page& page =
      pages.partial[static_cast<std::size_t>(random.integer(0, static_cast<std::int64_t>(pages.partial.size()) - 1))];
  const std::int64_t at = random.integer(0, spec.selected - 1);
  list.numbers[static_cast<std::size_t>(at)] = page.number;
  list.count = at * spec.page_size + random.integer(1, page.keys);
  return list;
}

}  // namespace

HeldPages pages_that_hold(const std::vector<std::int64_t>& rows, std::int64_t pages, std::int64_t page_size) {
  const std::set<std::int64_t> held(rows.begin(), rows.end());
  HeldPages found{{}, {}, pages};
  for (std::int64_t page = 0; page < pages; ++page) {
    std::int64_t keys = 0;
    while (keys < page_size && held.contains(page * page_size + keys)) ++keys;
    if (keys == page_size) found.full.push_back(page);
    else if (keys > 0) found.partial.push_back({page, keys});
  }
  return found;
}

void add_page_lists(Case& c, const AttentionSpec& spec, std::vector<std::int64_t> shape, const HeldPages& pages,
                    Random& random) {
  shape.push_back(spec.heads_kv);
  const bool counted = random.chance(0.8);
  const double none = random.pick({0.0, 0.1, 0.5, 1.0});
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count *= size;
  std::vector<PageList> lists;
  for (std::int64_t i = 0; i < count; ++i) lists.push_back(draw_list(spec, pages, none, counted, random));
  std::size_t next = 0;
  if (counted) {
    CaseTensor& tensor = c.params["key_count"];
    lay_out(tensor, Dtype::I32, shape, 4, random.chance(0.3) ? 3 : 0, false);
    each_element(tensor, [&](const auto&, std::int64_t offset) { put(tensor, offset, lists[next++].count); });
  }
  shape.push_back(spec.selected);
  CaseTensor& index = c.params["page_index"];
  lay_out(index, Dtype::I32, shape, 4, random.chance(0.3) ? 5 : 0, false);
  next = 0;
  each_element(index, [&](const std::vector<std::int64_t>& at, std::int64_t offset) {
    const PageList& list = lists[next];
    put(index, offset, list.numbers[static_cast<std::size_t>(at.back())]);
    next += at.back() == spec.selected - 1;
  });
}

}  // namespace flashjit::testing_random
