#include "codegen/host/lists/listed_gradients.h"

#include <algorithm>

#include "codegen/host/cpu.h"
#include "compiler/spec/half.h"

namespace flashjit::host {
namespace {

// Rows of a sequence are cut into at most this number of items, which all look through the lists.
constexpr std::int64_t kMostItems = 32, kFewestRows = 16;

}  // namespace

std::int64_t ListedGradients::rows_of_item() const {
  return std::max<std::int64_t>(kFewestRows, (params_.key_rows + kMostItems - 1) / kMostItems);
}

template <class Visit>
void ListedGradients::each_item(const ParallelFor& parallel, const Visit& visit) const {
  const std::int64_t of_head = items_of_sequence(), heads = std::int64_t{params_.pages} * spec_.heads_kv;
  parallel.each(of_head * heads, [&](std::int64_t item, int) {
    const FlushSubnormals flush;
    const std::int64_t head = item / of_head, first = item % of_head * rows_of_item();
    visit(head / spec_.heads_kv, head % spec_.heads_kv, first,
          std::min<std::int64_t>(first + rows_of_item(), params_.key_rows));
  });
}

void ListedGradients::begin(char* memory, const ParallelFor& parallel) {
  sums_ = reinterpret_cast<float*>(memory);
  each_item(parallel, [&](std::int64_t sequence, std::int64_t hk, std::int64_t first, std::int64_t end) {
    std::fill_n(sums_of(sequence, hk, first), (end - first) * row_floats(), 0.0f);
  });
}

void ListedGradients::add(const Problem& problem, std::span<const ListedShare> shares,
                          const ParallelFor& parallel) const {
  const std::int64_t floats = row_floats();
  each_item(parallel, [&](std::int64_t sequence, std::int64_t hk, std::int64_t first, std::int64_t end) {
    for (const ListedShare& share : shares) {
      if (share.hk != hk || share.b / params_.queries_of_sequence != sequence) continue;
      const float* from = share.rows;
      problem.visit_listed(share.b, hk, [&](std::int64_t, std::int64_t row) {
        if (row >= first && row < end) {
          float* const to = sums_of(sequence, hk, row);
          for (std::int64_t c = 0; c < floats; ++c) to[c] += from[c];
        }
        from += floats;
        return true;
      });
    }
  });
}

void ListedGradients::store_row(void* gradient, Dtype dtype, std::int64_t at, const float* row, int d) const {
  for (int c = 0; c < d; ++c) {
    const float sum = spec_.accumulate ? load_float(dtype, gradient, at + c) + row[c] : row[c];
    store_float(dtype, gradient, at + c, sum);
  }
}

void ListedGradients::store(const ParallelFor& parallel) const {
  each_item(parallel, [&](std::int64_t sequence, std::int64_t hk, std::int64_t first, std::int64_t end) {
    const auto offset_of = [&](const Strides& s, std::int64_t row) {
      return sequence * s.batch + hk * s.head + row * s.token;
    };
    for (std::int64_t row = first; row < end; ++row) {
      float* const sums = sums_of(sequence, hk, row);
      for (int c = 0; spec_.v_in_k && c < spec_.d_v; ++c) sums[c] += sums[spec_.d_qk + c];
      store_row(params_.dk, spec_.out_dk, offset_of(params_.dk_stride, row), sums, spec_.d_qk);
      if (spec_.v_in_k) continue;
      store_row(params_.dv, spec_.out_dv, offset_of(params_.dv_stride, row), sums + spec_.d_qk, spec_.d_v);
    }
  });
}

}  // namespace flashjit::host
