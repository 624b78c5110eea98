// This project, LLVM and the C++ runtime call these functions of glibc 2.29 to 2.36. Binaries that are linked with an
// older glibc (FLASHJIT_GLIBC) have them from here, and run from glibc 2.27 on. The machine's own function is called
// where that is better.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define HIDDEN __attribute__((visibility("hidden")))

// Returns the machine's own function, which is looked for once, or null if its glibc has none.
static void* own(const char* name, void** kept) {
  static char none;
  void* found = __atomic_load_n(kept, __ATOMIC_RELAXED);
  if (!found) {
    found = dlsym(RTLD_DEFAULT, name);
    __atomic_store_n(kept, found ? found : &none, __ATOMIC_RELAXED);
  }
  return found == &none ? NULL : found;
}

// Since 2.29 these functions set no errno. They are declared under other names with the symbol version that they are
// bound to, because this file would call itself otherwise.
#define OLDER(name, ...)            \
  double older_##name(__VA_ARGS__); \
  __asm__(".symver older_" #name "," #name "@GLIBC_2.2.5")
OLDER(exp, double);
OLDER(exp2, double);
OLDER(log, double);
OLDER(log2, double);
OLDER(pow, double, double);
HIDDEN double exp(double x) { return older_exp(x); }
HIDDEN double exp2(double x) { return older_exp2(x); }
HIDDEN double log(double x) { return older_log(x); }
HIDDEN double log2(double x) { return older_log2(x); }
HIDDEN double pow(double x, double y) { return older_pow(x, y); }

// Nobody would set it to 1 here, so counters of shared pointers are always atomic.
HIDDEN char __libc_single_threaded = 0;

HIDDEN pid_t gettid(void) { return (pid_t)syscall(SYS_gettid); }

HIDDEN const char* sigdescr_np(int signal) { return strsignal(signal); }
HIDDEN const char* strerrordesc_np(int error) {
  static _Thread_local char text[128];
  return strerror_r(error, text, sizeof text);
}

HIDDEN uint32_t arc4random(void) {
  uint32_t number = 0;
  if (getrandom(&number, sizeof number, 0) != sizeof number) abort();
  return number;
}

// LLVM calls it when its own statistics are wanted, which nobody can ask for here.
HIDDEN struct mallinfo2 mallinfo2(void) { return (struct mallinfo2){0}; }

static int64_t nanoseconds(struct timespec t) { return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec; }

// Without the function of 2.30 a wait is for a time of day. If somebody sets the clock meanwhile, it gets longer or
// shorter.
HIDDEN int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                                  const struct timespec* until) {
  static void* kept;
  int (*wait)(pthread_cond_t*, pthread_mutex_t*, clockid_t, const struct timespec*) =
      own("pthread_cond_clockwait", &kept);
  if (wait) return wait(condition, mutex, clock, until);
  struct timespec now, today;
  clock_gettime(clock, &now);
  clock_gettime(CLOCK_REALTIME, &today);
  const int64_t then = nanoseconds(today) + nanoseconds(*until) - nanoseconds(now);
  const struct timespec at = {then / 1000000000, then % 1000000000};
  return pthread_cond_timedwait(condition, mutex, &at);
}

// Files that are opened between this call and the start of the process stay open in it.
HIDDEN int posix_spawn_file_actions_addclosefrom_np(posix_spawn_file_actions_t* actions, int from) {
  static void* kept;
  int (*add)(posix_spawn_file_actions_t*, int) = own("posix_spawn_file_actions_addclosefrom_np", &kept);
  if (add) return add(actions, from);
  const int limit = (int)sysconf(_SC_OPEN_MAX);
  for (int file = from; file < limit && file < 65536; ++file) {
    if (fcntl(file, F_GETFD) < 0) continue;
    const int error = posix_spawn_file_actions_addclose(actions, file);
    if (error) return error;
  }
  return 0;
}

struct Search {
  uintptr_t address;
  struct dl_find_object* result;
};
static int look_into(struct dl_phdr_info* info, size_t size, void* data) {
  struct Search* const search = data;
  uintptr_t begin = UINTPTR_MAX, end = 0, frames = 0;
  int is_here = 0;
  (void)size;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)* const segment = &info->dlpi_phdr[i];
    const uintptr_t at = info->dlpi_addr + segment->p_vaddr;
    if (segment->p_type == PT_GNU_EH_FRAME) frames = at;
    if (segment->p_type != PT_LOAD) continue;
    is_here |= search->address >= at && search->address < at + segment->p_memsz;
    begin = at < begin ? at : begin;
    end = at + segment->p_memsz > end ? at + segment->p_memsz : end;
  }
  if (!is_here || frames == 0) return is_here ? -1 : 0;
  search->result->dlfo_map_start = (void*)begin;
  search->result->dlfo_map_end = (void*)end;
  search->result->dlfo_eh_frame = (void*)frames;
  return 1;
}
// The unwinder of GCC 12 calls this for every exception; nothing else does.
HIDDEN int _dl_find_object(void* address, struct dl_find_object* result) {
  static void* kept;
  int (*find)(void*, struct dl_find_object*) = own("_dl_find_object", &kept);
  if (find) return find(address, result);
  memset(result, 0, sizeof *result);
  struct Search search = {(uintptr_t)address, result};
  return dl_iterate_phdr(look_into, &search) > 0 ? 0 : -1;
}
