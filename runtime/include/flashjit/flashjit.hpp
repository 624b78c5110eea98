// FlashJIT: attention kernels, generated for exactly your problem and your GPU. C++ API.
//
//   auto engine = flashjit::Engine::create({});
//   auto kernel = (*engine)->prepare("fwd bf16 d=128 heads=32/8 mask=\"causal\"");
//   flashjit::Arguments a;  a.q = ...; a.k = ...; a.v = ...; a.o = ...;
//   auto done = (*kernel)->run(a, stream);
//
// No exceptions. The library never prints and never exits. Engine and Kernel may be used from many threads at once.
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
  // A kernel must outlive the graphs that launch it.
  // Host: `stream` is ignored, and the result is there on return.
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
  bool tuned = true;                  // schedules that were measured (`flashjit tune`) decide where there is a record of one
};

struct PrepareOptions {
  std::string schedule;               // pins, as text; empty: the cost model chooses
  void* capturing_stream = nullptr;   // a stream that may be capturing a graph: what is not prepared yet is then refused
                                      // with ErrorKind::Capture, and the capture stays sound
  std::string shape;                  // a hint, "b=4,q=4096,k=4096": sizes to expect, as far as the spec leaves them open. Any others
                                      // are still right; they may be slower
};

class FLASHJIT_API Engine {
 public:
  virtual ~Engine();
  // GPU: opens the driver and NVRTC; NotFound with the remedy where one is absent.
  static Result<std::shared_ptr<Engine>> create(const EngineOptions& options);
  // May parse, compile, allocate and read the disk. The same spec and schedule gives the same kernel.
  virtual Result<std::shared_ptr<Kernel>> prepare(std::string_view spec, const PrepareOptions& options = {}) = 0;
  virtual std::string target() const = 0;
};

FLASHJIT_API const char* version();

}  // namespace flashjit
