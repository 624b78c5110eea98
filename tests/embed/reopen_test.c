/* The library opened, used, closed and opened again, as plug-ins have it; closed at last with an engine and kernel
 * still there. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "flashjit/flashjit.h"

typedef flashjit_status (*create_function)(const flashjit_engine_options*, flashjit_engine**, flashjit_error**);
typedef flashjit_status (*prepare_function)(flashjit_engine*, const char*, const flashjit_prepare_options*,
                                            flashjit_kernel**, flashjit_error**);
typedef const char* (*message_function)(const flashjit_error*);
typedef void (*destroy_kernel_function)(flashjit_kernel*);
typedef void (*destroy_engine_function)(flashjit_engine*);

/* ISO C has no way from an object pointer to a function pointer but its bytes. */
static int find(void* library, const char* name, void* function, size_t bytes) {
  void* symbol = dlsym(library, name);
  memcpy(function, &symbol, bytes);
  return symbol != NULL;
}

int main(int argc, char** argv) {
  int round;
  for (round = 0; round < 4; ++round) {
    flashjit_engine_options options;
    flashjit_engine* engine = NULL;
    flashjit_kernel* kernel = NULL;
    flashjit_error* error = NULL;
    create_function create;
    prepare_function prepare;
    message_function message;
    destroy_kernel_function destroy_kernel;
    destroy_engine_function destroy_engine;
    void* library = argc > 1 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    if (!library || !find(library, "flashjit_engine_create", &create, sizeof create) ||
        !find(library, "flashjit_prepare", &prepare, sizeof prepare) ||
        !find(library, "flashjit_error_message", &message, sizeof message) ||
        !find(library, "flashjit_kernel_destroy", &destroy_kernel, sizeof destroy_kernel) ||
        !find(library, "flashjit_engine_destroy", &destroy_engine, sizeof destroy_engine)) {
      printf("%s\n", dlerror());
      return 1;
    }
    memset(&options, 0, sizeof options);
    options.struct_size = sizeof options;
    options.host = round % 2; /* the recording driver, and the processor */
    if (create(&options, &engine, &error) != FLASHJIT_OK ||
        prepare(engine, options.host ? "fwd fp32 d=32 heads=2" : "fwd fp16 d=64 heads=2", NULL, &kernel, &error) !=
            FLASHJIT_OK) {
      printf("skipped: %s\n", message(error));
      return 77;
    }
    if (round < 3) {
      destroy_kernel(kernel);
      destroy_engine(engine);
    }
    dlclose(library);
  }
  return 0;
}
