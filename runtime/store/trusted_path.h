// A directory is trusted if nobody else could have put its contents there. A store holds code, so whoever can write it
// can run anything as this user. And whoever can write a directory on the way to it can put another one in its place.
#pragma once

#include <sys/types.h>

#include <string>

#include "compiler/result.h"
#include "runtime/store/file_handle.h"

namespace flashjit {

// Files are trusted if they belong to this user alone, or also if they belong to root.
enum class Trust { Own, OwnOrRoot };

bool is_trusted(uid_t owner, Trust trust);

// It is an error if somebody else owns it or can write to it. `path` is its name in the message.
Result<void> check_owner(int fd, const std::string& path, Trust trust);

// Returns a handle to the directory `path`, for openat(). Every directory and link on the way must be this user's or
// root's, and only they may be able to write it. A directory with the sticky bit, such as /tmp, is allowed, because
// others cannot replace what is there. The last directory follows check_owner(). `create` makes missing directories,
// with mode 0700. The error's message is fit for a note to the user.
Result<FileHandle> open_trusted(const std::string& path, Trust trust, bool create);

}  // namespace flashjit
