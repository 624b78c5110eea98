#include "autotune/reference/quantize.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <thread>

#include "autotune/reference/philox.h"
#include "autotune/reference/rope.h"
#include "compiler/spec/half.h"
#include "fmt/format.h"
#include "runtime/launch/library_thread.h"

namespace flashjit::reference {
namespace {

constexpr double kLargestFloat = std::numeric_limits<float>::max(), kNothing = 0x1p-100;

double largest_number(Dtype dtype) { return dtype == Dtype::E4M3 ? 448 : 57344; }

double sylvester(int i, int j) { return __builtin_popcount(static_cast<unsigned>(i & j)) % 2 == 0 ? 1 : -1; }

// This is an element of 1 + S with S antisymmetric: row and column 0 hold ones, and the others depend on whether i - j
// is a square, by Euler's criterion.
double paley(int order, int i, int j) {
  const int prime = order - 1;
  if (i == j || i == 0) return 1;
  if (j == 0) return -1;
  const int difference = (i - j + prime) % prime;
  int power = 1;
  for (int n = 0; n < (prime - 1) / 2; ++n) power = power * difference % prime;
  return power == 1 ? 1 : -1;
}

double sign(int column) {
  const PhiloxBlock block = philox({static_cast<std::uint32_t>(column / 128), 0, 0, 0}, 0, 0, 10);
  const std::uint32_t word = block[static_cast<std::size_t>(column / 32 % 4)];
  return word >> (column / 2 % 16 + 16 * (column % 2)) & 1 ? -1 : 1;
}

// Returns all numbers that are not negative, in the order of their codes, which is their own order.
std::vector<double> numbers_of(Dtype dtype) {
  std::vector<double> numbers;
  for (int code = 0; code < 128; ++code) {
    const double number = load_float(dtype, &code, 0);  // The host is little-endian.
    if (std::isfinite(number)) numbers.push_back(number);
  }
  return numbers;
}

// Finds tensors by name, in the layouts that quantize has.
class Tensors {
 public:
  Tensors(const AttentionSpec& spec, const Arguments& arguments)
      : spec_(spec),
        x_(arguments.params.at("x")),
        y_(arguments.params.at("y")),
        scale_(arguments.params.at("scale")),
        positions_(arguments.params.contains("positions") ? &arguments.params.at("positions") : nullptr),
        packed_(spec.layout == Layout::Packed) {
    if (!arguments.offsets_q.shape.empty()) offsets_ = static_cast<const std::int32_t*>(arguments.offsets_q.data);
    sequences_ = offsets_ ? arguments.offsets_q.shape[0] - 1 : packed_ ? 1 : x_.shape[0];
  }

  std::int64_t batch() const { return sequences_; }
  std::int64_t tokens(std::int64_t b) const {
    if (offsets_) return offsets_[b + 1] - offsets_[b];
    return x_.shape[packed_ ? 0 : spec_.layout == Layout::Bhsd ? 2 : 1];
  }
  std::vector<double> x(std::int64_t b, std::int64_t h, std::int64_t token) const {
    std::vector<double> row;
    for (int c = 0; c < spec_.d_qk; ++c) row.push_back(load_float(spec_.dtype, x_.data, at(x_, b, h, token) + c));
    return row;
  }
  std::int64_t position(std::int64_t b, std::int64_t token) const {
    if (!positions_) return token;
    const std::vector<std::int64_t> s = strides_of(*positions_);
    const std::int64_t offset = packed_ ? (first(b) + token) * s[0] : b * s[0] + token * s[1];
    return static_cast<const std::int32_t*>(positions_->data)[offset];
  }
  double y(std::int64_t b, std::int64_t h, std::int64_t token, int column) const {
    return load_float(spec_.out_dtype, y_.data, at(y_, b, h, token) + column);
  }
  double scale(std::int64_t b, std::int64_t h, std::int64_t block) const {
    const std::vector<std::int64_t> s = strides_of(scale_);
    std::int64_t offset = h * s.back();
    if (s.size() > 1) offset += b * s[0];
    if (spec_.scale_block > 0) offset += block * s[s.size() - 2];
    return static_cast<const float*>(scale_.data)[offset];
  }

 private:
  std::int64_t first(std::int64_t b) const { return offsets_ ? offsets_[b] : 0; }
  std::int64_t at(const Tensor& tensor, std::int64_t b, std::int64_t h, std::int64_t token) const {
    const std::vector<std::int64_t> s = strides_of(tensor);
    if (packed_) return (first(b) + token) * s[0] + h * s[1];
    return spec_.layout == Layout::Bhsd ? b * s[0] + h * s[1] + token * s[2] : b * s[0] + token * s[1] + h * s[2];
  }

  const AttentionSpec& spec_;
  const Tensor &x_, &y_, &scale_;
  const Tensor* positions_;  // If it is null, tokens follow each other.
  const bool packed_;
  const std::int32_t* offsets_ = nullptr;  // offsets of packed sequences; null if all tokens belong to one
  std::int64_t sequences_ = 0;
};

// These rows share a scale.
struct BlockOfRows {
  std::int64_t b = 0, h = 0, number = 0, first = 0, end = 0;
};

struct TallyOfRows {
  double worst = 0, ideal_worst = 0, squares = 0, ideal_squares = 0, norm = 0;
  std::string wrong;  // the first error
  void add(const TallyOfRows& tally) {
    worst = std::max(worst, tally.worst);
    ideal_worst = std::max(ideal_worst, tally.ideal_worst);
    squares += tally.squares;
    ideal_squares += tally.ideal_squares;
    norm += tally.norm;
    if (wrong.empty()) wrong = tally.wrong;
  }
};

std::vector<BlockOfRows> blocks_of(const AttentionSpec& spec, const Tensors& tensors) {
  std::vector<BlockOfRows> blocks;
  for (std::int64_t b = 0; b < tensors.batch(); ++b) {
    const std::int64_t tokens = tensors.tokens(b);
    const std::int64_t rows = spec.scale_block > 0 ? spec.scale_block : std::max<std::int64_t>(tokens, 1);
    for (std::int64_t h = 0; h < spec.heads_q; ++h) {
      for (std::int64_t first = 0; first < tokens; first += rows)
        blocks.push_back({b, h, first / rows, first, std::min(first + rows, tokens)});
    }
  }
  return blocks;
}

std::string wrong_scale(const QuantizedRows& rows, const BlockOfRows& block, Dtype dtype, double ours) {
  const double uncertain = *std::max_element(rows.uncertain.begin(), rows.uncertain.end());
  const double tolerance = uncertain > 0 ? uncertain / largest_number(dtype) + rows.scale * 0x1p-22 : 0;
  // It is near the limit between 1 and its usual value.
  const bool either = std::fabs(rows.largest - kNothing) <= uncertain + kNothing * 0x1p-20;
  if (std::fabs(ours - rows.scale) <= tolerance || (either && ours == 1)) return {};
  return fmt::format("scale is {} instead of {} (batch {}, head {}, rows {} to {})", ours, rows.scale, block.b, block.h,
                     block.first, block.end - 1);
}

void check_block(const Problem& problem, const Tensors& tensors, const BlockOfRows& block, TallyOfRows& tally) {
  const AttentionSpec& spec = problem.spec();
  const int d = spec.d_qk;
  GivenRows given;
  for (std::int64_t token = block.first; token < block.end; ++token)
    add_row(given, spec, problem.arguments(), tensors.x(block.b, block.h, token), tensors.position(block.b, token));
  const QuantizedRows rows = quantize_rows(given, d, spec.rotate, spec.out_dtype);
  const double scale = tensors.scale(block.b, block.h, block.number);
  const auto report = [&](std::string text) {
    if (tally.wrong.empty()) tally.wrong = std::move(text);
  };
  if (std::string wrong = wrong_scale(rows, block, spec.out_dtype, scale); !wrong.empty()) return report(wrong);
  for (std::size_t i = 0; i < rows.exact.size(); ++i) {
    const std::int64_t token = block.first + static_cast<std::int64_t>(i) / d;
    const int column = static_cast<int>(static_cast<std::int64_t>(i) % d);
    const double exact = rows.exact[i], y = tensors.y(block.b, block.h, token, column);
    const auto element_name = [&] {
      return fmt::format("(batch {}, head {}, token {}, column {})", block.b, block.h, token, column);
    };
    if (!std::isfinite(exact)) {
      if (!std::isnan(y)) report(fmt::format("y is {} where x is {}, rotated {}", y, exact, element_name()));
      continue;
    }
    const double quotient = exact / scale;
    const double off = rows.uncertain[i] / scale + std::fabs(quotient) * 0x1p-21;
    const bool exactly = !spec.rotate && rows.uncertain[i] == 0;
    const double least = exactly ? rows.y[i] : round_narrow(spec.out_dtype, quotient - off),
                 most = exactly ? rows.y[i] : round_narrow(spec.out_dtype, quotient + off);
    if (!(y >= least && y <= most)) {
      report(fmt::format("y is {} where {:.9g} is rounded, to {} {}", y, quotient,
                         least == most ? fmt::format("{}", least) : fmt::format("{} or {}", least, most),
                         element_name()));
      continue;
    }
    const double error = y * scale - exact;
    const double ideal = rows.y[i] * rows.scale - exact;
    tally.worst = std::max(tally.worst, std::fabs(error));
    tally.ideal_worst = std::max(tally.ideal_worst, std::fabs(ideal));
    tally.squares += error * error;
    tally.ideal_squares += ideal * ideal;
    tally.norm += exact * exact;
  }
}

}  // namespace

std::vector<double> rotation_matrix(int d) {
  int sections = d;
  while (sections % 2 == 0) sections /= 2;
  const int each = d / sections;
  std::vector<double> matrix(static_cast<std::size_t>(d) * static_cast<std::size_t>(d));
  for (int i = 0; i < d; ++i) {
    for (int j = 0; j < d; ++j) {
      const double element = sections == 1 ? sylvester(i, j)
                                           : paley(4 * sections, i / each * 4 + i % 4, j / each * 4 + j % 4) *
                                                 sylvester(i % each / 4, j % each / 4);
      matrix[static_cast<std::size_t>(i) * d + j] = element * sign(j) / std::sqrt(d);
    }
  }
  return matrix;
}

double round_narrow(Dtype dtype, double x) {
  static const std::vector<double> e4m3 = numbers_of(Dtype::E4M3), e5m2 = numbers_of(Dtype::E5M2);
  const std::vector<double>& numbers = dtype == Dtype::E4M3 ? e4m3 : e5m2;
  const double size = std::fabs(x);
  if (size >= numbers.back()) return std::copysign(numbers.back(), x);
  const auto above = std::upper_bound(numbers.begin(), numbers.end(), size);
  const double low = *(above - 1), high = *above;
  const bool even_below = (above - 1 - numbers.begin()) % 2 == 0;
  const bool down = size - low < high - size || (size - low == high - size && even_below);
  return std::copysign(down ? low : high, x);
}

void add_row(GivenRows& rows, const AttentionSpec& spec, const Arguments& arguments, const std::vector<double>& row,
             std::int64_t position) {
  const std::vector<double> exact = turned(spec, arguments, row, position);
  const double unit = spec.dtype == Dtype::F32 ? 0x1p-22 : 0x1p-19;  // Kernels compute angles to 1e-6.
  const auto rounded = [&](double x) { return round_to(spec.dtype, static_cast<float>(x)); };
  double size = 0;
  for (const double x : row) size = std::isfinite(x) ? std::max(size, std::fabs(x)) : size;
  for (std::size_t c = 0; c < exact.size(); ++c) {
    rows.elements.push_back(rounded(exact[c]));
    const int of_turning = static_cast<int>(c) - spec.rope_from;
    const bool turns = of_turning >= 0 && of_turning < spec.rope_dims && std::isfinite(rows.elements.back());
    rows.uncertain.push_back(turns ? rounded(exact[c] + size * unit) - rounded(exact[c] - size * unit) : 0);
  }
}

QuantizedRows quantize_rows(const GivenRows& given, int d, bool rotate, Dtype dtype) {
  QuantizedRows result;
  const std::vector<double>& rows = given.elements;
  const std::size_t width = static_cast<std::size_t>(d), count = rows.size() / width;
  const double length = rotate ? 1 / std::sqrt(d) : 1;
  result.uncertain = given.uncertain;
  std::vector<double> sums = rows;  // They are rotated, without the factor of the length.
  const std::vector<double> matrix = rotate ? rotation_matrix(d) : std::vector<double>();
  for (std::size_t row = 0; rotate && row < count; ++row) {
    const double* x = &rows[row * width];
    for (std::size_t i = 0; i < width; ++i) {
      double sum = 0;
      for (std::size_t j = 0; j < width; ++j) sum += matrix[i * width + j] > 0 ? x[j] : -x[j];
      sums[row * width + i] = sum;
    }
    double sizes = 0;
    for (std::size_t j = 0; j < width; ++j) sizes += std::fabs(x[j]);
    const auto of_row = result.uncertain.begin() + static_cast<std::ptrdiff_t>(row * width);
    const double uncertain = std::accumulate(of_row, of_row + d, std::isfinite(sizes) ? 0x1p-20 * sizes : 0);
    std::fill_n(of_row, d, uncertain * length);
  }
  float largest = 0;
  double uncertain_largest = 0;
  for (std::size_t i = 0; i < sums.size(); ++i) {
    double& sum = sums[i];
    if (std::fabs(sum) > kLargestFloat) sum = INFINITY;
    result.exact.push_back(sum * length);
    const auto size = static_cast<float>(std::fabs(sum));
    if (std::isfinite(size) && size > largest) largest = size, uncertain_largest = result.uncertain[i];
  }
  const auto most = static_cast<float>(largest_number(dtype)), short_length = static_cast<float>(length);
  const float size = largest * short_length;
  const float factor = size > kNothing ? most / largest : short_length;
  result.largest = largest * length;
  result.scale = size > kNothing ? size / most : 1;
  // All rows share the scale, so each is in doubt by as much as the largest number is.
  const double doubt_of_scale = result.largest > 0 ? uncertain_largest / result.largest : 0;
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const bool finite = std::isfinite(sums[i]);
    const double quotient = result.exact[i] / result.scale, of_scale = std::fabs(quotient) * doubt_of_scale,
                 off = result.uncertain[i] / result.scale + of_scale;
    result.y.push_back(finite ? round_narrow(dtype, static_cast<float>(sums[i]) * factor) : NAN);
    result.doubts.push_back(
        finite && off > 0 ? round_narrow(dtype, quotient + off) - round_narrow(dtype, quotient - off) + of_scale : 0);
  }
  return result;
}

Comparison compare_quantized(const Problem& problem, const CompareOptions& options) {
  const AttentionSpec& spec = problem.spec();
  const Tensors tensors(spec, problem.arguments());
  std::vector<BlockOfRows> blocks = blocks_of(spec, tensors);
  Comparison result;
  for (std::int64_t b = 0; b < tensors.batch(); ++b) result.rows += tensors.tokens(b) * spec.heads_q;
  std::mt19937_64 random(options.seed);
  std::shuffle(blocks.begin(), blocks.end(), random);
  std::size_t chosen = 0;
  const double of_row = spec.d_qk * (spec.rotate ? spec.d_qk : 16.0);
  for (double work = 0; chosen < blocks.size() && work < options.work; ++chosen) {
    result.rows_checked += blocks[chosen].end - blocks[chosen].first;
    work += of_row * static_cast<double>(blocks[chosen].end - blocks[chosen].first);
  }
  std::vector<TallyOfRows> tallies(static_cast<std::size_t>(std::max(1, options.threads)));
  const auto check = [&](std::size_t thread) {
    for (std::size_t i = thread; i < chosen; i += tallies.size())
      check_block(problem, tensors, blocks[i], tallies[thread]);
  };
  std::vector<std::jthread> threads;
  for (std::size_t thread = 1; thread < tallies.size(); ++thread)
    threads.push_back(library_thread([&, thread] { check(thread); }));
  check(0);
  threads.clear();
  TallyOfRows all;
  for (const TallyOfRows& tally : tallies) all.add(tally);
  // The checks above limit each number. These figures show the cost of rounding, beside that with the exact scale.
  const double norm = all.norm > 0 ? std::sqrt(all.norm) : 1;
  result.max_abs_err = all.worst;
  result.recipe_max_abs_err = all.ideal_worst;
  result.max_abs_limit = 2 * all.ideal_worst;
  result.rel_err = std::sqrt(all.squares) / norm;
  result.recipe_rel_err = std::sqrt(all.ideal_squares) / norm;
  result.rel_limit = 2 * result.recipe_rel_err;
  result.problem = all.wrong;
  result.ok = result.problem.empty();
  return result;
}

}  // namespace flashjit::reference
