#include "tests/random/operations/index_generator.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "compiler/spec/half.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "tests/random/random.h"

namespace flashjit::testing_random {
namespace {

using Shape = std::vector<std::int64_t>;

class IndexCase {
 public:
  IndexCase(std::uint64_t seed, std::string_view text, Shape q_lens, Shape k_lens, Data data)
      : random_(seed), spec_(*parse_spec(text)), q_lens_(std::move(q_lens)), k_lens_(std::move(k_lens)), data_(data) {
    case_.seed = seed;
    case_.spec = text;
    case_.data = kDataNames[static_cast<std::size_t>(data)];
    case_.shape = fmt::format("q={{{}}} k={{{}}}", fmt::join(q_lens_, ","), fmt::join(k_lens_, ","));
    case_.independent = false;
  }

  Case make() {
    lay_out_lengths();
    lay_out_rows();
    lay_out_params();
    lay_out_results();
    return std::move(case_);
  }

 private:
  bool packed() const { return spec_.layout == Layout::Packed; }
  bool packed_keys() const { return packed() && spec_.page_size == 0; }
  static std::int64_t longest(const Shape& lengths) { return lengths.empty() ? 0 : *std::ranges::max_element(lengths); }
  static std::int64_t sum(const Shape& lengths) {
    return std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  }
  std::int64_t batch() const { return static_cast<std::int64_t>(q_lens_.size()); }
  std::int64_t pages_of_sequence() const { return (longest(k_lens_) + spec_.page_size - 1) / spec_.page_size; }
  // Keys that a sequence may have.
  std::int64_t room() const {
    if (spec_.page_size > 0) return std::min(pages_of_sequence() * spec_.page_size, spec_.k_len.max);
    return longest(k_lens_);
  }
  // [batch, query, ...]; packed tokens have no batch.
  Shape of_queries(Shape rest) const {
    if (!packed()) rest.insert(rest.begin(), batch());
    rest.insert(rest.begin() + (packed() ? 0 : 1), packed() ? sum(q_lens_) : longest(q_lens_));
    return rest;
  }

  void offsets(CaseTensor& tensor, const Shape& lengths) {
    std::int64_t next = 0;
    plain(tensor, Dtype::I32, {batch() + 1}, [&](std::int64_t i) {
      if (i > 0) next += lengths[static_cast<std::size_t>(i - 1)];
      return static_cast<double>(next);
    });
  }

  void lay_out_lengths() {
    if (packed()) offsets(case_.offsets_q, q_lens_), case_.max_q_len = longest(q_lens_);
    if (packed_keys()) offsets(case_.offsets_k, k_lens_), case_.max_k_len = longest(k_lens_);
    seen_ = k_lens_;
    if (spec_.k_lens) {
      if (spec_.page_size == 0)
        for (std::int64_t& length : seen_) length = random_.integer(0, length);
      plain(case_.params["k_lens"], Dtype::I32, {batch()},
            [&](std::int64_t i) { return static_cast<double>(seen_[static_cast<std::size_t>(i)]); });
    }
    if (spec_.page_size == 0) return;
    const std::int64_t pages = batch() * pages_of_sequence() + 2;
    table_.resize(static_cast<std::size_t>(pages));
    std::iota(table_.begin(), table_.end(), 0);
    for (std::size_t i = table_.size(); i > 1; --i) std::swap(table_[i - 1], table_[random_.bits() % i]);
    plain(case_.params["block_table"], Dtype::I32, {batch(), pages_of_sequence()},
          [&](std::int64_t i) { return static_cast<double>(table_[static_cast<std::size_t>(i)]); });
  }

  // The rows of 8 bits that follow each other are only as aligned as they are long.
  void lay_out_elements(CaseTensor& tensor, Dtype dtype, const Shape& shape) {
    const std::int64_t align = std::max<std::int64_t>(spec_.align_bytes / size_of(dtype), 1), d = shape.back();
    const std::int64_t gap = random_.chance(0.3) ? align : 0;
    lay_out(tensor, dtype, shape, spec_.align_bytes, gap + (align - d % align) % align, false);
  }

  double number() {
    // Sums of few numbers are equal often.
    if (data_ == Data::Equal) return static_cast<double>(random_.integer(-1, 1));
    if (data_ == Data::Zero) return random_.chance(0.5) ? 0 : random_.normal();
    if (data_ == Data::Sharp) return random_.normal() * (random_.chance(0.01) ? 8 : 1);
    return random_.normal();
  }

  // Is there a key in this row of K? `row`: [batch or page, token] or, packed, [token].
  bool is_seen(std::int64_t outer, std::int64_t token) const {
    if (spec_.page_size > 0) {
      const auto at = std::ranges::find(table_, outer) - table_.begin();
      const std::int64_t pages = std::max<std::int64_t>(pages_of_sequence(), 1), b = at / pages;
      return b < batch() && at % pages * spec_.page_size + token < seen_[static_cast<std::size_t>(b)];
    }
    if (!packed_keys()) return token < seen_[static_cast<std::size_t>(outer)];
    std::size_t b = 0;
    for (; token >= k_lens_[b]; ++b) token -= k_lens_[b];
    return token < seen_[b];
  }

  void lay_out_rows() {
    const std::int64_t heads = spec_.heads_q, kv_heads = spec_.heads_kv, d = spec_.d_qk;
    const bool heads_first = spec_.layout == Layout::Bhsd;
    lay_out_elements(case_.q, spec_.dtype,
                     heads_first ? Shape{batch(), heads, longest(q_lens_), d} : of_queries({heads, d}));
    const Shape keys = spec_.page_size > 0
                           ? Shape{static_cast<std::int64_t>(table_.size()), spec_.page_size, kv_heads, d}
                       : packed_keys() ? Shape{sum(k_lens_), kv_heads, d}
                       : heads_first   ? Shape{batch(), kv_heads, longest(k_lens_), d}
                                       : Shape{batch(), longest(k_lens_), kv_heads, d};
    lay_out_elements(case_.k, spec_.kv_dtype, keys);
    each_element(case_.q, [&](const Shape&, std::int64_t offset) {
      store_float(spec_.dtype, case_.q.data(), offset, static_cast<float>(number()));
    });
    each_element(case_.k, [&](const Shape& at, std::int64_t offset) {
      const bool seen = packed_keys() ? is_seen(0, at[0]) : is_seen(at[0], heads_first ? at[2] : at[1]);
      store_float(spec_.kv_dtype, case_.k.data(), offset, seen ? static_cast<float>(number()) : NAN);
    });
    CaseTensor& weights = case_.params["weights"];
    lay_out(weights, Dtype::F32, of_queries({heads}), 4, random_.integer(0, 3), false);
    each_element(weights, [&](const Shape&, std::int64_t offset) {
      store_float(Dtype::F32, weights.data(), offset, static_cast<float>(number()));
    });
    if (size_of(spec_.dtype) == 1 && random_.chance(0.8)) lay_out_scales(keys, heads_first);
  }

  // Masks read scalars, and tensors whose last dimension is along queries or keys.
  void lay_out_params() {
    constexpr std::int64_t kOfDocument = 50;
    for (const Param& param : spec_.mask ? params_of(spec_.mask) : std::vector<Param>()) {
      if (param.rank == 0) {
        case_.scalars[param.name] = static_cast<double>(random_.integer(1, 5));
        continue;
      }
      Shape shape(static_cast<std::size_t>(param.rank), std::max<std::int64_t>(batch(), 1));
      shape.back() = longest(q_lens_) + room() + 1;
      plain(case_.params[param.name], param.dtype, shape,
            [](std::int64_t i) { return static_cast<double>(i / kOfDocument); });
    }
  }

  void lay_out_scales(Shape keys, bool heads_first) {
    CaseTensor& scales = case_.params["scale_k"];
    keys.pop_back();
    if (heads_first) std::swap(keys[1], keys[2]);
    if (!spec_.token_scales) keys = random_.chance(0.5) ? Shape{1} : Shape{batch(), spec_.heads_kv};
    lay_out(scales, Dtype::F32, keys, 4, random_.integer(0, 2), false);
    each_element(scales, [&](const Shape&, std::int64_t offset) {
      store_float(Dtype::F32, scales.data(), offset,
                  data_ == Data::Equal ? 0.5f : static_cast<float>(std::exp2(random_.normal())));
    });
  }

  void lay_out_results() {
    if (writes_scores(spec_)) {
      lay_out(case_.params["scores"], Dtype::F32, of_queries({spec_.heads_kv, room()}), 4, random_.integer(0, 5), true);
      return;
    }
    lay_out(case_.params["key_index"], Dtype::I32, of_queries({spec_.heads_kv, spec_.selected}), 4,
            random_.integer(0, 3), true);
    if (random_.chance(0.7))
      lay_out(case_.params["key_count"], Dtype::I32, of_queries({spec_.heads_kv}), 4, random_.integer(0, 2), true);
  }

  Random random_;
  const AttentionSpec spec_;
  const Shape q_lens_, k_lens_;
  const Data data_;
  Shape seen_;                       // lengths of keys
  std::vector<std::int64_t> table_;  // pages of the sequences, one after the other, and two that nobody has
  Case case_;
};

std::string draw_spec(Random& random, bool on_host) {
  std::string_view dtype = random.pick<std::string_view>({"e4m3", "e4m3", "e5m2", "bf16", "fp16"});
  if (on_host && random.chance(0.3)) dtype = "fp32";
  const bool narrow = dtype[1] == '4' || dtype[1] == '5';
  const std::int64_t d = narrow && random.chance(0.7) ? 128 : 8 * random.integer(1, 32);
  const std::int64_t kv_heads = random.pick<std::int64_t>({1, 1, 1, 2, 3}),
                     group = random.pick<std::int64_t>({1, 2, 4, 5, 8, 16, 20, 32, 64, 64, 80});
  std::string spec = fmt::format("index {} d={} heads={}/{}", dtype, d, group * kv_heads, kv_heads);
  const std::string_view layout =
      random.pick<std::string_view>({"", " layout=bhsd", " layout=packed", "paged", "packed/"});
  if (layout == "paged" || layout == "packed/") {
    spec += fmt::format(" layout={}paged({})", layout == "paged" ? "" : layout,
                        random.pick<std::int64_t>({7, 8, 16, 64, 64, 96, 128}));
  } else {
    spec += layout;
    if (random.chance(0.3)) spec += " k_lens";
  }
  if (random.chance(0.6))
    spec += fmt::format(" select=keys({})", random.pick<std::int64_t>({1, 5, 64, 64, 300, 1500, 2048, 3000}));
  spec += random.pick<std::string_view>(
      {"", " mask=\"causal\"", " mask=\"causal\"", " mask=\"window(40, 3)\"", " mask=\"k % 3 != 1\"",
       " mask=\"window(30, 0) | k < 4\"", " mask=\"document(doc) & causal\"",
       " params=\"first: i32[2], w: u8\" mask=\"k >= first[b, q] & k % max(w, 1) != 1\"",
       " mask=\"causal & k >= 70 & hk != 1\""});
  if (random.chance(0.2)) spec += " align=top_left";
  if (narrow && random.chance(0.7)) spec += " token_scales";
  const std::int64_t element = narrow ? 1 : dtype == "fp32" ? 4 : 2;
  if (d * element % 16 != 0 && narrow) spec += " bytes=8";
  else if (random.chance(0.2))
    spec += fmt::format(" bytes={}", std::max(element, random.pick<std::int64_t>({2, 4, 8})));
  return spec;
}

}  // namespace

Case make_index(std::uint64_t seed, const FixedCase& row) {
  return IndexCase(seed, row.spec, row.q_lens, row.k_lens, row.data).make();
}

Case draw_index(std::uint64_t seed, const GeneratorOptions& options) {
  Random random(seed ^ 0x696e646578);
  const std::string spec = draw_spec(random, options.device == Device::Host);
  const AttentionSpec parsed = *parse_spec(spec);
  const std::int64_t batch = random.chance(0.03) ? 0 : random.integer(1, 4), longest = options.large ? 5000 : 400;
  const std::int64_t most_queries = random.chance(0.5) ? 7 : options.large ? 300 : 90;
  Shape q_lens(static_cast<std::size_t>(batch), random.integer(1, most_queries)), k_lens(q_lens.size());
  const bool packed = parsed.layout == Layout::Packed;
  for (std::int64_t& length : q_lens)
    if (packed) length = random.chance(0.15) ? 0 : random.integer(1, most_queries);
  const std::int64_t keys = random.chance(0.05) ? 0 : random.integer(1, longest);
  const bool ragged = parsed.page_size > 0 || packed;
  for (std::int64_t& length : k_lens) length = ragged ? random.chance(0.1) ? 0 : random.integer(1, longest) : keys;
  const Data data =
      options.data.value_or(random.pick({Data::Normal, Data::Normal, Data::Equal, Data::Zero, Data::Sharp}));
  Case c = IndexCase(seed, spec, q_lens, k_lens, data).make();
  if (options.device == Device::Gpu && random.chance(0.2)) c.schedule = "family=index";
  return c;
}

}  // namespace flashjit::testing_random
