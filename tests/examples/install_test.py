"""An installed copy, moved elsewhere, as somebody uses it who has nothing else of ours: CMake, pkg-config, ctypes, and what the
libraries show."""

import math
import operator
import os
import re
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "cli"))
import harness
from harness import Skip, scratch, source

PROJECT = os.path.join("runtime", "examples")


def run(*command, expect=0, **options):
    """What the command printed. Exit code 77 is a skip, and its last line the reason."""
    options.setdefault("cwd", scratch(""))
    environment = {k: v for k, v in os.environ.items() if k != "LD_LIBRARY_PATH"}
    environment.update(FLASHJIT_CACHE_DIR=scratch("store"), **options.pop("env", {}))
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=280, env=environment, **options)
    if done.returncode == 77 and expect == 0:
        raise Skip(done.stdout.strip().splitlines()[-1].removeprefix("skipped: "))
    assert done.returncode == expect, f"$ {' '.join(command)}\nexit code {done.returncode}\n{done.stdout}"
    return done.stdout


def installed():
    """A copy that is not where it was installed to."""
    run("cmake", "--install", harness.ARGS.build, "--prefix", scratch("first"))
    os.rename(scratch("first"), scratch("moved"))
    return scratch("moved")


def test_what_is_installed_is_what_tools_try_builds():
    build = harness.ARGS.build
    if not os.path.exists(os.path.join(build, "build.ninja")):
        raise Skip("not a build with Ninja")
    with open(source("tools", "try"), encoding="utf-8") as file:
        targets = re.search(r'^compile "\$build" (.*)$', file.read(), re.M).group(1).split()
    built = {os.path.relpath(os.path.join(build, word), build) for word in run("ninja", "-C", build, "-t", "commands", *targets).split()}
    made = {line.split(":")[0] for line in run("ninja", "-C", build, "-t", "targets", "all").splitlines()}
    wanted = set()
    for place, _, names in os.walk(build):
        if "cmake_install.cmake" in names:
            with open(os.path.join(place, "cmake_install.cmake"), encoding="utf-8") as file:
                wanted |= {os.path.relpath(path, build) for path in re.findall(r'"(/[^"\n]*)"', file.read()) if path.startswith(build + os.sep)}
    wanted &= made
    assert any(name.endswith("libflashjit.a") for name in wanted), wanted
    assert wanted <= built, f"tools/try does not build {sorted(wanted - built)}"


def test_what_is_installed_has_no_debug_information():
    prefix = installed()
    checked = 0
    for place, _, names in os.walk(prefix):
        for name in names:
            path = os.path.join(place, name)
            with open(path, "rb") as file:
                start = file.read(8)
            if start.startswith((b"!<arch>\n", b"\x7fELF")):
                checked += 1
                assert ".debug_" not in run("readelf", "-S", "--wide", path), f"{os.path.relpath(path, prefix)} has debug information"
    assert checked >= 4, f"{checked} libraries and programs"


def libraries(prefix):
    for place, _, names in os.walk(prefix):
        if "libflashjit.a" in names:
            return place
    raise AssertionError("libflashjit.a is not installed")


def api():
    """The names of the C functions, as the header declares them."""
    with open(source("runtime", "include", "flashjit", "flashjit.h"), encoding="utf-8") as file:
        return set(re.findall(r"^FLASHJIT_C_API .*?(flashjit_\w+)\(", file.read(), re.M))


def check_symbols(names):
    c_names = {name for name in names if not name.startswith("_Z")}
    assert c_names == api(), f"unlike the header: {sorted(c_names ^ api())}"
    # Engine, Kernel: members, vtables, type information; functions beside them.
    other = [name for name in names - c_names if not re.fullmatch(r"_ZNK?8flashjit6(Engine|Kernel)\w+|_ZT[VIS]N8flashjit6(Engine|Kernel)E|_ZN8flashjit(7versionEv|12dropout_maskEdllRKNS_6TensorE)", name)]
    assert not other, f"shown, and no part of the API: {other[:20]}"
    assert "_ZN8flashjit6Engine6createERKNS_13EngineOptionsE" in names


def test_the_libraries_show_the_api_and_nothing_else():
    place = libraries(installed())
    for flags, name in ((["-D"], "libflashjit.so"), ([], "libflashjit.a")):
        lines = run("nm", *flags, "--defined-only", "--extern-only", "--format=posix", os.path.join(place, name)).splitlines()
        check_symbols({line.split()[0].split("@")[0] for line in lines if len(line.split()) > 1})
    dynamic = run("readelf", "-d", os.path.join(place, "libflashjit.so"))
    with open(source("runtime", "include", "flashjit", "flashjit.h"), encoding="utf-8") as file:
        abi = re.search(r"FLASHJIT_ABI_VERSION (\d+)", file.read()).group(1)
    assert f"soname: [libflashjit.so.{abi}]" in dynamic, dynamic
    for absent in ("libcuda", "nvrtc", "LLVM"):
        assert absent not in dynamic, f"needs {absent}:\n{dynamic}"


def test_nothing_is_needed_but_what_every_c_program_has():
    prefix = installed()
    system = {"libc.so.6", "libm.so.6", "libstdc++.so.6", "libgcc_s.so.1", "ld-linux-x86-64.so.2"}
    checked = 0
    for place, _, names in os.walk(prefix):
        for name in names:
            path = os.path.join(place, name)
            with open(path, "rb") as file:
                if file.read(4) != b"\x7fELF":
                    continue
            needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", run("readelf", "-d", path)))
            assert needed and needed <= system, f"{name} needs {needed - system}"
            checked += 1
    assert checked >= 3, f"{checked} libraries and programs"
    for place, _, names in os.walk(os.path.join(libraries(prefix))):
        for name in names:
            if name.endswith((".cmake", ".pc")):
                with open(os.path.join(place, name), encoding="utf-8") as file:
                    assert "fmt" not in file.read(), name


def trained_losses(count, every):
    """Of the layer of train.cpp, trained by plain loops in float64: before step 0, `every` and so on."""
    tokens, heads, kv_heads, d, rate = 48, 4, 2, 16, 4
    x = [[math.sin(t * (t + 3) * 0.37 + i * (t % 7 + 1) * 1.3) for i in range(d)]
         + [2 * (math.sin if i % 2 else math.cos)(t * 0.6 ** (i // 2)) for i in range(d)] for t in range(tokens)]
    columns_of_x = list(zip(*x))

    def dot(a, b):
        return sum(map(operator.mul, a, b))

    def weighted(weights, rows):
        return [dot(weights, column) for column in zip(*rows)]

    # A column of weights for each column of Q, K and V.
    weights = {name: [[0.2 * math.sin((i * n * d + c) * 1.7 + (i * n * d + c) % 13 * salt) for i in range(2 * d)] for c in range(n * d)]
               for name, n, salt in (("q", heads, 3), ("k", kv_heads, 5), ("v", kv_heads, 7))}
    losses = []
    for step in range(count):
        # [head][token][column]
        rows = {name: [[[dot(row, column) for column in columns[h * d:h * d + d]] for row in x] for h in range(len(columns) // d)]
                for name, columns in weights.items()}
        slopes = {name: [[[0.0] * d for _ in x] for _ in of_heads] for name, of_heads in rows.items()}
        loss = 0.0
        for h in range(heads):
            hk = h // (heads // kv_heads)
            q, k, v, dq, dk, dv = rows["q"][h], rows["k"][hk], rows["v"][hk], slopes["q"][h], slopes["k"][hk], slopes["v"][hk]
            for t in range(tokens):
                p = [math.exp(dot(q[t], key) / math.sqrt(d)) for key in k[:t + 1]]
                p = [value / sum(p) for value in p]
                o = weighted(p, v[:t + 1])
                errors = [a - b for a, b in zip(o, x[max(t - 1, 0)])]
                loss += dot(errors, errors) / (2 * tokens * heads * d)
                do = [error / (tokens * heads * d) for error in errors]
                delta = dot(do, o)
                ds = [value * (dot(do, row) - delta) / math.sqrt(d) for value, row in zip(p, v)]
                dq[t] = weighted(ds, k[:t + 1])
                for j in range(t + 1):
                    dk[j] = [a + ds[j] * b for a, b in zip(dk[j], q[t])]
                    dv[j] = [a + p[j] * b for a, b in zip(dv[j], do)]
        if step % every == 0:
            losses.append(loss)
        for name, columns in weights.items():
            for c, column in enumerate(columns):
                slope = [row[c % d] for row in slopes[name][c // d]]
                columns[c] = [w - rate * dot(of_x, slope) for w, of_x in zip(column, columns_of_x)]
    return losses


def check_losses(out):
    """As long as a small error does not grow: later, where the loss falls fast, one of 1 in 1000 does."""
    losses = [float(loss) for loss in re.findall(r"^step +\d+: loss (\S+)$", out, re.M)]
    assert len(losses) == 10, out
    for step, (loss, wanted) in enumerate(zip(losses[:6], trained_losses(101, 20))):
        assert abs(loss - wanted) < 0.002 * wanted, f"step {20 * step}: {loss} and not {wanted}\n{out}"


def test_cmake_project():
    prefix = installed()
    run("cmake", "-S", source(PROJECT), "-B", scratch("project"), f"-DCMAKE_PREFIX_PATH={prefix}", "-DCMAKE_BUILD_TYPE=Release")
    run("cmake", "--build", scratch("project"))
    program = lambda name: scratch(os.path.join("project", name))
    assert "libflashjit" not in run("readelf", "-d", program("prefill_static"))
    assert "3 prompts" in run(program("prefill"))
    assert "2 sequences" in run(program("decode_loop"))
    check_losses(run(program("train")))
    run(program("dlpack"))
    # The host backend is a library of its own, which a program with everything in it finds as any other, and in its prefix.
    assert "3 prompts" in run(program("prefill_static"), env={"LD_LIBRARY_PATH": libraries(prefix)})
    shutil.copy(program("prefill_static"), os.path.join(prefix, "bin"))
    here = os.path.join(prefix, "bin", "prefill_static")
    harness.write("dlpack", b"a file of the name that the program was called by")
    assert "3 prompts" in run(here)
    assert "3 prompts" in run("dlpack", executable=here)
    lost = run(program("prefill_static"), expect=77)
    for says in ("libflashjit_host.so", scratch("project"), scratch("lib"), "LD_LIBRARY_PATH"):
        assert says in lost, lost


def test_cmake_project_in_c_alone():
    prefix = installed()
    os.mkdir(scratch("c"))
    harness.write("c/CMakeLists.txt", "cmake_minimum_required(VERSION 3.16)\nproject(c C)\nfind_package(flashjit REQUIRED COMPONENTS static)\n"
                  f"add_executable(shared {source(PROJECT, 'dlpack.c')})\ntarget_link_libraries(shared flashjit::flashjit)\n"
                  f"add_executable(static {source(PROJECT, 'dlpack.c')})\ntarget_link_libraries(static flashjit::static)\n".encode())
    run("cmake", "-S", scratch("c"), "-B", scratch("c/build"), f"-DCMAKE_PREFIX_PATH={prefix}")
    run("cmake", "--build", scratch("c/build"))
    for program in ("shared", "static"):
        run(scratch("c/build/" + program), env={"LD_LIBRARY_PATH": libraries(prefix)})


def test_a_component_that_is_not_there():
    prefix = installed()
    os.mkdir(scratch("wrong"))
    for component, says in (("static", None), ("shared", None), ("python", "no python")):
        harness.write("wrong/CMakeLists.txt", f"cmake_minimum_required(VERSION 3.16)\nproject(wrong CXX)\n"
                      f"find_package(flashjit REQUIRED COMPONENTS {component})\n".encode())
        out = run("cmake", "-S", scratch("wrong"), "-B", scratch("wrong-" + component), f"-DCMAKE_PREFIX_PATH={prefix}", expect=1 if says else 0)
        assert not says or says in out, out


def test_the_version_is_the_one_of_the_root():
    prefix = installed()
    with open(source("CMakeLists.txt"), encoding="utf-8") as file:
        version = re.search(r"^project\(flashjit VERSION (\S+)", file.read(), re.M).group(1)
    major, minor, _ = version.split(".")
    os.mkdir(scratch("asks"))
    for asked, code in ((version, 0), (f"{major}.{minor}", 0), (f"{major}.{int(minor) + 1}", 1)):
        harness.write("asks/CMakeLists.txt", f"cmake_minimum_required(VERSION 3.16)\nproject(asks CXX)\nfind_package(flashjit {asked} REQUIRED)\n".encode())
        out = run("cmake", "-S", scratch("asks"), "-B", scratch("asks-" + asked), f"-DCMAKE_PREFIX_PATH={prefix}", expect=code)
        assert code == 0 or f'version: {version}' in out, out
    assert os.path.basename(os.path.realpath(os.path.join(libraries(prefix), "libflashjit.so"))) == f"libflashjit.so.{version}"
    assert pkg_config(prefix, "--modversion") == [version]


def pkg_config(prefix, *options):
    if not shutil.which("pkg-config"):
        raise Skip("no pkg-config on this machine")
    return run("pkg-config", *options, "flashjit", env={"PKG_CONFIG_PATH": os.path.join(libraries(prefix), "pkgconfig")}).split()


def test_pkg_config():
    prefix = installed()
    flags = pkg_config(prefix, "--cflags", "--libs")
    run("cc", "-std=c99", "-Wall", "-Wextra", "-pedantic", "-Werror", source(PROJECT, "dlpack.c"), "-o", scratch("shared"), *flags)
    run(scratch("shared"), env={"LD_LIBRARY_PATH": libraries(prefix)})
    assert "-ldl" not in flags and "-ldl" in pkg_config(prefix, "--static", "--libs")
    os.mkdir(scratch("only-static"))
    shutil.copy(os.path.join(libraries(prefix), "libflashjit.a"), scratch("only-static"))
    flags = ["-L" + scratch("only-static"), *pkg_config(prefix, "--static", "--cflags", "--libs")]
    run("cc", "-std=c99", source(PROJECT, "dlpack.c"), "-o", scratch("static"), *flags)
    assert "libflashjit" not in run("readelf", "-d", scratch("static"))
    run(scratch("static"), env={"LD_LIBRARY_PATH": libraries(prefix)})


def test_specs_of_the_header_and_the_command():
    prefix = installed()
    with open(os.path.join(prefix, "include", "flashjit", "flashjit.hpp"), encoding="utf-8") as file:
        specs = [re.sub(r" {3,}.*", "", line) for line in re.findall(r"^//   (fwd .*)$", file.read(), re.M)]
    assert len(specs) >= 8, specs
    for spec in specs:
        run(os.path.join(prefix, "bin", "flashjit"), "explain", spec, "--arch", "sm_90a")


def example(name, *arguments):
    library = os.path.join(libraries(installed()), "libflashjit.so")
    places = os.pathsep.join((source("runtime", "python"), os.path.join(harness.ARGS.build, "python")))
    print(run(sys.executable, "-B", source(PROJECT, name), library, *arguments, env={"PYTHONPATH": places}))


def test_python_on_the_host():
    example("attention.py", "host")


def test_python_on_pytorch_tensors():
    example("attention.py", "torch")


def test_python_trains_on_documents_and_blocks():
    example("sparse.py", "700")


def test_python_decodes_from_indexer_to_output():
    example("indexed.py", "700")


if __name__ == "__main__":
    harness.main(globals())
