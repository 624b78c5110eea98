#include "codegen/host/backward.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numbers>
#include <span>
#include <tuple>
#include <utility>

#include "codegen/host/backward_config.h"
#include "codegen/host/cpu.h"
#include "codegen/host/emit/backward.h"
#include "codegen/host/emit/pack.h"
#include "codegen/host/lists/listed_gradients.h"
#include "codegen/host/tile_map/emit.h"
#include "codegen/host/parameter_gradients.h"
#include "codegen/host/problem.h"
#include "codegen/host/workspace.h"

namespace flashjit::host {
namespace {

// A round packs and sums at most this many bytes. More (sequence, KV head) pairs than fit are done in several rounds.
constexpr std::int64_t kLargestRound = std::int64_t{448} << 20;
// The keys of a pair are cut into at most this number of chunks, whose gradients of queries are summed in their order.
// Pairs alone would be too few items for many processors. The number must not depend on how many processors there are.
constexpr std::int64_t kMostChunks = 8;
alignas(64) constexpr char kZeros[kMostBytesOfRow] = {};  // They stand in place of rows behind the last one.

struct Functions {
  QueryPackFunction pack_queries;
  PackFunction pack_k_columns, pack_v_columns, pack_k_rows;
  BackwardFunction tile;
  KeyStoreFunction store_keys;
  QueryStoreFunction store_queries;
};

class BackwardKernel final : public HostKernel {
 public:
  BackwardKernel(const AttentionSpec& spec, const ItemsApart& apart, const BackwardConfig& config,
                 std::unique_ptr<Code> code, const Functions& functions, std::optional<TileMaps> maps)
      : spec_(spec),
        apart_(apart),
        gradients_(static_cast<int>(params_with_gradients(spec).size())),
        c_(config),
        code_(std::move(code)),
        call_(functions),
        maps_(std::move(maps)) {}

  Result<void> run(const KernelParams& params, const ParallelFor& parallel) const override;

 private:
  // These are offsets of the data kept for one query head, in bytes from the start of the head's memory.
  struct HeadOffsets {
    std::int64_t q_rows, do_rows, q_transposed, do_transposed, lse, delta, dq, bytes;
  };
  // This is a (sequence, KV head) pair of a round. Offsets are in bytes from the start of the round's memory.
  struct Pair {
    std::int64_t b = 0, hk = 0;
    Sequence sequence;
    std::int64_t k_columns = 0, v_columns = 0, k_rows = 0, maps_at = 0, heads = 0, listed = 0, bytes = 0;
    HeadOffsets head{};
    std::int64_t first_pack = 0, first_query_tile = 0;  // The items before this pair's.
    std::int64_t first_chunk = 0;                       // It counts the chunks of all rounds.
  };
  // Holds what is made once for all rounds of a run.
  struct Round {
    const Problem& problem;
    const KernelParams& params;
    const ParallelFor& parallel;
    const ParameterGradients& gradients;
    const ListedGradients& listed;
    char *memory, *scratch;
    std::span<double> sink_sums;  // By [sequence, head].
    char* items;                  // Memory for the items of a round, and for the begins of their chains.
  };
  // An item is a chunk of the keys of a pair. Chunks of one chain follow each other.
  struct Item {
    std::int64_t chain, index;  // The chain among all chains, and the item's index among those of a round.
    // `first_chunk` and `first_index` are those of the first item of its chain.
    std::int64_t chunk, first_chunk, first_index;
    const Pair* pair;
  };
  std::int64_t group() const { return spec_.heads_q / spec_.heads_kv; }
  std::int64_t chunk_keys(std::int64_t keys) const {
    return std::max<std::int64_t>(c_.tile_kv, round_up((keys + kMostChunks - 1) / kMostChunks, c_.tile_kv));
  }
  // Lists of packed queries take the place of a worker's share of a tile.
  std::int64_t rows_of_tile() const { return std::int64_t{c_.tile_words} * c_.pack; }
  std::int64_t rows_bytes() const { return bytes_of_elements<const void*>(rows_of_tile()); }
  std::int64_t worker_bytes() const { return round_up(std::max(c_.scratch_bytes(), 3 * rows_bytes()), 4096); }
  std::int64_t chunks(std::int64_t keys) const { return (keys + chunk_keys(keys) - 1) / chunk_keys(keys); }
  char* head_at(const Pair& pair, std::int64_t head, char* memory) const {
    return memory + pair.heads + (head - pair.hk * group()) * pair.head.bytes;
  }

  void lay_out(Pair& pair, std::int64_t at) const;
  struct Sizes {
    std::int64_t items = 0;    // The items of all rounds.
    std::int64_t largest = 0;  // The most bytes of a round.
  };
  Sizes sizes_of(const Problem& problem, const KernelParams& params) const;
  void run_rounds(const Round& round, std::span<Pair> pairs) const;
  void run_round(const Round& round, std::span<Pair> pairs) const;
  std::span<Item> items_of(const Round& round, std::span<const Pair> pairs) const;
  void compute_keys(const Round& round, std::span<const Pair> pairs) const;
  void sum_sinks(const Round& round, std::span<const Pair> pairs) const;
  void pack_keys(const Problem& problem, const Pair& pair, std::int64_t item, char* memory) const;
  void pack_queries(const Problem& problem, const KernelParams& params, const Pair& pair, std::int64_t head,
                    std::int64_t tile, char* memory, char* scratch) const;
  void compute(const Round& round, const Pair& pair, std::int64_t chunk, char* scratch) const;
  void store_keys(const Round& round, const Pair& pair, std::int64_t k_lo, std::int64_t keys, char* scratch) const;
  void add_listed(const Round& round, std::span<const Pair> pairs) const;
  void store_queries(const Problem& problem, const KernelParams& params, const Pair& pair, std::int64_t head,
                     std::int64_t tile, char* memory) const;

  AttentionSpec spec_;
  ItemsApart apart_;
  int gradients_;  // The number of parameters with gradients.
  BackwardConfig c_;
  std::unique_ptr<Code> code_;
  Functions call_;
  std::optional<TileMaps> maps_;
  mutable WorkspacePool workspaces_;
};

void BackwardKernel::lay_out(Pair& pair, std::int64_t at) const {
  const std::int64_t queries = pair.sequence.q_len, keys = pair.sequence.k_len;
  std::int64_t next = at;
  const auto take = [&next](std::int64_t bytes) {
    const std::int64_t first = next;
    next += round_up(bytes, 64);
    return first;
  };
  pair.k_columns = take(c_.k_bytes(keys));
  pair.v_columns = take(c_.v_columns_bytes(keys));
  pair.k_rows = take(c_.k_rows_bytes(keys));
  pair.maps_at = take(maps_ ? maps_->bytes(pair.sequence) : 0);
  pair.listed = take(selects(spec_) ? keys * (spec_.d_qk + spec_.d_v) * 4 : 0);
  pair.heads = next;
  next = 0;
  pair.head.q_rows = take(c_.q_bytes(queries));
  pair.head.do_rows = take(c_.do_bytes(queries));
  pair.head.q_transposed = take(c_.transposed_bytes(queries, c_.d_qk));
  pair.head.do_transposed = take(c_.transposed_bytes(queries, c_.d_v));
  pair.head.lse = take(c_.facts_bytes(queries));
  pair.head.delta = take(c_.facts_bytes(queries));
  pair.head.dq = take(c_.dq_bytes(queries) * chunks(keys));
  pair.head.bytes = next;
  pair.bytes = pair.heads - at + group() * pair.head.bytes;
}

BackwardKernel::Sizes BackwardKernel::sizes_of(const Problem& problem, const KernelParams& params) const {
  Sizes sizes;
  std::int64_t all = 0, most = 0;
  for (std::int64_t b = 0; b < params.batch; ++b) {
    for (std::int64_t hk = 0; hk < spec_.heads_kv; ++hk) {
      Pair pair{.sequence = problem.sequence(b, hk)};
      lay_out(pair, 0);
      sizes.items += chunks(pair.sequence.k_len);
      all = std::min(all + pair.bytes, kLargestRound);
      most = std::max(most, pair.bytes);
    }
  }
  sizes.largest = std::max(all, most);
  return sizes;
}

Result<void> BackwardKernel::run(const KernelParams& params, const ParallelFor& parallel) const {
  const Problem problem(spec_, params);
  const Sizes sizes = sizes_of(problem, params);
  const std::int64_t pairs = std::int64_t{params.batch} * spec_.heads_kv,
                     sinks = params.d_sink ? params.batch * spec_.heads_q : 0;
  ParameterGradients gradients(params, gradients_, apart_, sizes.items);
  ListedGradients listed(spec_, params);
  std::int64_t bytes = 0;
  const auto take = [&bytes](std::int64_t more) { return std::exchange(bytes, bytes + more); };
  const std::int64_t scratch = take(parallel.workers * worker_bytes()),
                     copies = take(round_up(gradients.copy_bytes(), 4096)), memory = take(sizes.largest),
                     sums_at = take(selects(spec_) ? listed.bytes() : 0),
                     pairs_at = take(bytes_of_elements<Pair>(pairs)), sinks_at = take(bytes_of_elements<double>(sinks)),
                     items =
                         take(bytes_of_elements<Item>(sizes.items) + bytes_of_elements<std::int64_t>(sizes.items + 1));
  std::unique_ptr<Workspace> workspace = workspaces_.take(bytes);
  if (!workspace) return out_of_memory(bytes, "use fewer threads or shorter sequences");
  char* const at = workspace->data();
  gradients.begin(at + copies, parallel);
  if (selects(spec_)) listed.begin(at + sums_at, parallel);
  const std::span<double> sink_sums = make_elements<double>(at + sinks_at, sinks);
  run_rounds({problem, params, parallel, gradients, listed, at + memory, at + scratch, sink_sums, at + items},
             make_elements<Pair>(at + pairs_at, pairs));
  gradients.finish(parallel);
  if (selects(spec_)) listed.store(parallel);
  for (std::int64_t h = 0; params.d_sink && h < spec_.heads_q; ++h) {
    double sum = 0;
    for (std::int64_t b = 0; b < params.batch; ++b) sum += sink_sums[static_cast<std::size_t>(b * spec_.heads_q + h)];
    params.d_sink[h] = static_cast<float>(sum);
  }
  workspaces_.give_back(std::move(workspace));
  return {};
}

void BackwardKernel::run_rounds(const Round& round, std::span<Pair> pairs) const {
  std::size_t begin = 0, end = 0;
  std::int64_t bytes = 0, items = 0;
  for (std::int64_t b = 0; b < round.params.batch; ++b) {
    for (std::int64_t hk = 0; hk < spec_.heads_kv; ++hk) {
      const Sequence sequence = round.problem.sequence(b, hk);
      Pair& pair = pairs[end] = {.b = b, .hk = hk, .sequence = sequence, .first_chunk = items};
      lay_out(pair, bytes);
      if (bytes > 0 && bytes + pair.bytes > kLargestRound) {
        run_round(round, pairs.subspan(begin, end - begin));
        begin = end;
        bytes = 0;
        lay_out(pair, 0);
      }
      ++end;
      items += chunks(sequence.k_len);
      bytes += pair.bytes;
    }
  }
  run_round(round, pairs.subspan(begin));
}

void BackwardKernel::run_round(const Round& round, std::span<Pair> pairs) const {
  const auto& [problem, params, parallel, gradients, listed, memory, scratch, sink_sums, items] = round;
  std::int64_t packs = 0, tiles = 0;
  for (Pair& pair : pairs) {
    pair.first_pack = packs;
    pair.first_query_tile = tiles;
    packs += (pair.sequence.k_len + kPackKeys - 1) / kPackKeys;
    tiles += c_.tiles_of(pair.sequence.q_len) * group();
  }
  const auto head_and_tile = [&](const Pair& pair, std::int64_t item) {
    const std::int64_t index = item - pair.first_query_tile, of_head = c_.tiles_of(pair.sequence.q_len);
    return std::pair(pair.hk * group() + index / of_head, index % of_head);
  };
  if (maps_) maps_->fill<Pair>(params, parallel, pairs, memory);
  parallel.each(packs + tiles, [&](std::int64_t item, int worker) {
    const FlushSubnormals flush;
    if (item < packs) {
      const Pair& pair = owner(pairs, item, &Pair::first_pack);
      return pack_keys(problem, pair, item - pair.first_pack, memory);
    }
    const Pair& pair = owner(pairs, item - packs, &Pair::first_query_tile);
    const auto [head, tile] = head_and_tile(pair, item - packs);
    pack_queries(problem, params, pair, head, tile, memory, scratch + worker * worker_bytes());
  });
  compute_keys(round, pairs);
  if (selects(spec_)) add_listed(round, pairs);
  if (params.d_sink) sum_sinks(round, pairs);
  parallel.each(tiles, [&](std::int64_t item, int) {
    const FlushSubnormals flush;
    const Pair& pair = owner(pairs, item, &Pair::first_query_tile);
    const auto [head, tile] = head_and_tile(pair, item);
    store_queries(problem, params, pair, head, tile, memory);
  });
}

// Returns the items of a round, where items of one chain follow each other in their order. Chains that begin with the
// first keys go first: under a causal mask most queries see these, so no worker ends with a long chain.
std::span<BackwardKernel::Item> BackwardKernel::items_of(const Round& round, std::span<const Pair> pairs) const {
  std::int64_t count = 0;
  for (const Pair& pair : pairs) count += chunks(pair.sequence.k_len);
  const std::span<Item> items = make_elements<Item>(round.items, count);
  std::size_t next = 0;
  for (const Pair& pair : pairs) {
    for (std::int64_t chunk = 0; chunk < chunks(pair.sequence.k_len); ++chunk, ++next) {
      const std::int64_t chain = round.gradients.chain(pair.b, pair.hk, chunk, pair.first_chunk + chunk);
      items[next] = {.chain = chain, .index = static_cast<std::int64_t>(next), .chunk = chunk, .pair = &pair};
    }
  }
  std::ranges::sort(items, {}, [](const Item& item) { return std::pair(item.chain, item.index); });
  for (std::size_t i = 0; i < items.size(); ++i) {
    const Item& first = i > 0 && items[i - 1].chain == items[i].chain ? items[i - 1] : items[i];
    items[i].first_chunk = &first == &items[i] ? first.chunk : first.first_chunk;
    items[i].first_index = &first == &items[i] ? first.index : first.first_index;
  }
  std::ranges::sort(items, {},
                    [](const Item& item) { return std::tuple(item.first_chunk, item.first_index, item.index); });
  return items;
}

void BackwardKernel::compute_keys(const Round& round, std::span<const Pair> pairs) const {
  const std::span<const Item> items = items_of(round, pairs);
  const auto count = static_cast<std::int64_t>(items.size());
  const std::span<std::int64_t> begins =
      make_elements<std::int64_t>(round.items + bytes_of_elements<Item>(count), count + 1);
  std::size_t chains = 0;
  for (std::size_t i = 0; i < items.size(); ++i)
    if (i == 0 || items[i].chain != items[i - 1].chain) begins[chains++] = static_cast<std::int64_t>(i);
  begins[chains] = count;
  round.parallel.each(static_cast<std::int64_t>(chains), [&](std::int64_t chain, int worker) {
    const FlushSubnormals flush;
    const auto at = static_cast<std::size_t>(chain);
    for (std::int64_t i = begins[at]; i < begins[at + 1]; ++i) {
      const Item& item = items[static_cast<std::size_t>(i)];
      compute(round, *item.pair, item.chunk, round.scratch + worker * worker_bytes());
    }
  });
}

// P of the sink, which has no V, is exp(sink - LSE), and its dP is 0.
void BackwardKernel::sum_sinks(const Round& round, std::span<const Pair> pairs) const {
  const double unit = spec_.lse == Lse::log2 ? std::numbers::ln2 : 1;
  round.parallel.each(static_cast<std::int64_t>(pairs.size()) * group(), [&](std::int64_t item, int) {
    const Pair& pair = pairs[static_cast<std::size_t>(item / group())];
    const std::int64_t h = pair.hk * group() + item % group();
    const auto* delta = reinterpret_cast<const float*>(head_at(pair, h, round.memory) + pair.head.delta);
    const float* lse = round.problem.row_value(round.params.lse, pair.b, h, pair.sequence.q_first);
    double sum = 0;
    for (std::int64_t q = 0; q < pair.sequence.q_len; ++q) {
      if (lse[q] == -std::numeric_limits<float>::infinity()) continue;
      sum -= std::exp(round.problem.sink(h) - lse[q] * unit) * delta[q];
    }
    round.sink_sums[static_cast<std::size_t>(pair.b * spec_.heads_q + h)] = sum;
  });
}

void BackwardKernel::pack_keys(const Problem& problem, const Pair& pair, std::int64_t item, char* memory) const {
  const std::int64_t first = item * kPackKeys;
  PackCall call{};
  call.keys = std::min(kPackKeys, pair.sequence.k_len - first);
  if (maps_ && !maps_->visits(pair.sequence, first, call.keys, memory + pair.maps_at)) return;
  call.v_panel_words = c_.v_panel_words(pair.sequence.k_len);
  const void* rows[kPackKeys];
  call.rows = rows;
  const std::int64_t padded = c_.padded_keys(call.keys);
  problem.k_rows(pair.b, pair.hk, first, call.keys, rows);
  std::fill(rows + call.keys, rows + padded, kZeros);
  call.target = memory + pair.k_columns + first * c_.words_qk * 4;
  call_.pack_k_columns(&call);
  call.target = memory + pair.k_rows + first / c_.pack * c_.panel * 4;
  call_.pack_k_rows(&call);
  problem.v_rows(pair.b, pair.hk, first, call.keys, rows);
  call.target = memory + pair.v_columns + first * c_.words_v * 4;
  call_.pack_v_columns(&call);
}

void BackwardKernel::pack_queries(const Problem& problem, const KernelParams& params, const Pair& pair,
                                  std::int64_t head, std::int64_t tile, char* memory, char* scratch) const {
  const Sequence& s = pair.sequence;
  const std::int64_t q_lo = tile * c_.tile_q, token = s.q_first + q_lo;
  const std::int64_t rows = std::min<std::int64_t>(c_.tile_q, s.q_len - q_lo);
  const std::span<const void*> q = make_elements<const void*>(scratch, rows_of_tile()),
                               d_o = make_elements<const void*>(scratch + rows_bytes(), rows_of_tile()),
                               o = make_elements<const void*>(scratch + 2 * rows_bytes(), rows_of_tile());
  for (const std::span<const void*>& of : {q, d_o, o}) std::ranges::fill(of, kZeros);
  for (std::int64_t i = 0; i < rows; ++i) {
    const auto at = static_cast<std::size_t>(i);
    q[at] = problem.q(pair.b, head, token + i);
    d_o[at] = problem.like_q(params.d_o, params.d_o_stride, pair.b, head, token + i);
    o[at] = problem.like_q(params.o, params.o_stride, pair.b, head, token + i);
  }
  char* const head_memory = head_at(pair, head, memory);
  const QueryPackCall call{
      .q = q.data(),
      .d_o = d_o.data(),
      .o = o.data(),
      .lse = problem.row_value(params.lse, pair.b, head, token),
      .d_lse = spec_.dlse ? problem.row_value(params.d_lse, pair.b, head, token) : nullptr,
      .q_rows = head_memory + pair.head.q_rows + q_lo * c_.q_stride() * 4,
      .do_rows = head_memory + pair.head.do_rows + q_lo * c_.do_stride() * 4,
      .q_transposed = head_memory + pair.head.q_transposed + tile * c_.transposed_tile_bytes(c_.d_qk),
      .do_transposed = head_memory + pair.head.do_transposed + tile * c_.transposed_tile_bytes(c_.d_v),
      .lse_facts = reinterpret_cast<float*>(head_memory + pair.head.lse) + q_lo,
      .delta = reinterpret_cast<float*>(head_memory + pair.head.delta) + q_lo,
      .rows = rows,
  };
  call_.pack_queries(&call);
}

void BackwardKernel::compute(const Round& round, const Pair& pair, std::int64_t chunk, char* scratch) const {
  char* const memory = round.memory;
  const ParameterGradients::Targets targets = round.gradients.targets(pair.first_chunk + chunk);
  const Sequence& s = pair.sequence;
  const std::int64_t first_head = pair.hk * group();
  const std::int64_t begin = chunk * chunk_keys(s.k_len), end = std::min(s.k_len, begin + chunk_keys(s.k_len));
  const std::int64_t dq_bytes = c_.dq_bytes(s.q_len);
  for (std::int64_t h = first_head; h < first_head + group(); ++h)
    std::memset(head_at(pair, h, memory) + pair.head.dq + chunk * dq_bytes, 0, static_cast<std::size_t>(dq_bytes));
  for (std::int64_t k_lo = begin; k_lo < end; k_lo += c_.tile_kv) {
    const std::int64_t keys = std::min<std::int64_t>(c_.tile_kv, end - k_lo);
    std::memset(scratch + c_.dk_at(), 0, static_cast<std::size_t>(c_.unused_row_at() - c_.dk_at()));
    for (std::int64_t h = first_head; h < first_head + group(); ++h) {
      char* const head_memory = head_at(pair, h, memory);
      const BackwardCall call{
          .params = &round.params,
          .q_rows = head_memory + pair.head.q_rows,
          .do_rows = head_memory + pair.head.do_rows,
          .q_transposed = head_memory + pair.head.q_transposed,
          .do_transposed = head_memory + pair.head.do_transposed,
          .lse_facts = reinterpret_cast<const float*>(head_memory + pair.head.lse),
          .delta = reinterpret_cast<const float*>(head_memory + pair.head.delta),
          .k_columns = memory + pair.k_columns + k_lo * c_.words_qk * 4,
          .v_columns = memory + pair.v_columns + k_lo * c_.words_v * 4,
          .k_rows = memory + pair.k_rows + k_lo / c_.pack * c_.panel * 4,
          .dq = reinterpret_cast<float*>(head_memory + pair.head.dq + chunk * dq_bytes),
          .d_extra = targets.data(),
          .scratch = scratch,
          .k_panel_words = c_.v_panel_words(s.k_len),
          .b = pair.b,
          .h = h,
          .hk = pair.hk,
          .q_len = s.q_len,
          .k_len = s.k_len,
          .k_lo = k_lo,
          .keys = keys,
          .tiles = maps_ ? maps_->row(s, h, 0, memory + pair.maps_at) + k_lo / c_.tile_kv : nullptr,
          .key = dropout_key<true>(round.params),
      };
      call_.tile(&call);
    }
    store_keys(round, pair, k_lo, keys, scratch);
  }
}

void BackwardKernel::store_keys(const Round& round, const Pair& pair, std::int64_t k_lo, std::int64_t keys,
                                char* scratch) const {
  const auto& [problem, params] = std::tie(round.problem, round.params);
  KeyStoreCall call{.scratch = scratch,
                    .dk = problem.key_result(params.dk, params.dk_stride, spec_.out_dk, pair.b, pair.hk, k_lo),
                    .dv = spec_.v_in_k
                              ? nullptr
                              : problem.key_result(params.dv, params.dv_stride, spec_.out_dv, pair.b, pair.hk, k_lo),
                    .dk_token = params.dk_stride.token,
                    .dv_token = params.dv_stride.token,
                    .keys = keys};
  if (selects(spec_)) {
    float* const row = reinterpret_cast<float*>(round.memory + pair.listed) + k_lo * round.listed.row_floats();
    call.dk = row, call.dv = row + spec_.d_qk;
    call.dk_token = call.dv_token = round.listed.row_floats();
  }
  call_.store_keys(&call);
}

void BackwardKernel::add_listed(const Round& round, std::span<const Pair> pairs) const {
  std::vector<ListedShare> shares;
  for (const Pair& pair : pairs)
    shares.push_back({pair.b, pair.hk, reinterpret_cast<const float*>(round.memory + pair.listed)});
  round.listed.add(round.problem, shares, round.parallel);
}

void BackwardKernel::store_queries(const Problem& problem, const KernelParams& params, const Pair& pair,
                                   std::int64_t head, std::int64_t tile, char* memory) const {
  const Sequence& s = pair.sequence;
  const std::int64_t q_lo = tile * c_.tile_q;
  const char* sums = head_at(pair, head, memory) + pair.head.dq + q_lo * c_.width_qk * 4;
  const QueryStoreCall call{
      .sums = reinterpret_cast<const float*>(sums),
      .dq = problem.query_result(params.dq, params.dq_stride, spec_.out_dq, pair.b, head, s.q_first + q_lo),
      .dq_token = params.dq_stride.token,
      .chunk_words = c_.dq_bytes(s.q_len) / 4,
      .chunks = chunks(s.k_len),
      .rows = std::min<std::int64_t>(c_.tile_q, s.q_len - q_lo),
  };
  call_.store_queries(&call);
}

}  // namespace

Result<void> emit_gradients(Ir& ir, const Plan& plan) {
  const BackwardConfig c(ir.config);
  FLASHJIT_ASSIGN(gradients, gradients_of(plan.spec.score, plan.spec.mask, names_of_gradients(plan.spec)));
  FLASHJIT_ASSIGN(reads, gradient_reads(plan.spec));
  emit_pack_queries(ir, plan);
  emit_pack_k(ir, kPackKColumnsName, c.d_qk, c.words_qk);
  emit_pack_k(ir, kPackVColumnsName, c.d_v, c.words_v);
  emit_pack_v(ir, kPackKRowsName, c.d_qk, false);
  const std::optional<PairAnalysis> pairs = pairs_of(plan, c);
  if (pairs) emit_tile_map(ir, plan, *pairs);
  emit_backward(ir, plan, gradients, reads, pairs.has_value());
  emit_store_keys(ir, plan);
  emit_store_queries(ir, plan);
  return {};
}

Result<std::unique_ptr<HostKernel>> gradients_kernel(const Plan& plan, const HostConfig& config,
                                                     std::unique_ptr<Code> code) {
  Functions functions{};
  FLASHJIT_ASSIGN(pack_queries, code->find<QueryPackFunction>(kPackQueriesName));
  FLASHJIT_ASSIGN(pack_k_columns, code->find<PackFunction>(kPackKColumnsName));
  FLASHJIT_ASSIGN(pack_v_columns, code->find<PackFunction>(kPackVColumnsName));
  FLASHJIT_ASSIGN(pack_k_rows, code->find<PackFunction>(kPackKRowsName));
  FLASHJIT_ASSIGN(tile, code->find<BackwardFunction>(kBackwardName));
  FLASHJIT_ASSIGN(store_keys, code->find<KeyStoreFunction>(kStoreKeysName));
  FLASHJIT_ASSIGN(store_queries, code->find<QueryStoreFunction>(kStoreQueriesName));
  functions = {pack_queries, pack_k_columns, pack_v_columns, pack_k_rows, tile, store_keys, store_queries};
  FLASHJIT_ASSIGN(reads, gradient_reads(plan.spec));
  FLASHJIT_ASSIGN(maps, tile_maps(plan, config, *code));
  return std::unique_ptr<HostKernel>(std::make_unique<BackwardKernel>(
      plan.spec, items_apart(reads), BackwardConfig(config), std::move(code), functions, std::move(maps)));
}

}  // namespace flashjit::host
