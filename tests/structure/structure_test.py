"""What the tree promises about itself: the direction of dependencies, purity of the compiler, sound scripts."""

import ast
import json
import os
import re
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "cli"))
import harness
from harness import source

ORDER = ["templates", "compiler", "codegen", "runtime", "autotune", "tools"]
# What stands for runtime/include/flashjit.
EXTRA = {"tools": {"flashjit/"}, "runtime": {"flashjit/"}, "autotune": {"flashjit/"}}
# The compiler is a pure function: no files, clock, environment, threads; templates are compiled by NVRTC without any header.
IMPURE = {"filesystem", "fstream", "chrono", "thread", "mutex", "atomic", "random", "iostream", "cstdlib", "cstdio", "ctime", "unistd.h", "dlfcn.h"}


def files(*endings):
    for folder in ORDER + ["tests"]:
        for place, _, names in os.walk(source(folder)):
            for name in sorted(names):
                if name.endswith(endings):
                    path = os.path.join(place, name)
                    with open(path, encoding="utf-8") as file:
                        yield os.path.relpath(path, source()), folder, file.read()


def includes(text):
    return re.findall(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', text, re.M)


def report(problems):
    assert not problems, "\n".join(problems)


def test_direction_of_includes():
    problems = []
    for path, folder, text in files(".h", ".hpp", ".cpp", ".cuh"):
        for kind, name in includes(text):
            if ".." in name.split("/"):
                problems.append(f'{path} includes "{name}": name headers from the root, folder/file.h')
            other = name.split("/")[0]
            if folder == "tests" or kind == "<" or any(name.startswith(extra) for extra in EXTRA.get(folder, ())):
                continue
            if other in ORDER and ORDER.index(other) > ORDER.index(folder):
                problems.append(f'{path} includes "{name}": {folder} may not use {other}')
            if other == "tests":
                problems.append(f'{path} includes "{name}": only tests use tests')
    report(problems)


def test_templates_need_no_header():
    report([f"{path} includes <{name}>" for path, folder, text in files(".h", ".cuh") if folder == "templates"
            for kind, name in includes(text) if kind == "<" or not (name.startswith("templates/") or name.endswith(".gen.cuh"))])


def test_compiler_is_pure():
    report([f"{path} includes <{name}>: the compiler has no files, clock, threads or environment" for path, folder, text in files(".h", ".cpp")
            if folder == "compiler" for kind, name in includes(text) if name in IMPURE])


def test_llvm_only_in_host_backend():
    report([f"{path} includes {name}" for path, folder, text in files(".h", ".cpp") for kind, name in includes(text)
            if name.startswith("llvm") and not path.startswith(("codegen/host/", "tests/host_check/"))])


def test_environment_is_read_in_one_place():
    allowed = {"runtime/engine/environment.cpp", "tools/command/doctor.cpp",
               "tools/support/output.cpp"}  # what there is to know of a terminal: COLUMNS, NO_COLOR, TERM
    report([f"{path} reads the environment" for path, folder, text in files(".h", ".cpp") if folder != "tests" and path not in allowed
            and re.search(r"\b(secure_)?getenv\s*\(", text)])


def test_nothing_is_started_or_loaded_by_name_of_a_file():
    """No shell, and no file of a store is ever opened as a library (object files of host kernels are linked by LLVM once the store has found them
    sound): the libraries that are opened are the driver, NVRTC and the host backend, and NVML for the clock and the temperature of a GPU."""
    shell = re.compile(r"\b(?:std::)?(system|popen|execlp?e?|execvpe?|wordexp)\s*\(")
    opening = {"runtime/driver/dynamic_library.h", "runtime/driver/dynamic_library.cpp", "runtime/compile/nvrtc/compiler_process.cpp", "runtime/driver/driver.cpp", "runtime/compile/nvrtc/nvrtc.cpp", "runtime/engine/host_library.cpp",
               "autotune/measure/gpu_monitor.cpp"}
    code = [(path, text) for path, folder, text in files(".h", ".hpp", ".cpp") if folder != "tests"]
    report([f"{path}: {shell.search(text).group(1)}" for path, text in code if shell.search(text)]
           + [f"{path} opens libraries" for path, text in code if path not in opening and re.search(r"\bdlm?open\s*\(|dynamic_library\.h", text)])


def test_messages_leave_in_one_place():
    """There they are made harmless: output.cpp. flashjit-compiler has one message, without any text of a user."""
    allowed = {"tools/support/output.cpp", "runtime/compile/nvrtc/compiler_main.cpp"}
    leaving = re.compile(r"\b(stdout|stderr|std::cout|std::cerr|fmt::print|f?printf|puts|STD(OUT|ERR)_FILENO)\b")
    problems = []
    for path, folder, text in files(".h", ".hpp", ".cpp"):
        if folder in ("tests", "templates") or path in allowed or path.startswith("runtime/examples/"):
            continue
        text = re.sub(r'"(\\.|[^"\\\n])*"', '""', without_comments(text))
        found = leaving.search(text)
        if found and not (path == "runtime/engine/prepare_log.cpp" and found.group(0) == "STDERR_FILENO"):  # FLASHJIT_LOG=stderr
            problems.append(f"{path}: {found.group(0)}")
    report(problems)


def test_threads_are_made_in_one_place():
    """Without the program's signals and floating point: library_thread.h. Who makes one otherwise holds signals off."""
    making = re.compile(r"\bstd::j?thread\s*[({]|\bpthread_create\(|\bstd::async\(|thread\w*\.emplace_back\(|(workers|others|running|touching)\.emplace_back\(")
    report([f"{path}: {making.search(without_comments(text)).group(0)}" for path, folder, text in files(".h", ".hpp", ".cpp")
            if folder in ("codegen", "runtime", "autotune") and path != "runtime/launch/library_thread.h" and not path.startswith("runtime/examples/")
            and making.search(without_comments(text)) and "SignalsHeldOff" not in text])


def test_files_are_replaced_in_one_place():
    """Under names that nobody can foretell: temporary_file.cpp."""
    replacing = re.compile(r"\b((rename(at2?)?|mkostemp|mkstemp|mkdtemp|tmpnam|tmpfile|fopen)\(|O_TRUNC\b|ofstream\b)")
    allowed = {"runtime/store/temporary_file.cpp", "runtime/store/output_file.cpp"}
    report([f"{path}: {replacing.search(without_comments(text)).group(0)}" for path, folder, text in files(".h", ".hpp", ".cpp")
            if folder not in ("tests", "templates") and path not in allowed and replacing.search(without_comments(text))])


def without_comments(text):
    return re.sub(r"//[^\n]*", "", text)


def test_families_are_named_in_their_folders_only():
    """Everything else asks a family's row (compiler/families/family.h)."""
    named = re.compile(r"\bk(Hopper|Sync|Naive|Host)\b|family=(hopper|sync|naive|host)\b|\"(hopper|sync)\"|(families|templates)/(hopper|sync|naive|host)/")
    allowed = {
        "compiler/families/families.cpp",    # the list
        "runtime/launch/tensor_maps.cpp",    # boxes of TMA are tiles of the one loop that takes tensor maps
        "tools/support/prepared.cpp",        # `bench --against naive`
    }
    report([f"{path}: {named.search(without_comments(text)).group(0)}" for path, folder, text in files(".h", ".hpp", ".cpp")
            if folder not in ("tests", "templates") and not re.match(r"compiler/families/\w+/", path) and path not in allowed
            and named.search(without_comments(text))])


def test_headers_name_all_operands():
    """Both APIs take tensors that no field has by their names alone, so their headers say all of these."""
    with open(source("compiler", "spec", "operands.h"), encoding="utf-8") as file:
        rows = re.findall(r'Operand\{\.name = "(\w+)"(.*?)(?=Operand\{\.name|\n\};)', file.read(), re.S)
    names = [name for name, row in rows if ".has_field = false" in row]
    assert len(names) > 20, rows
    problems = []
    for header in ("flashjit.h", "flashjit.hpp"):
        with open(source("runtime", "include", "flashjit", header), encoding="utf-8") as file:
            text = file.read()
        problems += [f'{header} does not say what "{name}" is; add it where tensors are that go by their names' for name in names
                     if f'"{name}"' not in text]
    report(problems)


def test_enums_are_named_by_tables():
    """An enum's words stand in one table: no switch from its values to their own names."""
    case = re.compile(r'case (?:\w+::)*(\w+): return "(?:\w+::)*(\w+)";')
    report([f"{path}: {found.group(0)}" for path, folder, text in files(".h", ".hpp", ".cpp") if folder != "tests"
            for found in case.finditer(text) if found.group(1).lower() == found.group(2).replace("_", "").lower()])


def functions(text):
    """(line, lines) of every function, as clang-format lays them out: the closing brace stands below where the signature begins."""
    lines = text.split("\n")
    other = re.compile(r"^\s*(if|for|while|switch|else|do|namespace|struct|class|enum|union|return|\}|case|default|static const|const .*=)\b")
    for at, line in enumerate(lines):
        if other.match(line) or not re.search(r"\)( const| override| noexcept|\s)*(->.*)?\s*(:.*)?\{$", line):
            continue
        begin = at
        while begin > 0 and not re.match(r"^\s*[\w\[~:<>&*].*\(", lines[begin]):
            begin -= 1
        indent = len(lines[begin]) - len(lines[begin].lstrip())
        for end in range(at + 1, len(lines)):
            if lines[end].strip().startswith("}") and len(lines[end]) - len(lines[end].lstrip()) <= indent:
                yield begin + 1, end - begin + 1
                break


def test_functions_and_files_are_short():
    problems = []
    for path, _, text in files(".h", ".hpp", ".cpp", ".cuh", ".c"):
        if text.count("\n") > 500:
            problems.append(f"{path} has {text.count(chr(10))} lines, at most 500 are allowed")
        problems += [f"{path}:{line}: a function of {length} lines, at most 60 are allowed" for line, length in functions(text)
                     if length > 60]
    report(problems)


def test_folders_are_small():
    data = {os.path.join("tests", "fuzz", "corpus")}  # found by the fuzzer
    problems = []
    for folder in ORDER + ["tests"]:
        for place, _, names in os.walk(source(folder)):
            here = os.path.relpath(place, source())
            names = [name for name in names if not name.endswith(".pyc")]
            if len(names) > 26 and not any(here.startswith(each) for each in data):
                problems.append(f"{here} has {len(names)} files; about 25 are enough, 26 the limit")
    report(problems)


def test_nothing_unfinished():
    words = re.compile(r"\b(" + "|".join(["TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK"]) + r")\b")
    report([f"{path}: {words.search(text).group(0)}" for path, _, text in files(".h", ".hpp", ".cpp", ".cuh", ".py", ".txt", ".cmake", ".md") if words.search(text)])


def test_no_merge_was_left_half_done():
    marker = re.compile(rb"^(<{7}|>{7}) ", re.M)
    places = [source("README.md"), source("CMakeLists.txt"), *(os.path.join(place, name) for folder in ORDER + ["tests"]
              for place, _, names in os.walk(source(folder)) for name in sorted(names))]
    for place in places:
        with open(place, "rb") as file:
            assert not marker.search(file.read()), f"{os.path.relpath(place, source())} has the marks of a merge"


def test_the_picture_shows_what_was_measured():
    done = subprocess.run([sys.executable, source("tools", "figures"), "--check"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_readmes_are_short():
    for folder in ORDER + ["tests"]:
        path = source(folder, "README.md")
        assert os.path.exists(path), f"{folder} has no README.md"
        with open(path, encoding="utf-8") as file:
            assert len(file.readlines()) <= 100, f"{folder}/README.md is longer than 100 lines; move something to a page of its own"


WIDTH, WIDTH_OF_ROWS = 110, 120
# Rows of these have what was measured.
ANY_WIDTH, ANY_WIDTH_OF_ROWS = {"tests/device/RESULTS.md"}, {"tests/device/FINDINGS.md", "tests/device/MEASURED.md"}


def test_pages_are_narrow():
    with open(source("README.md"), encoding="utf-8") as file:
        pages = [("README.md", "", file.read()), *files(".md")]
    for name in ("CONTRIBUTING.md", "SECURITY.md"):
        with open(source(".github", name), encoding="utf-8") as file:
            pages.append((f".github/{name}", "", file.read()))
    assert len(pages) > 10, pages

    def most(path, line):
        if line.startswith("|"):
            return 10**6 if path in ANY_WIDTH_OF_ROWS else WIDTH_OF_ROWS
        return 10**6 if "://" in line else WIDTH

    report([f"{path}:{number}: {len(line)} columns, {most(path, line)} are the limit" for path, _, text in pages if path not in ANY_WIDTH
            for number, line in enumerate(text.splitlines(), 1) if len(line) > most(path, line)])


# Sentences of comments that begin with a word which leaves them without a subject: at most so many a folder. The numbers only fall.
ODD_BEGINNINGS = re.compile(r"(?:^|[.:;)] )(?:Of|Those|What|Likewise)\b(?![^.;]*\?)")
MOST_ODD = {"templates": 0, "compiler": 0, "codegen": 0, "runtime": 0, "autotune": 0, "tools": 0}


def comments(text):
    """The blocks of // comments, each as one text."""
    block = []
    for line in text.splitlines() + [""]:
        comment = re.match(r"^\s*// (.*)$", line)
        if comment:
            block.append(comment.group(1))
            continue
        if block:
            yield " ".join(block)
            block = []
        behind = re.match(r'^[^"]*[^\s"/][^"]*?\s// (.*)$', line)
        if behind:
            yield behind.group(1)


# Names in code by which a word of the glossary would have a second meaning, and the words to use. `places` of a spec and of a call are
# where rows are in a longer sequence; parts are shares of the keys.
SECOND_MEANINGS = {
    r"\w*Place|place_of\w*|\w+_place|kPlaces": "place: write slot, index, site, coords, offset or path",
    r"(?:value|gradient|rotation|cost|pass)_parts|has_parts\w*|wide_part|parts_of_s(?:pec|chedule)": "part: write slice, component, subexpression or field",
    r"reference_shape|is_reference": "reference: write assumed_shape or baseline",
}


def test_words_have_one_meaning():
    """compiler/GLOSSARY.md says which."""
    problems = []
    for path, folder, text in files(".h", ".cpp", ".cuh"):
        if folder in ORDER:
            problems += [f"{path}: {found}; {words}" for names, words in SECOND_MEANINGS.items() for found in sorted(set(re.findall(rf"\b(?:{names})\b", text)))]
    report(problems)


def test_comments_have_subjects():
    found = {folder: [] for folder in MOST_ODD}
    for path, folder, text in files(".h", ".cpp", ".cuh"):
        if folder in found:
            found[folder] += [f"{path}: {comment[match.start():][:80]}" for comment in comments(text) for match in ODD_BEGINNINGS.finditer(comment)]
    report([f"{len(all)} in {folder}, at most {MOST_ODD[folder]} are allowed:\n" + "\n".join(all) for folder, all in found.items()
            if len(all) > MOST_ODD[folder]])


def test_measurements_are_notes():
    """Comments have no dated figures, but the number of a row that has them."""
    numbered, dated = re.compile(r"\[(M\d+)\]"), re.compile(r"//.*\b20\d\d-\d\d-\d\d|#.*\b20\d\d-\d\d-\d\d")
    named, problems = {}, []
    for path, folder, text in files(".h", ".cpp", ".cuh", ".py"):
        if folder not in ORDER:
            continue
        for line in text.splitlines():
            if dated.search(line):
                problems.append(f"{path}: {line.strip()}")
        for number in numbered.findall(text):
            named.setdefault(number, set()).add(path)
    with open(source("tests", "device", "MEASURED.md"), encoding="utf-8") as file:
        rows = dict(re.findall(r"(?m)^\| (M\d+) \| `([^`]+)`", file.read()))
    problems += [f"{number} is named in {sorted(paths)} and no row of tests/device/MEASURED.md" for number, paths in named.items() if number not in rows]
    problems += [f"{number} of tests/device/MEASURED.md: {path} does not name it" for number, path in rows.items() if path not in named.get(number, ())]
    report(problems)


def test_findings_name_experiments():
    """[decode-3] in templates/NOTES.md is a row of templates/experiments, and each finding names at least one."""
    folder = source("templates", "experiments")
    lines = [line for name in sorted(os.listdir(folder)) for line in open(os.path.join(folder, name), encoding="utf-8")]
    ids = [json.loads(line)["id"] for line in lines]
    report([f"{name} is the id of two rows" for name in sorted({name for name in ids if ids.count(name) > 1})])
    with open(source("templates", "NOTES.md"), encoding="utf-8") as file:
        findings = re.findall(r"(?m)^\* (.*(?:\n  .*)*)", file.read())
    named = [(text, re.findall(r"[a-z][a-z0-9-]*-\d+", " ".join(re.findall(r"\[([a-z0-9-]+(?:,\s+[a-z0-9-]+)*)\]", text)))) for text in findings]
    report([f"no row is named: {text}" for text, names in named if not names])
    report([f"no row has the id {name}: {text}" for text, names in named for name in names if name not in ids])


def test_distributed_knows_all_named_rows():
    """flashjit.distributed writes masks and scores out by itself. What it does not know to read positions or heads would be taken at
    those of a share, without an error; SPEC.md has the table of the language, to which a unit test holds it."""
    with open(source("compiler", "SPEC.md"), encoding="utf-8") as file:
        page = file.read()
    rows = {}
    for name, arguments, body in re.findall(r"(?m)^\| `(\w+)(?:\(([^`]*)\))?` \| (`(?:[^`]*)`|written out below) \|", page.split("### Named masks and scores")[1].split("\n### ")[0]):
        if body == "written out below":
            body = re.search(rf"`{name}` is for .*? It is\n\n```text\n(.*?)\n```", page, re.S).group(1)
        body = body.strip("`").replace("\\|", "|")
        for number, argument in enumerate([a.split("=")[0].strip() for a in arguments.split(",") if a], 1):
            body = re.sub(rf"\b{argument}\b", f"${number}", body)
        if re.search(r"\b(?:q|k|qpos|q_len|k_len|h|hk)\b", body):
            rows[name] = body
    assert len(rows) >= 11, rows
    with open(source("runtime", "python", "flashjit", "distributed", "texts.py"), encoding="utf-8") as file:
        known = next(ast.literal_eval(node.value) for node in ast.parse(file.read()).body
                     if isinstance(node, ast.Assign) and node.targets[0].id == "_ROWS")
    report([f"distributed/texts.py has {name!r}: {known.get(name)!r}, and SPEC.md {rows.get(name)!r}"
            for name in sorted({*rows, *known}) if rows.get(name) != known.get(name)])


def test_python_syntax():
    for path, _, text in files(".py"):
        ast.parse(text, path)


def test_the_version_is_written_in_one_place():
    with open(source("CMakeLists.txt"), encoding="utf-8") as file:
        version = re.search(r"^project\(flashjit VERSION (\S+)", file.read(), re.M).group(1)
    # Tuning records say which version measured them; the frozen header is one of that version.
    report([f"{path}: {version}" for path, _, text in files(".h", ".hpp", ".cpp", ".py", ".txt", ".cmake", ".md", ".in", ".c")
            if re.search(r"(?<![\d.])" + re.escape(version) + r"(?![\d.])", text) and not path.startswith(("runtime/tuned/", "tests/embed/abi/"))])


def test_shell_syntax():
    for script in ["tools/try", "tools/check", "tools/setup", "tests/fuzz/run", ".ci/run"]:
        done = subprocess.run(["bash", "-n", source(script)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


if __name__ == "__main__":
    harness.main(globals())
