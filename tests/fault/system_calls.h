// The system calls of the store, as a bad file system would answer them. This program has functions of their names,
// which the store, being linked into it, calls instead of those of libc. Only for children: nothing sets it back.
#pragma once

#include <sys/types.h>

#include <string>

namespace flashjit::system_calls {

// From now on the call fails with `error`: "mkdirat"; "openat", where it creates; "write"; "fsync"; "renameat";
// "fcntl", where it locks.
void fail(const std::string& call, int error);

inline bool rename_is_done = false;   // although it fails
inline bool short_transfers = false;  // read and write take at most half of what they are asked for
inline std::string hidden;            // a file name that is not seen until it is renamed to
inline off_t stale_size = -1;         // what fstat says of a regular file that is opened for reading

}  // namespace flashjit::system_calls
