"""FlashJIT within another project, by add_subdirectory and by FetchContent: the project is made and so is what the library needs from its
own folders. All of the library is built by the other tests of this folder."""

import os
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "cli"))
import harness
from harness import Skip, scratch, source

PROJECT = """cmake_minimum_required(VERSION 3.25)
project(other LANGUAGES C CXX)
enable_testing()
{taken}
add_executable(program program.cpp)
target_link_libraries(program PRIVATE flashjit::flashjit)
add_executable(program_static program.cpp)
target_link_libraries(program_static PRIVATE flashjit::static)
file(WRITE ${{CMAKE_BINARY_DIR}}/build_type.txt "[${{CMAKE_BUILD_TYPE}}]")
"""
PROGRAM = b'#include "flashjit/flashjit.hpp"\nint main() { return flashjit::version()[0] == 0; }\n'
# What is made of files that lie elsewhere in the tree, and one file that includes headers of another folder.
PARTS = ("/codegen/embedded_templates.cpp", "/runtime/embedded_tuned_records.cpp", "/codegen/CMakeFiles/flashjit_codegen.dir/cuda/matrix.cpp.o")


def run(*command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=280, cwd=scratch(""))
    assert done.returncode == 0, f"$ {' '.join(command)}\nexit code {done.returncode}\n{done.stdout}"
    return done.stdout


def check_within(taken):
    if not shutil.which("ninja"):
        raise Skip("no Ninja on this machine")
    os.mkdir(scratch("other"))
    harness.write("other/CMakeLists.txt", PROJECT.format(taken=taken).encode())
    harness.write("other/program.cpp", PROGRAM)
    build = scratch("build")
    run("cmake", "-G", "Ninja", "-S", scratch("other"), "-B", build, "-DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON")
    targets = [line.split(":")[0] for line in run("ninja", "-C", build, "-t", "targets", "all").splitlines()]
    paths = [target for target in targets if target.endswith(PARTS) and not os.path.isabs(target)]
    assert len(paths) == len(PARTS), paths
    for target in [*paths, "CMakeFiles/program.dir/program.cpp.o", "CMakeFiles/program_static.dir/program.cpp.o"]:
        # The command alone: Ninja would build all that the target is linked with before.
        os.makedirs(os.path.join(build, os.path.dirname(target)), exist_ok=True)
        run("sh", "-c", f"cd {build} && {run('ninja', '-C', build, '-t', 'commands', '-s', target)}")

    commands = run("ninja", "-C", build, "-t", "commands", "program")
    assert "libflashjit.so" in commands.splitlines()[-1], commands.splitlines()[-1]
    assert "libflashjit_host.so" in commands or not any("libflashjit_host.so" in target for target in targets), "what the library opens is not built with it"
    # Neither the command nor tests are somebody else's, and neither its installed tree nor its build type is ours.
    ours = {"flashjit_command", "flashjit_tools", "unit_tests", "installable"} & set(targets)
    assert not ours, ours
    assert "Total Tests: 0" in run("ctest", "--test-dir", build, "-N")
    run("cmake", "--install", build, "--prefix", scratch("prefix"))
    assert not os.path.exists(scratch("prefix")), os.listdir(scratch("prefix"))
    with open(os.path.join(build, "build_type.txt"), encoding="utf-8") as file:
        assert file.read() == "[]"


def test_add_subdirectory():
    check_within(f'add_subdirectory("{source()}" flashjit)')


def test_fetch_content():
    check_within(f'include(FetchContent)\nFetchContent_Declare(flashjit SOURCE_DIR "{source()}")\nFetchContent_MakeAvailable(flashjit)')


if __name__ == "__main__":
    harness.main(globals())
