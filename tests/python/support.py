"""What the tests of the Python package share."""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "cli"))
import harness
from harness import Skip, find, scratch, source

def load(*modules, device="host"):
    """The package on the library of this build, with a store of its own, and these modules; for this device."""
    sys.path.insert(0, source("runtime", "python"))
    os.environ["FLASHJIT_CACHE_DIR"] = scratch("store")
    found = [find(name) for name in modules]
    import flashjit
    try:  # with sanitizers this Python cannot load it
        flashjit.use_library(os.path.join(harness.ARGS.build, "lib", "libflashjit.so"))
        flashjit.Engine(device)
    except flashjit.MissingError as error:
        raise Skip(str(error)) from None
    return [flashjit, *found]


def refused(error, says, function, *arguments, **named):
    """The call must raise `error` with these words."""
    try:
        function(*arguments, **named)
    except error as raised:
        for text in [says] if isinstance(says, str) else says:
            assert text in str(raised), f"'{raised}' does not say '{text}'"
        return
    raise AssertionError(f"{function} accepted what is wrong: no '{says}'")
