// The static objects of LLVM, which is linked into this library, are never destroyed: exit() would do that while other
// threads may be compiling. Within the library this function takes the place of that of libc; the library itself is
// never closed.
extern "C" __attribute__((visibility("hidden"))) int __cxa_atexit(void (*)(void*), void*, void*) { return 0; }
