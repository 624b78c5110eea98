/* What a hint may change, in C: on an H100 a kernel that needs a workspace, for those alone who say that they bring one. On
 * the recording driver. Exit code 77: the machine lacks what is needed. */
#include <stdio.h>
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

/* `number`: of the tensor, each at an address of its own, where nothing is read. */
static flashjit_tensor bf16(int number, int64_t* shape) {
  flashjit_tensor made;
  memset(&made, 0, sizeof made);
  made.data = (void*)(uintptr_t)(0x10000000 * (number + 1));
  made.device.device_type = 2;
  made.device.device_id = 1;
  made.ndim = 4;
  made.dtype.code = 4, made.dtype.bits = 16, made.dtype.lanes = 1;
  made.shape = shape;
  return made;
}

int main(void) {
  static int64_t few[4] = {1, 256, 8, 64}, many[4] = {1, 32768, 1, 64};
  flashjit_engine_options options;
  flashjit_prepare_options hint;
  flashjit_arguments arguments;
  flashjit_tensor q, k, v, o;
  flashjit_engine* engine = NULL;
  flashjit_error* error = NULL;
  int64_t bytes[2] = {-1, -1};
  int brings;
  memset(&options, 0, sizeof options);
  options.struct_size = sizeof options;
  options.ordinal = 1;
  if (flashjit_engine_create(&options, &engine, &error) == FLASHJIT_NOT_FOUND) {
    printf("skipped: %s\n", flashjit_error_message(error));
    flashjit_error_destroy(error);
    return 77;
  }
  CHECK(engine != NULL);
  memset(&arguments, 0, sizeof arguments);
  arguments.struct_size = sizeof arguments;
  q = bf16(0, few), k = bf16(1, many), v = bf16(2, many), o = bf16(3, few);
  arguments.q = &q, arguments.k = &k, arguments.v = &v, arguments.o = &o;
  memset(&hint, 0, sizeof hint);
  hint.struct_size = sizeof hint;
  hint.shape = "b=1,q=256,k=32768";
  for (brings = 0; brings < 2; ++brings) {
    flashjit_kernel* kernel = NULL;
    flashjit_status run;
    hint.workspace = brings;
    CHECK(flashjit_prepare(engine, "fwd bf16 d=64 heads=8/1", &hint, &kernel, NULL) == FLASHJIT_OK);
    CHECK(flashjit_workspace_bytes(kernel, &arguments, &bytes[brings], NULL) == FLASHJIT_OK);
    run = flashjit_run(kernel, &arguments, NULL, &error);
    CHECK(run == (brings ? FLASHJIT_INVALID : FLASHJIT_OK));
    if (brings) CHECK(strstr(flashjit_error_message(error), "workspace: missing") != NULL);
    flashjit_error_destroy(error);
    error = NULL;
    flashjit_kernel_destroy(kernel);
  }
  CHECK(bytes[0] == 0 && bytes[1] > 0);
  flashjit_engine_destroy(engine);
  if (failures == 0) printf("as it should be\n");
  return failures != 0;
}
