// In this training one attention layer learns to return the token before. A step is the forward call, which also writes
// the logarithms of its sums (`lse`), a loss, the backward call, which reads them, and plain gradient descent on the
// three projections that make Q, K and V. The program runs on GPU 0 if there is one and it was built with CUDA's
// runtime (for the memory), else on the processor.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "flashjit/flashjit.hpp"
#ifdef WITH_CUDA
#include <cuda_runtime_api.h>
#endif

using flashjit::Tensor;

constexpr int kTokens = 48, kSteps = 200, kHeads = 4, kKvHeads = 2, kDim = 16;
constexpr int kWidth = 2 * kDim;  // A token has its contents and its position.
constexpr float kRate = 4;
const std::string kLayer = " bf16 d=16 heads=4/2 mask=\"causal\" lse=ln";

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

std::uint16_t to_bf16(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
float from_bf16(std::uint16_t value) {
  const std::uint32_t bits = std::uint32_t{value} << 16;
  float result;
  std::memcpy(&result, &bits, sizeof result);
  return result;
}

template <class T>
T* data_of(const Tensor& tensor) {
  return static_cast<T*>(tensor.data);
}
Tensor bf16_rows(int heads) { return {allocate(2 * kTokens * heads * kDim), "bf16", {1, kTokens, heads, kDim}, {}}; }
Tensor fp32_rows(int heads) { return {allocate(4 * kTokens * heads * kDim), "fp32", {1, kTokens, heads, kDim}, {}}; }

using Tokens = std::vector<float>;  // [token, kWidth]

// A row holds the contents of token t, and rotations by its position at kDim / 2 speeds, the slowest of which tell all
// tokens apart.
Tokens make_tokens() {
  Tokens x;
  for (int t = 0; t < kTokens; ++t) {
    for (int i = 0; i < kDim; ++i)
      x.push_back(static_cast<float>(std::sin(t * (t + 3) * 0.37 + i * (t % 7 + 1) * 1.3)));
    for (int i = 0; i < kDim; ++i) {
      const double angle = t * std::pow(0.6, i / 2);
      x.push_back(static_cast<float>(2 * (i % 2 ? std::sin(angle) : std::cos(angle))));
    }
  }
  return x;
}

// A projection makes the rows of Q, K or V of all tokens: `rows` = x `weights`.
struct Projection {
  int columns;
  std::vector<float> weights;  // [kWidth, columns]
  Tensor rows, gradient;

  Projection(int heads, int salt) : columns(heads * kDim), rows(bf16_rows(heads)), gradient(fp32_rows(heads)) {
    for (int i = 0; i < kWidth * columns; ++i)
      weights.push_back(static_cast<float>(0.2 * std::sin(i * 1.7 + i % 13 * salt)));
  }
  void forward(const Tokens& x) {
    for (int t = 0; t < kTokens; ++t) {
      for (int c = 0; c < columns; ++c) {
        float sum = 0;
        for (int i = 0; i < kWidth; ++i) sum += x[t * kWidth + i] * weights[i * columns + c];
        data_of<std::uint16_t>(rows)[t * columns + c] = to_bf16(sum);
      }
    }
  }
  void descend(const Tokens& x) {
    for (int i = 0; i < kWidth; ++i) {
      for (int c = 0; c < columns; ++c) {
        float sum = 0;
        for (int t = 0; t < kTokens; ++t) sum += x[t * kWidth + i] * data_of<float>(gradient)[t * columns + c];
        weights[i * columns + c] -= kRate * sum;
      }
    }
  }
};

// Returns half the mean square of the difference between each head and the token before, and the gradient of that.
double loss_of(const Tokens& x, const Tensor& o, const Tensor& gradient) {
  constexpr int kCount = kTokens * kHeads * kDim;
  double sum = 0;
  for (int i = 0; i < kCount; ++i) {
    const int token = i / (kHeads * kDim), before = token > 0 ? token - 1 : 0;
    const float error = from_bf16(data_of<std::uint16_t>(o)[i]) - x[before * kWidth + i % kDim];
    sum += 0.5 * error * error / kCount;
    data_of<std::uint16_t>(gradient)[i] = to_bf16(error / kCount);
  }
  return sum;
}

// This is done once for all calls of these sizes.
flashjit::Result<void> give_workspace(const flashjit::Kernel& kernel, flashjit::Arguments& a) {
  auto bytes = kernel.workspace_bytes(a);
  if (!bytes) return bytes.error();
  a.workspace = allocate(static_cast<std::size_t>(*bytes));
  a.workspace_bytes = *bytes;
  return {};
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

  // This is done once, when the program starts, because it may compile. Gradients have the type of `out`.
  auto forward = (*engine)->prepare("fwd" + kLayer);
  if (!forward) return fail(forward.error());
  auto backward = (*engine)->prepare("bwd" + kLayer + " out=fp32");
  if (!backward) return fail(backward.error());

  const Tokens x = make_tokens();
  Projection q(kHeads, 3), k(kKvHeads, 5), v(kKvHeads, 7);
  flashjit::Arguments a;
  a.q = q.rows, a.k = k.rows, a.v = v.rows, a.o = bf16_rows(kHeads);
  a.lse = {allocate(4 * kHeads * kTokens), "fp32", {1, kHeads, kTokens}, {}};
  flashjit::Arguments b = a;  // It has what the forward call read and wrote, and the gradients beside it.
  b.params["do"] = bf16_rows(kHeads);
  b.params["dq"] = q.gradient, b.params["dk"] = k.gradient, b.params["dv"] = v.gradient;
  if (auto done = give_workspace(**forward, a); !done) return fail(done.error());
  if (auto done = give_workspace(**backward, b); !done) return fail(done.error());

  double first = 0, last = 0;
  for (int step = 0; step < kSteps; ++step) {
    for (Projection* projection : {&q, &k, &v}) projection->forward(x);
    if (auto done = (*forward)->run(a); !done) return fail(done.error());  // A null stream is the default one.
    wait();
    last = loss_of(x, a.o, b.params["do"]);
    if (step == 0) first = last;
    if (step % 20 == 0) std::printf("step %3d: loss %.5f\n", step, last);
    if (auto done = (*backward)->run(b); !done) return fail(done.error());
    wait();
    for (Projection* projection : {&q, &k, &v}) projection->descend(x);
  }
  std::printf("%s: the loss fell from %.5f to %.5f in %d steps\n", (*engine)->target().c_str(), first, last, kSteps);
  return last < first / 2 ? 0 : 1;
}
