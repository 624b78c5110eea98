#include "tools/manual/pages.h"

namespace flashjit {
namespace {

constexpr Meaning kExitCodes[] = {
    {"0", "done"}, {"1", "refused or failed (the reason is on stderr)"}, {"2", "wrong usage"}};

// runtime/OBSERVE.md describes the library's variables at length. Only the command reads the last two.
constexpr Meaning kVariables[] = {
    {"FLASHJIT_CACHE_DIR",
     "The kernel store: a directory, then, behind ':', shared ones that are only read. Where it is not set, the store is "
     "$XDG_CACHE_HOME/flashjit, or ~/.cache/flashjit."},
    {"FLASHJIT_JIT", "'off': kernels come from bundles alone, and no compiler is opened."},
    {"FLASHJIT_BUNDLES", "Bundles to take kernels of GPUs from, with ':' between them, where no '--bundle' is given."},
    {"FLASHJIT_RECORD", "A manifest to which each spec that is made ready is added, where no '--record' is given."},
    {"FLASHJIT_LOG", "A file, or 'stderr', to which a line is added for each kernel that is made ready."},
    {"FLASHJIT_DUMP_DIR", "A folder that gets everything that is generated, in a folder for each kernel."},
    {"FLASHJIT_TRUSTED_LIST", "A file with the digests that bundles and shared kernels must have to be used."},
    {"FLASHJIT_NVRTC", "The NVRTC library, or the folder that holds it."},
    {"FLASHJIT_LINE_INFO", "'on': code of GPUs names the lines of its source, which profilers show."},
    {"FLASHJIT_THREADS", "How many threads a kernel of a processor has; without it, as many as there are cores."},
    {"COLUMNS", "How wide help is; without it, as wide as the terminal, and 100 columns where there is none."},
    {"NO_COLOR", "Set to anything, headings of help are not bold."},
};

}  // namespace

std::span<const Meaning> exit_codes() { return kExitCodes; }
std::span<const Meaning> variables() { return kVariables; }

}  // namespace flashjit
