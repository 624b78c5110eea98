/* A program of version 0.1: compiled with the header of then, linked with the library of today, on the driver that only
 * records. Exit code 77: there is no NVRTC. */
#include <stdio.h>
#include <string.h>

#include "tests/embed/abi/flashjit_0_1.h"

#define FIELD(type, field, offset) _Static_assert(offsetof(type, field) == offset, #type "." #field);
#define SIZE(type, bytes) _Static_assert(sizeof(type) == bytes, #type);
#include "tests/embed/abi/layout_0_1.inc"

static int failures = 0;

#define CHECK(condition)                                             \
  do {                                                               \
    if (!(condition)) {                                              \
      printf("%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
      ++failures;                                                    \
    }                                                                \
  } while (0)

enum { TOKENS = 3, HEADS = 4, KV_HEADS = 2, D = 32 };

/* What lies behind a structure in the memory of the program: nothing may read or write it. */
typedef struct guarded_arguments {
  flashjit_arguments is;
  uint8_t guard[64];
} guarded_arguments;
typedef struct guarded_counters {
  flashjit_counters is;
  uint8_t guard[64];
} guarded_counters;

static int untouched(const uint8_t* guard) {
  int i;
  for (i = 0; i < 64; ++i)
    if (guard[i] != 0xa5) return 0;
  return 1;
}

static flashjit_tensor tensor(void* data, int32_t ndim, int64_t* shape, uint8_t code, uint8_t bits) {
  flashjit_tensor made;
  memset(&made, 0, sizeof made);
  made.data = data;
  made.device.device_type = 2;
  made.ndim = ndim;
  made.dtype.code = code, made.dtype.bits = bits, made.dtype.lanes = 1;
  made.shape = shape;
  return made;
}

static void run(flashjit_kernel* kernel) {
  static char memory[4][TOKENS * HEADS * D * 2], lse[HEADS * TOKENS * 4];
  int64_t wide[4] = {1, TOKENS, HEADS, D}, narrow[4] = {1, TOKENS, KV_HEADS, D}, rows[3] = {1, HEADS, TOKENS};
  flashjit_tensor q = tensor(memory[0], 4, wide, 4, 16), k = tensor(memory[1], 4, narrow, 4, 16);
  flashjit_tensor v = tensor(memory[2], 4, narrow, 4, 16), o = tensor(memory[3], 4, wide, 4, 16);
  flashjit_tensor l = tensor(lse, 3, rows, 2, 32);
  flashjit_param cap = {"cap", NULL, 2};
  guarded_arguments arguments;
  flashjit_error* error = NULL;
  memset(&arguments, 0xa5, sizeof arguments);
  memset(&arguments.is, 0, sizeof arguments.is);
  arguments.is.struct_size = sizeof arguments.is;
  arguments.is.q = &q, arguments.is.k = &k, arguments.is.v = &v, arguments.is.o = &o, arguments.is.lse = &l;
  arguments.is.params = &cap;
  arguments.is.param_count = 1;
  if (flashjit_run(kernel, &arguments.is, NULL, &error) != FLASHJIT_OK) {
    printf("run: %s\n", flashjit_error_message(error));
    ++failures;
  }
  flashjit_error_destroy(error);
  CHECK(untouched(arguments.guard));
  arguments.is.lse = NULL;
  CHECK(flashjit_run(kernel, &arguments.is, NULL, NULL) == FLASHJIT_INVALID);
  arguments.is.struct_size -= 8; /* smaller than any version had it */
  CHECK(flashjit_run(kernel, &arguments.is, NULL, NULL) == FLASHJIT_INVALID);
}

static void count(flashjit_engine* engine) {
  guarded_counters counters;
  memset(&counters, 0xa5, sizeof counters);
  counters.is.struct_size = sizeof counters.is;
  CHECK(flashjit_engine_counters(engine, &counters.is, NULL) == FLASHJIT_OK);
  CHECK(counters.is.struct_size == sizeof counters.is);
  CHECK(counters.is.memory_hits == 1);
  CHECK(counters.is.replaced_kernels == 0);
  CHECK(counters.is.compile_us[FLASHJIT_BUCKETS - 1] >= 0);
  CHECK(untouched(counters.guard));
  counters.is.struct_size -= 8;
  CHECK(flashjit_engine_counters(engine, &counters.is, NULL) == FLASHJIT_INVALID);
}

int main(void) {
  static const char spec[] = "fwd bf16 d=32 heads=4/2 mask=\"causal\" score=\"s * cap\" params=\"cap: fp32\" lse=ln";
  flashjit_engine_options options;
  flashjit_prepare_options pins;
  flashjit_engine* engine = NULL;
  flashjit_kernel *kernel = NULL, *again = NULL;
  flashjit_error* error = NULL;
  CHECK(flashjit_abi_version() == FLASHJIT_ABI_VERSION);
  memset(&options, 0, sizeof options);
  options.struct_size = sizeof options;
  if (flashjit_engine_create(&options, &engine, &error) == FLASHJIT_NOT_FOUND) {
    printf("skipped: %s\n", flashjit_error_message(error));
    flashjit_error_destroy(error);
    return 77;
  }
  CHECK(engine != NULL && error == NULL);
  memset(&pins, 0, sizeof pins);
  pins.struct_size = sizeof pins;
  CHECK(flashjit_prepare(engine, spec, &pins, &kernel, NULL) == FLASHJIT_OK);
  CHECK(flashjit_prepare(engine, spec, &pins, &again, NULL) == FLASHJIT_OK);
  flashjit_kernel_destroy(again);
  run(kernel);
  count(engine);
  flashjit_kernel_destroy(kernel);
  flashjit_engine_destroy(engine);
  printf("%d failures\n", failures);
  return failures != 0;
}
