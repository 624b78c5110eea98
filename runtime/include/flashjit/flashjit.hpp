// FlashJIT: attention kernels, generated for exactly your problem and your GPU. C++ API.
//
//   auto engine = flashjit::Engine::create({});
//   auto kernel = (*engine)->prepare("fwd bf16 d=128 heads=32/8 mask=\"causal\"");
//   flashjit::Arguments a;  a.q = ...; a.k = ...; a.v = ...; a.o = ...;
//   auto done = (*kernel)->run(a, stream);
//
// No exceptions: what fails gives an Error with a kind, a message of one line and sometimes a detail. Every function can also fail
// with Io (out of memory) and Internal (a mistake in FlashJIT); the comments name the other kinds. The library never prints and
// never exits. Engine and Kernel may be used from many threads at once, each on streams of its own; the CUDA context that is current
// on the calling thread is the same afterwards.
//
// The spec. `fwd`, the type (fp16 bf16; fp32 on the host), then fields in any order; `flashjit explain SPEC` shows what becomes of it:
//   fwd bf16 d=128 heads=32/8 mask="causal"              d: head dim, or QK/V; heads: query heads, or query/KV heads
//   fwd fp16 d=192/128 heads=16 layout=bhsd scale=0.1    layout: bshd (default), bhsd, packed (sequences one after the other);
//                                                        scale: 1/sqrt(d) by default
//   fwd bf16 d=64 heads=8 b<=64 q_len=1 k_len<=131072    sizes are run-time values; bounds can buy speed, and are checked
//   fwd bf16 d=64 heads=8 mask="causal" align=top_left   where q_len and k_len differ: bottom_right (default), top_left
//   fwd bf16 d=64 heads=8 lse=ln max_logit sink          more outputs per row, lse=ln or log2; an extra logit per head in every sum
//   fwd bf16 d=64 heads=8 out=fp32 bytes=2               the type of O; what all pointers and strides are multiples of (16)
//   fwd bf16 d=64 heads=8 numerics=deterministic         fast (default), deterministic, batch_invariant
//   fwd bf16 d=64 heads=8 mask="window(4096, 0) | k < 4" params="cap: fp32, pos: fp32[3]" score="cap * tanh(s / cap) + pos[h, q, k]"
// Masks: causal, window(left, right), chunk(n), prefix(n), document(t), tree(t); scores: softcap(c), alibi (reads a tensor `slope`),
// bias(t), bias_b(t), where t is the name of a tensor; or expressions over q k b h hk q_len k_len s and `params`, with + - * / %,
// comparisons, & | !, where(c, a, b), min max abs exp log sqrt tanh sigmoid bit. run() takes the tensors and scalars by name.
//
// These are plain C++ types: compile with the headers of the very library that you link. What may be replaced without compiling
// anew is the C API (flashjit.h).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "flashjit/result.h"

#if defined(__GNUC__)
#define FLASHJIT_API __attribute__((visibility("default")))
#else
#define FLASHJIT_API
#endif

namespace flashjit {

enum class Device { Gpu, Host };

// A tensor somebody else owns. Up to four dimensions; strides in elements (empty: contiguous).
// q, k, v, o: [batch, tokens, heads, d] for layout=bshd, [batch, heads, tokens, d] for bhsd, [tokens, heads, d] for packed.
struct Tensor {
  void* data = nullptr;
  std::string dtype;                  // "fp16" "bf16" "fp32" "i32" "i64" "u32" "u8"
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;
};

// What run() reads and writes. Nothing is copied or kept: on a GPU the memory must live until the launch is done.
struct Arguments {
  Tensor q, k, v, o;
  Tensor lse;        // fp32 [batch, heads, q_len], packed: [heads, tokens]; needed exactly when the spec asks for it
  Tensor max_logit;  // the same shape
  Tensor sink;       // fp32 [heads]
  Tensor offsets_q, offsets_k;       // packed: i32 [batch + 1], on the kernel's device
  std::int64_t max_q_len = 0;        // packed: no query sequence is longer
  std::int64_t max_k_len = 0;        // packed: no key sequence is longer; 0: as long as all together
  std::map<std::string, Tensor, std::less<>> params;  // tensors of masks and scores, by name
  std::map<std::string, double, std::less<>> scalars; // scalars of masks and scores, by name
};

struct Facts {
  std::string spec, target, schedule, family, key;
  std::string source;            // "compiled" "waited" "disk" "memory" "bundle"
  double compile_ms = 0;         // from spec to machine code, in the prepare that made this kernel
  int registers = 0, spill_bytes = 0, smem_bytes = 0, threads = 0;
  std::int64_t cubin_bytes = 0;
  std::vector<std::string> notes;     // what is slower than it could be, and why
};

// Keeps what it needs of its engine alive.
class FLASHJIT_API Kernel {
 public:
  virtual ~Kernel();
  virtual const Facts& facts() const = 0;
  // Checks the arguments, then launches. GPU: asynchronous on `stream` (a CUstream or cudaStream_t of the device's primary
  // context; null: the default stream), no compile, no allocation, no lock, no synchronisation; fit for a graph capture.
  // A kernel must outlive its launches, and the graphs that hold them. No workspace is needed.
  // Host: `stream` is ignored, and the result is there on return.
  // Errors: Invalid (which argument, and why), Driver.
  virtual Result<void> run(const Arguments& arguments, void* stream = nullptr) = 0;
};

struct EngineOptions {
  Device device = Device::Gpu;
  int ordinal = 0;                    // which GPU
  std::string target;                 // empty: what the device is; otherwise a row of the target table
  std::string cache_dir;              // empty: $FLASHJIT_CACHE_DIR, then $XDG_CACHE_HOME/flashjit, then $HOME/.cache/flashjit;
                                      // after the private directory and ':', shared ones that are only read may follow
  bool disk_cache = true;
  int threads = 0;                    // host kernels; 0: $FLASHJIT_THREADS, then what the affinity mask allows
  std::uint64_t cache_max_bytes = std::uint64_t{2} << 30;  // on disk; above it, what was used longest ago is removed
};

struct PrepareOptions {
  std::string schedule;               // pins, as text; empty: the cost model chooses
  void* capturing_stream = nullptr;   // a stream that may be capturing a graph: what is not prepared yet is then refused
                                      // with ErrorKind::Capture, and the capture stays sound
};

class FLASHJIT_API Engine {
 public:
  virtual ~Engine();
  // GPU: opens the driver and NVRTC. Host: opens the host backend. Each GPU, and each target, wants an engine of its own.
  // Errors: NotFound (driver, GPU, NVRTC, host backend, with the remedy), Invalid, Unsupported, Driver.
  static Result<std::shared_ptr<Engine>> create(const EngineOptions& options);
  // May parse, compile, allocate, load code and read the disk; however many threads ask, each spec is compiled once. The same words
  // for spec and schedule give the same kernel, found in well under a microsecond without a lock.
  // Errors: Invalid, Unsupported, Compile, Capture, NotFound, Driver.
  virtual Result<std::shared_ptr<Kernel>> prepare(std::string_view spec, const PrepareOptions& options = {}) = 0;
  virtual std::string target() const = 0;
};

FLASHJIT_API const char* version();

}  // namespace flashjit
