// This program is an autoregressive loop over one attention layer: two prompts are read in one launch, then every step
// adds a token to each sequence. Keys and values lie in a paged cache, which the calls fill themselves (`append`), with
// rotary positions, a sliding window beside the first tokens, and sink logits. Each token is compared with attention by
// its definition: plain loops in double over all tokens so far. The program runs on GPU 0 if there is one and it was
// built with CUDA's runtime (for the memory), else on the processor.
#include <algorithm>
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

constexpr int kSequences = 2, kPrompts[kSequences] = {37, 5}, kSteps = 60;
constexpr int kHeads = 8, kKvHeads = 2, kDim = 64, kWindow = 24, kFirst = 4;
constexpr int kPage = 16, kPagesOfSequence = 8, kPages = kSequences * kPagesOfSequence;
constexpr double kRopeBase = 10000;
const std::string kLayer =
    "fwd bf16 d=64 heads=8/2 mask=\"causal & (window(24, 0) | k < 4)\" sink append "
    "rope=half(64) rope_base=10000 k_len<=128 layout=";

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
double from_bf16(std::uint16_t value) {
  const std::uint32_t bits = std::uint32_t{value} << 16;
  float result;
  std::memcpy(&result, &bits, sizeof result);
  return result;
}

template <class T>
T* data_of(const Tensor& tensor) {
  return static_cast<T*>(tensor.data);
}
Tensor tensor_of(const char* dtype, int element, std::vector<std::int64_t> shape) {
  std::size_t bytes = element;
  for (const std::int64_t size : shape) bytes *= static_cast<std::size_t>(size);
  return {allocate(bytes), dtype, std::move(shape), {}};
}

using Row = std::vector<double>;  // a row of one head

// The history is all that the model has seen of a sequence, and holds nothing that a kernel made: K is as it was before
// it was rotated.
struct History {
  std::vector<Row> k[kKvHeads], v[kKvHeads];
};

Row rotated(const Row& x, int position) {
  Row y(kDim);
  for (int i = 0; i < kDim / 2; ++i) {
    const double angle = position * std::pow(kRopeBase, -2.0 * i / kDim);
    y[i] = x[i] * std::cos(angle) - x[i + kDim / 2] * std::sin(angle);
    y[i + kDim / 2] = x[i + kDim / 2] * std::cos(angle) + x[i] * std::sin(angle);
  }
  return y;
}

// Returns the attention of the token at `position`.
Row attention(const History& history, const Row& query, int head, int position, double sink) {
  const int hk = head / (kHeads / kKvHeads);
  const Row q = rotated(query, position);
  Row o(kDim);
  double sum = std::exp(sink);
  for (int t = 0; t <= position; ++t) {
    if (t < position - kWindow && t >= kFirst) continue;
    const Row k = rotated(history.k[hk][t], t);
    double dot = 0;
    for (int i = 0; i < kDim; ++i) dot += q[i] * k[i];
    const double p = std::exp(dot / std::sqrt(double{kDim}));
    sum += p;
    for (int i = 0; i < kDim; ++i) o[i] += p * history.v[hk][t][i];
  }
  for (double& x : o) x /= sum;
  return o;
}

// This stands for the rest of the model: it makes a row of Q, K or V of a token from the layer's last output.
void next_row(std::uint16_t* row, const std::uint16_t* out, int token, int head, int salt) {
  for (int i = 0; i < kDim; ++i) {
    const double before = out ? from_bf16(out[(head * kDim + i * 7 + salt) % (kHeads * kDim)]) : 0;
    row[i] = to_bf16(static_cast<float>(std::sin(token * 1.7 + head * 5.1 + i * (0.3 + salt)) + 0.3 * before));
  }
}
Row row_at(const Tensor& tensor, int row) {
  Row values(kDim);
  for (int i = 0; i < kDim; ++i) values[i] = from_bf16(data_of<std::uint16_t>(tensor)[row * kDim + i]);
  return values;
}

struct Layer {
  std::shared_ptr<flashjit::Kernel> kernel;
  // a.q, a.o, k_new and v_new are [tokens, heads, d], or [sequences, 1, heads, d].
  flashjit::Arguments a;

  void tensors(std::vector<std::int64_t> tokens) {
    const auto rows = [&](int heads) {
      std::vector<std::int64_t> shape = tokens;
      shape.insert(shape.end(), {heads, kDim});
      return tensor_of("bf16", 2, shape);
    };
    a.q = rows(kHeads), a.o = rows(kHeads);
    a.params["k_new"] = rows(kKvHeads), a.params["v_new"] = rows(kKvHeads);
  }
  // Puts token `token` of a sequence into row `at` of the call. `out` is the layer's output for the token before.
  void put(History& history, int at, int token, const std::uint16_t* out) {
    for (int h = 0; h < kHeads; ++h) next_row(data_of<std::uint16_t>(a.q) + (at * kHeads + h) * kDim, out, token, h, 1);
    for (int hk = 0; hk < kKvHeads; ++hk) {
      const int row = at * kKvHeads + hk;
      next_row(data_of<std::uint16_t>(a.params["k_new"]) + row * kDim, out, token, hk, 2);
      next_row(data_of<std::uint16_t>(a.params["v_new"]) + row * kDim, out, token, hk, 3);
      history.k[hk].push_back(row_at(a.params["k_new"], row));
      history.v[hk].push_back(row_at(a.params["v_new"], row));
    }
  }
  flashjit::Result<void> run() {
    auto bytes = kernel->workspace_bytes(a);
    if (!bytes) return bytes.error();
    if (*bytes > a.workspace_bytes)
      a.workspace = allocate(static_cast<std::size_t>(*bytes)), a.workspace_bytes = *bytes;
    auto done = kernel->run(a);  // A null stream is the default one.
    wait();
    return done;
  }
  double difference(const History& history, int at, int token) const {
    double worst = 0;
    for (int h = 0; h < kHeads; ++h) {
      const Row wanted = attention(history, row_at(a.q, at * kHeads + h), h, token, data_of<float>(a.sink)[h]);
      const Row got = row_at(a.o, at * kHeads + h);
      for (int i = 0; i < kDim; ++i) worst = std::max(worst, std::fabs(got[i] - wanted[i]));
    }
    return worst;
  }
};

int fail(const flashjit::Error& error) {
  std::printf("%s: %s\n%s", name(error.kind), error.message.c_str(), error.detail.c_str());
  return error.kind == flashjit::ErrorKind::NotFound ? 77 : 1;
}

// The cache knows which of its pages belong to which sequence. Pages are handed out when a sequence grows into them.
struct Cache {
  Tensor k = tensor_of("bf16", 2, {kPages, kPage, kKvHeads, kDim}), v = tensor_of("bf16", 2, k.shape);
  Tensor table = tensor_of("i32", 4, {kSequences, kPagesOfSequence}), lens = tensor_of("i32", 4, {kSequences});
  std::vector<int> free_pages;

  Cache() {
    // NaN shows if somebody reads an element that nobody wrote.
    std::memset(k.data, 0xff, std::size_t{kPages} * kPage * kKvHeads * kDim * 2);
    std::memset(v.data, 0xff, std::size_t{kPages} * kPage * kKvHeads * kDim * 2);
    std::memset(table.data, 0xff, sizeof(std::int32_t) * kPages);
    std::memset(lens.data, 0, sizeof(std::int32_t) * kSequences);
    // Pages are handed out in no order.
    for (int page = 0; page < kPages; ++page) free_pages.push_back((page * 5 + 3) % kPages);
  }
  void grow(int sequence, int tokens) {
    std::int32_t& length = data_of<std::int32_t>(lens)[sequence];
    for (int page = (length + kPage - 1) / kPage; page * kPage < length + tokens; ++page) {
      data_of<std::int32_t>(table)[sequence * kPagesOfSequence + page] = free_pages.back();
      free_pages.pop_back();
    }
    length += tokens;  // The length includes the tokens that the next call appends.
  }
  void give(Layer& layer, const Tensor& sink) const {
    layer.a.k = k, layer.a.v = v, layer.a.sink = sink;
    layer.a.params["block_table"] = table, layer.a.params["k_lens"] = lens;
  }
};

// Reads all tokens of both prompts in one call, packed.
flashjit::Result<void> read_prompts(Layer& prompts, Cache& cache, const Tensor& sink, History* history) {
  prompts.tensors({kPrompts[0] + kPrompts[1]});
  prompts.a.offsets_q = tensor_of("i32", 4, {kSequences + 1});
  prompts.a.max_q_len = kPrompts[0];
  int at = 0;
  for (int s = 0; s < kSequences; ++s) {
    data_of<std::int32_t>(prompts.a.offsets_q)[s] = at;
    cache.grow(s, kPrompts[s]);
    for (int token = 0; token < kPrompts[s]; ++token) prompts.put(history[s], at++, token, nullptr);
  }
  data_of<std::int32_t>(prompts.a.offsets_q)[kSequences] = at;
  cache.give(prompts, sink);
  return prompts.run();
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

  // This is done once, when the program starts, because it may compile. Prompts of different lengths are packed; then
  // all sequences have one token.
  Layer prompts, steps;
  for (const auto& [layer, layout] :
       {std::pair(&prompts, "packed/paged(16)"), std::pair(&steps, "paged(16) q_len=1")}) {
    auto kernel = (*engine)->prepare(kLayer + layout);
    if (!kernel) return fail(kernel.error());
    layer->kernel = *kernel;
  }

  Cache cache;
  History history[kSequences];
  Tensor sink = tensor_of("fp32", 4, {kHeads});
  for (int h = 0; h < kHeads; ++h) data_of<float>(sink)[h] = 0.25f * static_cast<float>(h - 4);

  if (auto done = read_prompts(prompts, cache, sink, history); !done) return fail(done.error());
  double worst = 0;
  for (int s = 0; s < kSequences; ++s) {
    for (int token = 0; token < kPrompts[s]; ++token)
      worst = std::max(worst, prompts.difference(history[s], (s > 0 ? kPrompts[0] : 0) + token, token));
  }

  // In every step, the output for the last token makes the next one, which the call appends and attends with.
  steps.tensors({kSequences, 1});
  cache.give(steps, sink);
  std::vector<std::uint16_t> last(kSequences * kHeads * kDim);
  for (int s = 0; s < kSequences; ++s) {
    const std::uint16_t* of_prompt =
        data_of<std::uint16_t>(prompts.a.o) + (kPrompts[0] + s * kPrompts[1] - 1) * kHeads * kDim;
    std::copy_n(of_prompt, kHeads * kDim, last.begin() + s * kHeads * kDim);
  }
  for (int step = 0; step < kSteps; ++step) {
    for (int s = 0; s < kSequences; ++s) {
      cache.grow(s, 1);
      steps.put(history[s], s, kPrompts[s] + step, last.data() + s * kHeads * kDim);
    }
    if (auto done = steps.run(); !done) return fail(done.error());
    for (int s = 0; s < kSequences; ++s) worst = std::max(worst, steps.difference(history[s], s, kPrompts[s] + step));
    std::copy_n(data_of<std::uint16_t>(steps.a.o), last.size(), last.begin());
  }
  std::printf("%s: %d tokens of %d sequences, %d of them one by one, largest difference %g\n",
              (*engine)->target().c_str(), kPrompts[0] + kPrompts[1] + kSequences * kSteps, kSequences,
              kSequences * kSteps, worst);
  return worst < 0.03 ? 0 : 1;
}
