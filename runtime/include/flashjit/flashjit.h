/* FlashJIT makes attention kernels, generated for exactly your problem and your GPU. This is its C API.
 *
 * Errors. A function that can fail returns a flashjit_status and, where `error` is not null, stores there a description
 * that the caller releases with flashjit_error_destroy; on success it stores null. Nothing here prints, exits or
 * throws. Every function can also return INVALID (a null where none may be), IO (out of memory) and INTERNAL (a mistake
 * in FlashJIT); the comments name the others.
 *
 * Threads. Every function may be called from any thread at any time, also with the same engine or kernel. Destroying
 * something must be the last use of it. The CUDA context that is current on the calling thread is the same afterwards.
 * So is its floating-point environment, which changes nothing here: rounding and traps are those of a new process while
 * the library works. Threads of the library take none of the program's signals.
 * 64 KB of stack are enough: where prepare finds less than 1 MB, it works on a thread of its own, and the caller waits.
 *
 * Versions. Structures begin with their size and only grow: a library takes the smaller ones of older programs, whose
 * missing fields count as zero, and larger ones of newer programs as long as the fields that it does not know are zero.
 * So set everything to zero first, then struct_size. FLASHJIT_ABI_VERSION, which is the number in libflashjit.so.N,
 * changes only when programs have to be compiled again.
 *
 * Strings are UTF-8, end with a zero byte and are not kept. flashjit.hpp, which lies beside this file,
 * tells how a spec is written. */
#ifndef FLASHJIT_H
#define FLASHJIT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FLASHJIT_ABI_VERSION 1

#if defined(__GNUC__)
#define FLASHJIT_C_API __attribute__((visibility("default")))
#else
#define FLASHJIT_C_API
#endif

typedef enum flashjit_status {
  FLASHJIT_OK = 0,
  FLASHJIT_INVALID = 1,     /* the input is wrong; the message names field, value, limit and way out */
  FLASHJIT_UNSUPPORTED = 2, /* legal, but no kernel of this build or target does it */
  FLASHJIT_NOT_FOUND = 3,   /* a library, a device or a kernel is missing */
  FLASHJIT_IO = 4,          /* the operating system refused, or has no memory left */
  FLASHJIT_COMPILE = 5,     /* the compiler refused generated code; the detail holds its log */
  FLASHJIT_DRIVER = 6,      /* the CUDA driver returned an error */
  FLASHJIT_CAPTURE = 7,     /* prepare would have to compile or load while a stream captures */
  FLASHJIT_INTERNAL = 8,    /* a mistake in FlashJIT */
  FLASHJIT_TIMEOUT = 9,     /* prepare was not done in the time that its caller allowed */
  FLASHJIT_CANCELLED = 10   /* prepare was called off by its caller */
} flashjit_status;

typedef struct flashjit_engine flashjit_engine;
typedef struct flashjit_kernel flashjit_kernel;
typedef struct flashjit_error flashjit_error;
typedef struct flashjit_cancel flashjit_cancel;

/* Somebody else owns this tensor. The layout is that of DLTensor in DLPack: a pointer to a DLTensor can be cast to
 * this, and so can &managed->dl_tensor of a DLManagedTensor or a DLManagedTensorVersioned, which stays its owner's:
 * call its deleter when the launches that use it have finished. */
typedef struct flashjit_device {
  int32_t device_type; /* 1: host, 2: CUDA, 3: CUDA pinned host, 13: CUDA managed */
  int32_t device_id;   /* which GPU */
} flashjit_device;

typedef struct flashjit_dtype {
  uint8_t code; /* 0: signed, 1: unsigned, 2: IEEE float, 4: bfloat, 6: bool, 10: e4m3, 12: e5m2 */
  uint8_t bits;
  uint16_t lanes; /* 1 */
} flashjit_dtype;

typedef struct flashjit_tensor {
  void* data;
  flashjit_device device;
  int32_t ndim; /* at most 5 */
  flashjit_dtype dtype;
  int64_t* shape;
  int64_t* strides; /* in elements; null: contiguous */
  uint64_t byte_offset;
} flashjit_tensor;

typedef struct flashjit_engine_options {
  size_t struct_size;       /* sizeof(flashjit_engine_options) */
  int32_t host;             /* 0: a GPU, 1: the processor */
  int32_t ordinal;          /* which GPU */
  const char* target;       /* null: the target of the device */
  const char* cache_dir;    /* null: $FLASHJIT_CACHE_DIR, $XDG_CACHE_HOME/flashjit, $HOME/.cache/flashjit; after the
                               private directory and ':', shared ones that are only read may follow */
  int32_t no_disk_cache;    /* 1: keep kernels in memory only */
  int32_t threads;          /* host kernels; 0: $FLASHJIT_THREADS, then what the affinity mask allows */
  uint64_t cache_max_bytes; /* above this, the least recently used entries go; 0: 2 GiB */
  const char* const*
      bundles; /* GPU: files of `flashjit build`, looked in before the store; with no_jit nothing else is.
                  None: those of $FLASHJIT_BUNDLES */
  int64_t bundle_count;
  const char* required;     /* GPU: a manifest; fails with NOT_FOUND, and lists them, if bundles lack some of its specs;
                               null: none */
  const char* record;       /* a manifest to which newly prepared specs are appended; null: $FLASHJIT_RECORD, or none */
  const char* override_dir; /* GPU: a folder of FLASHJIT_DUMP_DIR with edited source files, which are compiled instead;
                               null: none */
  int64_t isolate_compiler; /* GPU, 1: NVRTC runs in a process of its own, flashjit-compiler: a crash or hang of it is
                               an error */
  int64_t untuned;          /* 1: no tuning record decides, only the cost model */
  const char* trusted_list; /* a file as sha256sum prints it: bundles and entries of shared directories that are not on
                               it are not used; null: $FLASHJIT_TRUSTED_LIST, or no such list */
  int64_t no_jit;           /* GPU, 1, or FLASHJIT_JIT=off: no compiler is opened, and kernels come from `bundles`
                               alone; a kernel they lack is NOT_FOUND, with the command that builds it */
} flashjit_engine_options;

typedef struct flashjit_prepare_options {
  size_t struct_size;     /* sizeof(flashjit_prepare_options) */
  const char* schedule;   /* pins, as text; null: the cost model chooses */
  void* capturing_stream; /* null, or a stream that may be capturing a graph: a kernel that is not prepared yet is
                             then refused with CAPTURE, and the capture stays sound */
  int64_t timeout_ms; /* the most time for a kernel that is not prepared yet; then TIMEOUT, some 20 ms late at most. On
                         a processor a thread goes on until LLVM is done, and the next prepare finds the kernel; 0: no
                         limit */
  int64_t budget_ms;  /* GPU, numerics=fast: if the best code is not there after this time, quickly compiled code
                        answers, and the best one takes its place between two launches when it is there; captured
                        graphs keep theirs; 0: none */
  const flashjit_cancel* cancel; /* null, or an object that cancels this: then CANCELLED, as soon as a timeout would */
  const char* shape; /* null, or the sizes to choose the schedule for, "b=4,q=4096,k=4096" (packed: mean lengths);
                        others run too */
  int64_t
      tune_ms;    /* if no tuning record fits, schedules are measured for about this long, see flashjit.hpp; 0: never */
  int64_t verify; /* 1: a kernel is tried against a reference before it enters the store, see flashjit.hpp */
  int64_t
      workspace; /* 1: calls bring what flashjit_workspace_bytes asks for. 0: `shape` and tuning records make no kernel
                        that needs a workspace, if the spec's kernel needs none otherwise */
} flashjit_prepare_options;

/* A parameter is given by its name: a run-time parameter of a mask or score (a tensor, or a scalar where `tensor` is
 * null), or one of the tensors that flashjit_arguments has a field for, "q" to "offsets_k", which then has to be null.
 * If a parameter of the spec has the name of such a tensor, its name means the parameter. Some tensors have no field
 * and are given by their name alone: "k_lens", int32 [batch]; "block_table", int32 [batch, pages of a sequence]. K and
 * V of 8 bits have "scale_k" and "scale_v", float32 [batch, KV heads] or less, or with `token_scales` as k without its
 * last dimension and heads last. Q of 8 bits has "scale_q", float32 [batch, heads] or less, which may be left out.
 * With `scales=block(N)` these have a dimension of blocks before that of heads: for packed sequences as many as
 * max_q_len or max_k_len tokens fill, and for K and V in pages those of a page. With `append` there are "k_new" and
 * "v_new", shaped like q with the KV heads (with `v_in_k` no "v_new"). With `rope` there are "cos" and "sin", float32
 * [positions, half the columns that rotate], and quantize has "positions", int32 [batch, tokens], which may be left
 * out. With `shared_prefix` there is "shared_prefix", int32 [1]. With `dropout` "seed" and "offset" are int64 [1],
 * which a launch reads when it runs, or scalars. With `blocks` lists are int32: "block_count" [batch, heads of lists,
 * blocks of queries] and "block_index" with one more dimension, and "full_count" and "full_index", both or none. With
 * `select=keys(N)` "key_index", and with `select=pages(N)` "page_index", is int32 [batch, tokens, KV heads, N], packed
 * [tokens, KV heads, N], and "key_count" the same without its last dimension, which may be left out; there are then no
 * offsets and no block_table. A mask beside lists of layout=paged(N) takes "q_positions", int32 [batch, tokens],
 * packed [tokens], and "k_positions", shaped like the lists. With `head_tables` "block_table" is [batch, KV heads,
 * pages of a sequence]. A bwd has "do", shaped like o, "dq", "dk" and "dv" like q, k and v (with `v_in_k` no "dv"), and
 * with `dlse` "dlse" like lse; `grads` has "dsink" and "dNAME" of a parameter, float32. A merge has "o_parts",
 * "lse_parts" and "max_parts", shaped like o and lse behind a dimension of parts. A quantize has "x", shaped like q,
 * "y" like x, and "scale" like scale_q. An index has q, k, "weights", float32 [batch, tokens, heads], packed [tokens,
 * heads], and "scores", float32 [batch, tokens, KV heads, keys], packed [tokens, KV heads, keys], or with
 * `select=keys(N)` "key_index" and "key_count", which it writes. With `v_transposed` v is [batch, KV heads, d, keys],
 * packed [KV heads, d, tokens]. With `places` "q_begin", "q_step", "q_total", "k_begin", "k_step" and "k_total" are
 * scalars; those that are 0, 1 and the call's own length may be left out. With `accumulate` o and lse, or dq, dk and
 * dv, are read as well. */
typedef struct flashjit_param {
  const char* name;
  const flashjit_tensor* tensor;
  double scalar;
} flashjit_param;

/* q, k, v, o: [batch, tokens, heads, d] for layout=bshd, [batch, heads, tokens, d] for bhsd, [tokens, heads, d] for
 * packed; k and v of paged(N): [pages, N, heads, d]. With `append` the call writes rows of k and v. Tensors that the
 * spec does not ask for must be null. SPEC.md has all operands of all operations. Nothing is copied or kept, the
 * tensors themselves are read during the call; on a GPU the memory they point to must live until the launch has
 * finished. */
typedef struct flashjit_arguments {
  size_t struct_size; /* sizeof(flashjit_arguments) */
  const flashjit_tensor *q, *k, *v, *o;
  const flashjit_tensor* lse;       /* fp32 [batch, heads, q_len], packed: [heads, tokens] */
  const flashjit_tensor* max_logit; /* the same */
  const flashjit_tensor* sink;      /* fp32 [heads] */
  const flashjit_tensor* offsets_q; /* packed: int32 [batch + 1], on the kernel's device */
  const flashjit_tensor* offsets_k;
  int64_t max_q_len; /* packed: the longest query sequence */
  int64_t max_k_len; /* packed: the longest key sequence; 0: as long as all together */
  const flashjit_param* params;
  int64_t param_count;
  void* workspace;         /* memory on the kernel's device that it needs between its steps, if
                              flashjit_workspace_bytes is not 0; at a multiple of 256. Calls that may run at the same
                              time must not share it; its contents before and after mean nothing */
  int64_t workspace_bytes; /* how much there is; more than is needed is fine */
  int64_t sms;             /* GPU: the loop runs on at most this many SMs of the device, so that others find some free;
                              0: all. Refused if the loop has a block for each tile; see flashjit.hpp */
} flashjit_arguments;

/* Opens the driver and, without bundles, NVRTC, or the host backend. `options` may be null: GPU 0. Each GPU, and each
 * target, wants an engine of its own; several in a process are fine. In a process made by fork, only host engines
 * work once the parent has used a GPU; a host engine of the parent computes on the calling thread alone there. Errors:
 * NOT_FOUND (driver, GPU, NVRTC or host backend, with the remedy; what bundles lack), INVALID, UNSUPPORTED (a bundle
 * of another version), IO (a damaged bundle, or one that others can write), DRIVER. */
FLASHJIT_C_API flashjit_status flashjit_engine_create(const flashjit_engine_options* options, flashjit_engine** engine,
                                                      flashjit_error** error);
/* Prepared kernels stay usable. Waits for kernels that are still being made after a timeout or a cancel: on a processor
 * for those that LLVM has begun, mostly less than a second, on a GPU at most 300 ms. Null is allowed. */
FLASHJIT_C_API void flashjit_engine_destroy(flashjit_engine* engine);
/* Returns for example "sm_90a", which lives as long as the engine. It is "" for null. */
FLASHJIT_C_API const char* flashjit_engine_target(const flashjit_engine* engine);

/* Finds or makes the kernel for `spec`; `options` may be null. May compile, allocate, load code and read the disk; a
 * spec that this engine has prepared before is found in well under a microsecond, without a lock. However many threads
 * ask at once, each spec is compiled once. Every kernel that was handed out has to be destroyed, also when it is
 * the same one. Errors: INVALID, UNSUPPORTED, COMPILE, CAPTURE, NOT_FOUND, DRIVER, TIMEOUT, CANCELLED. */
FLASHJIT_C_API flashjit_status flashjit_prepare(flashjit_engine* engine, const char* spec,
                                                const flashjit_prepare_options* options, flashjit_kernel** kernel,
                                                flashjit_error** error);
/* This object cancels every prepare that it was given to, from any thread, and stays set. Others who wait for the same
 * kernel are not hurt. Must outlive these calls. Create returns null without memory; the others allow null. */
FLASHJIT_C_API flashjit_cancel* flashjit_cancel_create(void);
FLASHJIT_C_API void flashjit_cancel_set(flashjit_cancel* cancel);
FLASHJIT_C_API void flashjit_cancel_destroy(flashjit_cancel* cancel);
/* On a GPU, launches that were made must have finished, and graphs that hold them must not be launched again. Null is
 * allowed. */
FLASHJIT_C_API void flashjit_kernel_destroy(flashjit_kernel* kernel);
/* Returns what is known about the kernel, as one JSON object (spec, target, schedule, family, key, source, compile_ms,
 * registers, spill_bytes, smem_bytes, threads, cubin_bytes, weights, notes, layer, miss); lives as long as the kernel.
 * It is "{}" for null, and without memory. */
FLASHJIT_C_API const char* flashjit_kernel_facts(const flashjit_kernel* kernel);

/* Checks the arguments, then launches. GPU: asynchronous on `stream` (a cudaStream_t of the device's primary context;
 * null: the default stream), without compiling, allocating, locking or synchronising; fit for a stream that captures a
 * graph, which the kernel must outlive. Host: `stream` is ignored, and the result is there on return; memory that a run
 * needs is mapped when no earlier one of the kernel has left enough. Errors: INVALID (which argument, and why; how much
 * workspace is missing), IO (no memory), DRIVER. */
FLASHJIT_C_API flashjit_status flashjit_run(flashjit_kernel* kernel, const flashjit_arguments* arguments, void* stream,
                                            flashjit_error** error);

/* Tells the size of the workspace that a run with these arguments needs, which depends on their sizes alone. It is 0
 * for kernels that need none, whatever the arguments. (With budget_ms, best code that needs more than it is given
 * leaves the launch to the quick code: ask before each run.) Errors: those of flashjit_run. */
FLASHJIT_C_API flashjit_status flashjit_workspace_bytes(const flashjit_kernel* kernel,
                                                        const flashjit_arguments* arguments, int64_t* bytes,
                                                        flashjit_error** error);

/* Writes which weights `dropout` of a spec keeps in calls with this seed and offset, 1 for those, 0 for others, to a
 * uint8 or bool tensor [batch, heads, q_len, k_len] on the host. With layout=packed, the first is the number of the
 * sequence, and the last two count in it. Errors: INVALID. */
FLASHJIT_C_API flashjit_status flashjit_dropout_mask(double dropout, int64_t seed, int64_t offset,
                                                     const flashjit_tensor* kept, flashjit_error** error);

/* A histogram counts how often something took how long: bucket 0 counts times below 1 microsecond, bucket i those from
 * 2^(i-1) to below 2^i microseconds, and the last one also all above. */
#define FLASHJIT_BUCKETS 32

/* These numbers count what an engine has done so far; see Counters in flashjit.hpp for each field. */
typedef struct flashjit_counters {
  size_t struct_size; /* sizeof(flashjit_counters) */
  int64_t memory_hits, disk_hits, layer_hits, bundle_hits, misses;
  int64_t compiles, compile_failures, waits, private_compiles;
  int64_t bad_entries, not_persisted, evictions;
  int64_t bytes_read, bytes_written;
  int64_t quick_kernels, replaced_kernels;
  int64_t lookup_us[FLASHJIT_BUCKETS];
  int64_t compile_us[FLASHJIT_BUCKETS];
} flashjit_counters;

/* Fills `counters`, whose struct_size must be set. Any thread may call it at any time; each number is exact, but while
 * other threads work they are not of one moment. Errors: INVALID (a null pointer, a wrong struct_size). */
FLASHJIT_C_API flashjit_status flashjit_engine_counters(const flashjit_engine* engine, flashjit_counters* counters,
                                                        flashjit_error** error);

FLASHJIT_C_API flashjit_status flashjit_error_kind(const flashjit_error* error); /* OK for null */
FLASHJIT_C_API const char* flashjit_error_message(const flashjit_error* error);  /* one line; "" for null */
FLASHJIT_C_API const char* flashjit_error_detail(const flashjit_error* error);   /* a caret, a log; may be "" */
FLASHJIT_C_API void flashjit_error_destroy(flashjit_error* error);               /* null is allowed */
FLASHJIT_C_API const char* flashjit_status_name(
    flashjit_status status); /* for example "invalid"; "unknown" for any other number */

FLASHJIT_C_API const char* flashjit_version(void); /* "major.minor.patch" */
FLASHJIT_C_API int flashjit_abi_version(void);     /* FLASHJIT_ABI_VERSION of the library */

#ifdef __cplusplus
}
#endif
#endif
