/* Attention in C, on tensors that came as DLPack's DLManagedTensor: what a framework hands over. Here a small producer
 * of our own makes them, in host memory. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "flashjit/flashjit.h"

/* As in dlpack.h, which a real program includes. */
typedef struct {
  void* data;
  struct {
    int32_t device_type, device_id;
  } device;
  int32_t ndim;
  struct {
    uint8_t code, bits;
    uint16_t lanes;
  } dtype;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
} DLTensor;
typedef struct DLManagedTensor {
  DLTensor dl_tensor;
  void* manager_ctx;
  void (*deleter)(struct DLManagedTensor* self);
} DLManagedTensor;

/* This is why a pointer to the one can be cast to a pointer to the other. */
typedef char same_layout[sizeof(DLTensor) == sizeof(flashjit_tensor) &&
                                 offsetof(DLTensor, shape) == offsetof(flashjit_tensor, shape) &&
                                 offsetof(DLTensor, byte_offset) == offsetof(flashjit_tensor, byte_offset) &&
                                 offsetof(DLTensor, dtype) == offsetof(flashjit_tensor, dtype)
                             ? 1
                             : -1];

enum { TOKENS = 40, HEADS = 4, KV_HEADS = 2, D = 32 };

static void delete_tensor(DLManagedTensor* self) {
  free(self->dl_tensor.data);
  free(self->dl_tensor.shape);
  free(self);
}

/* float [1, TOKENS, heads, D], element i being i % period */
static DLManagedTensor* produce(int64_t heads, int period) {
  DLManagedTensor* made = calloc(1, sizeof *made);
  int64_t* shape = malloc(4 * sizeof *shape);
  float* data = malloc((size_t)heads * TOKENS * D * sizeof *data);
  int64_t i;
  shape[0] = 1, shape[1] = TOKENS, shape[2] = heads, shape[3] = D;
  for (i = 0; i < heads * TOKENS * D; ++i) data[i] = (float)(i % period);
  made->dl_tensor.data = data;
  made->dl_tensor.device.device_type = 1;
  made->dl_tensor.ndim = 4;
  made->dl_tensor.dtype.code = 2;
  made->dl_tensor.dtype.bits = 32;
  made->dl_tensor.dtype.lanes = 1;
  made->dl_tensor.shape = shape;
  made->deleter = delete_tensor;
  return made;
}

static const flashjit_tensor* view(const DLManagedTensor* managed) {
  return (const flashjit_tensor*)&managed->dl_tensor;
}

static int fail(flashjit_status status, flashjit_error* error) {
  printf("%s: %s\n", flashjit_status_name(status), flashjit_error_message(error));
  flashjit_error_destroy(error);
  return status == FLASHJIT_NOT_FOUND ? 77 : 1;
}

int main(void) {
  flashjit_engine_options options = {0};
  flashjit_arguments arguments = {0};
  flashjit_engine* engine = NULL;
  flashjit_kernel* kernel = NULL;
  flashjit_error* error = NULL;
  flashjit_status status;
  DLManagedTensor *q, *k, *v, *o;
  const float* first;
  int wrong = 0, i;

  options.struct_size = sizeof options;
  options.host = 1;
  if ((status = flashjit_engine_create(&options, &engine, &error)) != FLASHJIT_OK) return fail(status, error);
  status = flashjit_prepare(engine, "fwd fp32 d=32 heads=4/2 mask=\"causal & window(16, 0)\"", NULL, &kernel, &error);
  if (status != FLASHJIT_OK) return fail(status, error);

  q = produce(HEADS, 3), k = produce(KV_HEADS, 2), v = produce(KV_HEADS, 7), o = produce(HEADS, 1);
  arguments.struct_size = sizeof arguments;
  arguments.q = view(q), arguments.k = view(k), arguments.v = view(v), arguments.o = view(o);
  status = flashjit_run(kernel, &arguments, NULL, &error);
  if (status != FLASHJIT_OK) return fail(status, error);

  first = o->dl_tensor.data; /* the first token sees itself alone */
  for (i = 0; i < D; ++i) wrong += first[i] != ((const float*)v->dl_tensor.data)[i];
  printf("%s: o[0] = %g, %d of %d wrong\n", flashjit_engine_target(engine), first[0], wrong, D);

  /* On a GPU: after the stream has finished. */
  q->deleter(q), k->deleter(k), v->deleter(v), o->deleter(o);
  flashjit_kernel_destroy(kernel);
  flashjit_engine_destroy(engine);
  return wrong != 0;
}
