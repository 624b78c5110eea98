#include "tests/random/spec_generator.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "compiler/spec/spec.h"
#include "fmt/ranges.h"
#include "tests/random/operations/append_generator.h"
#include "tests/random/operations/backward_generator.h"
#include "tests/random/operations/blocks_generator.h"
#include "tests/random/cache_elements.h"
#include "tests/random/cache_generator.h"
#include "tests/random/draws.h"
#include "tests/random/operations/dropout_generator.h"
#include "tests/random/expression_generator.h"
#include "tests/random/look_up_generator.h"
#include "tests/random/operations/latent_generator.h"
#include "tests/random/operations/prefix_generator.h"
#include "tests/random/operations/ring_generator.h"
#include "tests/random/lists/table_generator.h"
#include "tests/random/operations/transposed_generator.h"
#include "tests/random/operations/other_operations.h"
#include "compiler/spec/half.h"

namespace flashjit::testing_random {
namespace {

class Generator {
 public:
  Generator(std::uint64_t seed, const GeneratorOptions& options)
      : random_(seed), cache_(seed), elements_(seed), append_(seed), options_(options) {
    case_.seed = seed;
  }

  Case draw() {
    draw_problem();
    take_latent(draw_latent(case_.seed));
    elements_.draw(dtype_, out_);
    draw_lengths();
    draw_append();
    cache_.draw(k_lens_, layout_ != Layout::Bhsd, elements_.scale_block());
    if (append_.drawn()) cache_.own_ends(q_lens_);
    measure_lengths();
    draw_expressions();
    draw_tensors();
    if (options_.numbers) fill_inputs(), poison_unused(), poison_new_rows();
    write_spec();
    case_.any_schedule = true;
    return draw_linear(draw_compute(draw_dropout(draw_blocks(draw_shared_prefix(std::move(case_))))));
  }

  Case make(const FixedCase& row) {
    const AttentionSpec spec = *parse_spec(row.spec);
    dtype_ = spec.dtype, out_ = spec.out_dtype, d_qk_ = spec.d_qk, d_v_ = spec.d_v;
    heads_q_ = spec.heads_q, heads_kv_ = spec.heads_kv, layout_ = spec.layout, align_ = spec.align_bytes;
    lse_ = spec.lse, max_logit_ = spec.max_logit, bottom_right_ = spec.alignment == Alignment::BottomRight;
    sink_ = spec.sink, v_in_k_ = spec.v_in_k, data_ = row.data, far_batches_ = row.far_batches, aligned_params_ = true;
    q_lens_ = row.q_lens, k_lens_ = row.k_lens, q_stray_ = k_stray_ = {row.stray, row.stray};
    append_.take(spec);
    if (spec.k_lens) cache_.take(k_lens_, spec);
    elements_.take(spec, data_ == Data::Codes, data_ == Data::Scales);
    if (spec.append) cache_.own_ends(q_lens_);
    measure_lengths();
    for (const Param& param : given_params(spec)) drawn_params_.push_back(draw_values(random_, context(), param));
    draw_tensors();
    fill_inputs();
    place_extremes(row.jump, spec.effective_scale());
    poison_unused();
    poison_new_rows();
    case_.spec = row.spec, case_.independent = false, case_.side_by_side = row.side_by_side;
    return take_blocks(take_dropout(take_shared_prefix(std::move(case_))));
  }

 private:
  ExpressionContext context() const {
    return {static_cast<std::int64_t>(q_lens_.size()), heads_q_, heads_kv_, max_q_, max_k_, bottom_right_};
  }

  void draw_problem() {
    const bool host = options_.device == Device::Host;
    dtype_ = host ? random_.pick({Dtype::F32, Dtype::F16, Dtype::BF16}) : random_.pick({Dtype::F16, Dtype::BF16});
    out_ = !random_.chance(0.15) || dtype_ == Dtype::F32 ? dtype_ : random_.pick({Dtype::F32, dtype_});
    std::tie(d_qk_, d_v_) = draw_dims(random_);
    heads_kv_ = random_.pick({1, 1, 2, 3});
    heads_q_ = heads_kv_ * random_.pick({1, 1, 2, 3, 4, 7});
    layout_ = random_.pick({Layout::Bshd, Layout::Bhsd, Layout::Packed});
    bottom_right_ = random_.chance(0.7);
    lse_ = random_.pick({Lse::none, Lse::ln, Lse::log2});
    max_logit_ = random_.chance(0.3);
    sink_ = random_.chance(0.25);
    const int element = size_of(dtype_);
    align_ = 16;
    if (random_.chance(0.3)) align_ = random_.pick({2, 4, 8});
    align_ = std::max({align_, element, size_of(out_)});
    if (random_.chance(0.3)) scale_ = random_.pick({0.5, 0.05, 0.125, 1.0});
    data_ = options_.data.value_or(draw_data(random_));
  }

  void take_latent(const std::optional<Latent>& latent) {
    v_in_k_ = latent.has_value();
    if (!latent) return;
    d_qk_ = latent->d_qk, d_v_ = latent->d_v;
    if (latent->heads > 0) heads_kv_ = 1, heads_q_ = latent->heads, few_queries_ = latent->queries;
  }

  void draw_lengths() {
    const std::int64_t batch = random_.chance(0.02) ? 0 : random_.integer(1, 3);
    const bool same = random_.chance(0.4), decode = random_.chance(0.12);
    for (std::int64_t b = 0; b < batch; ++b) {
      if (b > 0 && layout_ != Layout::Packed) {
        q_lens_.push_back(q_lens_[0]), k_lens_.push_back(k_lens_[0]);
        continue;
      }
      q_lens_.push_back(few_queries_ > 0 ? few_queries_ : decode ? 1 : draw_length(random_, options_.large));
      k_lens_.push_back(same && !decode && few_queries_ == 0 ? q_lens_.back() : draw_length(random_, options_.large));
    }
    if (layout_ == Layout::Packed && random_.chance(0.3)) {
      for (Stray* stray : {&q_stray_, &k_stray_}) *stray = {random_.integer(0, 70), random_.integer(0, 70)};
    }
    measure_lengths();
  }

  // New tokens stand at the end of their sequences. Where all have the same lengths there must be room for them.
  void draw_append() {
    if (bottom_right_ && size_of(dtype_) > 1) append_.draw(d_qk_);
    if (!append_.drawn() || layout_ == Layout::Packed) return;
    for (std::size_t b = 0; b < k_lens_.size(); ++b) k_lens_[b] = std::max(k_lens_[b], q_lens_[b]);
  }

  void measure_lengths() {
    max_q_ = total_q_ = max_k_ = total_k_ = 0;
    for (std::int64_t n : q_lens_) max_q_ = std::max(max_q_, n), total_q_ += n;
    for (std::int64_t n : k_lens_) max_k_ = std::max(max_k_, n), total_k_ += n;
    const auto packed = [](const Stray& stray, const std::vector<std::int64_t>& lens) {
      return fmt::format("{}{{{}}}{}", stray.front > 0 ? fmt::format("{}+", stray.front) : "", fmt::join(lens, ","),
                         stray.back > 0 ? fmt::format("+{}", stray.back) : "");
    };
    case_.shape = layout_ == Layout::Packed ? fmt::format("b={} q={} k={}", q_lens_.size(), packed(q_stray_, q_lens_),
                                                          packed(k_stray_, k_lens_))
                                            : fmt::format("b={} q={} k={}", q_lens_.size(), max_q_, max_k_);
    case_.shape += cache_.text();
  }

  std::vector<CaseTensor*> keys_and_values() {
    if (v_in_k_) return {&case_.k};
    return {&case_.k, &case_.v};
  }

  // Infinity and NaN where nothing may look.
  void poison_unused() {
    for (CaseTensor* tensor : keys_and_values()) {
      const auto poison = [&](std::int64_t row) {
        for (std::int64_t i = 0; i < tensor->shape.back(); ++i) put(*tensor, row + i, cache_.not_finite());
      };
      if (cache_.page_size > 0) {
        cache_.each_unused_row(*tensor, poison);
      } else if (!cache_.lens.empty()) {
        each_row(*tensor, k_lens_, heads_kv_, [&](const Place& p) {
          if (p.at >= cache_.keys_of(p.b)) poison(p.offset);
        });
      }
    }
  }

  // The last keys of a sequence are the new ones: nothing may look at what is there before.
  void poison_new_rows() {
    if (!append_.drawn()) return;
    for (CaseTensor* tensor : keys_and_values()) {
      tensor->updated = true;
      each_row(*tensor, k_lens_, heads_kv_, [&](const Place& p) {
        const std::int64_t keys = cache_.lens.empty() ? p.len : cache_.keys_of(p.b);
        if (p.at >= keys || p.at < keys - q_lens_[static_cast<std::size_t>(p.b)]) return;
        tensor->new_rows.push_back(p.offset);
        poison_row(*tensor, p, tensor->shape.back());
      });
    }
  }

  void draw_expressions() {
    const auto [mask, score] = draw_mask_and_score(random_, context(), drawn_params_);
    mask_ = mask.text, score_ = score.text;
    case_.semantics.visible = mask.semantics.visible;
    case_.semantics.score = score.semantics.score;
  }

  void lay_out(CaseTensor& tensor, Dtype dtype, std::vector<std::int64_t> shape, bool output) {
    const std::int64_t between = far_batches_ && &tensor == &case_.k ? std::int64_t{1} << 31 : 0;
    draw_strides(tensor, dtype, std::move(shape), {align_, !far_batches_, between}, random_);
    allocate(tensor, align_, output);
  }

  void draw_tensors() {
    const std::int64_t q_tokens = layout_ == Layout::Packed ? q_stray_.front + total_q_ + q_stray_.back : max_q_,
                       batch = static_cast<std::int64_t>(q_lens_.size());
    const auto shape = [&](std::int64_t tokens, std::int64_t heads, std::int64_t dim) -> std::vector<std::int64_t> {
      if (layout_ == Layout::Packed) return {tokens, heads, dim};
      if (layout_ == Layout::Bhsd) return {batch, heads, tokens, dim};
      return {batch, tokens, heads, dim};
    };
    const auto key_shape = [&](std::int64_t dim) -> std::vector<std::int64_t> {
      if (cache_.page_size > 0) return {cache_.pages, cache_.page_size, heads_kv_, dim};
      return shape(layout_ == Layout::Packed ? k_stray_.front + total_k_ + k_stray_.back : max_k_, heads_kv_, dim);
    };
    lay_out(case_.q, dtype_, shape(q_tokens, heads_q_, d_qk_), false);
    lay_out(case_.k, elements_.dtype, key_shape(d_qk_), false);
    if (!v_in_k_) lay_out(case_.v, elements_.dtype, key_shape(d_v_), false);
    lay_out(case_.o, out_, shape(q_tokens, heads_q_, d_v_), true);
    if (append_.drawn()) {
      lay_out(case_.params["k_new"], dtype_, shape(q_tokens, heads_kv_, d_qk_), false);
      if (!v_in_k_) lay_out(case_.params["v_new"], dtype_, shape(q_tokens, heads_kv_, d_v_), false);
    }
    append_.lay_out_tables(case_.params, max_k_, bottom_right_ ? 1 : max_q_, align_);
    for (CaseTensor* rows : {&case_.lse, &case_.max_logit}) {
      if (rows == &case_.lse ? lse_ == Lse::none : !max_logit_) continue;
      rows->dtype = "fp32";
      if (layout_ == Layout::Packed) {
        rows->shape = {heads_q_, q_tokens}, rows->strides = {q_tokens, 1};
      } else {
        rows->shape = {batch, heads_q_, q_tokens}, rows->strides = {heads_q_ * q_tokens, q_tokens, 1};
      }
      allocate(*rows, 4, true);
    }
    if (sink_) plain(case_.sink, Dtype::F32, {heads_q_}, [&](std::int64_t) { return random_.normal(); });
    draw_lists();
    for (const DrawnParam& param : drawn_params_) {
      if (param.shape.empty()) {
        case_.scalars[param.name] = (*param.values)[0];
      } else {
        // Whether pairs of elements are words in memory is for the kernel to find out.
        const int align = random_.chance(0.5) ? 16 : size_of(param.dtype);
        plain(
            case_.params[param.name], param.dtype, param.shape, [&](std::int64_t i) { return (*param.values)[i]; },
            aligned_params_ ? 16 : align);
      }
    }
  }

  // Offsets, lengths, numbers of pages.
  void draw_lists() {
    const auto batch = static_cast<std::int64_t>(q_lens_.size());
    if (layout_ == Layout::Packed) {
      const auto offsets = [&](CaseTensor& tensor, const std::vector<std::int64_t>& lens, const Stray& stray) {
        std::int64_t next = stray.front;
        plain(tensor, Dtype::I32, {batch + 1}, [&](std::int64_t i) {
          if (i > 0) next += lens[i - 1];
          return static_cast<double>(next);
        });
      };
      offsets(case_.offsets_q, q_lens_, q_stray_);
      for (CaseTensor* output : {&case_.o, &case_.lse, &case_.max_logit}) {
        output->token_axis = output == &case_.o ? 0 : 1;
        output->stray_front = q_stray_.front, output->stray_back = q_stray_.back;
      }
      case_.max_q_len = std::max<std::int64_t>(1, max_q_);  // 0: not said, and there may be tokens of no sequence
      if (cache_.page_size == 0) {
        offsets(case_.offsets_k, k_lens_, k_stray_);
        case_.max_k_len = std::max<std::int64_t>(1, max_k_);
      }
    }
    elements_.lay_out_scales(case_.params, {batch, heads_q_, heads_kv_, max_q_, max_k_, cache_.pages, cache_.page_size},
                             case_.k.shape, layout_);
    if (v_in_k_) case_.params.erase("scale_v");
    if (!cache_.lens.empty()) cache_.lay_out_lens(case_.params["k_lens"]);
    if (cache_.page_size > 0) cache_.lay_out_table(case_.params["block_table"]);
  }

  bool is_values(const CaseTensor& tensor) {
    return &tensor == &case_.v || (append_.drawn() && !v_in_k_ && &tensor == &case_.params["v_new"]);
  }
  double number(const CaseTensor& tensor) {
    constexpr double largest = 6e4;  // near the end of fp16: logits up to about 2^40
    const bool has_values = is_values(tensor) || (v_in_k_ && &tensor != &case_.q);  // infinite ones reach other rows
    switch (data_) {
      case Data::Sharp: return random_.normal() * (is_values(tensor) ? 1 : 6);
      case Data::Equal: return 0.75;
      case Data::Huge: return random_.normal() * (has_values ? largest / 8 : random_.chance(0.02) ? largest : 1);
      case Data::Zero: return 0;
      case Data::LargeValues:
        if (!is_values(tensor)) return random_.normal();
        return dtype_ == Dtype::F16 ? random_.pick({-65504.0, 65504.0, 60000.0}) : random_.normal() * 1e33;
      default: return random_.normal() + (data_ == Data::MeanValues && is_values(tensor) ? 1 : 0);
    }
  }

  void store(CaseTensor& tensor, std::int64_t at, double value) {
    if (&tensor != &case_.k && &tensor != &case_.v) store_float(dtype_, tensor.data(), at, static_cast<float>(value));
    else elements_.store(tensor, at, value);
  }

  void fill_inputs() {
    std::vector<CaseTensor*> rows = keys_and_values();
    rows.insert(rows.begin(), &case_.q);
    if (append_.drawn()) rows.push_back(&case_.params["k_new"]);
    if (append_.drawn() && !v_in_k_) rows.push_back(&case_.params["v_new"]);
    for (CaseTensor* tensor : rows) {
      // Every element of the image: gaps hold numbers too, and a kernel that strays into them is seen in the result.
      const std::int64_t count = (tensor->image.size() - tensor->begin) / size_of(*parse_dtype(tensor->dtype));
      if (far_batches_ && tensor == &case_.k) {  // only the batches themselves: between them lie gigabytes
        const std::int64_t each = tensor->shape[1] * tensor->strides[1];
        for (std::int64_t b = 0; b < tensor->shape[0]; ++b) {
          for (std::int64_t i = b * tensor->strides[0]; i < std::min(count, b * tensor->strides[0] + each); ++i) {
            store(*tensor, i, number(*tensor));
          }
        }
        continue;
      }
      for (std::int64_t i = 0; i < count; ++i) store(*tensor, i, number(*tensor));
      if (data_ != Data::NotFinite || count == 0) continue;
      for (std::int64_t n = random_.integer(0, 2); n > 0; --n) {
        const float value = random_.pick({NAN, INFINITY, -INFINITY});
        put(*tensor, random_.integer(0, count - 1), value);
      }
    }
    case_.data = std::string(kDataNames[static_cast<int>(data_)]) + elements_.text();
  }

  // A row of Q, K or V: token `at` of sequence `b`, which has `len` of them.
  struct Place {
    std::int64_t b, at, len, head, offset;
  };
  // Packed tokens in front of the first sequence and behind the last one.
  struct Stray {
    std::int64_t front = 0, back = 0;
  };
  template <class F>
  void each_row(CaseTensor& tensor, const std::vector<std::int64_t>& lens, std::int64_t heads, F visit) {
    if (cache_.page_size > 0 && &lens == &k_lens_) return each_row_in_pages(tensor, visit);
    const bool packed = layout_ == Layout::Packed, bhsd = layout_ == Layout::Bhsd;
    const std::size_t token_axis = packed ? 0 : bhsd ? 2 : 1, head_axis = packed || bhsd ? 1 : 2;
    std::int64_t start = &tensor == &case_.q ? q_stray_.front : k_stray_.front;
    for (std::int64_t b = 0; b < static_cast<std::int64_t>(lens.size()); ++b) {
      for (std::int64_t at = 0; at < lens[b]; ++at) {
        for (std::int64_t head = 0; head < heads; ++head) {
          const std::int64_t token = packed ? start + at : at;
          visit(Place{b, at, lens[b], head,
                      (packed ? 0 : b * tensor.strides[0]) + token * tensor.strides[token_axis] +
                          head * tensor.strides[head_axis]});
        }
      }
      start += lens[b];
    }
  }
  template <class F>
  void each_row_in_pages(CaseTensor& tensor, F visit) {
    for (std::int64_t b = 0; b < static_cast<std::int64_t>(cache_.lens.size()); ++b) {
      for (std::int64_t at = 0; at < cache_.keys_of(b); ++at) {
        for (std::int64_t head = 0; head < heads_kv_; ++head)
          visit(Place{b, at, cache_.keys_of(b), head, cache_.row_of(tensor, b, at, head)});
      }
    }
  }
  void put(CaseTensor& tensor, std::int64_t offset, double value) {
    if (&tensor != &case_.k && &tensor != &case_.v)
      store_float(dtype_, tensor.data(), offset, static_cast<float>(value));
    else elements_.put(tensor, offset, value);
  }

  // Column 0 of Q and K is what lifts a logit: kLift in the queries that see it, the height in the key.
  void lift_keys(double scale, const std::function<double(const Place&)>& nats) {
    constexpr double kLift = 8;
    each_row(case_.q, q_lens_, heads_q_, [&](const Place& p) { put(case_.q, p.offset, p.at % 3 == 2 ? 0 : kLift); });
    each_row(case_.k, k_lens_, heads_kv_, [&](const Place& p) { put(case_.k, p.offset, nats(p) / (kLift * scale)); });
  }

  void place_extremes(double jump, double scale) {
    constexpr std::int64_t kLow = 300, kStair = 64;
    switch (data_) {
      case Data::LateJump:
      case Data::LargeValues: lift_keys(scale, [&](const Place& p) { return p.at == 0 ? jump : 0; }); break;
      case Data::EarlyPeak: lift_keys(scale, [&](const Place& p) { return p.at == p.len - 1 ? jump : 0; }); break;
      case Data::EarlyLow: lift_keys(scale, [&](const Place& p) { return p.at >= p.len - kLow ? -jump : 0; }); break;
      case Data::Staircase:
        lift_keys(scale, [&](const Place& p) { return jump * static_cast<double>((p.len - 1 - p.at) / kStair); });
        break;
      case Data::OneKey:
        lift_keys(scale, [&](const Place& p) { return p.at == (p.head * 379 + 211) % p.len ? jump : 0; });
        break;
      case Data::Rising: lift_keys(scale, [&](const Place& p) { return jump * p.at / p.len; }); break;
      case Data::Falling: lift_keys(scale, [&](const Place& p) { return jump * (p.len - p.at) / p.len; }); break;
      case Data::Combs: lift_keys(scale, [&](const Place& p) { return p.at % kStair == 0 ? jump : 0; }); break;
      case Data::Poisoned: poison_places(); break;
      case Data::Neighbours: poison_neighbours(); break;
      case Data::Tail: poison_tail(static_cast<std::int64_t>(jump)); break;
      default: break;
    }
  }

  void poison_places() {
    const double values[] = {INFINITY, -INFINITY, NAN};
    const auto value = [&](std::int64_t head) { return values[head / 5 % 3]; };
    each_row(case_.q, q_lens_, heads_q_, [&](const Place& p) {
      if (p.head % 5 == 0 && p.at == p.len / 2) put(case_.q, p.offset + 3, value(p.head));
    });
    const auto keys = [&](CaseTensor& tensor, std::int64_t first) {
      each_row(tensor, k_lens_, heads_kv_, [&](const Place& p) {
        const bool here = (p.head % 5 == first && p.at == 0) || (p.head % 5 == first + 1 && p.at == p.len - 1);
        if (here) put(tensor, p.offset + 2, value(p.head));
      });
    };
    keys(case_.k, 1);
    if (!v_in_k_) keys(case_.v, 3);
  }

  void poison_row(CaseTensor& tensor, const Place& p, std::int64_t dim) {
    for (std::int64_t i = 0; i < dim; ++i) put(tensor, p.offset + i, random_.pick<double>({NAN, INFINITY, -INFINITY}));
  }

  void poison_neighbours() {
    const auto poison = [&](CaseTensor& tensor, const std::vector<std::int64_t>& lens, std::int64_t heads) {
      each_row(tensor, lens, heads, [&](const Place& p) {
        if (p.b % 2 != 0) poison_row(tensor, p, tensor.shape.back());
      });
    };
    poison(case_.q, q_lens_, heads_q_);
    for (CaseTensor* tensor : keys_and_values()) poison(*tensor, k_lens_, heads_kv_);
  }

  void poison_tail(std::int64_t first) {
    case_.semantics.unseen_from = first;
    for (CaseTensor* tensor : keys_and_values()) {
      each_row(*tensor, k_lens_, heads_kv_, [&](const Place& p) {
        if (p.at >= first) poison_row(*tensor, p, tensor->shape.back());
      });
    }
  }

  // The last page may pass the bound, which would cut the lengths that say where new rows are.
  std::int64_t bound_of_keys(std::int64_t more) const {
    if (cache_.page_size == 0 || append_.drawn()) return max_k_ + more;
    return max_k_ - static_cast<std::int64_t>(case_.seed % static_cast<std::uint64_t>(cache_.page_size));
  }

  void write_spec() {
    std::string& text = case_.spec = fmt::format("fwd {} d={}", flashjit::name(dtype_), d_qk_);
    if (d_v_ != d_qk_) text += fmt::format("/{}", d_v_);
    text += fmt::format(" heads={}", heads_q_);
    if (heads_kv_ != heads_q_) text += fmt::format("/{}", heads_kv_);
    if (elements_.scaled) text += elements_.words();
    if (out_ != usual_out(dtype_)) text += fmt::format(" out={}", flashjit::name(out_));
    const std::string of_queries = layout_ == Layout::Bhsd ? "bhsd" : layout_ == Layout::Packed ? "packed" : "";
    if (cache_.page_size > 0)
      text += fmt::format(" layout={}paged({})", of_queries.empty() ? "" : "packed/", cache_.page_size);
    else if (!of_queries.empty()) text += " layout=" + of_queries;
    if (!mask_.empty()) text += fmt::format(" mask=\"{}\"", mask_);
    if (!score_.empty()) text += fmt::format(" score=\"{}\"", score_);
    if (const std::string declared = declarations(drawn_params_); !declared.empty())
      text += fmt::format(" params=\"{}\"", declared);
    if (scale_ != 0) text += fmt::format(" scale={}", scale_);
    if (!bottom_right_) text += " align=top_left";
    if (lse_ != Lse::none) text += lse_ == Lse::ln ? " lse=ln" : " lse=log2";
    if (max_logit_) text += " max_logit";
    if (sink_) text += " sink";
    if (!cache_.lens.empty() && cache_.page_size == 0) text += " k_lens";
    if (v_in_k_) text += " v_in_k";
    text += append_.words();
    if (align_ != 16) text += fmt::format(" bytes={}", align_);
    if (random_.chance(0.1))
      text += fmt::format(" k_len<={}", std::max<std::int64_t>(1, bound_of_keys(random_.integer(0, 3))));
    if (random_.chance(0.1) && layout_ != Layout::Packed && max_q_ > 0) text += fmt::format(" q_len={}", max_q_);
  }

  Random random_;
  CacheGenerator cache_;
  CacheElements elements_;
  AppendGenerator append_;
  const GeneratorOptions options_;
  Case case_;
  Dtype dtype_ = Dtype::BF16, out_ = Dtype::BF16;
  int d_qk_ = 64, d_v_ = 64, heads_q_ = 1, heads_kv_ = 1, align_ = 16;
  Layout layout_ = Layout::Bshd;
  bool bottom_right_ = true, max_logit_ = false, sink_ = false, v_in_k_ = false, far_batches_ = false,
       aligned_params_ = false;
  Lse lse_ = Lse::none;
  double scale_ = 0;
  Data data_ = Data::Normal;
  std::vector<std::int64_t> q_lens_, k_lens_;  // what the tensors have room for
  Stray q_stray_, k_stray_;
  std::int64_t max_q_ = 0, max_k_ = 0, total_q_ = 0, total_k_ = 0, few_queries_ = 0;  // 0 of these: any number
  std::string mask_, score_;
  std::vector<DrawnParam> drawn_params_;
};

}  // namespace

Case draw_case(std::uint64_t seed, const GeneratorOptions& options) {
  if (auto drawn = draw_other(seed, options)) return *std::move(drawn);
  Case drawn = draw_transposed(draw_backward(draw_places(Generator(seed, options).draw())));
  return draw_accumulate(draw_latent_rows(draw_lists(std::move(drawn), options.device)), options.device);
}

Case make_case(const FixedCase& row) {
  const auto seed = std::hash<std::string_view>()(row.name);
  if (auto made = make_other(seed, row)) return *std::move(made);
  return take_accumulate(take_latent_rows(take_transposed(take_backward(take_places(Generator(seed, {}).make(row))))));
}

}  // namespace flashjit::testing_random
