// FlashJIT makes attention kernels, generated for exactly your problem and your GPU. This is its C++ API.
//
//   auto engine = flashjit::Engine::create({});
//   auto kernel = (*engine)->prepare("fwd bf16 d=128 heads=32/8 mask=\"causal\"");
//   flashjit::Arguments a;  a.q = ...; a.k = ...; a.v = ...; a.o = ...;
//   auto done = (*kernel)->run(a, stream);
//
// There are no exceptions: a function that fails gives an Error with a kind, a message of one line and sometimes a
// detail. Every function can also fail with Io (out of memory) and Internal (a mistake in FlashJIT); the comments name
// the other kinds. The library never prints and never exits. Engine and Kernel may be used from many threads at once,
// each on streams of its own; the CUDA context that is current on the calling thread is the same afterwards. 64 KB of
// stack are enough: where prepare() finds less than 1 MB, it works on a thread of its own, for which the caller waits.
//
// A spec is `fwd`, the type (fp16 bf16; fp32 on the host), then fields in any order. compiler/SPEC.md is the reference,
// and `flashjit explain SPEC` shows what becomes of a spec:
//   fwd bf16 d=128 heads=32/8 mask="causal"              d: head dim, or QK/V; heads: of queries, or queries/KV
//   fwd fp16 d=192/128 heads=16 layout=bhsd scale=0.1    layout: bshd (default), bhsd, packed; scale: 1/sqrt(d)
//   fwd bf16 d=128 heads=32/8 q_len=1 layout=paged(16)   keys in pages; k_lens without: lengths on the device
//   fwd bf16 d=576/512 heads=128/1 q_len=1 v_in_k        V is the first columns of K, and no tensor of its own
//   fwd bf16 d=128 heads=8 append rope=half(128)         new rows are written into k and v first, and q turns with them
//   fwd bf16 d=64 heads=8 b<=64 q_len=1 k_len<=131072    bounds of run-time sizes can buy speed, and are checked
//   fwd bf16 d=64 heads=8 mask="causal" align=top_left   where lengths differ: bottom_right (default), top_left
//   fwd bf16 d=64 heads=8 lse=ln max_logit sink          more per row (lse=ln or log2); a logit in every sum
//   fwd bf16 d=64 heads=8 dropout=0.1                    of weights, in steps of 1/256; bwd drops the same ones
//   fwd bf16 d=64 heads=8 out=fp32 bytes=2               the type of O; what pointers and strides are multiples of
//   fwd bf16 d=64 heads=8 numerics=deterministic         fast (default), deterministic, batch_invariant
//   fwd bf16 d=64 heads=8 params="cap: fp32, pos: fp32[3]" score="cap * tanh(s / cap) + pos[h, q, k]"
// Masks: causal, window(left, right), chunk(n), prefix(n), document(t), tree(t); scores: softcap(c), alibi (reads a
// tensor `slope`), bias(t), bias_b(t), where t is the name of a tensor; or expressions over q k b h hk q_len k_len s and
// `params`, with + - * / %, comparisons, & | !, where(c, a, b), min max abs exp log sqrt tanh sigmoid bit. run() takes
// the tensors and scalars by name.
//
// These are plain C++ types: compile with the headers of the very library that you link. A library may be replaced
// without compiling anew if only the C API (flashjit.h) is used.
#pragma once

#include <atomic>
#include <chrono>
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

// Members have `= {}` where they begin empty anyway: -Wextra of gcc then lets designated initializers leave them out.
namespace flashjit {

enum class Device { Gpu, Host };

// A tensor that somebody else owns has up to five dimensions, and strides in elements (empty: contiguous).
// q, k, v, o: [batch, tokens, heads, d] for layout=bshd, [batch, heads, tokens, d] for bhsd, [tokens, heads, d] for
// packed; k and v of paged(N): [pages, N, heads, d]. SPEC.md has all operands of all operations.
struct Tensor {
  void* data = nullptr;
  std::string dtype = {};  // "fp16" "bf16" "fp32" "e4m3" "e5m2" "int8" "i32" "i64" "u32" "u8"
  std::vector<std::int64_t> shape = {};
  std::vector<std::int64_t> strides = {};
};

// run() reads and writes these. Nothing is copied or kept: on a GPU the memory must live until the launch is done.
struct Arguments {
  Tensor q = {}, k = {}, v = {}, o = {};
  Tensor lse = {};  // fp32 [batch, heads, q_len], packed: [heads, tokens]; needed exactly when the spec asks for it
  Tensor max_logit = {};                  // like lse
  Tensor sink = {};                       // fp32 [heads]
  Tensor offsets_q = {}, offsets_k = {};  // packed: i32 [batch + 1], on the kernel's device
  std::int64_t max_q_len = 0;             // packed: no query sequence is longer
  std::int64_t max_k_len = 0;             // packed: no key sequence is longer; 0: as long as all together

  // Tensors of masks and scores, by name. Any of the tensors above may be here in place of its field: params["lse"]. If
  // a parameter of the spec has the name of such a tensor, its name means the parameter. Some tensors have no field,
  // and are given by their name alone: "k_lens", i32 [batch]; "block_table", i32 [batch, pages of a sequence]. K and V
  // of 8 bits have "scale_k" and "scale_v", fp32 [batch, KV heads] or less, or with `token_scales` as k without its
  // last dimension and heads last. Q of 8 bits has "scale_q", fp32 [batch, heads] or less, which may be left out. With
  // `scales=block(N)` these have a dimension of blocks before that of heads: for packed sequences as many as max_q_len
  // or max_k_len tokens fill, and for K and V in pages those of a page. With `append` there are "k_new" and "v_new",
  // shaped like q with the KV heads (with `v_in_k` no "v_new"), and k and v are then written to. With `rope` there are
  // "cos" and "sin", fp32 [positions, half the columns that rotate], and quantize has "positions", i32 [batch, tokens],
  // which may be left out. With `shared_prefix` there is "shared_prefix", i32 [1]. With `dropout` there are "seed" and
  // "offset", i64 [1], which a launch reads when it runs. With `blocks` lists are i32: "block_count" [batch, heads of
  // lists, blocks of queries] and "block_index" with one more dimension, and "full_count" and "full_index", both or
  // none. With `select=keys(N)` there is "key_index", or with `select=pages(N)` "page_index", i32 [batch, tokens, KV
  // heads, N] (packed: [tokens, KV heads, N]), and "key_count", the same without its last dimension, which may be left
  // out; there are then no offsets and no block_table. A mask beside lists of layout=paged(N) takes "q_positions", i32
  // [batch, tokens] (packed: [tokens]), and "k_positions", shaped like the lists. With `head_tables` "block_table" is
  // [batch, KV heads, pages of a sequence]. A bwd has "do", shaped like o, "dq", "dk" and "dv" like q, k and v (with
  // `v_in_k` no "dv"), and with `dlse` "dlse" like lse; `grads` has "dsink" and "dNAME" of a parameter, fp32. A merge
  // has "o_parts", "lse_parts" and "max_parts", shaped like o and lse behind a dimension of parts. A quantize has
  // "x", shaped like q, "y" like x, and "scale" like scale_q. An index has q, k, "weights", fp32 [batch, tokens,
  // heads] (packed: [tokens, heads]), and "scores", fp32 [batch, tokens, KV heads, keys] (packed: [tokens, KV heads,
  // keys]), or with `select=keys(N)` "key_index" and "key_count", which it writes. With `v_transposed` v is [batch,
  // KV heads, d, keys], packed [KV heads, d, tokens].
  std::map<std::string, Tensor, std::less<>> params = {};
  // Scalars of masks and scores, by name. "seed" and "offset" may be here, too. With `places` "q_begin", "q_step",
  // "q_total", "k_begin", "k_step" and "k_total" are here; those that are 0, 1 and the call's own length may be left
  // out. With `accumulate` O and LSE, or dq, dk and dv, are read as well.
  std::map<std::string, double, std::less<>> scalars = {};
  void* workspace = nullptr;  // memory on the kernel's device that it needs between its steps, if
                              // Kernel::workspace_bytes() is not 0; at a multiple of 256. Calls that may run at the
                              // same time must not share it; its contents before and after mean nothing
  std::int64_t workspace_bytes = 0;  // how much there is; more than is needed is fine

  // GPU: the loop runs on at most this many of the device's SMs, so that others, such as a collective of NCCL beside
  // it, find some free; 0 stands for all. Short launches before and behind the loop do not count SMs. A limit is
  // refused if the loop has a block for each tile (family sync), because the device deals those to all SMs. Where keys
  // are split among SMs (decode), last bits depend on the limit.
  std::int64_t sms = 0;
};

struct Facts {
  std::string spec, target, schedule, family, key;
  std::string source;     // "compiled" "waited" "disk" "memory" "bundle"
  double compile_ms = 0;  // time from spec to machine code, in the prepare that made this kernel
  int registers = 0, spill_bytes = 0, smem_bytes = 0, threads = 0;
  std::int64_t cubin_bytes = 0;
  std::vector<std::string> notes;  // these tell what is slower than it could be, and why
  std::string layer;    // directory or bundle in which it was found; empty: it was in memory, or was compiled
  std::string miss;     // why it had to be compiled: what was looked at, and what was wrong there
  std::string weights;  // the dtype in which probabilities are multiplied with V, which limits accuracy
};

// A kernel keeps alive what it needs of its engine.
class FLASHJIT_API Kernel {
 public:
  virtual ~Kernel();
  virtual const Facts& facts() const = 0;
  // Checks the arguments, then launches. GPU: asynchronous on `stream` (a CUstream or cudaStream_t of the device's
  // primary context; null: the default stream), no compile, no allocation, no lock, no synchronisation; fit for a graph
  // capture. A kernel must outlive its launches, and the graphs that hold them. Host: `stream` is ignored, and the
  // result is there on return; memory that a run needs is mapped when no earlier one of the kernel has left enough.
  // Errors: Invalid (which argument, and why; how much workspace is missing), Io (no memory), Driver.
  virtual Result<void> run(const Arguments& arguments, void* stream = nullptr) = 0;
  // Returns the size of Arguments::workspace that a run with these arguments needs, which depends on their sizes alone.
  // It is 0 for kernels that need none, whatever the arguments. (With PrepareOptions::budget, best code that needs more
  // than it is given leaves the launch to the quick code: ask before each run.) Errors: those of run().
  virtual Result<std::int64_t> workspace_bytes(const Arguments& arguments) const = 0;
};

struct EngineOptions {
  Device device = Device::Gpu;
  int ordinal = 0;             // number of the GPU
  std::string target = {};     // empty: the target of the device; otherwise a row of the target table
  std::string cache_dir = {};  // empty: $FLASHJIT_CACHE_DIR, then $XDG_CACHE_HOME/flashjit, then $HOME/.cache/flashjit;
                               // after the private directory and ':', shared ones that are only read may follow
  bool disk_cache = true;
  int threads = 0;  // host kernels; 0: $FLASHJIT_THREADS, then what the affinity mask allows
  std::uint64_t cache_max_bytes = std::uint64_t{2} << 30;  // above this, the least recently used entries go
  // GPU: files of `flashjit build`, looked in before the store, in this order. With jit=false kernels come from them
  // alone, and NVRTC is never opened. None: $FLASHJIT_BUNDLES.
  std::vector<std::string> bundles = {};
  // GPU: a manifest; create() fails, and lists them, if bundles lack some of its specs for the target.
  std::string required = {};
  // A manifest, made if need be, to which newly prepared specs are appended, each with its pins once; empty:
  // $FLASHJIT_RECORD, or none.
  std::string record = {};
  // A folder that FLASHJIT_DUMP_DIR or `flashjit compile --out` wrote, with edited source files: they are compiled
  // instead of the generated ones. For experiments; the arguments of a launch stay those of the schedule. GPU only.
  std::string override_dir = {};
  bool isolate_compiler = false;  // NVRTC runs in a process of its own (flashjit-compiler, some 30 ms more per
                                  // compile), so that a crash or a hang of it is an error of prepare. GPU only
  // A file as sha256sum prints it: bundles and entries of shared directories that are not on it are not used; empty:
  // $FLASHJIT_TRUSTED_LIST, or no such list.
  std::string trusted_list = {};
  bool tuned = true;  // where nothing is pinned, measurements of `flashjit tune` on such a device decide; not beside
                      // bundles and override_dir, which were made for the cost model's choice
  bool jit = true;    // false, or FLASHJIT_JIT=off: no compiler is opened, and kernels come from `bundles` alone; a
                      // kernel that they lack is ErrorKind::NotFound, with the command that builds it. GPU only: a
                      // processor's kernels are made, and linked when they are stored, by LLVM
};

struct PrepareOptions {
  std::string schedule = {};         // pins, as text; empty: the cost model chooses
  void* capturing_stream = nullptr;  // a stream that may be capturing a graph: a kernel that is not prepared yet is
                                     // then refused with ErrorKind::Capture, and the capture stays sound
  std::chrono::milliseconds timeout{
      0};  // the most time for a kernel that is not prepared yet; then ErrorKind::Timeout, some 20 ms late at most. 0:
           // no limit. On a processor nothing stops LLVM: a thread of the engine goes on, and the next prepare finds
           // the kernel. NVRTC ends after at most 300 ms more, and with isolate_compiler sooner
  const std::atomic<bool>* cancel =
      nullptr;  // any thread may set it to true: then ErrorKind::Cancelled, as soon as a timeout would. Others who wait
                // for the same kernel are not hurt: one of them goes on
  std::chrono::milliseconds budget{
      0};  // GPU: if the best code is not there after this time, quickly compiled code answers, and the best
           // one replaces it between two launches once it is compiled; Facts::notes says which one answers.
           // Captured graphs keep the code they were captured with. Heeded only with numerics=fast, because
           // the two may round differently. 0: the best code, whatever it takes
  // A hint, "b=4,q=4096,k=4096" (packed: mean lengths): the sizes to choose the schedule for, if nothing is pinned.
  // The choice is made for these sizes rounded up to powers of two, and taken if it is predicted to be faster than
  // the schedule without a hint by more than predictions are wrong. Other sizes are computed as well, perhaps slower.
  // Not heeded beside bundles, override_dir and tuned=false, which a note says: pin the schedule that `flashjit
  // explain --shape` names.
  std::string shape = {};
  std::chrono::milliseconds tune{
      0};  // if there is no record of this device and `shape` (empty: the one that the cost model ranks by), schedules
           // are measured for about this long, and the result is kept as a record. The device should have nothing else
           // to do, and memory for random tensors of that shape; timeout and cancel do not end it. 0: prepare never
           // measures
  bool verify = false;  // a kernel is tried on the device before it enters the store: once, on small random data,
                        // against a float64 reference. A schedule whose results are wrong is passed over, now and
                        // whenever it is found in the store; if none is left: Unsupported, naming the first wrong
                        // element. A trial takes some 20 to 300 ms per kernel, once. Kernels are also tried without
                        // being asked if the driver or NVRTC is newer than those that FlashJIT was tested with
  bool workspace =
      false;  // calls bring as Arguments::workspace the memory that Kernel::workspace_bytes asks for. Without it a hint
              // or a tuning record makes no kernel that needs one, if the spec's kernel needs none otherwise; a note in
              // Facts tells where that would have been faster
};

// A histogram counts how often something took how long: buckets[0] counts times below 1 us, buckets[i] those from
// 2^(i-1) to below 2^i us, and the last one also all above.
struct Histogram {
  static constexpr int kBuckets = 32;
  std::int64_t buckets[kBuckets] = {};
};

// These numbers count what an engine has done since it was created.
struct Counters {
  // prepares that found the kernel in this process; not timed, because that would take longer than they do
  std::int64_t memory_hits = 0;
  std::int64_t disk_hits = 0;    // kernels found in the private directory
  std::int64_t layer_hits = 0;   // kernels found in a shared directory
  std::int64_t bundle_hits = 0;  // kernels found in a bundle
  std::int64_t misses = 0;       // look-ups that found none of these
  std::int64_t compiles = 0;     // compiles that gave a kernel; a schedule that was tried and passed over counts, too
  std::int64_t compile_failures = 0;               // compiles that were refused, timed out or called off
  std::int64_t waits = 0;                          // kernels that another thread or process was making already
  std::int64_t private_compiles = 0;               // kernels that another process was making for too long
  std::int64_t bad_entries = 0;                    // damaged files, treated as a miss
  std::int64_t not_persisted = 0;                  // kernels that were made, but not written
  std::int64_t evictions = 0;                      // files removed because of the size cap
  std::int64_t bytes_read = 0, bytes_written = 0;  // bytes of machine code, from and to directories
  std::int64_t quick_kernels = 0;                  // kernels that answered with quick code (PrepareOptions::budget)
  std::int64_t replaced_kernels = 0;               // such kernels that the best code has replaced since
  Histogram lookup_us;                             // times of look-ups in directories and bundles, found or not
  Histogram compile_us;                            // times of compiles, those that failed included
};

class FLASHJIT_API Engine {
 public:
  // Waits for kernels that are still being made after a timeout or a cancel: on a processor for the few that LLVM has
  // begun, each mostly less than a second; on a GPU at most 300 ms. Kernels that have not begun are dropped.
  virtual ~Engine();
  // GPU: opens the driver and, unless there are bundles, NVRTC. Host: opens the host backend. Each GPU, and each
  // target, wants an engine of its own. jit=false opens no compiler; then errors are also NotFound if the bundles have
  // nothing for the target, and Invalid with Device::Host. Errors: NotFound (driver, GPU, NVRTC, host backend, with the
  // remedy), Invalid, Unsupported, Driver.
  static Result<std::shared_ptr<Engine>> create(const EngineOptions& options);
  // May parse, compile, allocate, load code and read the disk; however many threads ask, each spec is compiled once.
  // Equal words for spec and schedule give the same kernel, found in well under a microsecond without a lock; other
  // words with the same meaning give it, too, after they were parsed. The number of texts that are kept is bounded:
  // beyond some thousand that are not the first of their kernel, a text is parsed each time.
  // Errors: Invalid, Unsupported, Compile, Capture, NotFound, Driver.
  virtual Result<std::shared_ptr<Kernel>> prepare(std::string_view spec, const PrepareOptions& options = {}) = 0;
  virtual std::string target() const = 0;
  // Takes no lock. While other threads work, the numbers are not of one moment.
  virtual Counters counters() const = 0;
};

// Writes which weights `dropout` of a spec keeps in calls with this seed and offset, 1 for those, 0 for others, to a u8
// tensor [batch, heads, q_len, k_len] on the host. With layout=packed, the first is the number of the sequence, and the
// last two count in it. Errors: Invalid.
FLASHJIT_API Result<void> dropout_mask(double dropout, std::int64_t seed, std::int64_t offset, const Tensor& kept);

FLASHJIT_API const char* version();

}  // namespace flashjit
