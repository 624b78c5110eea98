#include "codegen/host/operations/quantize.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "codegen/host/rope.h"
#include "compiler/spec/half.h"
#include "templates/quantize/rotation.h"

namespace flashjit::host {
namespace {

constexpr std::int64_t kRowsOfItem = 64;
constexpr float kNothing = 0x1p-100f;  // where nothing is larger, the scale is 1: a quotient with it would overflow

// Multiplies rows with the matrix of templates/quantize/rotation.h, without dividing them by the root of d.
class Rotation {
 public:
  explicit Rotation(int d) : d_(d), parts_(rotation_parts(d)), each_(d / parts_) {}

  void apply(float* row) const {
    for (int c = 0; c < d_; ++c) row[c] = rotation_sign(c) ? -row[c] : row[c];
    // With parts, the lowest two bits of a column are mixed with these instead.
    for (int step = parts_ == 1 ? 1 : 4; step < each_; step *= 2) {
      for (int c = 0; c < d_; ++c) {
        if (c % each_ & step) continue;
        const float a = row[c], b = row[c + step];
        row[c] = a + b;
        row[c + step] = a - b;
      }
    }
    if (parts_ > 1) mix_parts(row);
  }

 private:
  void mix_parts(float* row) const {
    const int order = 4 * parts_;
    for (int r = 0; r < each_ / 4; ++r) {
      const auto column = [&](int i) { return i / 4 * each_ + 4 * r + i % 4; };
      std::array<float, 20> x{};
      for (int i = 0; i < order; ++i) x[static_cast<std::size_t>(i)] = row[column(i)];
      for (int i = 0; i < order; ++i) {
        float sum = 0;
        for (int j = 0; j < order; ++j) {
          const float of_j = x[static_cast<std::size_t>(j)];
          sum += is_negative_in_paley(order, i, j) ? -of_j : of_j;
        }
        row[column(i)] = sum;
      }
    }
  }
  int d_, parts_, each_;
};

class QuantizeKernel final : public HostKernel {
 public:
  explicit QuantizeKernel(const AttentionSpec& spec) : spec_(spec) {
    if (spec.rotate) rotation_.emplace(spec.d_qk), length_ = rotation_factor(spec.d_qk);
  }

  Result<void> run(const KernelParams& p, const ParallelFor& parallel) const override {
    std::optional<RowTurner> turner;
    if (spec_.rope != Rope::none) turner.emplace(spec_, p);
    const std::int64_t heads = std::int64_t{p.batch} * spec_.heads_q;
    const std::int64_t rows = spec_.scale_block > 0 ? spec_.scale_block : p.q_len;  // of a scale
    // A sequence without tokens has a scale as well, which others multiply nothing with.
    const std::int64_t blocks = spec_.scale_block > 0 ? (p.q_len + rows - 1) / rows : 1;
    const std::int64_t of_block = std::max<std::int64_t>((rows + kRowsOfItem - 1) / kRowsOfItem, 1);
    const std::int64_t items = heads * blocks * of_block;
    std::vector<float> largest(static_cast<std::size_t>(items));
    // Twice the same rows: rotating them again is cheaper than memory for them all.
    const auto each_row = [&](std::int64_t item, auto visit) {
      std::vector<float> row(static_cast<std::size_t>(spec_.d_qk));
      const std::int64_t head = item / of_block / blocks, block = item / of_block % blocks;
      const std::int64_t begin = block * rows + item % of_block * kRowsOfItem;
      const std::int64_t end = std::min<std::int64_t>({begin + kRowsOfItem, (block + 1) * rows, p.q_len});
      for (std::int64_t token = begin; token < end; ++token) {
        load(p, turner ? &*turner : nullptr, head, token, row.data());
        visit(head, token, row);
      }
    };
    parallel.run(items, [&](std::int64_t item, int) {
      float& of_item = largest[static_cast<std::size_t>(item)];
      each_row(item, [&](std::int64_t, std::int64_t, const std::vector<float>& row) {
        for (const float x : row) of_item = std::isfinite(x) ? std::max(of_item, std::fabs(x)) : of_item;
      });
    });
    parallel.run(items, [&](std::int64_t item, int) {
      const std::int64_t first = item / of_block * of_block;
      const float most = *std::max_element(largest.begin() + first, largest.begin() + first + of_block);
      const bool has_any = most * length_ > kNothing;
      const float factor = has_any ? largest_number() / most : length_;
      const std::int64_t head = item / of_block / blocks, block = item / of_block % blocks;
      if (item == first)
        p.scale_y[at(p.scale_y_stride, head, block)] = has_any ? most * length_ / largest_number() : 1.0f;
      each_row(item, [&](std::int64_t of_head, std::int64_t token, const std::vector<float>& row) {
        const std::int64_t to = at(p.y_stride, of_head, token);
        for (std::size_t i = 0; i < row.size(); ++i) {
          // Infinity has no place among numbers that share a scale.
          const float x = std::isfinite(row[i]) ? row[i] * factor : std::numeric_limits<float>::quiet_NaN();
          reference::store_float(spec_.out_dtype, p.y, to + static_cast<std::int64_t>(i), x);
        }
      });
    });
    return {};
  }

 private:
  float largest_number() const { return spec_.out_dtype == Dtype::E4M3 ? 448.0f : 57344.0f; }
  std::int64_t at(const Strides& stride, std::int64_t head, std::int64_t token) const {
    return head / spec_.heads_q * stride.batch + head % spec_.heads_q * stride.head + token * stride.token;
  }
  static std::int64_t position(const KernelParams& p, std::int64_t batch, std::int64_t token) {
    const std::int64_t given = p.positions
                                   ? p.positions[batch * p.positions_stride.batch + token * p.positions_stride.token]
                                   : p.first_position + token;
    return std::max<std::int64_t>(given, 0);
  }
  // `turner`: null where nothing turns.
  void load(const KernelParams& p, const RowTurner* turner, std::int64_t head, std::int64_t token, float* row) const {
    const std::int64_t from = at(p.x_stride, head, token);
    for (int i = 0; i < spec_.d_qk; ++i) row[i] = reference::load_float(spec_.dtype, p.x, from + i);
    if (turner) {
      turner->turn(row, position(p, head / spec_.heads_q, token));
      for (int i = 0; i < spec_.rope_dims; ++i) row[i] = reference::round_to(spec_.dtype, row[i]);
    }
    if (rotation_) rotation_->apply(row);
  }

  AttentionSpec spec_;
  std::optional<Rotation> rotation_;
  float length_ = 1;  // that a rotated row is to have beside what the matrix makes of it
};

}  // namespace

std::unique_ptr<HostKernel> quantize_kernel(const AttentionSpec& spec) {
  return std::make_unique<QuantizeKernel>(spec);
}

}  // namespace flashjit::host
