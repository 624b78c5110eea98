#include "tests/random/guarded_calls.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace flashjit::testing_random {
GuardedCalls::GuardedCalls(std::uint64_t seed, bool gpu)
    : random_(seed),
      packed_(random_.chance(0.3)),
      small_(!gpu && random_.chance(0.6)),
      by_batch_(random_.chance(0.6)),
      wide_(random_.chance(0.5)),
      scalars_{{"n", "u8", 0, 255}, {"w", "u8", 0, 255}} {
  if (wide_) {
    scalars_ = {{"n", "i32", -0x1p31, 0x1p31 - 1},
                {"u", "u32", 0, 0x1p32 - 1},
                {"w", "u8", 0, 255},
                {"far", "i64", -0x1p53, 0x1p53}};
  }
  std::string params, mask = "k >= 0";
  for (const Scalar& scalar : scalars_) {
    params += fmt::format("{}: {}, ", scalar.name, scalar.type);
    mask += fmt::format(" & {} < 9.9e15", scalar.name);  // a parameter that nothing reads is refused
  }
  if (by_batch_) {
    params += "x: i32[1], ";
    mask = fmt::format("x[{}] < k | {}", index(), mask);
  }
  spec_ =
      fmt::format(R"(fwd {} heads=2{} params="{}t: fp32[2]" mask="{}" score="s + t[{}, {}]")",
                  small_ ? "fp32 d=8" : "bf16 d=64", packed_ ? " layout=packed" : "", params, mask, index(), index());
}

std::string GuardedCalls::index() {
  const std::string drawn = integer(static_cast<int>(random_.integer(0, 2)));
  return random_.chance(0.5) ? fmt::format("min(max({}, 0), 7)", drawn) : drawn;
}

std::string GuardedCalls::integer(int depth) {
  if (depth == 0) {
    if (wide_ && random_.chance(0.2)) return random_.pick<const char*>({"u", "min(max(far, -100), 100)"});
    return random_.pick<const char*>({"q", "k", "b", "h", "hk", "qpos", "q_len", "k_len", "n", "n", "w", "w", "3"});
  }
  const std::string a = integer(depth - 1), b = integer(depth - 1);
  switch (random_.integer(0, 9)) {
    case 0:
    case 1: return fmt::format("({} + {})", a, b);
    case 2:
    case 3: return fmt::format("({} - {})", a, b);
    case 4: return fmt::format("min({}, {})", a, b);
    case 5: return fmt::format("max({}, {})", a, b);
    case 6: return fmt::format("{} % max({}, 1)", a, b);
    case 7: return fmt::format("({} / max({}, 1))", a, b);
    case 8: return fmt::format("where(k < n, {}, {})", a, b);
    default: return fmt::format("abs({})", a);
  }
}

Arguments GuardedCalls::draw(const std::vector<const Guarded*>& memory) {
  used_ = 0;
  const std::int64_t batch = random_.integer(1, 3), q = random_.integer(1, 40), k = random_.integer(0, 70);
  const std::int64_t d = small_ ? 8 : 64;
  const char* dtype = small_ ? "fp32" : "bf16";
  const auto shape = [&](std::int64_t tokens) {
    return packed_ ? std::vector<std::int64_t>{batch * tokens, 2, d} : std::vector<std::int64_t>{batch, tokens, 2, d};
  };
  Arguments a;
  a.q = tensor(memory, dtype, shape(q));
  a.k = tensor(memory, dtype, shape(k));
  a.v = tensor(memory, dtype, shape(k));
  a.o = tensor(memory, dtype, shape(q));
  if (packed_) {
    a.max_q_len = q, a.max_k_len = k;
    for (auto [offsets, each] : {std::pair{&a.offsets_q, q}, std::pair{&a.offsets_k, k}}) {
      const Guarded& of = *memory.at(used_);
      *offsets = tensor(memory, "i32", {batch + 1});
      for (int i = 0; i <= batch; ++i) {
        const int offset = i * static_cast<int>(each);
        of.write(static_cast<int*>(offsets->data) + i, &offset, sizeof offset);
      }
    }
  }
  a.params["t"] = tensor(memory, "fp32", {extent(), extent()});
  if (by_batch_) a.params["x"] = tensor(memory, "i32", {extent()});
  for (const Scalar& scalar : scalars_) a.scalars[scalar.name] = value(scalar.least, scalar.most);
  return a;
}

std::int64_t GuardedCalls::extent() {
  return random_.chance(0.2) ? random_.integer(1, 9) : random_.pick({8, 40, 71, 110});
}

double GuardedCalls::value(double least, double most) {
  if (random_.chance(0.1)) return least;
  if (random_.chance(0.1)) return most;
  const double near = static_cast<double>(random_.integer(-3, 12));
  return random_.chance(0.7) ? std::max(least, near) : std::floor(least + random_.uniform() * (most - least));
}

Tensor GuardedCalls::tensor(const std::vector<const Guarded*>& memory, const char* dtype,
                            std::vector<std::int64_t> shape) {
  std::int64_t bytes = std::string_view(dtype) == "bf16" ? 2 : 4;
  for (const std::int64_t size : shape) bytes *= size;
  const Guarded& of = *memory.at(used_++);
  return {random_.chance(0.7) ? of.end() - bytes : of.begin(), dtype, std::move(shape), {}};
}

std::string GuardedCalls::text(const Arguments& call) {
  std::string text;
  for (const auto& [name, value] : call.scalars) text += fmt::format("{}={} ", name, value);
  const auto add = [&](std::string_view name, const Tensor& tensor) {
    if (!tensor.shape.empty()) text += fmt::format("{}=[{}] ", name, fmt::join(tensor.shape, ", "));
  };
  add("q", call.q), add("k", call.k);
  for (const auto& [name, tensor] : call.params) add(name, tensor);
  return text;
}

}  // namespace flashjit::testing_random
