#include "tests/random/operations/merge_generator.h"

#include <cmath>
#include <vector>

#include "compiler/spec/half.h"
#include "compiler/spec/operands.h"
#include "fmt/format.h"
#include "tests/random/random.h"

namespace flashjit::testing_random {
namespace {

using Shape = std::vector<std::int64_t>;

// LSE of a part: as others, far from them, or -infinity.
double draw_lse(Random& random) {
  if (random.chance(0.15)) return -INFINITY;
  if (random.chance(0.1)) return random.pick({-1000.0, 1000.0, 30.0, -30.0});
  return 3 * random.normal();
}

// Of sequences that have the keys of a shared prefix before their queries, or one too few.
void draw_lists(Case& c, std::int64_t batch, std::int64_t queries, Random& random) {
  const std::int64_t prefix = random.integer(-1, 100);
  plain(c.params["shared_prefix"], Dtype::I32, {1}, [&](std::int64_t) { return static_cast<double>(prefix); });
  plain(c.params["k_lens"], Dtype::I32, {batch},
        [&](std::int64_t) { return static_cast<double>(prefix + queries + random.pick({0, -1, 50, -200})); });
}

// `batch` sequences of `queries`, or as many tokens.
Case make(std::uint64_t seed, std::string_view text, std::int64_t batch, std::int64_t queries, std::int64_t parts) {
  Random random(seed);
  const AttentionSpec spec = *parse_spec(text);
  const bool packed = spec.layout == Layout::Packed, heads_first = spec.layout == Layout::Bhsd;
  const std::int64_t heads = spec.heads_q, d = spec.d_v;
  const Shape rows = packed        ? Shape{queries, heads, d}
                     : heads_first ? Shape{batch, heads, queries, d}
                                   : Shape{batch, queries, heads, d};
  const Shape numbers = packed ? Shape{heads, queries} : Shape{batch, heads, queries};
  const auto of_parts = [&](Shape shape) {
    shape.insert(shape.begin(), parts);
    return shape;
  };
  const std::int64_t gap = random.chance(0.5) ? 16 : 0;
  Case c;
  c.seed = seed;
  c.spec = text;
  c.shape = fmt::format("b={} q={} parts={}", packed ? 1 : batch, queries, parts);
  c.data = "results of attention";
  lay_out(c.o, spec.out_dtype, rows, spec.align_bytes, gap, true);
  if (spec.lse != Lse::none) lay_out(c.lse, Dtype::F32, numbers, 4, 0, true);
  CaseTensor& lse = c.params["lse_parts"];
  CaseTensor& o = c.params["o_parts"];
  lay_out(lse, Dtype::F32, of_parts(numbers), 4, random.integer(0, 3), false);
  lay_out(o, spec.dtype, of_parts(rows), spec.align_bytes, gap, false);
  if (spec.max_logit) {
    lay_out(c.max_logit, Dtype::F32, numbers, 4, 0, true);
    CaseTensor& maxima = c.params["max_parts"];
    lay_out(maxima, Dtype::F32, of_parts(numbers), 4, 1, false);
    each_element(maxima, [&](const Shape&, std::int64_t offset) {
      store_float(Dtype::F32, maxima.data(), offset, static_cast<float>(draw_lse(random)));
    });
  }
  if (spec.shared_prefix) draw_lists(c, batch, queries, random);
  each_element(lse, [&](const Shape&, std::int64_t offset) {
    store_float(Dtype::F32, lse.data(), offset, static_cast<float>(draw_lse(random)));
  });
  each_element(o, [&](const Shape& at, std::int64_t offset) {
    // [part, batch, head, query], or without the batch.
    const std::int64_t token = packed        ? at[1]
                               : heads_first ? at[3]
                                             : at[2],
                       head = packed || heads_first ? at[2] : at[3];
    const std::int64_t row =
        packed ? at[0] * lse.strides[0] + head * lse.strides[1] + token * lse.strides[2]
               : at[0] * lse.strides[0] + at[1] * lse.strides[1] + head * lse.strides[2] + token * lse.strides[3];
    // What has seen nothing is not looked at.
    const bool empty = load_float(Dtype::F32, lse.data(), row) == -INFINITY;
    store_float(spec.dtype, o.data(), offset, empty ? NAN : static_cast<float>(random.normal()));
  });
  return c;
}

}  // namespace

Case make_merge(std::uint64_t seed, const FixedCase& row) {
  const auto batch = static_cast<std::int64_t>(row.q_lens.size());
  return make(seed, row.spec, batch, batch == 0 ? 0 : row.q_lens[0], row.k_lens.at(0));
}

Case draw_merge(std::uint64_t seed, const GeneratorOptions& options) {
  Random random(seed ^ 0x3e46e);
  const auto dtype = [&] { return random.pick<std::string_view>({"bf16", "fp16", "fp32"}); };
  const std::string_view of_parts = dtype(), out = dtype();
  const std::int64_t least = of_parts == "fp32" ? 4 : 2;
  std::string spec = fmt::format("merge {} d={} heads={}", of_parts, 8 * random.integer(1, 32), random.integer(1, 40));
  if (out != of_parts) spec += fmt::format(" out={}", out);
  spec += random.pick<std::string_view>({"", " layout=bhsd", " layout=packed"});
  spec += random.pick<std::string_view>({"", " lse=ln", " lse=log2"});
  if (random.chance(0.4)) spec += fmt::format(" bytes={}", std::max(least, random.pick<std::int64_t>({2, 4, 8})));
  Random of_flags(seed ^ 0x666c6167);
  if (of_flags.chance(0.3)) spec += " max_logit";
  if (of_flags.chance(0.3) && spec.find("packed") == spec.npos) spec += " shared_prefix";
  Case c = make(seed, spec, random.integer(0, 4), random.integer(0, options.large ? 500 : 40), random.integer(0, 9));
  c.any_schedule = false;
  return c;
}

}  // namespace flashjit::testing_random
