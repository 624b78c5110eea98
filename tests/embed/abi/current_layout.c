/* The header of today keeps what was in that of version 0.1: structures that are passed by pointer with their size may
 * have grown at the end, those without must be as they were. */
#include "flashjit/flashjit.h"

#define FIELD(type, field, offset) _Static_assert(offsetof(type, field) == offset, #type "." #field " has moved");
#define SIZE(type, bytes)                                                               \
  _Static_assert(FLASHJIT_GROWS_##type ? sizeof(type) >= bytes : sizeof(type) == bytes, \
                 #type " has another size than in version 0.1");
#define FLASHJIT_GROWS_flashjit_device 0
#define FLASHJIT_GROWS_flashjit_dtype 0
#define FLASHJIT_GROWS_flashjit_tensor 0
#define FLASHJIT_GROWS_flashjit_param 0
#define FLASHJIT_GROWS_flashjit_engine_options 1
#define FLASHJIT_GROWS_flashjit_prepare_options 1
#define FLASHJIT_GROWS_flashjit_arguments 1
#define FLASHJIT_GROWS_flashjit_counters 1
#include "tests/embed/abi/layout_0_1.inc"

_Static_assert(FLASHJIT_ABI_VERSION == 1,
               "a new ABI: programs have to be compiled anew, and these tests go with the old one");
_Static_assert(FLASHJIT_CANCELLED == 10 && FLASHJIT_BUCKETS == 32, "numbers that programs have compiled in");
