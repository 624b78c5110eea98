/* Every function of the C API, from C, used rightly and wrongly. `gpu`: on the recording driver; `host`: on the
 * processor, where the numbers are looked at too. Exit code 77: the machine lacks what is needed. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "flashjit/flashjit.h"

static int failures = 0;

#define CHECK(condition)                                             \
  do {                                                               \
    if (!(condition)) {                                              \
      printf("%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
      ++failures;                                                    \
    }                                                                \
  } while (0)

/* The call gave this error; one of its words is looked for. */
static void expect(int line, flashjit_status status, flashjit_error* error, flashjit_status wanted, const char* words) {
  if (status != wanted || flashjit_error_kind(error) != wanted || !strstr(flashjit_error_message(error), words)) {
    printf("line %d: wanted %s with '%s', got %s: %s\n", line, flashjit_status_name(wanted), words,
           flashjit_status_name(status), flashjit_error_message(error));
    ++failures;
  }
  if (strchr(flashjit_error_message(error), '\n')) {
    printf("line %d: the message has more than a line\n", line);
    ++failures;
  }
  flashjit_error_destroy(error);
}
#define EXPECT(call, wanted, words)                 \
  do {                                              \
    flashjit_error* error = NULL;                   \
    const flashjit_status status = (call);          \
    expect(__LINE__, status, error, wanted, words); \
  } while (0)

enum { TOKENS = 3, HEADS = 4, KV_HEADS = 2, D = 32 };
static const char* const spec_host =
    "fwd fp32 d=32 heads=4/2 mask=\"causal\" score=\"s * cap\" params=\"cap: fp32\" lse=ln";
static const char* const spec_gpu =
    "fwd bf16 d=32 heads=4/2 mask=\"causal\" score=\"s * cap\" params=\"cap: fp32\" lse=ln";

typedef struct problem {
  float q[TOKENS * HEADS * D], k[TOKENS * KV_HEADS * D], v[TOKENS * KV_HEADS * D], o[TOKENS * HEADS * D],
      lse[HEADS * TOKENS];
  int64_t wide[4], narrow[4], rows[3];
  flashjit_tensor tensors[5];
  flashjit_param cap;
  flashjit_arguments arguments;
} problem;

static flashjit_tensor tensor(void* data, int32_t ndim, int64_t* shape, int host, int wide) {
  flashjit_tensor made;
  memset(&made, 0, sizeof made);
  made.data = data;
  made.device.device_type = host ? 1 : 2;
  made.ndim = ndim;
  made.dtype.code = host || wide ? 2 : 4;
  made.dtype.bits = host || wide ? 32 : 16;
  made.dtype.lanes = 1;
  made.shape = shape;
  return made;
}

static void set_up(problem* p, int host) {
  int i;
  memset(p, 0, sizeof *p);
  for (i = 0; i < TOKENS * HEADS * D; ++i) p->q[i] = (float)(i % 5) * 0.25f;
  for (i = 0; i < TOKENS * KV_HEADS * D; ++i) p->k[i] = (float)(i % 3) * 0.5f, p->v[i] = (float)i;
  p->wide[0] = p->narrow[0] = p->rows[0] = 1;
  p->wide[1] = p->narrow[1] = TOKENS;
  p->wide[2] = HEADS, p->narrow[2] = KV_HEADS;
  p->wide[3] = p->narrow[3] = D;
  p->rows[1] = HEADS, p->rows[2] = TOKENS;
  p->tensors[0] = tensor(p->q, 4, p->wide, host, 0);
  p->tensors[1] = tensor(p->k, 4, p->narrow, host, 0);
  p->tensors[2] = tensor(p->v, 4, p->narrow, host, 0);
  p->tensors[3] = tensor(p->o, 4, p->wide, host, 0);
  p->tensors[4] = tensor(p->lse, 3, p->rows, host, 1);
  p->cap.name = "cap";
  p->cap.scalar = 2;
  p->arguments.struct_size = sizeof p->arguments;
  p->arguments.q = &p->tensors[0], p->arguments.k = &p->tensors[1], p->arguments.v = &p->tensors[2],
  p->arguments.o = &p->tensors[3];
  p->arguments.lse = &p->tensors[4];
  p->arguments.params = &p->cap;
  p->arguments.param_count = 1;
}

static void without_a_library_call(void) {
  int i;
  CHECK(flashjit_abi_version() == FLASHJIT_ABI_VERSION);
  CHECK(flashjit_version()[0] >= '0' && flashjit_version()[0] <= '9');
  CHECK(strcmp(flashjit_status_name(FLASHJIT_OK), "ok") == 0);
  CHECK(strcmp(flashjit_status_name(FLASHJIT_CAPTURE), "capture") == 0);
  for (i = FLASHJIT_OK; i <= FLASHJIT_CANCELLED; ++i)
    CHECK(strcmp(flashjit_status_name((flashjit_status)i), "unknown") != 0);
  CHECK(strcmp(flashjit_status_name((flashjit_status)99), "unknown") == 0);
  CHECK(flashjit_error_kind(NULL) == FLASHJIT_OK);
  CHECK(strcmp(flashjit_error_message(NULL), "") == 0);
  CHECK(strcmp(flashjit_error_detail(NULL), "") == 0);
  CHECK(strcmp(flashjit_engine_target(NULL), "") == 0);
  CHECK(strcmp(flashjit_kernel_facts(NULL), "{}") == 0);
  flashjit_error_destroy(NULL);
  flashjit_cancel_set(NULL);
  flashjit_cancel_destroy(NULL);
  flashjit_kernel_destroy(NULL);
  flashjit_engine_destroy(NULL);
}

static void engines_refused(flashjit_engine_options options) {
  flashjit_engine* engine = (flashjit_engine*)&options;
  EXPECT(flashjit_engine_create(&options, NULL, &error), FLASHJIT_INVALID, "engine: null");
  CHECK(flashjit_engine_create(&options, NULL, NULL) == FLASHJIT_INVALID);
  options.struct_size = 0;
  EXPECT(flashjit_engine_create(&options, &engine, &error), FLASHJIT_INVALID, "struct_size: 0, must be");
  CHECK(engine == NULL);
  options.struct_size = (size_t)-1;
  EXPECT(flashjit_engine_create(&options, &engine, &error), FLASHJIT_INVALID, "flashjit_engine_options");
  options.struct_size = sizeof options;
  if (options.host) {
    options.isolate_compiler = 1;
    EXPECT(flashjit_engine_create(&options, &engine, &error), FLASHJIT_INVALID, "isolate_compiler");
    options.isolate_compiler = 0;
    options.ordinal = 7;
    EXPECT(flashjit_engine_create(&options, &engine, &error), FLASHJIT_INVALID, "ordinal");
    options.ordinal = 0;
    options.override_dir = ".";
    EXPECT(flashjit_engine_create(&options, &engine, &error), FLASHJIT_INVALID, "override_dir");
    options.override_dir = NULL;
  }
  options.no_jit = 1;
  EXPECT(flashjit_engine_create(&options, &engine, &error), options.host ? FLASHJIT_INVALID : FLASHJIT_NOT_FOUND,
         "jit=false");
  options.no_jit = 0;
  options.threads = -1;
  EXPECT(flashjit_engine_create(&options, &engine, &error), FLASHJIT_INVALID, "threads: -1");
  options.threads = 0;
  options.target = options.host ? "sm_90a" : "x86-64-v3";
  EXPECT(flashjit_engine_create(&options, &engine, &error), FLASHJIT_INVALID, "target");
  options.target = "sm_1";
  EXPECT(flashjit_engine_create(&options, &engine, &error), FLASHJIT_INVALID, "sm_1");
  options.target = NULL;
  if (!options.host) {
    options.ordinal = 77;
    EXPECT(flashjit_engine_create(&options, &engine, &error), FLASHJIT_NOT_FOUND, "ordinal: there is no GPU 77");
    options.ordinal = 0;
    options.trusted_list = "/nowhere/list";
    EXPECT(flashjit_engine_create(&options, &engine, &error), FLASHJIT_IO,
           "trusted_list: /nowhere/list: the list of trusted files");
  }
}

/* A prepare that was called off before it began, and then the same one. What was prepared before needs no time. */
static void bounded_prepares(flashjit_engine* engine, const char* spec, int host) {
  flashjit_prepare_options options;
  flashjit_counters counters;
  flashjit_kernel* kernel = NULL;
  flashjit_cancel* cancel = flashjit_cancel_create();
  memset(&options, 0, sizeof options);
  options.struct_size = sizeof options;
  options.cancel = cancel;
  flashjit_cancel_set(cancel);
  EXPECT(flashjit_prepare(engine, spec, &options, &kernel, &error), FLASHJIT_CANCELLED, "cancel");
  CHECK(kernel == NULL);
  options.cancel = NULL;
  options.timeout_ms = -1;
  EXPECT(flashjit_prepare(engine, spec, &options, &kernel, &error), FLASHJIT_INVALID, "timeout_ms: -1");
  options.timeout_ms = 0;
  options.budget_ms = -1;
  EXPECT(flashjit_prepare(engine, spec, &options, &kernel, &error), FLASHJIT_INVALID, "budget_ms: -1");
  options.budget_ms = 0;
  CHECK(flashjit_prepare(engine, spec, &options, &kernel, NULL) == FLASHJIT_OK);
  flashjit_kernel_destroy(kernel);
  if (host) { /* what the recorded driver is given to run computes nothing */
    options.verify = 1;
    CHECK(flashjit_prepare(engine, spec, &options, &kernel, NULL) == FLASHJIT_OK);
    flashjit_kernel_destroy(kernel);
    options.verify = 0;
  }
  options.cancel = cancel;
  CHECK(flashjit_prepare(engine, spec, &options, &kernel, NULL) == FLASHJIT_OK);
  flashjit_kernel_destroy(kernel);
  flashjit_cancel_destroy(cancel);

  memset(&counters, 0, sizeof counters);
  EXPECT(flashjit_engine_counters(engine, &counters, &error), FLASHJIT_INVALID, "struct_size: 0");
  EXPECT(flashjit_engine_counters(engine, NULL, &error), FLASHJIT_INVALID, "counters");
  EXPECT(flashjit_engine_counters(NULL, &counters, &error), FLASHJIT_INVALID, "engine");
  counters.struct_size = sizeof counters;
  CHECK(flashjit_engine_counters(engine, &counters, NULL) == FLASHJIT_OK);
  CHECK(counters.memory_hits >= 1);
}

/* As programs of older and of newer versions have it: less, or more, than this library knows. */
static void structures_of_other_versions(flashjit_engine_options options) {
  struct {
    flashjit_engine_options known;
    uint64_t unknown[2];
  } newer;
  flashjit_engine* engine = NULL;
  memset(&newer, 0, sizeof newer);
  newer.known = options;
  newer.known.struct_size = sizeof newer;
  CHECK(flashjit_engine_create(&newer.known, &engine, NULL) == FLASHJIT_OK);
  flashjit_engine_destroy(engine);
  newer.unknown[1] = 1;
  EXPECT(flashjit_engine_create(&newer.known, &engine, &error), FLASHJIT_UNSUPPORTED, "newer flashjit_engine_options");

  /* Before cache_max_bytes; what follows is not part of it, and must not be read. */
  options.struct_size = offsetof(flashjit_engine_options, cache_max_bytes);
  options.cache_max_bytes = 1;
  CHECK(flashjit_engine_create(&options, &engine, NULL) == FLASHJIT_OK);
  flashjit_engine_destroy(engine);
}

static void prepares_refused(flashjit_engine* engine, const char* spec) {
  struct {
    flashjit_prepare_options known;
    uint64_t unknown;
  } newer;
  flashjit_prepare_options options;
  flashjit_kernel* kernel = (flashjit_kernel*)&options;
  memset(&options, 0, sizeof options);
  EXPECT(flashjit_prepare(engine, spec, NULL, NULL, &error), FLASHJIT_INVALID, "kernel: null");
  EXPECT(flashjit_prepare(NULL, spec, NULL, &kernel, &error), FLASHJIT_INVALID, "neither may be null");
  CHECK(kernel == NULL);
  EXPECT(flashjit_prepare(engine, NULL, NULL, &kernel, &error), FLASHJIT_INVALID, "neither may be null");
  EXPECT(flashjit_prepare(engine, "", NULL, &kernel, &error), FLASHJIT_INVALID, "");
  EXPECT(flashjit_prepare(engine, "fwd bf16 d=banana heads=4", NULL, &kernel, &error), FLASHJIT_INVALID, "d");
  EXPECT(flashjit_prepare(engine, "\xff\xfe\x01", NULL, &kernel, &error), FLASHJIT_INVALID, "");
  EXPECT(flashjit_prepare(engine, spec, &options, &kernel, &error), FLASHJIT_INVALID, "flashjit_prepare_options");
  options.struct_size = sizeof options;
  options.schedule = "tile_q=banana";
  EXPECT(flashjit_prepare(engine, spec, &options, &kernel, &error), FLASHJIT_INVALID, "tile_q");
  CHECK(flashjit_prepare(engine, spec, &options, &kernel, NULL) == FLASHJIT_INVALID);
  CHECK(kernel == NULL);
  memset(&newer, 0, sizeof newer);
  newer.known.struct_size = sizeof newer;
  newer.unknown = 1;
  EXPECT(flashjit_prepare(engine, spec, &newer.known, &kernel, &error), FLASHJIT_UNSUPPORTED,
         "newer flashjit_prepare_options");
  {
    flashjit_error* error = NULL;
    CHECK(flashjit_prepare(engine, "fwd bf16 d=64 heads=4 mask=\"k <= \"", NULL, &kernel, &error) == FLASHJIT_INVALID);
    CHECK(strchr(flashjit_error_detail(error), '^') != NULL);
    flashjit_error_destroy(error);
  }
}

static void runs_refused(flashjit_kernel* kernel, int host) {
  static problem p;
#define REFUSED(field, value, words) \
  set_up(&p, host);                  \
  p.field = (value);                 \
  EXPECT(flashjit_run(kernel, &p.arguments, NULL, &error), FLASHJIT_INVALID, words)
  set_up(&p, host);
  EXPECT(flashjit_run(NULL, &p.arguments, NULL, &error), FLASHJIT_INVALID, "neither may be null");
  EXPECT(flashjit_run(kernel, NULL, NULL, &error), FLASHJIT_INVALID, "neither may be null");
  CHECK(flashjit_run(kernel, NULL, NULL, NULL) == FLASHJIT_INVALID);
  REFUSED(arguments.struct_size, 0, "struct_size: 0");
  REFUSED(arguments.struct_size, offsetof(flashjit_arguments, workspace) - 8, "sizeof(flashjit_arguments)");
  REFUSED(arguments.q, NULL, "q: missing");
  REFUSED(arguments.lse, NULL, "lse: missing");
  REFUSED(arguments.sink, &p.tensors[0], "sink: given");
  REFUSED(arguments.offsets_q, &p.tensors[0], "offsets_q");
  REFUSED(arguments.param_count, 0, "scalars.cap: missing");
  REFUSED(arguments.param_count, -1, "param_count: -1");
  REFUSED(arguments.sms, -1, "sms: -1");
  REFUSED(arguments.param_count, INT64_MAX, "a spec has at most 8");
  REFUSED(arguments.params, NULL, "params null");
  REFUSED(cap.name, NULL, "params[0].name: null");
  REFUSED(cap.name, "other", "params.other");
  REFUSED(cap.tensor, &p.tensors[0], "params.cap");
  REFUSED(tensors[0].data, NULL, "q.data: null");
  REFUSED(tensors[0].ndim, -1, "q.ndim: -1");
  REFUSED(tensors[0].ndim, 6, "q.ndim: 6");
  REFUSED(tensors[0].ndim, 5, "q.shape: 5 dimensions");
  REFUSED(tensors[0].ndim, 3, "q.shape: 3 dimensions");
  REFUSED(tensors[0].shape, NULL, "q.shape: null");
  REFUSED(tensors[0].dtype.bits, 8, "q.dtype");
  REFUSED(tensors[0].dtype.lanes, 2, "q.dtype");
  REFUSED(tensors[0].device.device_type, 10, "q.device: type 10");
  REFUSED(tensors[0].device.device_type, host ? 2 : 1, "q: lies in");
  REFUSED(tensors[0].byte_offset, 1, "q.data");
  REFUSED(tensors[0].byte_offset, UINT64_MAX - 15, "q.byte_offset: 18446744073709551600");
  REFUSED(tensors[0].byte_offset, UINT64_C(1) << 63, "q.byte_offset: 9223372036854775808");
  REFUSED(tensors[0].byte_offset, UINT64_C(1) << 57, "q.byte_offset: 144115188075855872");
  REFUSED(wide[3], D - 16, "d of the spec");
  REFUSED(wide[1], -1, "negative");
  REFUSED(wide[1], INT64_MAX, "2^56");
  if (!host) {
    REFUSED(tensors[0].device.device_id, 2, "lies on GPU 2");
  }
}

static void runs_with_many_params_refused(flashjit_kernel* kernel, int host) {
  static problem p;
  flashjit_param many[64];
  int i;
  memset(many, 0, sizeof many);
  for (i = 0; i < 64; ++i) many[i].name = "cap";
  set_up(&p, host);
  p.arguments.params = many;
  p.arguments.param_count = 2;
  EXPECT(flashjit_run(kernel, &p.arguments, NULL, &error), FLASHJIT_INVALID, "given twice");
  p.arguments.param_count = 64; /* more than 8 parameters and all operands */
  EXPECT(flashjit_run(kernel, &p.arguments, NULL, &error), FLASHJIT_INVALID, "at most 8");
}

/* A caller that was built with a later header: what it knows and this library does not must be zero. */
static void runs_of_newer_callers(flashjit_kernel* kernel, int host) {
  static problem p;
  struct {
    flashjit_arguments known;
    uint64_t unknown;
  } newer;
  set_up(&p, host);
  memset(&newer, 0, sizeof newer);
  newer.known = p.arguments;
  newer.known.struct_size = sizeof newer;
  CHECK(flashjit_run(kernel, &newer.known, NULL, NULL) == FLASHJIT_OK);
  newer.unknown = 1;
  EXPECT(flashjit_run(kernel, &newer.known, NULL, &error), FLASHJIT_UNSUPPORTED, "newer flashjit_arguments");
}

/* Every tensor can be given by its name instead of its field, and needs its field to be null then. */
static void operands_by_name(flashjit_kernel* kernel, int host) {
  static problem p;
  static const char* const names[] = {"q", "k", "v", "o", "lse"};
  flashjit_param by_name[6];
  int i;
  set_up(&p, host);
  memset(by_name, 0, sizeof by_name);
  for (i = 0; i < 5; ++i) by_name[i].name = names[i], by_name[i].tensor = &p.tensors[i];
  by_name[5] = p.cap;
  p.arguments.params = by_name;
  p.arguments.param_count = 6;
  EXPECT(flashjit_run(kernel, &p.arguments, NULL, &error), FLASHJIT_INVALID, "q: given twice");
  p.arguments.q = p.arguments.k = p.arguments.v = p.arguments.o = p.arguments.lse = NULL;
  CHECK(flashjit_run(kernel, &p.arguments, NULL, NULL) == FLASHJIT_OK);
  by_name[4].name = "q";
  EXPECT(flashjit_run(kernel, &p.arguments, NULL, &error), FLASHJIT_INVALID, "q: given twice");
  by_name[4].name = "sink";
  EXPECT(flashjit_run(kernel, &p.arguments, NULL, &error), FLASHJIT_INVALID, "lse: missing");
  by_name[4].name = "lse";
  by_name[4].tensor = NULL;
  EXPECT(flashjit_run(kernel, &p.arguments, NULL, &error), FLASHJIT_INVALID, "scalars.lse: it is a tensor");
}

/* No kernel of today asks for any; what is given all the same is left alone. */
static void workspace(flashjit_kernel* kernel, int host) {
  static problem p;
  int64_t bytes = -1;
  set_up(&p, host);
  CHECK(flashjit_workspace_bytes(kernel, &p.arguments, &bytes, NULL) == FLASHJIT_OK);
  CHECK(bytes == 0);
  EXPECT(flashjit_workspace_bytes(NULL, &p.arguments, &bytes, &error), FLASHJIT_INVALID, "none may be null");
  EXPECT(flashjit_workspace_bytes(kernel, NULL, &bytes, &error), FLASHJIT_INVALID, "none may be null");
  EXPECT(flashjit_workspace_bytes(kernel, &p.arguments, NULL, &error), FLASHJIT_INVALID, "none may be null");
  p.arguments.workspace = &p;
  p.arguments.workspace_bytes = 1;
  CHECK(flashjit_run(kernel, &p.arguments, NULL, NULL) == FLASHJIT_OK);
  p.arguments.struct_size = 0;
  EXPECT(flashjit_workspace_bytes(kernel, &p.arguments, &bytes, &error), FLASHJIT_INVALID, "struct_size: 0");
}

/* The first query sees the first key alone: its output is the first value, and its LSE the score. */
static void numbers_are_right(flashjit_kernel* kernel) {
  static problem p;
  int head, i;
  flashjit_error* error = (flashjit_error*)&p;
  set_up(&p, 1);
  CHECK(flashjit_run(kernel, &p.arguments, NULL, &error) == FLASHJIT_OK);
  CHECK(error == NULL);
  for (head = 0; head < HEADS; ++head) {
    double score = 0;
    for (i = 0; i < D; ++i) {
      CHECK(p.o[head * D + i] == p.v[head / 2 * D + i]);
      score += (double)p.q[head * D + i] * p.k[head / 2 * D + i];
    }
    CHECK(fabs(p.lse[head * TOKENS] - score / sqrt(32.0) * p.cap.scalar) < 1e-4);
  }
}

/* Keys are all alike and values rows of a unit matrix, so what comes out is the weights: those that the mask keeps,
 * whichever way the call gives its numbers. On the recording driver nothing is computed, and nobody reads a tensor. */
static void dropout(flashjit_engine* engine, int host) {
  static problem p;
  static unsigned char kept[HEADS * TOKENS * TOKENS];
  static char memory[1 << 20];
  int64_t one = 1, shape[4] = {1, HEADS, TOKENS, TOKENS}, numbers[2] = {-7, (int64_t)1 << 40}, bytes = 0;
  flashjit_tensor mask = tensor(kept, 4, shape, 1, 0), tensors[2];
  flashjit_prepare_options options;
  flashjit_kernel* kernel = NULL;
  flashjit_param params[2];
  int way, i, h, q, k;
  set_up(&p, host);
  memset(p.k, 0, sizeof p.k), memset(p.v, 0, sizeof p.v);
  for (i = 0; i < TOKENS * KV_HEADS; ++i) p.v[i * D + i / KV_HEADS] = 1;
  memset(&options, 0, sizeof options), memset(params, 0, sizeof params);
  options.struct_size = sizeof options;
  options.schedule = host ? NULL : "family=naive";
  p.arguments.lse = NULL;
  p.arguments.params = params;
  mask.dtype.code = 1, mask.dtype.bits = 8;
  CHECK(flashjit_prepare(engine, host ? "fwd fp32 d=32 heads=4/2 dropout=0.5" : "fwd bf16 d=32 heads=4/2 dropout=0.5",
                         &options, &kernel, NULL) == FLASHJIT_OK);
  CHECK(flashjit_dropout_mask(0.5, numbers[0], numbers[1], &mask, NULL) == FLASHJIT_OK);
  p.arguments.param_count = 0;
  EXPECT(flashjit_run(kernel, &p.arguments, NULL, &error), FLASHJIT_INVALID, "seed: missing");
  p.arguments.param_count = 2;
  p.arguments.workspace = memory + 256 - (size_t)memory % 256;
  p.arguments.workspace_bytes = sizeof memory - 256;
  for (way = 0; way < 2; ++way) {
    for (i = 0; i < 2; ++i) {
      tensors[i] = tensor(host ? &numbers[i] : (void*)4096, 1, &one, host, 0);
      tensors[i].dtype.code = 0, tensors[i].dtype.bits = 64;
      params[i].name = i == 0 ? "seed" : "offset";
      params[i].tensor = way == 0 ? &tensors[i] : NULL;
      params[i].scalar = (double)numbers[i];
    }
    CHECK(flashjit_workspace_bytes(kernel, &p.arguments, &bytes, NULL) == FLASHJIT_OK);
    CHECK(flashjit_run(kernel, &p.arguments, NULL, NULL) == FLASHJIT_OK);
    for (h = 0; host && h < HEADS; ++h)
      for (q = 0; q < TOKENS; ++q)
        for (k = 0; k < TOKENS; ++k)
          CHECK(fabs(p.o[(q * HEADS + h) * D + k] - kept[(h * TOKENS + q) * TOKENS + k] * 2.0 / TOKENS) < 1e-5);
  }
  params[0].scalar = 0.5;
  EXPECT(flashjit_run(kernel, &p.arguments, NULL, &error), FLASHJIT_INVALID, "scalars.seed: 0.5");
  EXPECT(flashjit_dropout_mask(1.5, 0, 0, &mask, &error), FLASHJIT_INVALID, "dropout: 1.5");
  EXPECT(flashjit_dropout_mask(0.5, 0, 0, NULL, &error), FLASHJIT_INVALID, "kept: missing");
  mask.dtype.bits = 16;
  EXPECT(flashjit_dropout_mask(0.5, 0, 0, &mask, &error), FLASHJIT_INVALID, "kept.dtype");
  flashjit_kernel_destroy(kernel);
}

int main(int argc, char** argv) {
  const int host = argc > 1 && strcmp(argv[1], "host") == 0;
  const char* const spec = host ? spec_host : spec_gpu;
  static problem p;
  flashjit_engine_options options;
  flashjit_prepare_options pins;
  flashjit_engine *engine = NULL, *other = NULL;
  flashjit_kernel *kernel = NULL, *again = NULL;
  flashjit_error* error = (flashjit_error*)&p;

  without_a_library_call();
  memset(&options, 0, sizeof options);
  options.struct_size = sizeof options;
  options.host = host;
  options.threads = 2;
  options.cache_max_bytes = (uint64_t)1 << 30;
  if (flashjit_engine_create(&options, &engine, &error) == FLASHJIT_NOT_FOUND) {
    printf("skipped: %s\n", flashjit_error_message(error));
    flashjit_error_destroy(error);
    return 77;
  }
  CHECK(engine != NULL && error == NULL);
  CHECK(strcmp(flashjit_engine_target(engine), "") != 0);
  engines_refused(options);
  structures_of_other_versions(options);
  prepares_refused(engine, spec);
  bounded_prepares(engine, spec, host);

  error = (flashjit_error*)&p;
  CHECK(flashjit_prepare(engine, spec, NULL, &kernel, &error) == FLASHJIT_OK);
  CHECK(error == NULL);
  memset(&pins, 0, sizeof pins);
  pins.struct_size = sizeof pins;
  CHECK(flashjit_prepare(engine, spec, &pins, &again, NULL) == FLASHJIT_OK);
  CHECK(strstr(flashjit_kernel_facts(kernel), "\"spec\": \"fwd ") != NULL);
  CHECK(strcmp(flashjit_kernel_facts(kernel), flashjit_kernel_facts(again)) == 0);
  flashjit_kernel_destroy(again);
  runs_refused(kernel, host);
  runs_with_many_params_refused(kernel, host);
  runs_of_newer_callers(kernel, host);
  operands_by_name(kernel, host);
  workspace(kernel, host);
  set_up(&p, host);
  CHECK(flashjit_run(kernel, &p.arguments, NULL, NULL) == FLASHJIT_OK);
  if (host) numbers_are_right(kernel);
  dropout(engine, host);
  if (!host) { /* null is the first GPU */
    CHECK(flashjit_engine_create(NULL, &other, &error) == FLASHJIT_OK);
    CHECK(strcmp(flashjit_engine_target(other), "sm_80") == 0);
    flashjit_engine_destroy(other);
  }
  flashjit_engine_destroy(engine);
  CHECK(flashjit_run(kernel, &p.arguments, NULL, NULL) == FLASHJIT_OK); /* kernels outlive their engine */
  flashjit_kernel_destroy(kernel);
  printf("%d failures\n", failures);
  return failures != 0;
}
