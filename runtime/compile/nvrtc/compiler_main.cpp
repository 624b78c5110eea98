// flashjit-compiler runs NVRTC in a process of its own. It reads one request from standard input, and writes one answer
// to standard output.
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "runtime/compile/nvrtc/compiler_process.h"
#include "runtime/store/entry.h"
#include "runtime/store/temporary_file.h"

namespace flashjit {
namespace {

std::vector<std::uint8_t> read_all(int file) {
  std::vector<std::uint8_t> bytes, chunk(std::size_t{1} << 16);
  while (bytes.size() <= kMaxEntryBytes) {
    const ssize_t got = read(file, chunk.data(), chunk.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    bytes.insert(bytes.end(), chunk.begin(), chunk.begin() + got);
  }
  return bytes;
}

Result<CompilerResult> compile(const CompilerRequest& request) {
  if (request.output == CompilerOutput::Identity) return Nvrtc::identify(request.nvrtc);
  FLASHJIT_ASSIGN(nvrtc, Nvrtc::open(request.nvrtc));
  if (nvrtc->identity() != request.identity) {
    return Error{ErrorKind::NotFound,
                 "isolate_compiler: " + request.nvrtc + " is another one by now: '" + nvrtc->identity() + "', not '" +
                     request.identity + "'; start the program again",
                 {}};
  }
  return nvrtc->run(request.source, request.options, request.output, {});
}

}  // namespace
}  // namespace flashjit

int main() {
  using namespace flashjit;
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // The thread that started us waits for the answer.
  // Nothing else may write to the answer, whatever a library prints.
  const int answers = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3), nowhere = open("/dev/null", O_RDWR | O_CLOEXEC);
  const auto request = decode_request(read_all(STDIN_FILENO));
  if (!request || answers < 0 || nowhere < 0) {
    fputs("flashjit-compiler is started by FlashJIT (isolate_compiler), and not by hand\n", stderr);
    return 2;
  }
  dup2(nowhere, STDIN_FILENO);
  dup2(nowhere, STDOUT_FILENO);
  // _exit() skips the clean-up of libraries, because only the answer matters.
  const std::vector<std::uint8_t> answer = encode(compile(*request));
  _exit(write_all(answers, answer.data(), answer.size()) ? 0 : 1);
}
