/* FlashJIT: attention kernels, generated for exactly your problem and your GPU. C API.
 *
 * Every function that can fail returns a flashjit_status and, where `error` is not null, stores there a description that the
 * caller releases with flashjit_error_destroy; on success it stores null. No function prints, exits or throws.
 * Engines and kernels may be used from many threads at once; destroying one must be the last use of it.
 * Strings are UTF-8 and end with a zero byte. Structures begin with their size, so that later versions can add fields. */
#ifndef FLASHJIT_H
#define FLASHJIT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

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
  FLASHJIT_IO = 4,          /* the operating system refused */
  FLASHJIT_COMPILE = 5,     /* the compiler refused generated code; the detail holds its log */
  FLASHJIT_DRIVER = 6,      /* the CUDA driver returned an error */
  FLASHJIT_CAPTURE = 7,     /* prepare would have to compile while a stream captures */
  FLASHJIT_INTERNAL = 8     /* a mistake in FlashJIT */
} flashjit_status;

typedef struct flashjit_engine flashjit_engine;
typedef struct flashjit_kernel flashjit_kernel;
typedef struct flashjit_error flashjit_error;

/* A tensor somebody else owns. The layout is that of DLTensor in DLPack: a pointer to a DLTensor can be cast to this. */
typedef struct flashjit_device {
  int32_t device_type; /* 1: host, 2: CUDA, 3: CUDA pinned host, 13: CUDA managed */
  int32_t device_id;
} flashjit_device;

typedef struct flashjit_dtype {
  uint8_t code;   /* 0: signed, 1: unsigned, 2: IEEE float, 4: bfloat, 6: bool */
  uint8_t bits;
  uint16_t lanes; /* 1 */
} flashjit_dtype;

typedef struct flashjit_tensor {
  void* data;
  flashjit_device device;
  int32_t ndim;
  flashjit_dtype dtype;
  int64_t* shape;
  int64_t* strides; /* in elements; null: contiguous */
  uint64_t byte_offset;
} flashjit_tensor;

typedef struct flashjit_engine_options {
  size_t struct_size;    /* sizeof(flashjit_engine_options) */
  int32_t host;          /* 0: a GPU, 1: the processor */
  int32_t ordinal;       /* which GPU */
  const char* target;    /* null: what the device is */
  const char* cache_dir; /* null: $FLASHJIT_CACHE_DIR, $XDG_CACHE_HOME/flashjit, $HOME/.cache/flashjit */
  int32_t no_disk_cache; /* 1: keep kernels in memory only */
  int32_t threads;       /* host kernels; 0: $FLASHJIT_THREADS, then what the affinity mask allows */
  const char* const* bundles; /* GPU: files of `flashjit build`, looked in before the store; with FLASHJIT_JIT=off nothing else is */
  int32_t bundle_count;
  const char* required;  /* GPU: a manifest; fails with NOT_FOUND, and lists them, if bundles lack some of its specs; null: none */
  const char* record;    /* a manifest to which newly prepared specs are appended; null: none */
} flashjit_engine_options;

/* A run-time parameter of a mask or score, by name: a tensor, or a scalar where `tensor` is null. */
typedef struct flashjit_param {
  const char* name;
  const flashjit_tensor* tensor;
  double scalar;
} flashjit_param;

/* q, k, v, o: [batch, tokens, heads, d] for layout=bshd, [batch, heads, tokens, d] for bhsd, [tokens, heads, d] for packed.
 * What the spec does not ask for must be null. */
typedef struct flashjit_arguments {
  size_t struct_size; /* sizeof(flashjit_arguments) */
  const flashjit_tensor *q, *k, *v, *o;
  const flashjit_tensor* lse;       /* fp32 [batch, heads, q_len], packed: [heads, tokens] */
  const flashjit_tensor* max_logit; /* the same */
  const flashjit_tensor* sink;      /* fp32 [heads] */
  const flashjit_tensor* offsets_q; /* packed: int32 [batch + 1], on the kernel's device */
  const flashjit_tensor* offsets_k;
  int64_t max_q_len;                /* packed: the longest query sequence */
  int64_t max_k_len;                /* packed: the longest key sequence; 0: as long as all together */
  const flashjit_param* params;
  int32_t param_count;
} flashjit_arguments;

/* Opens the driver and, without bundles, NVRTC, or the host backend. `options` may be null: GPU 0.
 * Errors: NOT_FOUND (driver, GPU, NVRTC or host backend, with the remedy; what bundles lack), INVALID, UNSUPPORTED (a bundle of another
 * version), IO (a damaged bundle, or one that others can write), DRIVER. */
FLASHJIT_C_API flashjit_status flashjit_engine_create(const flashjit_engine_options* options, flashjit_engine** engine,
                                                      flashjit_error** error);
/* Prepared kernels stay usable. Null is allowed. */
FLASHJIT_C_API void flashjit_engine_destroy(flashjit_engine* engine);
/* "sm_90a"; lives as long as the engine. */
FLASHJIT_C_API const char* flashjit_engine_target(const flashjit_engine* engine);

/* Finds or makes the kernel for `spec`; `schedule` pins choices and may be null. May compile, allocate and read the disk.
 * `capturing_stream`: null, or a stream that may be capturing a graph; see CAPTURE.
 * Errors: INVALID, UNSUPPORTED, COMPILE, CAPTURE, NOT_FOUND, DRIVER. */
FLASHJIT_C_API flashjit_status flashjit_prepare(flashjit_engine* engine, const char* spec, const char* schedule,
                                                void* capturing_stream, flashjit_kernel** kernel, flashjit_error** error);
/* On a GPU, launches that were made must have finished. Null is allowed. */
FLASHJIT_C_API void flashjit_kernel_destroy(flashjit_kernel* kernel);
/* What is known about the kernel, as one JSON object (spec, target, schedule, family, key, source, compile_ms, registers,
 * spill_bytes, smem_bytes, threads, cubin_bytes, notes); lives as long as the kernel. */
FLASHJIT_C_API const char* flashjit_kernel_facts(const flashjit_kernel* kernel);

/* Checks the arguments, then launches. GPU: asynchronous on `stream` (a cudaStream_t of the device's primary context; null: the
 * default stream), without compiling, allocating, locking or synchronising. Host: the result is there on return.
 * Errors: INVALID (which argument, and why), DRIVER. */
FLASHJIT_C_API flashjit_status flashjit_run(flashjit_kernel* kernel, const flashjit_arguments* arguments, void* stream,
                                            flashjit_error** error);

FLASHJIT_C_API flashjit_status flashjit_error_kind(const flashjit_error* error);  /* of null: OK */
FLASHJIT_C_API const char* flashjit_error_message(const flashjit_error* error);   /* one line; of null: "" */
FLASHJIT_C_API const char* flashjit_error_detail(const flashjit_error* error);    /* a caret, a log; may be "" */
FLASHJIT_C_API void flashjit_error_destroy(flashjit_error* error);                /* null is allowed */

FLASHJIT_C_API const char* flashjit_version(void);

#ifdef __cplusplus
}
#endif
#endif
