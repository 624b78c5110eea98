#include "tests/random/operations/quantize_generator.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "compiler/spec/half.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "templates/latents/rows.h"
#include "templates/quantize/rotation.h"
#include "tests/random/operations/rope_generator.h"
#include "tests/random/random.h"

namespace flashjit::testing_random {
namespace {

using Shape = std::vector<std::int64_t>;

// What many rows are: others are of zeros, so that some scales have nothing to go by.
double draw_number(Data data, Random& random) {
  switch (data) {
    case Data::Zero: return 0;
    case Data::Sharp: return random.normal() + (random.chance(0.001) ? 10 * random.normal() : 0);
    case Data::Huge: return random.normal() * std::exp2(static_cast<double>(random.integer(-60, 12)));
    // With 448 or 57344 among them the scale is 1, and these lie on the numbers of 8 bits and halfway between.
    case Data::Codes: return random.chance(0.1) ? 448 : random.integer(-64, 64) * 0.5;
    case Data::NotFinite:
      if (random.chance(0.001)) return random.pick<double>({INFINITY, -INFINITY, NAN});
      return random.normal();
    default: return random.normal();
  }
}

// In half of the cases each sequence begins at a position of its own, and now and then a token is elsewhere.
void draw_positions(Case& c, const AttentionSpec& spec, const Shape& shape, Random& random) {
  std::int64_t needed = shape.back();
  if (random.chance(0.5)) {
    std::int64_t next = 0;
    plain(c.params["positions"], Dtype::I32, shape, [&](std::int64_t i) {
      if (i % shape.back() == 0) next = random.integer(0, 50);
      if (random.chance(0.05)) next = random.integer(0, 300);
      needed = std::max(needed, next + 1);
      return static_cast<double>(next++);
    });
  }
  RopeGenerator rope;
  rope.take(spec);
  rope.lay_out_tables(random, c.params, needed, spec.align_bytes);
}

void fill(CaseTensor& x, const AttentionSpec& spec, Data data, Random& random) {
  double factor = 1;
  each_element(x, [&](const Shape& at, std::int64_t offset) {
    if (at.back() == 0) factor = data != Data::Codes && random.chance(0.1) ? 0 : 1;
    store_float(spec.dtype, x.data(), offset, static_cast<float>(factor * draw_number(data, random)));
  });
}

// Bytes of rows, with room between these or, where scales lie behind a page, between pages.
void lay_out_latents(CaseTensor& y, const AttentionSpec& spec, Shape shape, std::int64_t gap) {
  const LatentRows rows = latent_rows(spec.cache_format);
  shape.back() = rows.row_bytes;
  const std::int64_t align = spec.align_bytes;
  lay_out(y, Dtype::U8, shape, align, rows.scales_behind_page ? 0 : gap, true);
  if (!rows.scales_behind_page) return;
  y.strides[0] = (shape[1] * rows.row_bytes + align - 1) / align * align + gap;
  allocate(y, align, true);
}

// `lengths`: of the sequences, which differ only where their packed tokens have scales in blocks.
Case make(std::uint64_t seed, std::string_view text, const Shape& lengths, Data data) {
  Random random(seed);
  const AttentionSpec spec = *parse_spec(text);
  const bool packed = spec.layout == Layout::Packed, heads_first = spec.layout == Layout::Bhsd;
  const auto batch = static_cast<std::int64_t>(lengths.size());
  const std::int64_t longest = lengths.empty() ? 0 : *std::ranges::max_element(lengths);
  const std::int64_t tokens =
      is_packed(spec) ? std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0}) : longest;
  const std::int64_t heads = spec.heads_q, d = spec.d_qk;
  const Shape rows = packed        ? Shape{tokens, heads, d}
                     : heads_first ? Shape{batch, heads, tokens, d}
                                   : Shape{batch, tokens, heads, d};
  const std::int64_t gap = random.chance(0.5) ? 16 : 0;
  Case c;
  c.seed = seed;
  c.spec = text;
  c.shape = is_packed(spec) ? fmt::format("b={} q={{{}}}", batch, fmt::join(lengths, ","))
                            : fmt::format("b={} q={}", packed ? 1 : batch, tokens);
  c.data = kDataNames[static_cast<std::size_t>(data)];
  CaseTensor &x = c.params["x"], &y = c.params["y"];
  lay_out(x, spec.dtype, rows, spec.align_bytes, gap, false);
  if (has_latent_rows(spec)) {
    lay_out_latents(y, spec, rows, gap);
    fill(x, spec, data, random);
    return c;
  }
  CaseTensor& scale = c.params["scale"];
  // Rows of 8 bits that follow each other would only be as aligned as they are long.
  const std::int64_t align = spec.align_bytes, padding = (align - d % align) % align;
  lay_out(y, spec.out_dtype, rows, spec.align_bytes, gap + padding, true);
  Shape scales = packed && !is_packed(spec) ? Shape{heads} : Shape{batch, heads};
  if (spec.scale_block > 0) scales.insert(scales.begin() + 1, (longest + spec.scale_block - 1) / spec.scale_block);
  lay_out(scale, Dtype::F32, scales, 4, random.integer(0, 2), true);
  if (is_packed(spec)) {
    std::int64_t next = 0;
    plain(c.offsets_q, Dtype::I32, {batch + 1}, [&](std::int64_t i) {
      if (i > 0) next += lengths[static_cast<std::size_t>(i - 1)];
      return static_cast<double>(next);
    });
    c.max_q_len = longest;
  }
  if (spec.rope != Rope::none) draw_positions(c, spec, packed ? Shape{tokens} : Shape{batch, tokens}, random);
  fill(x, spec, data, random);
  return c;
}

}  // namespace

Case make_quantize(std::uint64_t seed, const FixedCase& row) { return make(seed, row.spec, row.q_lens, row.data); }

Case draw_linear(Case c) {
  Random random(c.seed ^ 0x6c696e);
  const std::string spec = c.spec + " linear_exp";
  if (random.chance(0.5) && parse_spec(spec)) c.spec = spec;
  return c;
}

Case draw_compute(Case c) {
  constexpr std::uint64_t kComputesAmong = 12;  // cases one is
  Random random(c.seed ^ 0x636f6d70);
  if (random.bits() % kComputesAmong != 0 || c.data != kDataNames[static_cast<std::size_t>(Data::Normal)]) return c;
  if (drops(*parse_spec(c.spec))) return c;  // which Q of 8 bits does not have
  std::string spec = c.spec + random.pick<const char*>({" compute=e4m3", " compute=e5m2"});
  if (random.chance(0.6) && rotation_sections(parse_spec(c.spec)->d_qk) != 0) spec += " rotate";
  if (random.chance(0.5)) spec += fmt::format(" scales=block({})", 64 * random.integer(1, 4));
  RopeGenerator rope;
  if (random.chance(0.4) && spec.find("packed") == spec.npos) {
    rope.draw(random, parse_spec(c.spec)->d_qk);
    spec += rope.words();
  }
  if (!parse_spec(spec)) return c;  // pages, new rows and the like
  const std::size_t tokens = spec.find("bhsd") == spec.npos ? 1 : 2;
  rope.lay_out_tables(random, c.params, std::max<std::int64_t>({c.q.shape[tokens], c.k.shape[tokens], 1}),
                      parse_spec(spec)->align_bytes);
  c.spec = std::move(spec);
  c.any_schedule = false;
  return c;
}

Case draw_quantize(std::uint64_t seed, const GeneratorOptions& options) {
  Random random(seed ^ 0x7175616e74);
  const bool on_host = options.device == Device::Host;
  const std::string_view dtype = on_host ? random.pick<std::string_view>({"bf16", "fp16", "fp32"})
                                         : random.pick<std::string_view>({"bf16", "fp16"});
  const bool rotate = random.chance(0.6);
  std::int64_t d = 8 * random.integer(1, 32);
  while (rotate && rotation_sections(static_cast<int>(d)) == 0) d = 8 * random.integer(1, 32);
  const std::int64_t least = dtype == "fp32" ? 4 : 2;
  std::string spec = fmt::format("quantize {} d={} heads={}", dtype, d, random.integer(1, 20));
  spec += random.pick<std::string_view>({"", " out=e5m2"});
  const std::string_view layout = random.pick<std::string_view>({"", " layout=bhsd", " layout=packed"});
  spec += layout;
  if (rotate) spec += " rotate";
  if (random.chance(0.6)) spec += fmt::format(" scales=block({})", 64 * random.pick<std::int64_t>({1, 2, 3, 4, 8}));
  // Rows of 8 bits that follow each other are only as aligned as they are long.
  if (d % 16 != 0) spec += " bytes=8";
  else if (random.chance(0.3)) spec += fmt::format(" bytes={}", std::max(least, random.pick<std::int64_t>({2, 4, 8})));
  if (random.chance(0.4)) {
    RopeGenerator rope;
    rope.draw(random, static_cast<int>(d));
    spec += rope.words();
  }
  if (Random latents(seed ^ 0x6c6174); latents.chance(0.15)) {
    spec = latents.pick<std::string>(
        {"quantize bf16 out=latent656 d=576", "quantize bf16 out=latent656 d=576 layout=bhsd",
         "quantize bf16 out=latent656 d=576 layout=packed", "quantize bf16 out=latent584 d=512"});
    spec += latents.pick<std::string_view>({"", " bytes=8", " bytes=4"});
  }
  const Data data = random.pick({Data::Normal, Data::Sharp, Data::Huge, Data::Zero, Data::NotFinite, Data::Codes});
  const std::int64_t batch = random.integer(0, 3), longest = options.large ? 1000 : 150;
  Shape lengths(static_cast<std::size_t>(batch), random.integer(0, longest));
  if (is_packed(*parse_spec(spec))) {
    for (std::int64_t& length : lengths) length = random.chance(0.2) ? 0 : random.integer(1, longest);
  }
  return make(seed, spec, lengths, data);
}

}  // namespace flashjit::testing_random
