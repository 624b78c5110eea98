/* The functions that binaries have which are linked with an older C library (runtime/older_glibc.c), as on a machine whose glibc has
   none of them. */
#define _GNU_SOURCE
#include <dlfcn.h>
#define dlsym(handle, name) ((void)(name), (void*)0)
#include "runtime/older_glibc.c"
#undef dlsym
#include <stdio.h>
#include <sys/wait.h>

static int failed = 0;
#define EXPECT(condition) \
  if (!(condition)) failed = 1, fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition)

static int is_near(double a, double b) { return a - b < 1e-12 && b - a < 1e-12; }

static void numbers(void) {
  EXPECT(is_near(exp(1), 2.718281828459045));
  EXPECT(is_near(exp2(0.5), 1.4142135623730951));
  EXPECT(is_near(log(10), 2.302585092994046));
  EXPECT(is_near(log2(10), 3.321928094887362));
  EXPECT(is_near(pow(2, 0.25), 1.189207115002721));
  uint32_t bits = 0;
  for (int i = 0; i < 64; ++i) bits |= arc4random();
  EXPECT(bits == 0xffffffff);
}

static void names(void) {
  EXPECT(gettid() == getpid());
  EXPECT(strcmp(sigdescr_np(SIGSEGV), "Segmentation fault") == 0);
  EXPECT(strcmp(strerrordesc_np(ENOENT), "No such file or directory") == 0);
  EXPECT(mallinfo2().uordblks == 0);
}

static void waits_until_a_time(void) {
  pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  struct timespec begin, end, until;
  clock_gettime(CLOCK_MONOTONIC, &begin);
  until = begin;
  until.tv_nsec += 50000000;
  until.tv_sec += until.tv_nsec / 1000000000;
  until.tv_nsec %= 1000000000;
  pthread_mutex_lock(&mutex);
  EXPECT(pthread_cond_clockwait(&condition, &mutex, CLOCK_MONOTONIC, &until) == ETIMEDOUT);
  pthread_mutex_unlock(&mutex);
  clock_gettime(CLOCK_MONOTONIC, &end);
  EXPECT(nanoseconds(end) - nanoseconds(begin) > 45000000);
}

static void closes_files_of_a_process(void) {
  const int file = fcntl(open("/dev/null", O_RDONLY), F_DUPFD, 9);
  EXPECT(file >= 9);
  char test[64];
  snprintf(test, sizeof test, "! test -e /proc/$$/fd/%d", file);
  char* const arguments[] = {"sh", "-c", test, NULL};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  EXPECT(posix_spawn_file_actions_addclosefrom_np(&actions, 3) == 0);
  pid_t child = 0;
  int status = -1;
  EXPECT(posix_spawn(&child, "/bin/sh", &actions, NULL, arguments, environ) == 0);
  waitpid(child, &status, 0);
  EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  posix_spawn_file_actions_destroy(&actions);
  close(file);
}

/* As glibc's own, of a program and of a library. */
static void finds_objects(void) {
  int (*find)(void*, struct dl_find_object*) = dlsym(RTLD_NEXT, "_dl_find_object");
  void* const addresses[] = {(void*)(uintptr_t)finds_objects, dlsym(RTLD_NEXT, "strlen")};
  for (int i = 0; i < 2; ++i) {
    struct dl_find_object found, wanted;
    EXPECT(_dl_find_object(addresses[i], &found) == 0);
    if (!find || find(addresses[i], &wanted) != 0) continue;
    EXPECT(found.dlfo_eh_frame == wanted.dlfo_eh_frame);
    EXPECT(found.dlfo_map_start <= addresses[i] && found.dlfo_map_end > addresses[i]);
  }
  struct dl_find_object none;
  EXPECT(_dl_find_object(&none, &none) != 0);
}

int main(void) {
  numbers();
  names();
  waits_until_a_time();
  closes_files_of_a_process();
  finds_objects();
  return failed;
}
