// Caches of keys: lengths on the device, what lies behind them, and pages.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "compiler/spec/spec.h"
#include "tests/random/case.h"
#include "tests/random/random.h"

namespace flashjit::testing_random {

// V as the first columns of K: of latent attention's usual dims, or of any.
struct Latent {
  int d_qk = 0, d_v = 0;
  int heads = 0;             // of queries, with one KV head; 0: as they were drawn
  std::int64_t queries = 0;  // of every sequence, with `heads`
};
// Seldom; a stream of its own.
std::optional<Latent> draw_latent(std::uint64_t seed);

class CacheGenerator {
 public:
  // A stream of its own: what a seed draws otherwise does not depend on it.
  explicit CacheGenerator(std::uint64_t seed) : random_(seed ^ 0x6b5f6c656e73) {}

  // `rooms`: the keys that each sequence has room for, which become more where pages are drawn. Often nothing is. `block`:
  // not 0: so many keys share a scale, and pages hold whole blocks.
  void draw(std::vector<std::int64_t>& rooms, bool may_be_paged, std::int64_t block);
  // For a row of a table, whose `rooms` are the lengths; packed ones are then two thirds of what the offsets leave.
  void take(std::vector<std::int64_t>& rooms, const AttentionSpec& spec);
  // The last `fresh` keys of each sequence get pages that no other has: they will be written to.
  void own_ends(const std::vector<std::int64_t>& fresh);

  std::vector<std::int64_t>
      lens;  // k_lens, which may be more than there is room for, or negative; empty: there is none
  std::int64_t page_size = 0, pages = 0;
  std::int64_t keys_of(std::int64_t b) const;
  std::string text() const;

  // The element where the row of a key below keys_of(b) begins in a pool.
  std::int64_t row_of(const CaseTensor& pool, std::int64_t b, std::int64_t at, std::int64_t head) const;
  // Rows of a pool that hold no key of any sequence.
  void each_unused_row(const CaseTensor& pool, const std::function<void(std::int64_t row)>& visit) const;
  void lay_out_lens(CaseTensor& tensor) const;
  void lay_out_table(CaseTensor& tensor);
  double not_finite();

 private:
  void make_room_in_pages(std::int64_t more);
  void draw_table(bool shared);

  Random random_;
  std::vector<std::int64_t> rooms_, table_;  // by sequence and place
  std::int64_t width_ = 0;                   // places of a sequence in the table
};

}  // namespace flashjit::testing_random
