#include "codegen/host/kernel.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <span>

#include <llvm/IR/Verifier.h>
#include <llvm/Support/raw_ostream.h>

#include "codegen/host/emit/attention.h"
#include "codegen/host/before/before.h"
#include "codegen/host/before/shown_keys.h"
#include "codegen/host/backward.h"
#include "codegen/host/cpu.h"
#include "codegen/host/jit.h"
#include "codegen/host/operations/merge.h"
#include "codegen/host/naive_backward.h"
#include "codegen/host/emit/pack.h"
#include "codegen/host/tile_map/emit.h"
#include "codegen/host/problem.h"
#include "codegen/host/operations/index.h"
#include "codegen/host/operations/quantize.h"
#include "codegen/host/widen.h"
#include "codegen/host/workspace.h"

namespace flashjit::host {
namespace {

// A round packs at most these bytes of K and V. More (sequence, KV head) pairs than fit are done in several rounds.
constexpr std::int64_t kLargestPacked = std::int64_t{192} << 20;

struct Generated {
  std::unique_ptr<llvm::LLVMContext> context = std::make_unique<llvm::LLVMContext>();
  std::unique_ptr<llvm::Module> module;
  std::unique_ptr<llvm::TargetMachine> machine;
};

Result<Generated> generate(const Plan& plan, const HostConfig& config, bool naive) {
  Generated generated;
  FLASHJIT_ASSIGN(machine, make_target_machine(plan.target));
  generated.machine = std::move(machine);
  generated.module = std::make_unique<llvm::Module>("flashjit", *generated.context);
  generated.module->setDataLayout(generated.machine->createDataLayout());
  generated.module->setTargetTriple(generated.machine->getTargetTriple().str());
  Ir ir(*generated.module, config);
  if (!reads_keys(plan.spec)) {  // Nothing is generated for keys.
  } else if (is_backward(plan.spec)) {
    FLASHJIT_TRY(naive ? emit_naive_gradients(ir, plan) : emit_gradients(ir, plan));
  } else if (naive || indexes(plan.spec)) {
    emit_naive(ir, naive ? plan : plan_of_heads(plan));
  } else {
    emit_pack_k(ir, kPackKName, config.d_qk, config.words_qk);
    emit_pack_v(ir, kPackVName, config.d_v, true);
    const std::optional<PairAnalysis> pairs = pairs_of(plan, config);
    if (pairs) emit_tile_map(ir, plan, *pairs);
    emit_tile(ir, plan, pairs.has_value());
  }
  if (plan.spec.list_mask) emit_shown_keys(ir, plan);
  std::string problem;
  llvm::raw_string_ostream stream(problem);
  if (llvm::verifyModule(*generated.module, &stream))
    return Error{ErrorKind::Internal, "the generated LLVM IR is malformed", problem};
  const bool is_scalar = naive || plan.spec.selected > 0;  // Chosen keys are gathered one by one.
  optimise(*generated.module, *generated.machine, is_scalar ? Emitted::ScalarLoops : Emitted::Vectors);
  return generated;
}

class BlockedKernel final : public HostKernel {
 public:
  BlockedKernel(const Plan& plan, const HostConfig& config, std::unique_ptr<Code> code, TileFunction tile,
                SeenKeysFunction seen_keys, PackFunction pack_k, PackFunction pack_v, std::optional<TileMaps> maps)
      : spec_(plan.spec),
        config_(config),
        code_(std::move(code)),
        tile_(tile),
        seen_keys_(seen_keys),
        pack_k_(pack_k),
        pack_v_(pack_v),
        maps_(std::move(maps)) {
    if (has_scaled_keys(spec_)) widener_.emplace(spec_.kv_dtype, config_.dtype);
    if (has_scaled_queries(spec_)) query_widener_.emplace(spec_.dtype, config_.dtype);
  }

  Result<void> run(const KernelParams& params, const ParallelFor& parallel) const override;

 private:
  // This is one (sequence, KV head) pair of a round.
  struct Pair {
    std::int64_t b = 0, hk = 0;
    Sequence sequence;
    SeenKeys seen;  // The keys that any of its queries see; only these are packed.
    // Offsets in bytes from the start of the packed area.
    std::int64_t k_at = 0, v_at = 0, rows_at = 0, flags_at = 0, wide_at = 0, scales_at = 0, maps_at = 0;
    std::int64_t first_pack = 0, first_tile = 0;  // The work items before this pair's.
  };
  std::int64_t rows_bytes(std::int64_t keys) const { return config_.padded_keys(keys) * std::int64_t{sizeof(void*)}; }
  std::int64_t packed_bytes(const Sequence& sequence) const {
    const std::int64_t keys = sequence.k_len;
    return round_up(config_.k_bytes(keys), 64) + round_up(config_.v_bytes(keys), 64) + rows_bytes(keys) +
           flags_bytes(keys) + wide_bytes(keys) + 2 * scales_bytes(keys) + (maps_ ? maps_->bytes(sequence) : 0);
  }
  // Returns the bytes of the scales of K or of V, where the keys of a sequence have several.
  std::int64_t scales_bytes(std::int64_t keys) const {
    return has_key_scales(spec_) ? round_up(config_.padded_keys(keys) * std::int64_t{sizeof(float)}, 64) : 0;
  }
  std::int64_t flags_bytes(std::int64_t keys) const {  // Each key of V has a flag.
    return round_up(keys + config_.panel, 64);
  }
  // Returns the bytes of widened V, where the whole of it may be needed.
  std::int64_t wide_bytes(std::int64_t keys) const {
    return widener_ ? round_up(keys * spec_.d_v * size_of(config_.dtype), 64) : 0;
  }
  // A worker needs these bytes behind a tile for widened queries, or, before that, for widened keys.
  std::int64_t wide_queries_bytes() const {
    return query_widener_ ? config_.rows() * (spec_.d_qk * std::int64_t{sizeof(float)} + std::int64_t{sizeof(void*)})
                          : 0;
  }
  std::int64_t wide_keys_bytes() const { return widener_ ? kPackKeys * spec_.d_qk * size_of(config_.dtype) : 0; }
  std::int64_t worker_bytes() const {
    return round_up(std::max(config_.scratch_bytes() + wide_queries_bytes(), wide_keys_bytes()), 4096);
  }
  std::int64_t largest_round(const Problem& problem, const KernelParams& params) const;
  void lay_out(Pair& pair, std::int64_t at) const;
  void run_round(const Problem& problem, const KernelParams& params, const ParallelFor& parallel, std::span<Pair> pairs,
                 char* packed, char* scratch) const;
  SeenKeys seen_keys(const KernelParams& params, std::int64_t b, std::int64_t hk, const Sequence& sequence) const;
  void pack(const Problem& problem, const Pair& pair, std::int64_t chunk, char* packed, char* scratch) const;
  void compute(const Problem& problem, const KernelParams& params, const Pair& pair, std::int64_t head,
               std::int64_t tile, const char* packed, char* scratch) const;
  void compute_rows(const Problem& problem, const KernelParams& params, const Pair& pair, std::int64_t head,
                    std::int64_t q_lo, std::int64_t rows, const char* packed, char* scratch) const;
  const float* wide_queries(const Problem& problem, std::int64_t b, std::int64_t head, std::int64_t token,
                            std::int64_t rows, char* memory) const;

  AttentionSpec spec_;
  HostConfig config_;
  std::unique_ptr<Code> code_;
  TileFunction tile_;
  SeenKeysFunction seen_keys_;
  PackFunction pack_k_, pack_v_;
  std::optional<TileMaps> maps_;
  std::optional<Widener> widener_, query_widener_;  // They widen K and V, and Q, of 8 bits.
  mutable WorkspacePool workspaces_;
};

// Returns the keys that any of their queries and heads see: a few queries may see only a window of a long cache.
SeenKeys BlockedKernel::seen_keys(const KernelParams& params, std::int64_t b, std::int64_t hk,
                                  const Sequence& sequence) const {
  const std::int64_t group = spec_.heads_q / spec_.heads_kv;
  TileCall call{};
  call.params = &params;
  call.b = b;
  call.hk = hk;
  call.q_len = call.rows = sequence.q_len;
  call.k_len = sequence.k_len;
  SeenKeys all = {sequence.k_len, 0};
  for (call.h = hk * group; call.h < (hk + 1) * group; ++call.h) {
    SeenKeys of_head{};
    seen_keys_(&call, &of_head);
    if (of_head.begin >= of_head.end) continue;
    all = {std::min(all.begin, of_head.begin), std::max(all.end, of_head.end)};
  }
  return all.begin < all.end ? all : SeenKeys{0, 0};
}

// Returns at least as many bytes as any round packs.
std::int64_t BlockedKernel::largest_round(const Problem& problem, const KernelParams& params) const {
  std::int64_t all = 0, largest = 0;
  for (std::int64_t b = 0; b < params.batch; ++b) {
    const Sequence sequence = problem.sequence(b);
    if (sequence.q_len == 0) continue;
    const std::int64_t bytes = packed_bytes(sequence);
    all = std::min(all + spec_.heads_kv * bytes, kLargestPacked);
    largest = std::max(largest, bytes);
  }
  return std::max(all, largest);
}

void BlockedKernel::lay_out(Pair& pair, std::int64_t at) const {
  const std::int64_t keys = pair.sequence.k_len;
  pair.k_at = at;
  pair.v_at = pair.k_at + round_up(config_.k_bytes(keys), 64);
  pair.rows_at = pair.v_at + round_up(config_.v_bytes(keys), 64);
  pair.flags_at = pair.rows_at + rows_bytes(keys);
  pair.wide_at = pair.flags_at + flags_bytes(keys);
  pair.scales_at = pair.wide_at + wide_bytes(keys);
  pair.maps_at = pair.scales_at + 2 * scales_bytes(keys);
}

Result<void> BlockedKernel::run(const KernelParams& params, const ParallelFor& parallel) const {
  const Problem problem(spec_, params);
  const std::int64_t largest = largest_round(problem, params), most_pairs = std::int64_t{params.batch} * spec_.heads_kv;
  if (largest == 0) return {};
  const std::int64_t scratch = parallel.workers * worker_bytes(), lists = bytes_of_elements<Pair>(most_pairs);
  std::unique_ptr<Workspace> workspace = workspaces_.take(scratch + lists + largest);
  if (!workspace) return out_of_memory(scratch + lists + largest, "use fewer threads or shorter sequences");
  const std::span<Pair> pairs = make_elements<Pair>(workspace->data() + scratch, most_pairs);
  std::size_t count = 0;
  std::int64_t bytes = 0;
  const auto run_those = [&] {
    run_round(problem, params, parallel, pairs.first(count), workspace->data() + scratch + lists, workspace->data());
    count = 0, bytes = 0;
  };
  for (std::int64_t b = 0; b < params.batch; ++b) {
    if (problem.sequence(b).q_len == 0) continue;
    for (std::int64_t hk = 0; hk < spec_.heads_kv; ++hk) {
      const Sequence sequence = problem.sequence(b, hk);
      const std::int64_t more = packed_bytes(sequence);
      if (bytes > 0 && bytes + more > kLargestPacked) run_those();
      Pair& pair = pairs[count++] = {b, hk, sequence, seen_keys(params, b, hk, sequence)};
      lay_out(pair, bytes);
      bytes += more;
    }
  }
  run_those();
  workspaces_.give_back(std::move(workspace));
  return {};
}

void BlockedKernel::run_round(const Problem& problem, const KernelParams& params, const ParallelFor& parallel,
                              std::span<Pair> pairs, char* packed, char* scratch) const {
  const std::int64_t group = spec_.heads_q / spec_.heads_kv;
  std::int64_t chunks = 0, tiles = 0;
  for (Pair& pair : pairs) {
    pair.first_pack = chunks, pair.first_tile = tiles;
    chunks += (pair.seen.end + kPackKeys - 1) / kPackKeys - pair.seen.begin / kPackKeys;
    tiles += (pair.sequence.q_len + config_.tile_q - 1) / config_.tile_q * group;
  }
  if (maps_) maps_->fill<Pair>(params, parallel, pairs, packed);
  parallel.each(chunks, [&](std::int64_t item, int worker) {
    const Pair& pair = owner(pairs, item, &Pair::first_pack);
    pack(problem, pair, pair.seen.begin / kPackKeys + item - pair.first_pack, packed,
         scratch + worker * worker_bytes());
  });
  parallel.each(tiles, [&](std::int64_t item, int worker) {
    const Pair& pair = owner(pairs, item, &Pair::first_tile);
    const std::int64_t index = item - pair.first_tile;
    const std::int64_t tiles_q = (pair.sequence.q_len + config_.tile_q - 1) / config_.tile_q;
    // The last queries of a causal mask see the most keys. They go first, so that no worker ends with a long tile.
    compute(problem, params, pair, pair.hk * group + index % group, tiles_q - 1 - index / group, packed,
            scratch + worker * worker_bytes());
  });
}

void BlockedKernel::pack(const Problem& problem, const Pair& pair, std::int64_t chunk, char* packed,
                         char* scratch) const {
  const FlushSubnormals flush;
  // They stand in place of keys behind the last one.
  alignas(64) static constexpr char kZeros[kMostBytesOfRow] = {};
  const std::int64_t first = chunk * kPackKeys;
  PackCall call{};
  call.keys = std::min(kPackKeys, pair.sequence.k_len - first);
  call.v_panel_words = config_.v_panel_words(pair.sequence.k_len);
  const std::int64_t padded = config_.padded_keys(call.keys);
  std::memset(packed + pair.flags_at + first, 0, static_cast<std::size_t>(padded));  // All flags are read.
  if (maps_ && !maps_->visits(pair.sequence, first, call.keys, packed + pair.maps_at)) return;
  const void* k_rows[kPackKeys];
  const void** const v_rows = reinterpret_cast<const void**>(packed + pair.rows_at) + first;
  problem.k_rows(pair.b, pair.hk, first, call.keys, k_rows);
  problem.v_rows(pair.b, pair.hk, first, call.keys, v_rows);
  if (widener_) {
    const int row = spec_.d_v * size_of(config_.dtype);
    widener_->widen(k_rows, call.keys, spec_.d_qk, scratch);
    widener_->widen(v_rows, call.keys, spec_.d_v, packed + pair.wide_at + first * row, problem.v_step());
  }
  if (has_key_scales(spec_)) {
    auto* const k_scales = reinterpret_cast<float*>(packed + pair.scales_at) + first;
    float* const v_scales = k_scales + scales_bytes(pair.sequence.k_len) / std::int64_t{sizeof(float)};
    problem.scales_k(pair.b, pair.hk, first, call.keys, k_scales);
    problem.scales_v(pair.b, pair.hk, first, call.keys, v_scales);
    std::fill(k_scales + call.keys, k_scales + padded, 1.0f);
    std::fill(v_scales + call.keys, v_scales + padded, 1.0f);
  }
  std::fill(k_rows + call.keys, k_rows + padded, kZeros);
  std::fill(v_rows + call.keys, v_rows + padded, kZeros);
  call.rows = k_rows;
  call.target = packed + pair.k_at + first * config_.words_qk * 4;
  pack_k_(&call);
  call.rows = v_rows;
  call.target = packed + pair.v_at + first / config_.pack * config_.panel * 4;
  call.not_finite = reinterpret_cast<std::uint8_t*>(packed) + pair.flags_at + first;
  pack_v_(&call);
}

// Queries of a tile that share a scale are computed together.
void BlockedKernel::compute(const Problem& problem, const KernelParams& params, const Pair& pair, std::int64_t head,
                            std::int64_t tile, const char* packed, char* scratch) const {
  const std::int64_t end = std::min<std::int64_t>((tile + 1) * config_.tile_q, pair.sequence.q_len);
  const std::int64_t block = query_widener_ && spec_.scale_block > 0 ? spec_.scale_block : end;
  for (std::int64_t q_lo = tile * config_.tile_q; q_lo < end;) {
    const std::int64_t next = std::min(end, (q_lo / block + 1) * block);
    compute_rows(problem, params, pair, head, q_lo, next - q_lo, packed, scratch);
    q_lo = next;
  }
}

const float* BlockedKernel::wide_queries(const Problem& problem, std::int64_t b, std::int64_t head, std::int64_t token,
                                         std::int64_t rows, char* memory) const {
  const std::span<const void*> narrow = make_elements<const void*>(memory, rows);
  for (std::int64_t i = 0; i < rows; ++i) narrow[static_cast<std::size_t>(i)] = problem.q(b, head, token + i);
  char* const wide = memory + rows * std::int64_t{sizeof(void*)};
  query_widener_->widen(narrow.data(), rows, spec_.d_qk, wide);
  return reinterpret_cast<const float*>(wide);
}

void BlockedKernel::compute_rows(const Problem& problem, const KernelParams& params, const Pair& pair,
                                 std::int64_t head, std::int64_t q_lo, std::int64_t rows, const char* packed,
                                 char* scratch) const {
  const FlushSubnormals flush;
  const Sequence& s = pair.sequence;
  const std::int64_t token = s.q_first + q_lo;
  TileCall call{};
  call.params = &params;
  call.q = problem.q(pair.b, head, token);
  call.k = packed + pair.k_at;
  call.v = packed + pair.v_at;
  call.o = problem.o(pair.b, head, token);
  call.lse = problem.row_value(params.lse, pair.b, head, token);
  call.max_logit = problem.row_value(params.max_logit, pair.b, head, token);
  call.scratch = scratch;
  call.q_token = params.q_stride.token;
  call.o_token = params.o_stride.token;
  call.v_panel_words = config_.v_panel_words(s.k_len);
  const auto* flags = reinterpret_cast<const std::uint8_t*>(packed) + pair.flags_at;
  const SeenKeys seen = pair.seen;
  const bool finite = !std::memchr(flags + seen.begin, 1, static_cast<std::size_t>(seen.end - seen.begin));
  call.not_finite = finite ? nullptr : flags;
  call.v_rows = reinterpret_cast<const void* const*>(packed + pair.rows_at);
  call.b = pair.b;
  call.h = head;
  call.hk = pair.hk;
  call.q_len = s.q_len;
  call.k_len = s.k_len;
  call.q_lo = q_lo;
  call.rows = rows;
  if (maps_) call.tiles = maps_->row(s, head, q_lo / config_.tile_q, packed + pair.maps_at);
  if (query_widener_) {
    call.q = wide_queries(problem, pair.b, head, token, rows, scratch + config_.scratch_bytes());
    call.q_token = spec_.d_qk;
  }
  call.sink = problem.sink(head);
  const float scale_q = problem.scale_q(pair.b, head, q_lo);
  call.scale_k = has_key_scales(spec_) ? scale_q : scale_q * problem.scale_k(pair.b, pair.hk, 0);
  call.scale_v = has_key_scales(spec_) ? 1 : problem.scale_v(pair.b, pair.hk, 0);
  call.scales_k = reinterpret_cast<const float*>(packed + pair.scales_at);
  call.scales_v = call.scales_k + scales_bytes(s.k_len) / std::int64_t{sizeof(float)};
  call.key = dropout_key<true>(params);
  tile_(&call);
}

class NaiveKernel final : public HostKernel {
 public:
  NaiveKernel(const Plan& plan, const HostConfig& config, std::unique_ptr<Code> code, NaiveFunction scores,
              NaiveFunction softmax, NaiveFunction product)
      : spec_(plan.spec), config_(config), code_(std::move(code)), steps_{scores, softmax, product} {
    if (has_scaled_keys(spec_)) widener_.emplace(spec_.kv_dtype, config_.dtype);
    if (has_scaled_queries(spec_)) query_widener_.emplace(spec_.dtype, config_.dtype);
  }

  Result<void> run(const KernelParams& params, const ParallelFor& parallel) const override {
    const Problem problem(spec_, params);
    const auto [most_queries, most_keys] = longest(problem, params.batch);
    const std::int64_t row_floats = round_up(most_keys, config_.lanes);
    const std::int64_t rows = params.batch * spec_.heads_q * most_queries;
    if (rows == 0) return {};
    constexpr std::int64_t kLargest = std::int64_t{1} << 40;
    const std::int64_t matrix = row_floats > kLargest / rows ? kLargest : rows * row_floats * 4;
    std::unique_ptr<Workspace> workspace;
    const std::int64_t lists = params.batch * spec_.heads_kv;            // The lists of rows, for K and for V.
    const std::int64_t element = widener_ ? size_of(config_.dtype) : 0;  // The bytes of an element of widened rows.
    const std::int64_t row_bytes = 2 * std::int64_t{sizeof(void*)} + (spec_.d_qk + spec_.d_v) * element;
    const std::int64_t bytes = 2 * matrix + lists * most_keys * row_bytes;
    if (matrix < kLargest) workspace = workspaces_.take(bytes + 1);
    if (!workspace) return out_of_memory(bytes, "the naive version holds all scores: use shorter sequences");
    auto* scores = reinterpret_cast<float*>(workspace->data());
    auto** const k_rows = reinterpret_cast<const void**>(workspace->data() + 2 * matrix);
    auto** const v_rows = k_rows + lists * most_keys;
    char* const wide = reinterpret_cast<char*>(v_rows + lists * most_keys);
    parallel.each(lists, [&](std::int64_t list, int) {
      const std::int64_t first = list * most_keys;
      list_rows(problem, list, k_rows + first, v_rows + first, wide + first * spec_.d_qk * element,
                wide + (lists * most_keys * spec_.d_qk + first * spec_.d_v) * element);
    });
    for (const NaiveFunction step : steps_) {
      parallel.each(rows, [&](std::int64_t row, int) {
        const FlushSubnormals flush;
        const std::int64_t pair = row / most_queries, b = pair / spec_.heads_q, h = pair % spec_.heads_q;
        const std::int64_t hk = h / (spec_.heads_q / spec_.heads_kv);
        const Sequence s = problem.sequence(b, hk);
        const std::int64_t q_row = row % most_queries;
        if (q_row >= s.q_len) return;
        const std::int64_t token = s.q_first + q_row;
        float* own = scores + row * row_floats;
        float wide[kMaxLatentDimQk];
        const NaiveCall call{&params,
                             query_row(problem.q(b, h, token), wide),
                             k_rows + (b * spec_.heads_kv + hk) * most_keys,
                             v_rows + (b * spec_.heads_kv + hk) * most_keys,
                             problem.o(b, h, token),
                             own,
                             own + matrix / 4,
                             problem.row_value(params.lse, b, h, token),
                             problem.row_value(params.max_logit, b, h, token),
                             b,
                             h,
                             hk,
                             s.q_len,
                             s.k_len,
                             q_row,
                             problem.sink(h),
                             problem.scale_q(b, h, q_row) * problem.scale_k(b, hk, 0),
                             problem.scale_v(b, hk, 0),
                             dropout_key<true>(params)};
        step(&call);
      });
    }
    workspaces_.give_back(std::move(workspace));
    return {};
  }

 private:
  static std::pair<std::int64_t, std::int64_t> longest(const Problem& problem, std::int64_t batch) {
    std::int64_t queries = 0, keys = 0;
    for (std::int64_t b = 0; b < batch; ++b) {
      queries = std::max(queries, problem.sequence(b).q_len);
      keys = std::max(keys, problem.sequence(b).k_len);
    }
    return {queries, keys};
  }
  // Returns a row of Q as generated code reads it.
  const void* query_row(const void* row, float* wide) const {
    if (query_widener_) query_widener_->widen(&row, 1, spec_.d_qk, reinterpret_cast<char*>(wide));
    return row;
  }
  // Lists the rows of a (sequence, KV head) pair, and widens them where necessary.
  void list_rows(const Problem& problem, std::int64_t list, const void** k_rows, const void** v_rows, char* wide_keys,
                 char* wide_values) const {
    const std::int64_t b = list / spec_.heads_kv, hk = list % spec_.heads_kv, keys = problem.sequence(b, hk).k_len;
    problem.k_rows(b, hk, 0, keys, k_rows);
    problem.v_rows(b, hk, 0, keys, v_rows);
    if (!widener_) return;
    widener_->widen(k_rows, keys, spec_.d_qk, wide_keys);
    widener_->widen(v_rows, keys, spec_.d_v, wide_values, problem.v_step());
  }

  AttentionSpec spec_;
  HostConfig config_;
  std::unique_ptr<Code> code_;
  NaiveFunction steps_[3];
  std::optional<Widener> widener_, query_widener_;  // They widen K and V, and Q, of 8 bits.
  mutable WorkspacePool workspaces_;
};

Result<std::unique_ptr<HostKernel>> link_attention(const Plan& plan, bool naive, std::unique_ptr<Code> code) {
  const HostConfig config = config_of(plan);
  if (is_backward(plan.spec)) return (naive ? naive_gradients_kernel : gradients_kernel)(plan, config, std::move(code));
  if (naive) {
    FLASHJIT_ASSIGN(scores, code->find<NaiveFunction>(kNaiveScoresName));
    FLASHJIT_ASSIGN(softmax, code->find<NaiveFunction>(kNaiveSoftmaxName));
    FLASHJIT_ASSIGN(product, code->find<NaiveFunction>(kNaiveProductName));
    return std::unique_ptr<HostKernel>(
        std::make_unique<NaiveKernel>(plan, config, std::move(code), scores, softmax, product));
  }
  FLASHJIT_ASSIGN(tile, code->find<TileFunction>(kTileName));
  FLASHJIT_ASSIGN(seen_keys, code->find<SeenKeysFunction>(kSeenKeysName));
  FLASHJIT_ASSIGN(pack_k, code->find<PackFunction>(kPackKName));
  FLASHJIT_ASSIGN(pack_v, code->find<PackFunction>(kPackVName));
  FLASHJIT_ASSIGN(maps, tile_maps(plan, config, *code));
  return std::unique_ptr<HostKernel>(
      std::make_unique<BlockedKernel>(plan, config, std::move(code), tile, seen_keys, pack_k, pack_v, std::move(maps)));
}

}  // namespace

Result<std::vector<std::uint8_t>> compile_kernel(const Plan& plan, bool naive) {
  if (naive && plan.spec.accumulate) return unsupported("accumulate: the textbook version writes O anew; leave it out");
  FLASHJIT_ASSIGN(generated, generate(plan, config_of(plan), naive));
  return object_of(*generated.module, *generated.machine);
}

Result<std::unique_ptr<HostKernel>> link_kernel(const Plan& plan, bool naive, std::span<const std::uint8_t> object) {
  if (merges(plan.spec)) return merge_kernel(plan.spec);
  if (quantizes(plan.spec)) return quantize_kernel(plan.spec);
  if (indexes(plan.spec)) return index_kernel(plan, object);
  FLASHJIT_ASSIGN(code, Code::link(object));
  const Code& linked = *code;
  FLASHJIT_ASSIGN(attention, link_attention(plan, naive, std::move(code)));
  return prepared_kernel(plan.spec, linked, std::move(attention));
}

Result<std::string> optimised_ir(const Plan& plan) {
  FLASHJIT_ASSIGN(generated, generate(plan, config_of(plan), false));
  std::string text;
  llvm::raw_string_ostream stream(text);
  generated.module->print(stream, nullptr);
  return text;
}

}  // namespace flashjit::host
