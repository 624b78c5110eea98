"""flashjit explain --html: one page that needs nothing beside itself, and the map in colours on a terminal."""

import os
import re
import threading
import xml.etree.ElementTree as ElementTree

import harness
from harness import flashjit, read, refused, scratch

SPEC = 'fwd bf16 d=128 heads=32/8 mask="causal"'
ARGS = (SPEC, "--arch", "sm_90a", "--shape", "b=1,q=4096")
XHTML, SVG = "{http://www.w3.org/1999/xhtml}", "{http://www.w3.org/2000/svg}"
SECTIONS = ["Tiles of the mask", "Roofline", "Time by unit", "Roles, a main step of the loop", "Candidates"]


def page(*args, expect=0):
    """The page, as the tree of its elements, and what stood on standard output."""
    run = flashjit("explain", *args, "--html", scratch("page.html"), expect=expect)
    return ElementTree.fromstring(read(scratch("page.html")).decode()), run


def words(element):
    return re.sub(r"\s+", " ", "".join(element.itertext()))


def sections(tree):
    return {words(section.find(XHTML + "h3")): section for section in tree.iter(XHTML + "section") if section.find(XHTML + "h3") is not None}


def pictures(section):
    return {picture.get("class"): picture for picture in section.iter(SVG + "svg")}


def test_page_has_all_sections():
    tree, run = page(*ARGS)
    assert list(sections(tree)) == SECTIONS, list(sections(tree))
    head = words(next(tree.iter(XHTML + "header")))
    line = flashjit("explain", *ARGS, "--json").line()
    assert line["schedule"] in head and "sm_90a" in head and "b=1,q=4096,k=4096" in head, head
    assert SPEC in words(next(tree.iter(XHTML + "h2")))
    footer = words(next(tree.iter(XHTML + "footer")))
    assert f"flashjit explain '{SPEC}' --arch sm_90a --shape b=1,q=4096 --html {scratch('page.html')}" in footer, footer
    assert scratch("page.html") in run.out, run
    # The text at the end is what --all says in a pipe, but for the picture of tiles, which the page has itself.
    (fold,) = [words(fold) for fold in tree.iter(XHTML + "details") if fold.get("class") == "all"]
    assert "Q K^T of the next tile runs beside P V" in fold and "wait [pending=1]" in fold, fold


def test_page_needs_nothing_beside_itself():
    tree, _ = page(*ARGS)
    text = read(scratch("page.html")).decode()
    assert not re.search(r"<(script|link|img|iframe)\b|\b(src|href)=|url\(|@import|https?://(?!www\.w3\.org/)", text)
    assert "prefers-color-scheme: dark" in text and "width=device-width" in text
    assert "max-width: 1240px" in words(next(tree.iter(XHTML + "style")))


def test_map_has_the_counts_of_the_text():
    for spec, shape in [(SPEC, "b=1,q=4096"), ('fwd bf16 d=64 heads=2 mask="window(300, 0)"', "q=1000,k=1500"), ("fwd fp16 d=64 heads=2", "q=100")]:
        tree, run = page(spec, "--arch", "sm_90a", "--shape", shape)
        counts = re.search(r"(\d+) tiles skipped, (\d+) with mask code, (\d+) without", run.out).groups()
        section = sections(tree)["Tiles of the mask"]
        assert [words(entry) for entry in section.iter(XHTML + "li")] == [f"{counts[0]} skipped", f"{counts[1]} with mask code", f"{counts[2]} without"]
        drawn = {path.get("class") for path in pictures(section)["map"].iter(SVG + "path")}
        assert drawn == {name for name, count in zip(["skipped", "masked", "plain"], counts) if int(count)}, drawn


def test_map_covers_all_cells():
    tree, _ = page(*ARGS)
    area = {}
    for path in pictures(sections(tree)["Tiles of the mask"])["map"].iter(SVG + "path"):
        sizes = re.findall(r"h([\d.]+)v([\d.]+)", path.get("d"))
        area[path.get("class")] = sum(float(width) * float(height) for width, height in sizes)
    cell = sum(area.values()) / 1024
    assert {name: round(size / cell) for name, size in area.items()} == {"skipped": 496, "masked": 32, "plain": 496}, area


def test_page_says_where_a_mask_is_not_known():
    tree, run = page('fwd bf16 d=64 heads=2 params="n:i32[1]" mask="k < n[b]"', "--arch", "sm_90a", "--shape", "q=256")
    section = sections(tree)["Tiles of the mask"]
    assert not pictures(section) and "the mask depends on n, whose values are only known when it runs" in words(section), words(section)


def test_roofline_and_units_have_the_figures():
    tree, _ = page(*ARGS)
    r = flashjit("explain", *ARGS, "--json").line()["roofline"]
    all = sections(tree)
    picture = words(pictures(all["Roofline"])["roofline"])
    for label in ["fused", "three steps", "WGMMA, 16 bits", "mma.sync, 16 bits", "exponentials", "FLOP per byte"]:
        assert label in picture, picture
    assert f"{r['intensity']:.4g} FLOP per byte" in words(all["Roofline"]) and f"{r['textbook_intensity']:.4g} FLOP per byte" in words(all["Roofline"])
    bars = {words(bar[0]): words(bar[1]) for bar in all["Time by unit"].iter(XHTML + "li")}
    fields = {"matrix units": "mma_us", "exponentials": "exp_us", "issue": "issue_us", "shared memory": "smem_us", "L2": "l2_us", "memory": "memory_us"}
    assert bars == {name: f"{r[field]:.1f} us" for name, field in fields.items()}, bars
    (limit,) = [words(bar[0]) for bar in all["Time by unit"].iter(XHTML + "li") if bar.get("class") == "limit"]
    assert limit == r["limit"]


def test_roles_follow_the_program():
    tree, _ = page(*ARGS)
    section = sections(tree)["Roles, a main step of the loop"]
    picture = pictures(section)["roles"]
    rows = [words(text) for text in picture.findall(SVG + "text")]
    assert rows == ["Producer", "Consumer 0", "Consumer 1"], rows
    program = flashjit("explain", *ARGS, "--json").line()["program"]
    step = re.search(r"    body main_step\n((?:      .*\n)+)", program).group(1)
    kinds = {"await": "wait", "wait": "wait", "mma": "product", "release": "release", "softmax": "arithmetic", "convert": "arithmetic"}
    expected = [kinds[line.split()[0]] for line in step.splitlines() if line.split()[0] in kinds]
    boxes = [box.get("class").replace("box ", "") for box in picture.iter(SVG + "rect")]
    producer = ["wait", "copy", "wait", "copy"]
    assert boxes == producer + 2 * expected, boxes
    assert "schematic" in words(section) and "no measured times" in words(section)


def test_roles_of_each_printed_family():
    for spec, row in [("bwd bf16 d=128 heads=8", "Consumer 1"), ("bwd bf16 d=256 heads=8", "Gradient 1"), ("fwd bf16 d=128 heads=32/8 q_len=1", "to 7, each"),
                      ("fwd bf16 d=576/512 heads=128/1 v_in_k", "SecondConsumer 1"), ("fwd e4m3 d=128 heads=8", "Producer")]:
        tree, _ = page(spec, "--arch", "sm_90a")
        rows = words(sections(tree)["Roles, a main step of the loop"])
        assert row in rows and "mma" in rows, rows
    # Families whose program is a picture have no such section, nor has a processor.
    for arch in ["sm_80", "x86-64-v3"]:
        tree, _ = page(SPEC, "--arch", arch)
        assert list(sections(tree)) == [name for name in SECTIONS if not name.startswith("Roles")], arch


def test_candidates_begin_with_the_chosen_one():
    tree, _ = page(*ARGS)
    line = flashjit("explain", *ARGS, "--json").line()
    section = sections(tree)["Candidates"]
    rows = list(section.find(f"{XHTML}div/{XHTML}table/{XHTML}tbody"))
    assert rows[0].get("class") == "chosen" and line["schedule"] in words(rows[0]), words(rows[0])
    assert all(row.get("class") is None for row in rows[1:])
    legal = [c for c in line["candidates"] if c["why_illegal"] is None]
    shown = [float(words(row[0]).split()[0]) for row in rows if "us" in words(row[0])]
    assert len(shown) > 3 and sorted(shown) == [float(f"{c['predicted_us']:.1f}") for c in legal[:len(shown)]], shown
    refused_ones = [c for c in line["candidates"] if c["why_illegal"]]
    (fold,) = section.iter(XHTML + "details")
    assert words(fold).startswith(f"{len(refused_ones)} refused"), words(fold)[:100]
    assert refused_ones[0]["why_illegal"] in words(fold)


def test_hostile_text_is_escaped():
    hostile = "fwd bf16 d=64 heads=2 </code><script>alert(1)</script> & \"'\x1b[31m"
    tree, run = page(hostile, "--arch", "sm_90a", expect=1)
    assert not list(tree.iter(XHTML + "script")) and "\x1b" not in words(tree)
    assert "</code><script>alert(1)</script> & \"'\\x1b[31m" in words(next(tree.iter(XHTML + "h2")))
    (failed,) = [words(each) for each in tree.iter(XHTML + "p") if each.get("class") == "failed"]
    assert "error for sm_90a" in failed, failed
    # Masks hold such characters, too.
    tree, _ = page('fwd bf16 d=64 heads=2 mask="k <= q & k > q - 100"', "--arch", "sm_90a")
    assert "k <= q & k > q - 100" in words(next(tree.iter(XHTML + "h2")))


def test_page_is_the_same_twice():
    page(*ARGS)
    first = read(scratch("page.html"))
    page(*ARGS)
    assert read(scratch("page.html")) == first


def test_several_specs_are_one_page():
    other = "bwd fp16 d=64 heads=4"
    tree, run = page(SPEC, other, "--arch", "sm_80,sm_90a")
    assert [words(heading) for heading in tree.iter(XHTML + "h2")] == [SPEC, SPEC, other, other]
    assert len(list(tree.iter(XHTML + "footer"))) == 1
    both = flashjit("explain", SPEC, other, "--arch", "sm_80,sm_90a", "--json", "--html", scratch("page.html")).lines()
    assert [(line["spec"], line["target"]) for line in both] == [(SPEC, "sm_80"), (SPEC, "sm_90a"), (other, "sm_80"), (other, "sm_90a")]
    # A spec that is refused takes no other one's section away.
    tree, _ = page("fwd nonsense", SPEC, "--arch", "sm_90a", expect=1)
    assert [words(heading) for heading in tree.iter(XHTML + "h2")] == ["fwd nonsense", SPEC]
    # Several kernels that compute a spec together have a section each.
    tree, _ = page("fwd bf16 d=128 heads=16 compute=e4m3", "--arch", "sm_90a")
    assert len(list(tree.iter(XHTML + "h2"))) == 5


def test_unwritable_file():
    os.mkdir(scratch("folder"))
    refused("explain", *ARGS, "--html", scratch("folder"), says=["--html: ", scratch("folder")])
    refused("explain", *ARGS, "--html", "/proc/nothing/page.html", "--json", says=["--html: ", "/proc/nothing"])


def on_terminal(*args, **environment):
    """What the command writes to a terminal."""
    ours, its = os.openpty()
    try:
        env = {"TERM": "xterm-256color", "NO_COLOR": None, **environment}
        with open(scratch("screen"), "wb") as screen:
            def copy():
                try:
                    while data := os.read(ours, 4096):
                        screen.write(data)
                except OSError:  # the other side is closed
                    pass

            reader = threading.Thread(target=copy)
            reader.start()
            flashjit(*args, env=env, stdout=its)
            os.close(its)
            its = None
            reader.join()
    finally:
        os.close(ours)
        if its is not None:
            os.close(its)
    return read(scratch("screen")).decode().replace("\r\n", "\n")


def test_terminal_shows_the_map_in_colours():
    args = ("explain", *ARGS, "--all")
    screen = on_terminal(*args)
    (first, *_) = [line for line in screen.splitlines() if "\u2580" in line]
    assert first.count("\u2580") == 32 and "\x1b[38;5;208m\x1b[48;5;32m\u2580" in first, repr(first)
    assert sum("\u2580" in line for line in screen.splitlines()) == 8 + 1, "16 rows, two a line, and the legend"
    piped = flashjit(*args).out
    assert "\x1b" not in piped and "  ++......" in piped
    for environment in [{"NO_COLOR": "1"}, {"TERM": "dumb"}]:
        assert on_terminal(*args, **environment) == piped, environment


if __name__ == "__main__":
    harness.main(globals())
