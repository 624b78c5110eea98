"""The tuning report in a real browser: what is drawn, whether it fits, keys, colours, missing values, hostile text."""

import json
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "cli"))
import data
import harness
from browser import Browser, DoesNotStart, find
from harness import Skip, flashjit, write


def explain(spec, shape):
    return flashjit("explain", spec, "--arch", "sm_90a", "--shape", shape, "--json").line()


def page(report):
    program = os.path.join(harness.ARGS.build, "bin", "report_page")
    made = subprocess.run([program], input=json.dumps(report).encode(), stdout=subprocess.PIPE, check=True)
    return write("report.html", made.stdout)


def browser():
    if find() is None:
        raise Skip("no Chromium on this machine (Debian: chromium)")
    try:
        return Browser()
    except DoesNotStart as error:
        raise Skip(f"the Chromium of this machine does not start: {error}")


def drawn(tab):
    assert not tab.errors, tab.errors
    assert tab.eval("document.documentElement.dataset.state") == "drawn", tab.eval("document.getElementById('error').textContent")
    for word in ["NaN", "Infinity", "undefined", "[object"]:
        assert word not in tab.eval("document.querySelector('main').outerHTML"), f"the page says {word}"


def count(tab, selector):
    return tab.eval(f"document.querySelectorAll({json.dumps(selector)}).length")


def test_draws_every_spec():
    report = data.report(explain)
    with browser() as tab:
        tab.open(page(report))
        drawn(tab)
        assert count(tab, "#summary tbody tr") == count(tab, "details.spec") == 3
        assert count(tab, "details svg") == 0, "plots are drawn before a spec is opened"
        tab.open_details()
        drawn(tab)
        for i, spec in enumerate(report["specs"], 1):
            measured = [c for c in spec["candidates"] if c["us"]]
            names = {name for c in measured for name in c["fields"]}
            varying = [name for name in names if len({c["fields"][name] for c in measured if name in c["fields"]}) > 1]
            assert count(tab, f"#spec-{i} figure svg") == 2 + len(varying), spec["spec"]
            assert count(tab, f"#spec-{i} .bars li") == 8
            assert count(tab, f"#spec-{i} .cut li") == len(spec["cut"])
            assert count(tab, f"#spec-{i} .plots:not(.small) figure:nth-child(1) .mark") == len(spec["candidates"]), "a candidate is not in the scatter plot"
            assert count(tab, f"#spec-{i} .plots:not(.small) figure:nth-child(2) .mark") == len(measured), "a candidate is not in the roofline"
            shown = tab.eval(f"document.querySelector('#spec-{i}').textContent")
            for text in [spec["spec"], spec["shape"], spec["best_schedule"], "70 % of the roof", spec["cut"][0]["why"]]:
                assert text in shown, text
        tab.eval("document.querySelector('#spec-1 button.more').click()")
        assert count(tab, "#spec-1 tbody tr") == len(report["specs"][0]["candidates"])


def test_a_processor_is_called_one():
    spec = data.report(explain, 1)["specs"][0] | {"peak_how": "measured on 2 threads: AVX2 FMA", "best_why": "the fastest of those that were measured"}
    with browser() as tab:
        tab.open(page({"machine": {"processor": "Some Processor", "threads": 2, "clock_mhz": None}, "specs": [spec]}))
        drawn(tab)
        tab.open_details()
        drawn(tab)
        shown = tab.eval("document.body.innerText")
        for text in ["Some Processor", "The roof: measured on 2 threads: AVX2 FMA", "the fastest of those that were measured"]:
            assert text in shown, shown
        assert "GPU" not in shown and "clock" not in tab.eval("document.querySelector('header').innerText"), shown


# Texts of the same plot that lie on each other, texts outside of the page, and what is wider than the page.
MISFITS = """(() => {
  const found = [];
  for (const svg of document.querySelectorAll('main svg')) {
    const boxes = [...svg.querySelectorAll('text')].map(text => [text.textContent, text.getBoundingClientRect()]);
    for (const [i, [text, a]] of boxes.entries()) {
      if (a.left < 0 || a.right > innerWidth) found.push(text + ' leaves the page');
      if (a.height < 11) found.push(text + ' is too small to read');
      for (const [other, b] of boxes.slice(i + 1)) {
        if (a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 3 && b.top < a.bottom - 3) found.push(text + ' lies on ' + other);
      }
    }
  }
  for (const node of document.querySelectorAll('th, td, dd, code, button, figcaption, summary')) {
    const box = node.getBoundingClientRect();
    if (box.right > innerWidth + 1) found.push(node.textContent.slice(0, 40) + ' leaves the page');
  }
  if (document.documentElement.scrollWidth > innerWidth) found.push('the page scrolls sideways');
  return found;
})()"""


def test_fits_every_width():
    long = [spec | {"spec": spec["spec"] + " mask=" + "x" * 300} for spec in data.report(explain, 1)["specs"]]
    with browser() as tab:
        path = page({"machine": data.MACHINE, "specs": data.report(explain)["specs"] + long})
        for width in [320, 375, 400, 768, 1000, 1280, 1920]:
            tab.open(path, width)
            tab.open_details()
            drawn(tab)
            assert tab.eval(MISFITS) == [], f"at {width} pixels"
        tab.size(320)  # a phone that is turned: open specs are drawn again
        tab.eval("new Promise(done => setTimeout(done, 200))")
        assert tab.eval(MISFITS) == [], "after the width changed"


# The ticks of an axis in order, as numbers, and where its first and its last stand.
TICKS = """(svg, anchor) => [...svg.querySelectorAll(`text[text-anchor=${anchor}]`)].filter(text => /^[0-9.,]+$/.test(text.textContent))
  .map(text => Number(text.textContent.replaceAll(',', '')))"""


def test_ticks_enclose_the_data():
    """Whatever the numbers are, the first tick is not above the least and the last not below the largest, and all are round."""
    cases = [[198.5, 203.01, 216.02], [1, 3.9], [2, 2.04], [7, 7], [0.31, 950], [1e-3, 4e7], [1204, 9800, 12345], [999.6, 1000.4], [1e6, 1.02e6]]
    with browser() as tab:
        tab.open(page({"specs": []}))
        drawn(tab)
        for values in cases:
            for log in ["true", "false"]:
                for pixels in [120, 280, 1100]:
                    made = tab.eval(f"(() => {{ const s = scale({values}, 0, {pixels}, {{log: {log}}}); return [s.ticks, s.ticks.map(s.pixel), s.ticks.map(s.label)]; }})()")
                    ticks, positions, labels = made
                    assert ticks[0] <= min(values) and ticks[-1] >= max(values), (values, log, ticks)
                    assert abs(positions[0]) < 1e-6 and abs(positions[-1] - pixels) < 1e-6, (values, positions)
                    assert all(b - a >= 39.9 for a, b in zip(positions, positions[1:])), (values, pixels, positions)
                    assert len(set(labels)) == len(labels) and (len(values) == 1 or max(map(len, labels)) <= 10), labels


def test_units_follow_the_size():
    report = data.report(explain, 1)
    spec = report["specs"][0]
    shown = {}
    with browser() as tab:
        for factor in [1, 1000]:
            larger = json.loads(json.dumps(spec))
            for line in [larger, *larger["candidates"]]:
                line |= {name: line[name] * factor for name in line if (name == "us" or name.endswith(("_us", "_low", "_high")) or name.startswith("us_")) and line[name]}
            tab.open(page({"specs": [larger]}))
            tab.open_details()
            drawn(tab)
            best = tab.eval("document.querySelector('#spec-1 .large').textContent")
            shown[factor] = tab.eval("[...document.querySelectorAll('#spec-1 svg text.strong')].map(text => text.textContent).join()") + best
            ticks = tab.eval(f"({TICKS})(document.querySelector('#spec-1 .small svg'), 'end')")
            times = [c["us"] * factor for c in spec["candidates"] if c["us"]]
            size = 1000 if factor == 1000 else 1
            assert min(ticks) <= min(times) / size and max(ticks) >= max(times) / size, (ticks, min(times), max(times))
    assert "measured, \u00b5s" in shown[1] and "ms" not in shown[1], shown
    assert "measured, ms" in shown[1000] and "\u00b5s" not in shown[1000], shown


def candidates(*intervals):
    return [{"schedule": f"family=sync,tile_q={i}", "fields": {"family": "sync", "tile_q": i}, "predicted_us": 100 + i, "us": (low + high) / 2, "us_low": low,
             "us_high": high, "status": "measured"} for i, (low, high) in enumerate(intervals)]


def tied(default, best, *intervals):
    all = candidates(*intervals)
    return {"spec": f"fwd fp32 d={8 * len(all)} heads={default + 1}", "default_schedule": all[default]["schedule"], "default_us": all[default]["us"],
            "best_schedule": all[best]["schedule"], "best_us": all[best]["us"], "candidates": all}


def test_what_is_not_told_apart_is_grey():
    spec = tied(0, 1, (100, 104), (80, 82), (104, 108), (104.5, 108), (96, 100), (90, 99))
    with browser() as tab:
        tab.open(page({"specs": [spec]}))
        tab.open_details()
        drawn(tab)
        plot = "#spec-1 .plots:not(.small) figure:nth-child(1) "
        assert count(tab, plot + ".mark.untold") == 2 and count(tab, plot + ".mark.family-0") == 2, "grey are those whose interval meets the default's"
        assert count(tab, plot + ".mark.default") == 1 and count(tab, plot + ".mark.best") == 1 and count(tab, plot + ".mark.default.best") == 0
        assert count(tab, plot + "text.name") == 1 and count(tab, "#spec-1 .bars .untold") == 2
        legend = tab.eval("document.querySelector('#spec-1 .legend').innerText")
        assert "not told apart from the default" in legend and "default" in legend.split("\n"), legend
        assert tab.eval("document.querySelector('#spec-1 table').innerText").count("not told apart") == 2
        tab.open(page({"specs": [tied(0, 0, (100, 104), (110, 112))]}))
        tab.open_details()
        drawn(tab)
        legend = tab.eval("document.querySelector('#spec-1 .legend').innerText")
        assert "default, which is also the best" in legend and "told apart" not in legend, legend
        assert count(tab, plot + ".mark.default.best") == 1


def test_gains_are_side_by_side():
    specs = [tied(0, 1, (100, 104), (90, 92)), tied(0, 0, (100, 104), (110, 112)), tied(1, 0, (50, 52), (100, 104)), tied(0, 1, (100, 104), (99, 103))]
    with browser() as tab:
        tab.open(page({"specs": specs}), 400)
        drawn(tab)
        labels = tab.eval("[...document.querySelectorAll('#gains svg text[text-anchor=middle]')].sort((a, b) => a.getAttribute('x') - b.getAttribute('x')).map(t => t.textContent)")
        assert labels == ["3", "1", "4", "2"], labels
        assert count(tab, "#gains .strip .mark") == 4 and count(tab, "#gains .whisker") == 3 and count(tab, "#gains .whisker.untold") == 1
        assert count(tab, "#gains .strip .mark.default") == 1 and tab.eval(MISFITS) == [], tab.eval(MISFITS)
        read = "document.querySelector('#gains .strip-readout').textContent"
        assert "2.00" in tab.eval(read) and specs[2]["spec"] in tab.eval(read), tab.eval(read)
        tab.eval("document.querySelector('#gains svg').focus()")
        tab.key("End")
        assert "the default is the best" in tab.eval(read), tab.eval(read)
        tab.open(page({"specs": specs[:1]}))
        assert count(tab, "#gains") == 0, "one gain needs no comparison"


def test_the_command_is_at_the_end():
    with browser() as tab:
        for report, command in [({"command": data.COMMAND, "specs": []}, data.COMMAND), ({"specs": []}, None)]:
            tab.open(page(report))
            drawn(tab)
            assert tab.eval("document.getElementById('made').checkVisibility()") == (command is not None)
            if command:
                assert tab.eval("document.body.innerText.trim()").endswith(command)


def test_keys():
    with browser() as tab:
        tab.open(page(data.report(explain, 1)))
        tab.open_details()
        reached = []
        for _ in range(200):
            tab.key("Tab")
            reached.append(tab.eval("(document.activeElement.closest('svg, summary, th, .bars, a, button.more') ?? document.body).nodeName.toLowerCase()"))
            if reached[-1] == "body":
                break
        assert {"svg", "summary", "th", "ol", "a", "button"} <= set(reached), reached
        tab.eval("document.querySelector('#spec-1 svg[tabindex]').focus()")
        readout = "document.querySelector('.readout').textContent"
        texts = []
        for key in ["End", "ArrowLeft", "Home"]:
            tab.key(key)
            texts.append(tab.eval(readout))
        assert len(set(texts)) == 3, texts
        sort = "document.querySelector('#spec-1 th:nth-child(2) button')"
        times = "[...document.querySelectorAll('#spec-1 td:nth-child(2)')].map(cell => cell.textContent)"
        for direction in [1, -1]:
            tab.eval(sort + ".click()")
            shown = [float(text.replace(",", "")) for text in tab.eval(times)]
            assert len(shown) == 10 and shown == sorted(shown, reverse=direction < 0), shown
        assert count(tab, "#spec-1 th[aria-sort=descending]") == 1


def linear(part):
    return part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4


def luminance(colour):
    return sum(weight * part for weight, part in zip([0.2126, 0.7152, 0.0722], colour))


def contrast(a, b):
    light, dark = sorted([luminance(a), luminance(b)], reverse=True)
    return (light + 0.05) / (dark + 0.05)


def lab(colour):
    x, y, z = (sum(w * c for w, c in zip(row, colour)) for row in [(0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505)])
    f = [t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116 for t in (x / 0.9505, y, z / 1.089)]
    return 116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])


# Machado, Oliveira, Fernandes 2009, full severity, on linear RGB.
SIGHTS = {"full": [(1, 0, 0), (0, 1, 0), (0, 0, 1)],
          "protanopia": [(0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)],
          "deuteranopia": [(0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)]}


def test_colours():
    with browser() as tab:
        path = page(data.report(explain, 1))
        for dark in [False, True]:
            tab.open(path, dark=dark)
            names = ["page", "card", "chosen", "ink", "soft", "link", "family-0", "family-1", "family-2", "best", "untold"]
            texts = tab.eval(f"{json.dumps(names)}.map(name => getComputedStyle(document.documentElement).getPropertyValue('--' + name).trim())")
            colours = {name: [linear(int(text[i:i + 2], 16) / 255) for i in (1, 3, 5)] for name, text in zip(names, texts)}
            assert (luminance(colours["card"]) < 0.5) == dark, "the scheme of the system is not followed"
            for paper in ["page", "card", "chosen"]:
                for ink in ["ink", "soft", "link"]:
                    assert contrast(colours[ink], colours[paper]) >= 4.5, f"{ink} on {paper}, dark={dark}"
            marks = ["family-0", "family-1", "family-2", "best", "untold"]
            for mark in marks:
                assert contrast(colours[mark], colours["card"]) >= 3, f"{mark}, dark={dark}"
            for sight, matrix in SIGHTS.items():
                seen = {m: lab([min(1, max(0, sum(w * c for w, c in zip(row, colours[m])))) for row in matrix]) for m in marks}
                for i, a in enumerate(marks):
                    for b in marks[i + 1:]:
                        distance = sum((p - q) ** 2 for p, q in zip(seen[a], seen[b])) ** 0.5
                        assert distance > 25, f"{a} and {b} look alike: {distance:.1f}, {sight}, dark={dark}"


def test_two_hundred_specs():
    report = data.report(explain, 200, 40)
    with browser() as tab:
        tab.open(page(report), 375)
        drawn(tab)
        assert count(tab, "#summary tbody tr") == count(tab, "details.spec") == 200
        assert count(tab, "details svg") == 0 and tab.eval(MISFITS) == []
        tab.eval("location.hash = '#spec-150'")
        tab.eval("new Promise(done => setTimeout(done, 200))")
        assert count(tab, "#spec-150 figure svg") > 2 and count(tab, "details[open]") == 1
        tab.eval("(() => { const box = document.querySelector('input'); box.value = 'SCALE=0.17 '; box.dispatchEvent(new Event('input')); })()")
        visible = "[...document.querySelectorAll('details.spec, #summary tbody tr')].filter(node => node.checkVisibility()).length"
        assert tab.eval(visible) == 2
        drawn(tab)


def test_missing_values():
    with browser() as tab:
        for report in [data.SPARSE, {"specs": []}, {"machine": None, "specs": [{"spec": "fwd f32 d=8 heads=1", "cut": None, "candidates": None}]}]:
            tab.open(page(report), 375)
            tab.open_details()
            drawn(tab)
            assert count(tab, "details.spec") == len(report["specs"])
            assert tab.eval(MISFITS) == []


def test_text_is_text():
    with browser() as tab:
        tab.open(page(data.HOSTILE))
        tab.open_details()
        drawn(tab)
        assert tab.eval("typeof window.stolen") == "undefined"
        assert count(tab, "img") == 0 and count(tab, "script") == 2
        assert tab.eval("document.querySelector('summary code').textContent") == data.NASTY
        assert tab.eval("document.querySelector('.cut span').textContent") == data.NASTY


if __name__ == "__main__":
    harness.main(globals())
