"""Runs a test in a child of a process that has imported PyTorch: python3 forked.py SCRIPT TEST --source ... --build ...

All tests of one ctest have that process in common, because importing takes longer than most of them. The first to come starts it, and it
ends with ctest. A child is alone with all else: with its memory, its engines and its scratch folder, with the environment, the output
and the life of whoever asked for it. Until a child is made nothing runs but imports, so that no thread is lost and nothing of a GPU."""

import fcntl
import json
import os
import runpy
import select
import signal
import socket
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "cli"))
import harness

IMPORTED = ("numpy", "torch", "torch._dynamo", "transformers")  # flashjit.torch imports the first three


def ask(caller):
    """A connection to the process that imports for this ctest, and if need be that process. None in its children, which run tests."""
    name = f"forked.{caller}"  # in the working directory, which ctest makes that of the tests' folder
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with open("forked.lock", "w", encoding="utf-8") as lock:  # two tests may be the first
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            connection.connect(name)
            return connection
        except OSError:  # there is none, or what is left of another whose number this ctest has now
            if os.path.exists(name):
                os.unlink(name)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(name)
        listener.listen()
        if os.fork() != 0:
            listener.close()
            connection.connect(name)
            return connection
    connection.close()
    serve(listener, caller)
    return None


def serve(listener, caller):
    """Returns in children, to run their test."""
    os.setsid()
    ended = os.pidfd_open(caller)
    with open(os.devnull, "r+b") as nothing:  # ctest waits for whoever may still say something
        for stream in range(3):
            os.dup2(nothing.fileno(), stream)
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # NumPy's starts threads when it is imported, and a child has none of them
    for name in IMPORTED:
        try:
            harness.find(name)
        except Exception:  # the test that imports it says so
            pass
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while listener in select.select([listener, ended], [], [])[0]:
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            os.close(ended)
            attend(connection)
            return
        connection.close()
    os.unlink(listener.getsockname())
    os._exit(0)


def attend(connection):
    """Returns in a child, with everything that was sent. The process around it says how the child ended, and kills it if nobody waits."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    request, streams, _, _ = socket.recv_fds(connection, 1 << 20, 3)
    child = os.fork()
    if child == 0:
        connection.close()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        folder, environment, sys.argv = json.loads(request)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        return
    if connection in select.select([os.pidfd_open(child), connection], [], [])[0]:
        os.killpg(0, signal.SIGKILL)
    connection.send(str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])).encode())
    os._exit(0)


def main():
    del sys.argv[0]
    harness.ARGS = harness.arguments()
    connection = ask(os.getppid())
    if connection is None:
        sys.path[0] = os.path.dirname(sys.argv[0])
        runpy.run_path(sys.argv[0], run_name="__main__")
        return
    request = json.dumps([os.getcwd(), dict(os.environ), sys.argv])
    socket.send_fds(connection, [request.encode()], [0, 1, 2])
    code = connection.recv(16)
    if not code:
        sys.exit("the process that imports for all tests has ended")
    if int(code) < 0:
        os.kill(os.getpid(), -int(code))
    sys.exit(int(code))


if __name__ == "__main__":
    main()
