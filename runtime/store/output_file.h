// Users name these files to be written: every output of the command, tuning records, dumps.
#pragma once

#include <sys/types.h>

#include <initializer_list>
#include <string>
#include <string_view>

#include "compiler/result.h"

namespace flashjit {

struct OutputMode {
  mode_t fresh = 0666;   // mode of a file that was not there, less the umask; a file that was there keeps its own
  mode_t forbidden = 0;  // bits that are taken away from either mode
  bool lasting = false;  // The file is on the disk when write_output returns, whatever happens to the machine.
};

// How a path is written depends on what is there. A new file, or one that replaces a file, is written all or nothing.
// The replaced file's owner and mode are kept, and a link goes on leading to it. A device, a pipe, a terminal or an
// open file of /proc is written to, and so is a file whose owner could not be kept, or in whose folder nothing can be
// made. Folders above the file are created.
Result<void> write_output(const std::string& path, std::initializer_list<std::string_view> chunks,
                          const OutputMode& mode = {});

// Reports before long work the errors that write_output would report after it, as far as they are known. Folders are
// created here, too.
Result<void> check_output(const std::string& path);

Result<void> make_folders_above(const std::string& path);

// `name` may have folders in it, which are created. No link is followed, so the folder may be one that others can
// write.
Result<void> write_beneath(int folder, std::string_view name, std::string_view text);

}  // namespace flashjit
