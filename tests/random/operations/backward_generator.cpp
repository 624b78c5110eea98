#include "tests/random/operations/backward_generator.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>

#include "autotune/reference/reference.h"
#include "compiler/spec/half.h"
#include "compiler/spec/operands.h"
#include "fmt/format.h"
#include "fmt/ranges.h"

namespace flashjit::testing_random {
namespace {

constexpr double kMostPairs = 1.5e6;       // queries with keys: the reference takes each of them for O
constexpr double kMostPairsOfReads = 1e5;  // ... and each at twenty places for gradients of parameters

// The first element of a row of a tensor like Q or O.
std::int64_t row_at(const CaseTensor& tensor, const AttentionSpec& spec, std::int64_t b, std::int64_t h,
                    std::int64_t token) {
  const std::vector<std::int64_t>& s = tensor.strides;
  if (spec.layout == Layout::Packed) return token * s[0] + h * s[1];
  return spec.layout == Layout::Bhsd ? b * s[0] + h * s[1] + token * s[2] : b * s[0] + token * s[1] + h * s[2];
}

std::int64_t number_at(const CaseTensor& tensor, const AttentionSpec& spec, std::int64_t b, std::int64_t h,
                       std::int64_t token) {
  const std::vector<std::int64_t>& s = tensor.strides;
  return spec.layout == Layout::Packed ? h * s[0] + token * s[1] : b * s[0] + h * s[1] + token * s[2];
}

void lay_out(CaseTensor& tensor, Dtype dtype, const std::vector<std::int64_t>& shape, int align, bool output,
             Random& random) {
  draw_strides(tensor, dtype, shape, {align, true, 0}, random);
  allocate(tensor, align, output);
}

// Gradients of parameters: of their shapes, in any order of dimensions, with gaps or without.
void add_gradients_of_parameters(Case& c, const AttentionSpec& spec, Random& random) {
  for (const int number : params_with_gradients(spec)) {
    const Param& param = spec.params[static_cast<std::size_t>(number)];
    CaseTensor& tensor = c.params[gradient_name(param.name)];
    tensor.dtype = "fp32";
    tensor.shape = {1};
    if (param.rank > 0) tensor.shape = c.params.at(param.name).shape;
    std::vector<std::size_t> order;
    for (std::size_t i = tensor.shape.size(); i-- > 0;) order.push_back(i);
    if (random.chance(0.2)) std::swap(order.front(), order.back());
    std::int64_t next = random.chance(0.2) ? 2 : 1;
    tensor.strides.assign(tensor.shape.size(), 1);
    for (const std::size_t i : order) {
      tensor.strides[i] = next;
      next *= std::max<std::int64_t>(1, tensor.shape[i]);
      if (random.chance(0.2)) ++next;
    }
    // Whether four elements are 16 bytes is for the kernel to find out.
    allocate(tensor, tensor.shape.back() % 4 == 0 ? 16 : 4, true);
  }
  if (!has_sink_gradient(spec)) return;
  plain(c.params["dsink"], Dtype::F32, {spec.heads_q}, [](std::int64_t) { return 0.0; });
  allocate(c.params["dsink"], 4, true);
}

// Some of what a spec can have gradients of, as a field; empty: nothing.
std::string draw_wanted(const std::string& text, Random& random) {
  const auto spec = parse_spec(text);
  std::vector<std::string> names;
  for (const Param& param : spec->params) {
    if (parse_spec(fmt::format("{} grads=\"{}\"", text, param.name))) names.push_back(param.name);
  }
  if (spec->sink) names.emplace_back("sink");
  std::erase_if(names, [&](const std::string&) { return random.chance(0.3); });
  if (names.empty()) return {};
  const std::string field = fmt::format(" grads=\"{}\"", fmt::join(names, ", "));
  return parse_spec(text + field) ? field : std::string();
}

// Draws a dtype for each gradient. Where V lies in K, dK and dV have the same.
std::string draw_out(Random& random, bool v_in_k) {
  const auto dtype = [&] { return random.pick<std::string_view>({"fp16", "bf16", "fp32"}); };
  const std::string_view dq = dtype(), dk = dtype(), dv = dtype();
  return fmt::format(" out={}/{}/{}", dq, dk, v_in_k ? dk : dv);
}

// What one writes of a case that is as forward's, and the other reads.
Case with_gradients(Case c, const AttentionSpec& spec) {
  Random random(c.seed ^ 0x62776400);
  const std::vector<std::int64_t> of_o = c.o.shape;
  const CaseTensor o = c.o;  // where the tokens of sequences are
  lay_out(c.o, spec.dtype, of_o, spec.align_bytes, false, random);
  allocate(c.lse, 4, false);
  lay_out(c.params["do"], spec.dtype, of_o, spec.align_bytes, false, random);
  if (spec.dlse) {
    c.params["dlse"] = c.lse;
    allocate(c.params["dlse"], 4, false);
  }
  set_results_of_forward(c, spec, random);
  const std::pair<std::string_view, const std::vector<std::int64_t>*> like[] = {
      {"dq", &c.q.shape}, {"dk", &c.k.shape}, {"dv", &c.v.shape}};
  for (const auto& [name, shape] : like) {
    if (!kOperands[find_operand(name)].belongs_to(spec)) continue;
    const Dtype dtype = spec.*kOperands[find_operand(name)].dtype;
    lay_out(c.params[std::string(name)], dtype, *shape, std::max(spec.align_bytes, size_of(dtype)), true, random);
  }
  add_gradients_of_parameters(c, spec, random);
  if (!is_packed(spec)) return c;
  c.params["dq"].stray_front = o.stray_front, c.params["dq"].stray_back = o.stray_back;
  std::int32_t first = 0, last = 0;
  std::memcpy(&first, c.offsets_k.data(), sizeof first);
  std::memcpy(&last, c.offsets_k.data() + (c.offsets_k.shape[0] - 1) * 4, sizeof last);
  for (const char* name : {"dk", "dv"}) {
    const auto rows = c.params.find(name);
    if (rows != c.params.end()) rows->second.stray_front = first, rows->second.stray_back = c.k.shape[0] - last;
  }
  return c;
}

// The text of a spec without a word that only forward has.
std::string without(std::string text, std::string_view word) {
  const std::size_t at = text.find(word);
  return at == std::string::npos ? text : text.erase(at, word.size());
}

}  // namespace

void set_results_of_forward(Case& c, const AttentionSpec& spec, Random& random) {
  const Arguments arguments = c.host_arguments();
  const reference::Semantics semantics = c.independent ? c.semantics : reference::semantics_of(spec, arguments);
  const reference::Problem problem = *reference::Problem::create(spec, arguments, semantics);
  const double unit = spec.lse == Lse::log2 ? std::numbers::log2e : 1;
  reference::Problem::KeysValues kv;
  std::int64_t b = -1, hk = -1;
  for (const reference::RowId& row : problem.rows()) {
    if (row.b != b || problem.kv_head(row.h) != hk) {
      b = row.b, hk = problem.kv_head(row.h);
      kv = problem.keys_values(b, hk);
    }
    std::int32_t start = 0;
    if (is_packed(spec)) std::memcpy(&start, c.offsets_q.data() + b * 4, sizeof start);
    const std::int64_t token = start + row.q;
    const reference::ExactRow exact = problem.result_alone(row, kv);
    const std::int64_t o_at = row_at(c.o, spec, b, row.h, token), do_at = row_at(c.params["do"], spec, b, row.h, token);
    for (int i = 0; i < spec.d_v; ++i) {
      store_float(spec.dtype, c.o.data(), o_at + i, static_cast<float>(exact.o[i]));
      store_float(spec.dtype, c.params["do"].data(), do_at + i, static_cast<float>(random.normal()));
    }
    const std::int64_t at = number_at(c.lse, spec, b, row.h, token);
    store_float(Dtype::F32, c.lse.data(), at, static_cast<float>(exact.lse * unit));
    if (spec.dlse) store_float(Dtype::F32, c.params["dlse"].data(), at, static_cast<float>(random.normal()));
  }
}

Case draw_backward(Case c) {
  Random random(c.seed ^ 0x62776401);
  if (!c.spec.starts_with("fwd ") || random.chance(0.75)) return c;
  std::string text = "bwd " + without(without(c.spec.substr(4), " max_logit"), " lse=ln");
  if (random.chance(0.3)) text += " dlse";
  if (text.find(" out=") == text.npos && random.chance(0.4))
    text += draw_out(random, text.find(" v_in_k") != text.npos);
  auto spec = parse_spec(text);
  const double q = static_cast<double>(c.q.elements()) / c.q.shape.back(),
               k = static_cast<double>(c.max_k_len > 0 ? c.max_k_len : c.k.elements() / c.k.shape.back());
  if (!spec || has_scaled_queries(*spec) || q * k > kMostPairs) return c;
  if (q * k <= kMostPairsOfReads && random.chance(0.6)) text += draw_wanted(text, random);
  spec = parse_spec(text);
  c.spec = text;
  c.max_logit = {};
  if (!c.lse.given) {
    c.lse.dtype = "fp32";
    const std::int64_t tokens = c.q.shape[is_packed(*spec) ? 0 : spec->layout == Layout::Bhsd ? 2 : 1];
    c.lse.shape = {spec->heads_q, tokens};
    if (!is_packed(*spec)) c.lse.shape.insert(c.lse.shape.begin(), c.q.shape[0]);
    c.lse.strides.assign(c.lse.shape.size(), 1);
    for (std::size_t i = c.lse.shape.size() - 1; i-- > 0;) c.lse.strides[i] = c.lse.strides[i + 1] * c.lse.shape[i + 1];
  }
  return with_gradients(std::move(c), *spec);
}

Case take_backward(Case c) {
  const auto spec = parse_spec(c.spec);
  return is_backward(*spec) ? with_gradients(std::move(c), *spec) : c;
}

}  // namespace flashjit::testing_random
