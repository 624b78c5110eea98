#include "runtime/compile/nvrtc/compiler_process.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "runtime/driver/dynamic_library.h"
#include "runtime/store/file_handle.h"
#include "runtime/store/entry.h"

namespace flashjit {
namespace {

constexpr const char* kProgram = "flashjit-compiler";
// No kernel takes this long. A compiler that does is taken to hang.
constexpr std::chrono::minutes kLongest{10};
constexpr std::chrono::seconds kEnding{2};  // The process has this long to end after its answer.
constexpr std::size_t kMostAnswer = kMaxEntryBytes + (std::size_t{64} << 20);

std::string why(int error) { return strerrordesc_np(error) ? strerrordesc_np(error) : fmt::format("error {}", error); }

class Child {
 public:
  explicit Child(pid_t pid) : pid_(pid) {}
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() {
    // A host that reaps all children may have taken this one. Then its number may belong to another process by now.
    if (is_there() && kill(pid_, SIGKILL) == 0) reap(0);
  }
  // Returns what became of the process, after waiting for kEnding at most.
  std::string ending() {
    const auto until = CompileBounds::Clock::now() + kEnding;
    while (is_there() && CompileBounds::Clock::now() < until) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    if (is_there()) return "closed its socket and went on";
    if (!known_) return "ended";
    if (WIFEXITED(status_)) return fmt::format("ended with status {}", WEXITSTATUS(status_));
    const int signal = WTERMSIG(status_);
    return fmt::format("was ended by signal {} ({}{})", signal, sigdescr_np(signal) ? sigdescr_np(signal) : "unknown",
                       signal == SIGKILL ? "; for want of memory?" : "");
  }

 private:
  bool is_there() {
    if (!gone_) reap(WNOHANG);
    return !gone_;
  }
  void reap(int how) {
    pid_t got;
    while ((got = waitpid(pid_, &status_, how)) < 0 && errno == EINTR) {
    }
    gone_ = got != 0;
    known_ = got == pid_;
  }
  const pid_t pid_;
  bool gone_ = false, known_ = false;
  int status_ = 0;
};

// Starts the program with the socket as its input and output, no other open file, and signals as a program expects
// them.
Result<pid_t> start(const std::string& program, int socket) {
  posix_spawn_file_actions_t files;
  posix_spawnattr_t attributes;
  if (posix_spawn_file_actions_init(&files) != 0 || posix_spawnattr_init(&attributes) != 0)
    return internal("posix_spawn: out of memory");
  posix_spawn_file_actions_adddup2(&files, socket, 0);
  posix_spawn_file_actions_adddup2(&files, socket, 1);
  posix_spawn_file_actions_addopen(&files, 2, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_addclosefrom_np(&files, 3);
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  std::string name = program;
  char* arguments[] = {name.data(), nullptr};
  pid_t pid = -1;
  const int error = posix_spawn(&pid, program.c_str(), &files, &attributes, arguments, environ);
  posix_spawn_file_actions_destroy(&files);
  posix_spawnattr_destroy(&attributes);
  if (error == 0) return pid;
  const bool lacks = error == EAGAIN || error == ENOMEM;
  return Error{
      lacks ? ErrorKind::Io : ErrorKind::NotFound,
      fmt::format("isolate_compiler: {} cannot be started: {}; {}", program, why(error),
                  lacks ? "free some memory or processes" : "install it again, or compile without isolate_compiler"),
      {}};
}

// Sends the request and reads the answer until the other side closes.
Result<void> talk(int socket, std::span<const std::uint8_t> request, std::vector<std::uint8_t>& answer,
                  const CompileBounds& bounds) {
  const CompileBounds longest(kLongest, nullptr);
  std::vector<std::uint8_t> chunk(std::size_t{1} << 16);
  while (answer.size() <= kMostAnswer) {
    for (const CompileBounds* limit : {&bounds, &longest}) {
      if (auto over = limit->over()) return std::move(*over);
    }
    pollfd wait = {socket, static_cast<short>(request.empty() ? POLLIN : POLLIN | POLLOUT), 0};
    if (poll(&wait, 1, static_cast<int>(bounds.slice(CompileBounds::kLook).count())) <= 0) continue;
    if ((wait.revents & POLLOUT) && !request.empty()) {
      const ssize_t sent = send(socket, request.data(), request.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent > 0) request = request.subspan(static_cast<std::size_t>(sent));
      // The process is gone. Its answer may still be there.
      if (sent < 0 && errno != EAGAIN && errno != EINTR) request = {};
      if (request.empty()) shutdown(socket, SHUT_WR);
    }
    if (wait.revents & (POLLIN | POLLHUP | POLLERR)) {
      const ssize_t got = recv(socket, chunk.data(), chunk.size(), MSG_DONTWAIT);
      if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) return {};
      if (got > 0) answer.insert(answer.end(), chunk.begin(), chunk.begin() + got);
    }
  }
  return {};
}

}  // namespace

Result<CompilerResult> run_compiler_process(const std::string& program, const CompilerRequest& request,
                                            const CompileBounds& bounds) {
  if (auto over = bounds.over()) return std::move(*over);
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) {
    return Error{ErrorKind::Io, fmt::format("isolate_compiler: no socket: {}", why(errno)), {}};
  }
  const FileHandle own(pair[0]);
  FileHandle other(pair[1]);
  FLASHJIT_ASSIGN(pid, start(program, other.get()));
  Child child(pid);
  other = FileHandle();
  std::vector<std::uint8_t> answer;
  FLASHJIT_TRY(talk(own.get(), encode(request), answer, bounds));
  if (auto decoded = decode_answer(answer)) return std::move(*decoded);
  return Error{ErrorKind::Compile,
               fmt::format("isolate_compiler: the compiler process {} after {} bytes of an answer that is not complete",
                           child.ending(), answer.size()),
               {}};
}

Result<std::string> find_compiler_program() {
  const std::string own = own_directory();
  std::vector<std::string> tried;
  for (const char* folder : {"", "/../bin", "/../libexec/flashjit", "/../../libexec/flashjit"}) {
    tried.push_back(fmt::format("{}{}/{}", own, folder, kProgram));
    if (access(tried.back().c_str(), X_OK) == 0) return tried.back();
  }
  return Error{
      ErrorKind::NotFound,
      fmt::format(
          "isolate_compiler: {} was not found; install it beside the library, or compile without isolate_compiler",
          kProgram),
      fmt::format("tried:\n  {}", fmt::join(tried, "\n  "))};
}

}  // namespace flashjit
