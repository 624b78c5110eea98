// Files that a user names to be written: every output of the command, tuning records, dumps.
#pragma once

#include <sys/types.h>

#include <initializer_list>
#include <string>
#include <string_view>

#include "compiler/result.h"

namespace flashjit {

struct OutputMode {
  mode_t fresh = 0666;   // of a file that was not there, less the umask; one that was there keeps its own
  mode_t forbidden = 0;  // taken away from either
  bool lasting = false;  // on the disk when this returns, whatever happens to the machine
};

// The way of writing depends on what is at the path. A new file, or one that replaces a file, is written all or
// nothing, with the owner and the mode of the old one, and a link goes on leading to it. A device, a pipe, a terminal
// or an open file of /proc is written to, and so is a file whose owner could not be kept, or in whose folder nothing
// can be made. Folders above the file are created.
Result<void> write_output(const std::string& path, std::initializer_list<std::string_view> chunks,
                          const OutputMode& mode = {});

// Says before long work what write_output would say behind it, as far as that is known. Folders are created here, too.
Result<void> check_output(const std::string& path);

Result<void> make_folders_above(const std::string& path);

// `name` may have folders in it, which are created. For folders that others can write too: no link is followed.
Result<void> write_beneath(int folder, std::string_view name, std::string_view text);

}  // namespace flashjit
