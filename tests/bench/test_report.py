"""The report as a file: well-formed, self-contained, escaped, and true to the numbers."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.bench.made_up import NUM_DRAFT, answer_of, comparison_of, measurement_of
from tests.bench.pages import SVG, MalformedError, embedded, images, parse, titled
from tests.bench.timed import TimedTarget, engine_of, run, settings_of

from surefoot.bench.costs import measure_costs, row_counts
from surefoot.bench.measurement import Measurement
from surefoot.bench.report.axes import ticks
from surefoot.bench.report.markup import element, raw_block, text
from surefoot.bench.report.page import POLICY, render

PATIENT = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
ATTACK = "</script></pre><script>alert('x')</script><img src=http://evil.example/x onerror=alert(1)>&\"'"


def usual(attack: str = "", **changes: object) -> Measurement:
    arms = {"plain": 2.0, "lookup": 1.0, f"draft{attack}": 4.0}
    return measurement_of(
        [
            comparison_of(
                *(answer_of(arm, seconds, text=f"piece{attack}", accepted=(4, 2, 0)) for arm, seconds in arms.items()),
                kind=kind + attack,
                name="a" + attack,
                temperature=heat,
                turn="change this" + attack,
            )
            for kind in ("edit", "copy")
            for heat in (0.0, 0.8)
        ],
        **{"model": "tiny" + attack, **changes},
    )


def test_the_page_is_well_formed_and_fetches_nothing() -> None:
    html = render(usual())
    page = parse(html)
    assert page.tags.count("section") > 5
    assert page.addresses() == []
    assert not re.search(r"url\(|@import|https?://(?!www\.w3\.org/2000/svg)", html)
    assert [kind for kind, _ in page.scripts] == ["application/json"], "no script that runs"
    assert ("content", POLICY) in page.attributes
    assert "default-src 'none'" in POLICY
    assert not re.search(r"\b(undefined|None|nan|NaN|inf|Infinity)\b", page.text)


def test_the_strict_reader_notices() -> None:
    for bad in ("<p><b></p></b>", "<p>", "</p>"):
        with pytest.raises(MalformedError):
            parse(bad)
    assert parse('<img src="http://a.example">').addresses() == ["src=http://a.example"]


def test_every_image_is_xml_of_finite_numbers_inside_its_frame() -> None:
    found = images(render(usual()))
    assert len(found) == 2 * (1 + 2 + 2 + 1 + 1), "by temperature: speedup, two kinds twice, costs, phases"
    for image in found:
        width, height = map(float, image.attrib["viewBox"].split()[2:])
        assert image.findtext(f"{SVG}title")
        for part in image.iter():
            for name, value in part.attrib.items():
                if name in ("x", "x1", "x2", "cx", "width"):
                    assert 0 <= float(value) <= width, (part.tag, name, value)
                if name in ("y", "y1", "y2", "cy", "height"):
                    assert 0 <= float(value) <= height, (part.tag, name, value)


def test_whatever_a_user_supplied_stays_text() -> None:
    html = render(usual(ATTACK))
    page = parse(html)
    assert page.tags.count("script") == 1
    assert "img" not in page.tags
    assert page.addresses() == []
    assert ATTACK in page.text
    assert embedded(html) == json.loads(json.dumps(usual(ATTACK).as_json()))
    assert page.tags == parse(render(usual("harmless"))).tags, "it changed the page's structure"


@PATIENT
@given(st.text())
def test_any_text_comes_back_as_it_was(value: str) -> None:
    value = re.sub(r"[\r\x00]", "", value)  # which HTML itself does not keep
    assert "".join(parse(element("p", text(value), title=value)).texts) == (value if value.strip() else "")


def test_a_block_that_would_end_itself_is_refused() -> None:
    with pytest.raises(AssertionError):
        raw_block("script", "'</script>'")


def test_the_numbers_are_the_measurements() -> None:
    measurement = usual()
    html = render(measurement)
    page = parse(html)
    assert embedded(html) == json.loads(json.dumps(measurement.as_json()))
    speedup = images(html)[0]
    shown = [part.text for part in speedup.iter(f"{SVG}text")]
    assert "2.00" in shown
    assert "0.50 · slower than plain" in shown
    bars = {part.attrib["class"]: float(part.attrib["width"]) for part in speedup.iter(f"{SVG}rect")}
    assert bars["fill arm1"] == pytest.approx(4 * bars["fill arm2"], abs=0.1)
    for fact in ("surefoot bench tiny", "a processor", "seed", "float32, exact=require, strict", "python 3", "a note"):
        assert fact in page.text
    assert "skipped edit/z, turn 1: its prompt has 999 tokens" in page.text
    assert "slower than plain" in page.text


def test_the_charts_of_acceptance_are_the_counts() -> None:
    html = render(
        measurement_of([comparison_of(answer_of("plain", 2.0), answer_of("lookup", 1.0, accepted=(4, 2, 0, 0)))])
    )
    curve = titled(html, "Acceptance by position, edit")
    told = [part.text for part in curve.iter(f"{SVG}title")][1:]
    assert told == [
        f"lookup, place {place}: {share} %" for place, share in enumerate(("50.0", "50.0", "25.0", "25.0"), 1)
    ]
    histogram = titled(html, "Histogram of accepted counts, edit")
    told = [str(part.text) for part in histogram.iter(f"{SVG}title")][1:]
    assert told == [
        f"lookup: {i} accepted in {share} % of rounds" for i, share in enumerate((50.0, 0.0, 25.0, 0.0, 25.0))
    ]


def test_the_break_even_is_drawn_from_the_measured_curve() -> None:
    html = render(
        measurement_of([comparison_of(answer_of("plain", 3.0, accepted=(0,) * 10), answer_of("lookup", 3.0))])
    )
    chart = titled(html, "Cost curve and break-even")
    told = [str(part.text) for part in chart.iter(f"{SVG}title")]
    assert told[1:4] == ["1 rows cost 1.00", "2 rows cost 1.20", "5 rows cost 1.80"]
    # Three rounds in 3 s against ten in 3 s; 5 accepted in three rounds.
    assert told[4] == "edit, lookup: 2.67 tokens per round, a round costs 3.33 plain rounds"
    by_class = {part.attrib.get("class"): part for part in chart.iter()}
    dot = float(by_class["fill arm1"].attrib["cy"])
    dash = float(by_class["dash arm1"].attrib["y1"])
    assert dot > dash, "below its break-even: y grows downward"


def test_an_interrupted_measurement_says_so() -> None:
    begun = replace(usual(complete=False), comparisons=usual().comparisons[:1])
    page = parse(render(begun))
    assert "temperature 0.8" not in page.text, "it was not reached"
    assert "Interrupted: this is what was measured until then." in page.text
    assert "Not measured" in page.text
    assert "Interrupted" not in parse(render(usual())).text


def test_different_texts_are_announced_at_the_top() -> None:
    html = render(measurement_of([comparison_of(answer_of("plain", 1.0), answer_of("draft", 1.0, tokens=(0, 9)))]))
    assert html.index("1 of 1 texts differ, although equal texts were promised") < html.index("<section>")
    assert "differs from token 1 on" in html


def test_answers_of_one_token_make_a_page_too() -> None:
    short = [answer_of(arm, 0.0, tokens=(1,)) for arm in ("plain", "draft")]
    html = render(measurement_of([comparison_of(*short)]))
    parse(html)
    images(html)


def test_sample_texts_show_where_each_token_came_from() -> None:
    html = render(usual())
    assert "change this" in parse(html).texts, "what was asked stands with it"
    for origin in ("draft", "correction", "bonus", "plain"):
        assert f'<span class="{origin}">piece</span>' in html


def test_a_real_measurement_makes_a_page() -> None:
    target = TimedTarget()
    compared = run(target, settings_of(engine_of(target), temperatures=(0.0, 0.8)))
    html = render(measurement_of(compared))
    parse(html)
    assert len(images(html)) == 14


@PATIENT
@given(st.floats(1e-9, 1e9), st.integers(3, 8))
def test_ticks_are_few_round_and_reach_the_end(greatest: float, most: int) -> None:
    found = ticks(greatest, most)
    assert found[0] == 0
    assert found[-1] >= greatest * (1 - 1e-6)
    assert 2 <= len(found) <= most + 1
    assert f"{found[1]:e}"[0] in "125"


@PATIENT
@given(st.integers(1, 64))
def test_the_cost_curve_reaches_from_one_row_to_a_whole_round(num_draft: int) -> None:
    counts = row_counts(num_draft)
    assert (counts[0], counts[-1]) == (1, num_draft + 1)
    assert list(counts) == sorted(set(counts))
    assert len(counts) <= 9


def test_costs_are_measured_where_the_answers_stood() -> None:
    target = TimedTarget()
    compared = run(target)
    curve = measure_costs(target, compared, NUM_DRAFT)
    assert curve is not None
    assert [point.rows for point in curve.points] == [1, 2, 3, 4, 5]
    lengths = sorted(len(one.prompt) for one in compared)
    assert curve.context == lengths[len(lengths) // 2] + 20, "half way through 40 tokens"
    assert measure_costs(target, (), NUM_DRAFT) is None
    target.context_length = curve.context + NUM_DRAFT
    assert measure_costs(target, compared, NUM_DRAFT) is None
