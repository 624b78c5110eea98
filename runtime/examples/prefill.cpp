// Prefill runs three prompts of different lengths in one launch, with grouped heads and a causal mask. It runs on GPU 0
// if there is one and it was built with CUDA's runtime (for the memory), else on the processor. Each prompt alone has
// to give the same results.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "flashjit/flashjit.hpp"
#ifdef WITH_CUDA
#include <cuda_runtime_api.h>
#endif

using flashjit::Tensor;

constexpr std::int64_t kHeads = 8, kKvHeads = 2, kDim = 64;
constexpr char kSpec[] = "fwd bf16 d=64 heads=8/2 mask=\"causal\" layout=packed";

// On a GPU this is memory that both sides can read. (A real program has device memory, and streams.)
bool on_gpu = false;
void* allocate(std::size_t bytes) {
  void* memory = nullptr;
#ifdef WITH_CUDA
  if (on_gpu) return cudaMallocManaged(&memory, bytes) == cudaSuccess ? memory : nullptr;
#endif
  return memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);  // A workspace has to begin at such a multiple.
}
void wait() {
#ifdef WITH_CUDA
  if (on_gpu) cudaDeviceSynchronize();
#endif
}

std::uint16_t bf16(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return static_cast<std::uint16_t>((bits + 0x8000) >> 16);
}
float from_bf16(std::uint16_t value) {
  const std::uint32_t bits = std::uint32_t{value} << 16;
  float result;
  std::memcpy(&result, &bits, sizeof result);
  return result;
}

Tensor tokens_of(std::int64_t tokens, std::int64_t heads, int seed) {
  auto* data = static_cast<std::uint16_t*>(allocate(static_cast<std::size_t>(tokens * heads * kDim) * 2));
  for (std::int64_t i = 0; i < tokens * heads * kDim; ++i)
    data[i] = bf16(std::sin(static_cast<float>(i % 1000 * seed)));
  return {data, "bf16", {tokens, heads, kDim}, {}};
}

Tensor offsets_of(const std::vector<std::int32_t>& offsets) {
  void* data = allocate(offsets.size() * sizeof(std::int32_t));
  std::memcpy(data, offsets.data(), offsets.size() * sizeof(std::int32_t));
  return {data, "i32", {static_cast<std::int64_t>(offsets.size())}, {}};
}

// Returns tokens from..to of a packed tensor.
Tensor part(const Tensor& whole, std::int64_t from, std::int64_t to) {
  Tensor result = whole;
  result.data = static_cast<std::uint16_t*>(whole.data) + from * whole.shape[1] * kDim;
  result.shape[0] = to - from;
  return result;
}

int fail(const flashjit::Error& error) {
  std::printf("%s: %s\n%s", name(error.kind), error.message.c_str(), error.detail.c_str());
  return error.kind == flashjit::ErrorKind::NotFound ? 77 : 1;
}

int main() {
#ifdef WITH_CUDA
  auto engine = flashjit::Engine::create({.device = flashjit::Device::Gpu});
  on_gpu = bool(engine);
  if (!engine) engine = flashjit::Engine::create({.device = flashjit::Device::Host});
#else
  auto engine = flashjit::Engine::create({.device = flashjit::Device::Host});
#endif
  if (!engine) return fail(engine.error());

  // This is done once, when the program starts, because it may compile.
  auto kernel = (*engine)->prepare(kSpec);
  if (!kernel) return fail(kernel.error());
  for (const std::string& note : (*kernel)->facts().notes) std::printf("note: %s\n", note.c_str());

  const std::vector<std::int32_t> ends = {0, 5, 105, 128};
  const std::int64_t tokens = ends.back();
  flashjit::Arguments all;
  all.q = tokens_of(tokens, kHeads, 3);
  all.k = tokens_of(tokens, kKvHeads, 5);
  all.v = tokens_of(tokens, kKvHeads, 7);
  all.o = tokens_of(tokens, kHeads, 0);
  all.offsets_q = all.offsets_k = offsets_of(ends);
  all.max_q_len = 100;
  if (auto done = (*kernel)->run(all); !done) return fail(done.error());  // A null stream is the default one.
  wait();

  float worst = 0;
  for (std::size_t i = 0; i + 1 < ends.size(); ++i) {
    flashjit::Arguments one;
    const std::int32_t length = ends[i + 1] - ends[i];
    one.q = part(all.q, ends[i], ends[i + 1]);
    one.k = part(all.k, ends[i], ends[i + 1]);
    one.v = part(all.v, ends[i], ends[i + 1]);
    one.o = tokens_of(length, kHeads, 0);
    one.offsets_q = one.offsets_k = offsets_of({0, length});
    one.max_q_len = length;
    if (auto done = (*kernel)->run(one); !done) return fail(done.error());
    wait();
    const auto* packed = static_cast<const std::uint16_t*>(part(all.o, ends[i], ends[i + 1]).data);
    const auto* alone = static_cast<const std::uint16_t*>(one.o.data);
    for (std::int64_t j = 0; j < length * kHeads * kDim; ++j)
      worst = std::fmax(worst, std::fabs(from_bf16(packed[j]) - from_bf16(alone[j])));
    // The first token sees itself alone.
    for (std::int64_t d = 0; d < kDim; ++d) {
      worst = std::fmax(worst,
                        std::fabs(from_bf16(alone[d]) - from_bf16(static_cast<const std::uint16_t*>(one.v.data)[d])));
    }
  }
  std::printf("%s: %lld tokens of 3 prompts, largest difference %g\n", (*engine)->target().c_str(),
              static_cast<long long>(tokens), worst);
  return worst > 0.01f;
}
