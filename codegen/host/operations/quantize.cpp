#include "codegen/host/operations/quantize.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <span>

#include "codegen/host/before/latents.h"
#include "codegen/host/problem.h"
#include "codegen/host/rope.h"
#include "codegen/host/workspace.h"
#include "compiler/spec/half.h"
#include "templates/quantize/rotation.h"

namespace flashjit::host {
namespace {

constexpr std::int64_t kRowsOfItem = 64;
// If no number is larger, the scale is 1: a quotient with such a number would overflow.
constexpr float kNothing = 0x1p-100f;

// Multiplies rows by the matrix of templates/quantize/rotation.h, without dividing them by the root of d.
class Rotation {
 public:
  explicit Rotation(int d) : d_(d), sections_(rotation_sections(d)), each_(d / sections_) {}

  void apply(float* row) const {
    for (int c = 0; c < d_; ++c) row[c] = rotation_sign(c) ? -row[c] : row[c];
    // With sections, the lowest two bits of a column are mixed with these instead.
    for (int step = sections_ == 1 ? 1 : 4; step < each_; step *= 2) {
      for (int c = 0; c < d_; ++c) {
        if (c % each_ & step) continue;
        const float a = row[c], b = row[c + step];
        row[c] = a + b;
        row[c + step] = a - b;
      }
    }
    if (sections_ > 1) mix_sections(row);
  }

 private:
  void mix_sections(float* row) const {
    const int order = 4 * sections_;
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
  int d_, sections_, each_;
};

class QuantizeKernel final : public HostKernel {
 public:
  explicit QuantizeKernel(const AttentionSpec& spec) : spec_(spec) {
    if (spec.rotate) rotation_.emplace(spec.d_qk), length_ = rotation_factor(spec.d_qk);
  }

  Result<void> run(const KernelParams& p, const ParallelFor& parallel) const override {
    std::optional<RowTurner> turner;
    if (spec_.rope != Rope::none) turner.emplace(spec_, p);
    const std::int64_t count = count_items(p);
    if (count == 0) return {};
    const std::int64_t list = bytes_of_elements<Item>(count), bytes = list + bytes_of_elements<float>(count);
    std::unique_ptr<Workspace> workspace = workspaces_.take(bytes);
    if (!workspace) return out_of_memory(bytes, "use shorter sequences");
    const std::span<Item> items = make_elements<Item>(workspace->data(), count);
    const std::span<float> largest = make_elements<float>(workspace->data() + list, count);
    std::size_t next = 0;
    each_item(p, [&](Item item, std::int64_t of_scale, std::int64_t items_of_scale) {
      item.first_of_scale = next - static_cast<std::size_t>(of_scale);
      item.items_of_scale = items_of_scale;
      items[next++] = item;
    });
    // Rows are visited twice: rotating them again is cheaper than memory for all of them.
    const auto each_row = [&](const Item& item, auto visit) {
      std::array<float, kMaxHeadDim> memory;
      const std::span<float> row(memory.data(), static_cast<std::size_t>(spec_.d_qk));
      for (std::int64_t token = item.begin; token < item.end; ++token) {
        load(p, turner ? &*turner : nullptr, item, token, row.data());
        visit(item.first_token + token, std::span<const float>(row));
      }
    };
    parallel.each(count, [&](std::int64_t i, int) {
      float& of_item = largest[static_cast<std::size_t>(i)];
      each_row(items[static_cast<std::size_t>(i)], [&](std::int64_t, std::span<const float> row) {
        for (const float x : row) of_item = std::isfinite(x) ? std::max(of_item, std::fabs(x)) : of_item;
      });
    });
    parallel.each(count, [&](std::int64_t i, int) {
      const Item& item = items[static_cast<std::size_t>(i)];
      const auto first = largest.begin() + static_cast<std::ptrdiff_t>(item.first_of_scale);
      const float most = *std::max_element(first, first + static_cast<std::ptrdiff_t>(item.items_of_scale));
      const bool has_any = most * length_ > kNothing;
      const float factor = has_any ? largest_number() / most : length_;
      if (static_cast<std::size_t>(i) == item.first_of_scale)
        p.scale_y[at(p.scale_y_stride, item, item.block)] = has_any ? most * length_ / largest_number() : 1.0f;
      each_row(item, [&](std::int64_t token, std::span<const float> row) {
        const std::int64_t to = at(p.y_stride, item, token);
        for (std::size_t column = 0; column < row.size(); ++column) {
          // Infinity has no place among numbers that share a scale.
          const float x = std::isfinite(row[column]) ? row[column] * factor : std::numeric_limits<float>::quiet_NaN();
          store_float(spec_.out_dtype, p.y, to + static_cast<std::int64_t>(column), x);
        }
      });
    });
    workspaces_.give_back(std::move(workspace));
    return {};
  }

 private:
  // These are rows of a head that share a scale, or some of them.
  struct Item {
    std::int64_t b, h, block;
    // `first_token` is the sequence's among packed ones, `begin` and `end` are rows of the sequence.
    std::int64_t first_token, begin, end;
    std::size_t first_of_scale;   // The first item that shares its scale, ...
    std::int64_t items_of_scale;  // ... and the number of these items.
  };
  // Calls visit(item, its number among those that share its scale, the number of these).
  template <class Visit>
  void each_item(const KernelParams& p, const Visit& visit) const {
    const Problem problem(spec_, p);
    for (std::int64_t b = 0; b < p.batch; ++b) {
      const Sequence sequence = problem.sequence(b);
      // A sequence without tokens has a scale for its heads as well, by which others multiply nothing.
      const std::int64_t rows = spec_.scale_block > 0 ? spec_.scale_block : std::max<std::int64_t>(sequence.q_len, 1);
      const std::int64_t all = spec_.scale_block > 0 ? sequence.q_len : rows;
      for (std::int64_t h = 0; h < spec_.heads_q; ++h) {
        for (std::int64_t first = 0; first < all; first += rows)
          cut_block({b, h, first / rows, sequence.q_first, first, std::min(first + rows, sequence.q_len), 0, 0}, visit);
      }
    }
  }
  template <class Visit>
  static void cut_block(const Item& block, const Visit& visit) {
    const std::int64_t items = std::max<std::int64_t>((block.end - block.begin + kRowsOfItem - 1) / kRowsOfItem, 1);
    for (std::int64_t i = 0; i < items; ++i) {
      Item item = block;
      item.begin = block.begin + i * kRowsOfItem;
      item.end = std::min(item.begin + kRowsOfItem, block.end);
      visit(item, i, items);
    }
  }
  std::int64_t count_items(const KernelParams& p) const {
    std::int64_t count = 0;
    each_item(p, [&](const Item&, std::int64_t, std::int64_t) { ++count; });
    return count;
  }

  float largest_number() const { return spec_.out_dtype == Dtype::E4M3 ? 448.0f : 57344.0f; }
  static std::int64_t at(const Strides& stride, const Item& item, std::int64_t token) {
    return item.b * stride.batch + item.h * stride.head + token * stride.token;
  }
  // Returns the position of a token of its sequence.
  static std::int64_t position(const KernelParams& p, const Item& item, std::int64_t token) {
    const Strides& stride = p.positions_stride;
    const std::int64_t given = p.positions
                                   ? p.positions[item.b * stride.batch + (item.first_token + token) * stride.token]
                                   : p.first_position + token;
    return std::max<std::int64_t>(given, 0);
  }
  // `turner` is null where nothing rotates.
  void load(const KernelParams& p, const RowTurner* turner, const Item& item, std::int64_t token, float* row) const {
    const std::int64_t from = at(p.x_stride, item, item.first_token + token);
    for (int i = 0; i < spec_.d_qk; ++i) row[i] = load_float(spec_.dtype, p.x, from + i);
    if (turner) {
      turner->turn(row, position(p, item, token));
      for (int i = 0; i < spec_.d_qk; ++i) row[i] = round_to(spec_.dtype, row[i]);
    }
    if (rotation_) rotation_->apply(row);
  }

  AttentionSpec spec_;
  mutable WorkspacePool workspaces_;
  std::optional<Rotation> rotation_;
  float length_ = 1;  // The length that a rotated row gets beside what the matrix makes of it.
};

// Writes rows of latents, as a cache has them. Where scales lie behind a page, the batches of x are the pages.
class QuantizeLatentsKernel final : public HostKernel {
 public:
  explicit QuantizeLatentsKernel(const AttentionSpec& spec) : spec_(spec), rows_(latent_rows(spec.cache_format)) {}

  Result<void> run(const KernelParams& p, const ParallelFor& parallel) const override {
    const std::int64_t count = std::int64_t{p.batch} * p.q_len;
    parallel.each((count + kRowsOfItem - 1) / kRowsOfItem, [&](std::int64_t item, int) {
      const std::int64_t end = std::min((item + 1) * kRowsOfItem, count);
      for (std::int64_t number = item * kRowsOfItem; number < end; ++number)
        write(p, number / p.q_len, number % p.q_len);
    });
    return {};
  }

 private:
  void write(const KernelParams& p, std::int64_t b, std::int64_t token) const {
    std::array<float, kMaxLatentDimQk> row;
    const std::int64_t from = b * p.x_stride.batch + token * p.x_stride.token;
    for (int c = 0; c < spec_.d_qk; ++c) row[static_cast<std::size_t>(c)] = load_float(spec_.dtype, p.x, from + c);
    auto* const begin = static_cast<unsigned char*>(p.y) + b * p.y_stride.batch;
    const Int64 stride = p.y_stride.token;
    const auto number = static_cast<int>(token);
    store_latent(rows_, row.data(), begin + latent_data_at(rows_, stride, number),
                 begin + latent_scales_at(rows_, stride, number, p.q_len));
  }

  const AttentionSpec spec_;
  const LatentRows rows_;
};

}  // namespace

std::unique_ptr<HostKernel> quantize_kernel(const AttentionSpec& spec) {
  if (has_latent_rows(spec)) return std::make_unique<QuantizeLatentsKernel>(spec);
  return std::make_unique<QuantizeKernel>(spec);
}

}  // namespace flashjit::host
