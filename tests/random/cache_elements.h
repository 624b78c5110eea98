// Elements of K and V: those of Q, or of 8 bits, with scales that calls may leave out; and Q of 8 bits above them.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "compiler/spec/fields/outputs.h"
#include "compiler/spec/spec.h"
#include "tests/random/case.h"
#include "tests/random/random.h"

namespace flashjit::testing_random {

class CacheElements {
 public:
  // A stream of its own: what a seed draws otherwise does not depend on it.
  explicit CacheElements(std::uint64_t seed) : random_(seed ^ 0x7363616c6573), narrow_(seed ^ 0x6e6172726f77) {}

  // Of Q's type, or not; that may change to one of 8 bits then, and O's with it.
  void draw(Dtype& of_q, Dtype& of_o);
  std::int64_t scale_block() const { return scale_block_; }  // 0: rows have no scales in blocks
  // For a row of a table.
  void take(const AttentionSpec& spec, bool all_codes, bool extreme_scales);

  Dtype dtype = Dtype::BF16;
  bool scaled = false;
  // An element that is about `value`, with its scale; or, where all codes are drawn, any finite number.
  void store(CaseTensor& tensor, std::int64_t at, double value);
  // One of about `value`.
  void put(CaseTensor& tensor, std::int64_t at, double value) const;
  // scale_k, scale_v and scale_q, or some of them, or none. Blocks are those of sequences of these lengths; of keys, where
  // they lie in pages, those of pages.
  struct Rows {
    std::int64_t batch, heads_q, heads_kv, queries, keys, pages, page_size;
  };
  void lay_out_scales(std::map<std::string, CaseTensor>& params, const Rows& rows,
                      const std::vector<std::int64_t>& key_shape, Layout layout);
  std::string words() const;  // " kv=e4m3", as a spec has them
  std::string text() const;   // readable

 private:
  double scale(bool of_queries);
  void shape_as_heads(CaseTensor& tensor, std::int64_t batch, std::int64_t heads);
  void shape_as_blocks(CaseTensor& tensor, std::int64_t batch, std::int64_t heads, std::int64_t tokens);
  void shape_as_keys(CaseTensor& tensor, const std::vector<std::int64_t>& keys, bool heads_first);

  Random random_, narrow_;
  bool all_codes_ = false, extreme_ = false, of_tokens_ = false;
  bool scaled_queries_ = false;
  int scale_block_ = 0;
  double unit_ = 1;     // scales are about this
  double largest_ = 1;  // and up to so many times that, where they are far apart
  std::string shapes_;
};

}  // namespace flashjit::testing_random
