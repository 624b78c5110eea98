#include "tests/host_check/map_check.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "codegen/host/cpu.h"
#include "codegen/host/jit.h"
#include "codegen/host/kernel.h"
#include "codegen/host/tile_map/tile_map.h"

namespace flashjit {
namespace {

constexpr int kTileQ = 16, kTileKv = 64, kQueries = 150, kKeys = 330, kHeads = 4, kBatch = 2;

// Where an element lies among rows of this width.
std::size_t element(int row, int width, int column) {
  return static_cast<std::size_t>(row) * static_cast<std::size_t>(width) + static_cast<std::size_t>(column);
}

struct Tensors {
  std::vector<std::int32_t> documents, ends, keep, seen;
  Tensors() {
    for (int b = 0; b < kBatch; ++b)
      for (int i = 0; i < kKeys; ++i) documents.push_back(i < 10 + b ? 0 : i < 64 ? 3 : i < 200 ? 4 : 7 + b);
    for (int i = 0; i < kQueries; ++i) ends.push_back(i < 40 ? 8 : i / 16 * 16 + 16);
    for (int i = 0; i < kHeads * 10 * 6; ++i) keep.push_back(i % 7 == 0 || i % 5 == 3);
    for (int q = 0; q < kQueries; ++q)
      for (int k = 0; k < kKeys; ++k) seen.push_back(k / 70 * 40 <= q && (k + q) % 331 != 7);
  }
  int document(int b, int position) const { return documents[element(b, kKeys, position)]; }
};

struct Place {
  int b, h, q, k;
};
struct Row {
  const char *mask, *params;
  const std::vector<std::int32_t> Tensors::* tensor;
  std::vector<Int64> strides;
  std::function<bool(const Tensors&, const Place&)> sees;
  int least_left_out;  // of all tiles of the call
};

const Row kRows[] = {
    {"document(doc)",
     "",
     &Tensors::documents,
     {kKeys, 1},
     [](const Tensors& t, const Place& p) { return t.document(p.b, p.q) == t.document(p.b, p.k); },
     50},
    {"document(doc) & k <= q",
     "",
     &Tensors::documents,
     {kKeys, 1},
     [](const Tensors& t, const Place& p) { return t.document(p.b, p.q) == t.document(p.b, p.k) && p.k <= p.q; },
     60},
    {"k < ends[q] & k >= h * 3",
     "ends: i32[1]",
     &Tensors::ends,
     {1},
     [](const Tensors& t, const Place& p) { return p.k < t.ends[static_cast<std::size_t>(p.q)] && p.k >= p.h * 3; },
     100},
    {"keep[h, q / 16, k / 64] != 0",
     "keep: i32[3]",
     &Tensors::keep,
     {60, 6, 1},
     [](const Tensors& t, const Place& p) { return t.keep[element(p.h, 60, p.q / 16 * 6 + p.k / 64)] != 0; },
     200},
    {"seen[q, k] != 0 & k <= q + h",
     "seen: i32[2]",
     &Tensors::seen,
     {kKeys, 1},
     [](const Tensors& t, const Place& p) { return t.seen[element(p.q, kKeys, p.k)] != 0 && p.k <= p.q + p.h; },
     300},
};

// The wrong tiles of one head; `left_out` counts those that are not visited.
int check_head(const Row& row, const Tensors& tensors, int b, int h, const std::uint8_t* states, int& left_out) {
  int wrong = 0;
  for (int q_lo = 0; q_lo < kQueries; q_lo += kTileQ)
    for (int k_lo = 0; k_lo < kKeys; k_lo += kTileKv, ++states) {
      bool some = false, all = true;
      for (int q = q_lo; q < std::min(q_lo + kTileQ, kQueries); ++q)
        for (int k = k_lo; k < std::min(k_lo + kTileKv, kKeys); ++k) {
          const bool seen = row.sees(tensors, {b, h, q, k});
          some |= seen;
          all &= seen;
        }
      left_out += *states == host::kEmptyTile;
      const bool right = *states == host::kEmptyTile ? !some : *states == host::kMixedTile || all;
      wrong += !right;
      if (!right) std::printf("%s: b=%d h=%d, tile %d, %d is called %d\n", row.mask, b, h, q_lo, k_lo, *states);
    }
  return wrong;
}

int check_row(const Row& row) {
  std::string text = "fwd fp32 d=16 heads=4/2 align=top_left mask=\"" + std::string(row.mask) + "\"";
  if (*row.params) text += " params=\"" + std::string(row.params) + "\"";
  const Result<AttentionSpec> spec = parse_spec(text);
  const Target* target = *find_target("x86-64-v3");
  Schedule pins;
  pins.tile_q = kTileQ;
  pins.tile_kv = kTileKv;
  const Result<Plan> plan = spec ? make_plan(*spec, *target, pins) : spec.error();
  const auto object = plan ? host::compile_kernel(*plan, false) : Result<std::vector<std::uint8_t>>(plan.error());
  const auto code = object ? host::Code::link(*object) : Result<std::unique_ptr<host::Code>>(object.error());
  const auto maps = code ? host::tile_maps(*plan, host::config_of(*plan), **code)
                         : Result<std::optional<host::TileMaps>>(code.error());
  if (!maps || !*maps) {
    std::printf("%s: %s\n", text.c_str(), maps ? "no map is made" : maps.error().message.c_str());
    return 1;
  }
  const Tensors tensors;
  KernelParams params{};
  params.extra[0].data = (tensors.*row.tensor).data();
  std::copy(row.strides.begin(), row.strides.end(), params.extra[0].stride);
  struct Pair {
    std::int64_t b, hk;
    host::Sequence sequence;
    std::int64_t maps_at;
  };
  const host::Sequence sequence = {0, 0, kQueries, kKeys};
  const std::int64_t bytes = (*maps)->bytes(sequence);
  std::vector<Pair> pairs;
  for (std::int64_t i = 0; i < kBatch * 2; ++i) pairs.push_back({i / 2, i % 2, sequence, i * bytes});
  std::vector<char> memory(static_cast<std::size_t>(bytes) * pairs.size(), '\x7f');
  const ParallelFor alone = {1, [](std::int64_t items, const std::function<void(std::int64_t, int)>& body) {
                               for (std::int64_t i = 0; i < items; ++i) body(i, 0);
                             }};
  (*maps)->fill<Pair>(params, alone, pairs, memory.data());
  int wrong = 0, left_out = 0;
  for (const Pair& pair : pairs)
    for (int head = 0; head < 2; ++head) {
      const std::uint8_t* states = (*maps)->row(sequence, head, 0, memory.data() + pair.maps_at);
      wrong +=
          check_head(row, tensors, static_cast<int>(pair.b), static_cast<int>(pair.hk) * 2 + head, states, left_out);
    }
  if (left_out < row.least_left_out) std::printf("%s: only %d tiles are left out\n", row.mask, left_out), ++wrong;
  return wrong;
}

}  // namespace

int check_maps() {
  int wrong = 0;
  for (const Row& row : kRows) wrong += check_row(row);
  std::printf("maps of tiles: %s\n", wrong == 0 ? "right" : "wrong");
  return wrong;
}

}  // namespace flashjit
