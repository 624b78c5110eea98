// flashjit: the command. One file per subcommand.
#include <csignal>
#include <cstdio>
#include <exception>
#include <new>

#include "flashjit/flashjit.hpp"
#include "tools/command/commands.h"
#include "tools/support/output.h"

namespace {

constexpr char kAbout[] =
    "FlashJIT: attention kernels, generated for exactly your problem and your GPU.\n"
    "\n"
    "A problem is one line, the spec:\n"
    "  'fwd bf16 d=128 heads=32/8 mask=\"causal & window(4096, 0)\" score=\"softcap(50)\"'\n";

constexpr char kFooter[] =
    "\nExamples:\n"
    "  flashjit doctor\n"
    "  flashjit explain 'fwd bf16 d=128 heads=32/8 mask=\"causal\"' --arch sm_90a --shape b=1,q=4096\n"
    "  flashjit compile 'fwd fp16 d=64 heads=16' --arch sm_80,sm_90a --out kernels\n"
    "  flashjit run 'fwd bf16 d=128 heads=32/8 mask=\"causal\"' --shape b=1,q=1024 --check\n"
    "\n"
    "Exit codes: 0 done, 1 refused or failed (the reason is on stderr), 2 wrong usage.\n"
    "Environment: FLASHJIT_CACHE_DIR FLASHJIT_JIT FLASHJIT_LOG FLASHJIT_DUMP_DIR FLASHJIT_TRUSTED_LIST FLASHJIT_NVRTC FLASHJIT_THREADS";

int run(int argc, char** argv) {
  using namespace flashjit;
  CLI::App app{kAbout, "flashjit"};
  app.footer(kFooter);
  app.require_subcommand(1);
  app.set_version_flag("--version", std::string("flashjit ") + version());
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::Throw);
  int exit_code = static_cast<int>(Exit::Done);
  add_compile(app, exit_code);
  add_explain(app, exit_code);
  add_run(app, exit_code);
  add_bench(app, exit_code);
  add_tune(app, exit_code);
  add_doctor(app, exit_code);
  add_cache(app, exit_code);
  add_build(app, exit_code);
  add_bundle(app, exit_code);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const bool asked = error.get_exit_code() == 0;  // --help, --version
    app.exit(error);
    return static_cast<int>(asked ? Exit::Done : Exit::Usage);
  }
  return exit_code;
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);  // a closed pipe is then an error of the write, with a message
  try {
    return run(argc, argv);
  } catch (const std::bad_alloc&) {
    std::fputs("error: out of memory; choose a smaller shape\n", stderr);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
  }
  return static_cast<int>(flashjit::Exit::Failed);
}
