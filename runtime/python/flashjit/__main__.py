"""python -m flashjit runs the command line."""

import os
import sys

from flashjit.capi import FlashJitError
from flashjit.command import path_of_command


def main() -> None:
    try:
        path = path_of_command()
    except FlashJitError as error:
        sys.exit(f"error: {error}")
    os.execv(path, [path, *sys.argv[1:]])


if __name__ == "__main__":
    main()
