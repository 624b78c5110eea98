#include "tests/random/operations/ring_generator.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "compiler/spec/half.h"
#include "compiler/spec/spec.h"
#include "fmt/format.h"
#include "tests/random/random.h"

namespace flashjit::testing_random {
namespace {

// The text without_field a field, which begins with a blank.
std::string without_field(std::string text, std::string_view field) {
  const std::size_t at = text.find(field);
  if (at == std::string::npos) return text;
  return text.erase(at, text.find(' ', at + 1) - at);
}

bool has_tokens(const CaseTensor& tensor, std::int64_t token) {
  return token >= tensor.stray_front && token < tensor.shape[tensor.token_axis] - tensor.stray_back;
}

// A tensor that a call reads and writes, in all elements of its sequences: `draw` says what is there.
void make_updated(CaseTensor& tensor, const std::function<double(const std::vector<std::int64_t>&)>& draw) {
  tensor.output = false, tensor.updated = true, tensor.new_row_elements = 1;
  each_element(tensor, [&](const std::vector<std::int64_t>& index, std::int64_t offset) {
    if (!has_tokens(tensor, index[tensor.token_axis])) return;
    store_float(Dtype::F32, tensor.data(), offset, static_cast<float>(draw(index)));
    tensor.new_rows.push_back(offset);
  });
}

void lay_out_wide(CaseTensor& tensor, const AttentionSpec& spec, Random& random) {
  const CaseTensor like = tensor;
  const int align = std::max(spec.align_bytes, size_of(Dtype::F32));
  draw_strides(tensor, Dtype::F32, like.shape, {align, true, 0}, random);
  allocate(tensor, align, true);
  tensor.token_axis = like.token_axis, tensor.stray_front = like.stray_front, tensor.stray_back = like.stray_back;
}

void give_lse(Case& c, const AttentionSpec& spec) {
  if (c.lse.given) return;
  const bool packed = spec.layout == Layout::Packed;
  const std::int64_t tokens = c.q.shape[packed ? 0 : spec.layout == Layout::Bhsd ? 2 : 1];
  std::vector<std::int64_t> shape = {spec.heads_q, tokens};
  if (!packed) shape.insert(shape.begin(), c.q.shape[0]);
  lay_out(c.lse, Dtype::F32, std::move(shape), 4, 0, true);
  c.lse.token_axis = c.lse.shape.size() - 1;
  c.lse.stray_front = c.o.stray_front, c.lse.stray_back = c.o.stray_back;
}

// Some rows have seen nothing yet, and their O may be anything.
Case with_earlier_results(Case c, const AttentionSpec& spec) {
  Random random(c.seed ^ 0x72696e67);
  if (is_backward(spec)) {
    for (const char* name : {"dq", "dk", "dv"}) {
      if (!c.params.contains(name)) continue;  // V lies in K.
      lay_out_wide(c.params[name], spec, random);
      make_updated(c.params[name], [&](const std::vector<std::int64_t>&) { return random.normal(); });
    }
    return c;
  }
  lay_out_wide(c.o, spec, random);
  give_lse(c, spec);
  const bool packed = spec.layout == Layout::Packed;
  const bool heads_first = spec.layout == Layout::Bhsd;
  const auto is_new = [&](std::int64_t head, std::int64_t token) { return (head * 7 + token * 3) % 5 == 2; };
  make_updated(c.o, [&](const std::vector<std::int64_t>& at) {
    const std::size_t first = packed ? 0 : 1;
    const std::int64_t token = at[heads_first ? 2 : first], head = at[heads_first ? 1 : first + 1];
    const double number = random.normal();
    return is_new(head, token) ? NAN : number;
  });
  make_updated(c.lse, [&](const std::vector<std::int64_t>& at) {
    const double number = 1 + 2 * random.normal();
    return is_new(at[at.size() - 2], at.back()) ? -INFINITY : number;
  });
  return c;
}

// Tensors that masks and scores read are drawn as large as the call's own lengths, so positions stay below these.
bool reads_tensors(const AttentionSpec& spec) {
  return std::ranges::any_of(spec.params, [](const Param& param) { return param.rank > 0; });
}

Case with_places(Case c) {
  Random random(c.seed ^ 0x706c6163);
  const AttentionSpec spec = *parse_spec(c.spec);
  const std::size_t tokens = spec.layout == Layout::Bhsd ? 2 : 1;
  for (const auto& [rows, length] : {std::pair("q", c.q.shape[tokens]), {"k", c.k.shape[tokens]}}) {
    // Dropout draws for blocks of 32 neighbours.
    const std::int64_t step = drops(spec) ? 1 : random.pick<std::int64_t>({1, 1, 2, 3, 8});
    const std::int64_t begin = drops(spec) ? 32 * random.integer(0, 9) : random.integer(0, 90);
    const std::int64_t last = begin + std::max<std::int64_t>(length - 1, 0) * step;
    const std::string name = rows;
    c.scalars[name + "_begin"] = static_cast<double>(begin), c.scalars[name + "_step"] = static_cast<double>(step);
    c.scalars[name + "_total"] = static_cast<double>(last + 1 + random.integer(0, 60));
  }
  // Where a bound of the mask ends is a position, and not the number of a key.
  c.semantics.unseen_from = std::numeric_limits<std::int64_t>::max();
  return c;
}

}  // namespace

Case draw_accumulate(Case c, Device device) {
  Random random(c.seed ^ 0x616363);
  if (random.chance(0.85)) return c;
  std::string text = without_field(without_field(c.spec, " max_logit"), " out=");
  if (!text.starts_with("bwd ")) text = without_field(text, " sink");
  const auto spec = parse_spec(text += " accumulate");
  if (!spec || !check_supported(*spec)) return c;
  if (device == Device::Gpu && spec->d_v > kMaxHeadDim) return c;  // which mla alone goes on with
  c.spec = text;
  c.max_logit = {};
  if (!spec->sink) c.sink = {};
  return with_earlier_results(std::move(c), *spec);
}

Case draw_places(Case c) {
  Random random(c.seed ^ 0x706c61);
  if (random.chance(0.8)) return c;
  const std::string text = c.spec + " places";
  const auto spec = parse_spec(text);
  if (!spec || !check_supported(*spec) || reads_tensors(*spec)) return c;
  c.spec = text;
  return with_places(std::move(c));
}

Case take_accumulate(Case c) {
  const AttentionSpec spec = *parse_spec(c.spec);
  return spec.accumulate ? with_earlier_results(std::move(c), spec) : c;
}

Case take_places(Case c) {
  const AttentionSpec spec = *parse_spec(c.spec);
  return spec.places && !reads_tensors(spec) ? with_places(std::move(c)) : c;
}

}  // namespace flashjit::testing_random
