// What the store's fault tests share: a kernel, and children that may be limited and killed.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <new>
#include <string>
#include <thread>

#include "runtime/store/store.h"
#include "tests/store_fixture.h"

namespace flashjit {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

constexpr uid_t kOtherUser = 65534;
constexpr int kMayNotMount = 77;  // exit status of a child

// `ctest -C Long -L long` sets it: the same tests with more rounds.
inline bool is_long() { return getenv("FAULT_LONG") != nullptr; }

// After this a child is ended: what hangs is a failure.
inline unsigned child_seconds() { return is_long() ? 1800 : 120; }

// A number that children count in, too.
class SharedCounter {
 public:
  SharedCounter()
      : place_(mmap(nullptr, sizeof(std::atomic<int>), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)),
        value_(*new(place_) std::atomic<int>(0)) {}
  ~SharedCounter() { munmap(place_, sizeof(std::atomic<int>)); }
  SharedCounter(const SharedCounter&) = delete;
  SharedCounter& operator=(const SharedCounter&) = delete;
  std::atomic<int>* operator->() { return &value_; }
  int operator++() { return ++value_; }
  operator int() const { return value_; }
  // False if that does not come true within a minute.
  bool reaches(int value) const {
    for (int i = 0; i < 60'000 && value_ < value; ++i) std::this_thread::sleep_for(milliseconds(1));
    return value_ >= value;
  }

 private:
  void* place_;
  std::atomic<int>& value_;
};

class StoreFault : public StoreFolderTest {
 protected:
  static StoreEntry kernel(std::size_t bytes = 25000) {
    StoreEntry entry{.key_text = "", .facts = {{"registers", "128"}}, .payload = std::vector<std::uint8_t>(bytes)};
    for (std::size_t i = 0; i < bytes; ++i) entry.payload[i] = static_cast<std::uint8_t>(i * 31);
    return entry;
  }
  static Result<StoreEntry> make() { return kernel(); }

  // Children can be limited, be other users, and be killed. The exit status is what `body` returns, or 1000 + a signal.
  static pid_t start(const std::function<int()>& body) {
    const pid_t child = fork();
    if (child < 0) abort();  // kill(-1) would end everything
    if (child == 0) {
      alarm(child_seconds());
      _exit(body());
    }
    return child;
  }
  static int end_of(pid_t child) {
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
  }
  static int in_child(const std::function<int()>& body) { return end_of(start(body)); }
  static int as_user(uid_t user, const std::function<int()>& body) {
    return in_child([&] { return setgid(user) == 0 && setuid(user) == 0 ? body() : 99; });
  }

  // Everything still works, from memory, and one note says why, containing `words`.
  static int works_from_memory(const StoreOptions& options, const char* words) {
    KernelStore store(options);
    const auto first = store.fetch(key(), make);
    if (!first || first->entry->payload != kernel().payload) return 1;
    const auto second = store.fetch(key(), make);
    if (!second || std::string_view(second->source) != "memory") return 2;
    if (store.counters().not_persisted != 1) return 3;
    if (store.notes().size() != 1) return 4;
    if (store.notes()[0].find(words) == std::string::npos) {
      fprintf(stderr, "note: %s\n", store.notes()[0].c_str());
      return 5;
    }
    return 0;
  }
  bool is_on_disk(const StoreKey& key = StoreFault::key()) const {
    KernelStore store({.directory = store_path()});
    const auto fetched = store.fetch(key, must_not_make);
    return fetched && std::string_view(fetched->source) == "disk" && fetched->entry->payload == kernel().payload;
  }
  // What is in the store besides directories and the lock file.
  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::recursive_directory_iterator(store_path())) {
      if (!entry.is_directory() && entry.path().filename() != "lock") names.push_back(entry.path().filename());
    }
    return names;
  }
};

}  // namespace flashjit
