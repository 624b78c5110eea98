"""The examples of compiler/SPEC.md: what it shows is accepted and computed, what it calls refused is refused with its words."""

import math
import re
import struct

import harness
from harness import flashjit, need, read, refused, scratch, source, write
from run_test import npy, parse


def block_lines(kind):
    """The lines of all blocks that begin with ```kind."""
    with open(source("compiler", "SPEC.md"), encoding="utf-8") as file:
        blocks = re.findall(rf"^```{kind}\n(.*?)^```$", file.read(), re.M | re.S)
    lines = [line for block in blocks for line in block.splitlines()]
    assert len(lines) >= 3, f"SPEC.md has only {lines} in blocks of {kind}"
    return lines


def refusals(kind):
    for line in block_lines(kind):
        spec, mark, words = line.partition(" # ")
        assert mark and words.strip(), f"no words of the error: {line}"
        yield spec.strip(), words.strip()


def says(error, words):
    """Every part of the remark, between semicolons, stands in the message."""
    return [part.strip() for part in words.split(";") if part.strip() not in error]


def target_of(spec):
    return "x86-64-v3" if " fp32 " in spec else "sm_90a"


def shape_of(spec):
    """Small sizes within the bounds of the spec."""
    def size(field, wanted):
        bound = re.search(rf"\b{field}(<?=)(\d+)", spec)
        return wanted if bound is None else int(bound[2]) if bound[1] == "=" else min(wanted, int(bound[2]))
    q, k = size("q_len", 7), size("k_len", 13)
    if spec.startswith("merge"):
        return f"q={2 * q},k=3"  # of k parts; a merge knows no sequences
    if spec.startswith("quantize"):
        return f"q={20 * q}"
    if "layout=packed" in spec:
        return f"q={q}+0+{q},k={k}+{k}+0"
    return f"q={q},k={k}+0+{k // 2}" if "k_lens" in spec or "paged" in spec else f"b={size('b', 2)},q={q},k={k}"


def all_fields():
    error = refused("explain", "fwd bf16 d=64 colour=red", "--arch", "sm_90a").err
    return re.search(r"fields are ([a-z_, ]+)", error)[1].split(", ")


def order_of_fields():
    """As the page says that specs are printed."""
    with open(source("compiler", "SPEC.md"), encoding="utf-8") as file:
        return re.search(r"with fields in the order of `([^`]+)`", file.read())[1].split()


def test_every_field_has_its_row():
    fields = all_fields()
    assert sorted(order_of_fields()) == sorted(fields)
    with open(source("compiler", "SPEC.md"), encoding="utf-8") as file:
        first_cells = " ".join(re.findall(r"^\| (.*?) \|", file.read(), re.M))
    assert len(fields) > 15 and not [f for f in fields if f"`{f}=`" not in first_cells and f"`{f}`" not in first_cells], first_cells


def test_specs_are_accepted():
    order = order_of_fields()
    for spec in block_lines("spec"):
        lines = flashjit("explain", spec, "--arch", target_of(spec), "--json").lines()  # one for each of its kernels
        assert lines and all(line["ok"] for line in lines), lines
        fields = [re.split("[=<]", word)[0] for word in re.sub('"[^"]*"', "", lines[0]["spec"]).split()[2:]]
        assert fields == sorted(fields, key=order.index), f"not printed in the order that the page has: {lines[0]['spec']}"


def test_specs_are_computed():
    need("host")
    for spec in block_lines("spec"):
        flashjit("run", spec, "--shape", shape_of(spec), "--target", "host", "--check")


def test_refused():
    for spec, words in refusals("refused"):
        run = refused("explain", spec, "--arch", target_of(spec))
        assert not says(run.err, words), f"the error does not say {says(run.err, words)}\n{run}"


def test_refused_when_run():
    need("host")
    for spec, words in refusals("refused-run"):
        run = refused("run", spec, "--shape", "q=7,k=7", "--target", "host")
        assert not says(run.err, words), f"the error does not say {says(run.err, words)}\n{run}"


def as_condition(expression, result):
    """What must hold of the expression."""
    if result in ("true", "false"):
        return expression if result == "true" else f"!({expression})"
    if "." in result and result[-2:] != ".5":  # rounded in the text
        return f"abs(({expression}) - {result}) < 1e-6"
    return f"({expression}) == {result}"


def hidden_from_the_simplifier(expression):
    """The same with constants that nobody can fold: k and h are 0."""
    by_type = lambda number: f"({number[0]} + h)" if "." in number[0] else f"({number[0]} + k)"
    return re.sub(r"(?<![\w.])\d+(?:\.\d*)?(?![\w.])", by_type, expression)


def test_values():
    """A kernel decides: query i sees the only key where the statement of line i holds, and then its LSE is finite."""
    need("host")
    out = scratch("lse.npy")
    rows = [re.fullmatch(r"(.*?) +is (\S+)", line).groups() for line in block_lines("values")]
    for begin in range(0, len(rows), 8):  # a mask has at most 512 operations
        part = rows[begin:begin + 8]
        for form in (str, hidden_from_the_simplifier):
            holds = [as_condition(form(expression), result) for expression, result in part]
            mask = " | ".join(f"q == {i} & ({condition})" for i, condition in enumerate(holds))
            flashjit("run", f'fwd fp32 d=8 k_len=1 lse=ln mask="{mask}"', "--shape", f"q={len(part)},k=1", "--target", "host", "--lse", out)
            lse = parse(read(out))[1]
            wrong = [(row, condition) for row, condition, x in zip(part, holds, lse, strict=True) if not math.isfinite(x)]
            assert not wrong, f"a kernel finds that this does not hold: {wrong}"


NAN, INF = math.nan, math.inf
# Fields, then what is not as usual in Q, K, V or the sink, then O (first column), LSE and the maximum of three queries. Query i sees keys
# of scores 0, 1, 2 whose rows of V are 1, 2, 3.
SPECIAL = [
    ('mask="causal"', {}, (1, 1.731059, 2.575210), (0, 1.313262, 2.407606), (0, 1, 2)),
    ('mask="k > q"', {}, (2.731059, 3, 0), (2.313262, 2, -INF), (2, 2, -INF)),
    ('mask="k > q" sink', {"sink": (0, 2)}, (1.577681, 1.5, 0), (2.861995, 2.693147, 2), (2, 2, -INF)),
    ('mask="causal" score="-inf"', {}, (0, 0, 0), (-INF, -INF, -INF), (-INF, -INF, -INF)),
    ('score="where(k <= q, s, -inf)"', {}, (1, 1.731059, 2.575210), (0, 1.313262, 2.407606), (0, 1, 2)),
    ('mask="causal" score="where(q == 1 & k == 1, inf, s)"', {}, (1, NAN, 2.575210), (0, NAN, 2.407606), (0, INF, 2)),
    ('mask="causal" score="where(q == 1 & k == 1, nan, s)"', {}, (1, NAN, 2.575210), (0, NAN, 2.407606), (0, 0, 2)),
    ('mask="causal"', {"q": (1, NAN)}, (1, NAN, 2.575210), (0, NAN, 2.407606), (0, -INF, 2)),
    ('mask="causal"', {"k": (2, NAN)}, (1, 1.731059, NAN), (0, 1.313262, NAN), (0, 1, 1)),
    ('mask="causal"', {"k": (2, -INF)}, (1, 1.731059, 1.731059), (0, 1.313262, 1.313262), (0, 1, 1)),
    ('mask="causal" scale=1e37', {}, (1, 2, 3), (0, 1e37, 2e37), (0, 1e37, 2e37)),
]


def close(ours, wanted):
    return all(math.isnan(a) if math.isnan(b) else a == b or abs(a - b) < 2e-6 * max(1, abs(b)) for a, b in zip(ours, wanted, strict=True))


def test_special_values():
    need("host")
    for fields, changes, *wanted in SPECIAL:
        values = {"q": [1, 1, 1], "k": [0, 1, 2], "v": [1, 2, 3], "sink": [0]}
        for name, (row, value) in changes.items():
            values[name][row] = value
        rows = {name: [column for x in values[name] for column in ([x] * 8 if name == "v" else [x] + [0] * 7)] for name in ("q", "k", "v")}
        files = [part for name in rows for part in ("--" + name, write(name + ".npy", npy((1, 3, 1, 8), struct.pack("<24f", *rows[name]))))]
        if "sink" in changes:
            files += ["--sink", write("sink.npy", npy((1,), struct.pack("<f", values["sink"][0])))]
        outputs = [scratch(name) for name in ("o.npy", "lse.npy", "max.npy")]
        spec = "fwd fp32 d=8 lse=ln max_logit " + ("" if "scale=" in fields else "scale=1 ") + fields
        flashjit("run", spec, "--shape", "q=3", "--target", "host", *files, "--o", outputs[0], "--lse", outputs[1], "--max-logit", outputs[2])
        ours = [parse(read(outputs[0]))[1][::8], parse(read(outputs[1]))[1], parse(read(outputs[2]))[1]]
        assert all(map(close, ours, wanted)), f"{spec} with {changes}: {ours} instead of {wanted}"


if __name__ == "__main__":
    harness.main(globals())
