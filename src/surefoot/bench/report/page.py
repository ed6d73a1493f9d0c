"""The page of a report: one HTML file, nothing outside it, no script."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence

from surefoot.bench.answers import Answer, Comparison
from surefoot.bench.measurement import Measurement
from surefoot.bench.report import charts
from surefoot.bench.report.axes import legend
from surefoot.bench.report.markup import Markup, element, join, raw_block, text
from surefoot.bench.report.style import STYLE
from surefoot.bench.report.table import results
from surefoot.bench.results import Cell

POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""The browser itself refuses whatever is not in the file."""

ORIGINS = (("draft", "accepted draft"), ("correction", "correction"), ("bonus", "bonus"), ("plain", "plain"))

GLOSSARY = (
    ("tokens per second", "(tokens - 1) / seconds from the first token to the end; the prefill draws the first token"),
    (
        "times plain",
        "an answer's tokens per second over plain's to the same turn in the same repeat; median over answers",
    ),
    ("accepted", "emitted tokens that had been drafted"),
    ("bonus, correction", "the target's own token after a fully accepted draft, or in place of a wrong one"),
    ("round", "one forward of the target after the prefill"),
    ("mean acceptance length", "1 + accepted / rounds: tokens per round with the target's own"),
    ("strict", "a row's bits are known not to depend on what is computed beside it, so equal texts are promised"),
)


def render(measurement: Measurement) -> str:
    """The whole file."""
    setup = measurement.setup
    cells = measurement.cells()
    colors = {arm: f"arm{place}" for place, arm in enumerate(setup.arms) if place}
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", http_equiv="Content-Security-Policy", content=POLICY),
        element("title", text(f"surefoot bench: {setup.model}")),
        raw_block("style", STYLE),
    )
    body = element(
        "body",
        _header(measurement, cells),
        _section("Results", element("div", results(cells), class_="wide"), _caption(measurement)),
        *[
            _by_temperature(measurement, cells, heat, colors)
            for heat in dict.fromkeys(one.temperature for one in cells)
        ],
        _section(
            "Sample texts", _origin_legend(), *[_sample(one, raw=not setup.chat) for one in measurement.samples()]
        ),
        _circumstances(measurement),
        _section("Words", _facts(GLOSSARY)),
        raw_block("script", _data(measurement), type="application/json", id="measurement"),
    )
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


def _data(measurement: Measurement) -> str:
    """The JSON object; the characters that markup is made of are written as escapes."""
    written = json.dumps(measurement.as_json(), ensure_ascii=False)
    return written.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _section(title: str, *content: Markup) -> Markup:
    return element("section", element("h2", text(title)), *content)


def _paragraph(content: object, class_: str = "note") -> Markup:
    return element("p", text(content), class_=class_)


def _header(measurement: Measurement, cells: Sequence[Cell]) -> Markup:
    setup, hardware = measurement.setup, measurement.provenance
    questions = len({(one.question.kind, one.question.name) for one in measurement.comparisons})
    lead = (
        f"Plain decoding against {', '.join(setup.arms[1:])} on {questions} questions ({setup.questions}, "
        f"{'chat' if setup.chat else 'raw text'}), {setup.repeats} times each, {setup.max_tokens} tokens at most, "
        f"{setup.num_draft} drafts a round; {setup.dtype}, {hardware.processor}, {hardware.device}, "
        f"{hardware.num_threads} threads; {'strict' if setup.strict else 'not strict'}."
    )
    warnings = [_paragraph(warning, "warn") for warning in measurement.warnings(cells)]
    title = element("h1", text(f"surefoot bench: {setup.model}"))
    return element("header", title, _paragraph(lead, "lead"), *warnings)


def _caption(measurement: Measurement) -> Markup:
    setup = measurement.setup
    return _paragraph(
        f"Medians over answers, quartiles in brackets. Ratios are to plain decoding in the same run, with "
        f"{setup.num_draft} drafts a round (K), {setup.dtype}, exact={setup.exact}."
    )


def _by_temperature(
    measurement: Measurement, cells: Sequence[Cell], temperature: float, colors: charts.Colors
) -> Markup:
    here = [cell for cell in cells if cell.temperature == temperature]
    kinds = list(dict.fromkeys(cell.kind for cell in here))
    drafts = measurement.setup.num_draft
    names = [name for name in colors if any(cell.arm == name for cell in here)]
    keys = legend(names, [colors[name] for name in names])
    groups = {kind: [cell for cell in here if cell.kind == kind and cell.arm in colors] for kind in kinds}
    return join(
        [
            _section(f"Speedup by kind, temperature {temperature:g}", charts.speedup(here, colors)),
            _section(
                f"Acceptance by position, temperature {temperature:g}",
                keys,
                _grid([charts.acceptance(kind, group, drafts, colors) for kind, group in groups.items()]),
            ),
            _section(
                f"Accepted drafts in a round, temperature {temperature:g}",
                keys,
                _grid([charts.histogram(kind, group, drafts, colors) for kind, group in groups.items()]),
            ),
            _cost(measurement, here, colors),
            _section(f"Phase times, temperature {temperature:g}", _phase_legend(), charts.phases(here)),
        ]
    )


def _grid(images: Sequence[Markup]) -> Markup:
    return element("div", *images, class_="grid4")


def _cost(measurement: Measurement, cells: Sequence[Cell], colors: charts.Colors) -> Markup:
    if measurement.cost is None:
        return _section("Cost curve", _paragraph("Not measured: interrupted before, or the rows did not fit."))
    told = (
        f"The red line is what a forward of the target costs by its rows, after {measurement.cost.context} tokens, in "
        "forwards of one row: where drafts that cost nothing break even. A dot is an arm's tokens per round at its "
        "rows per round; its dash is what its rounds cost with all phases, in plain rounds. Drafting pays where the "
        "dot is above the dash. Dotted, rising: every draft accepted."
    )
    keys = legend(list(colors), list(colors.values()))
    title = f"Cost curve and break-even, temperature {cells[0].temperature:g}"
    return _section(title, _paragraph(told), keys, charts.cost(measurement.cost, cells, colors))


def _phase_legend() -> Markup:
    return legend(charts.PHASES, [f"phase{index}" for index in range(len(charts.PHASES))])


def _origin_legend() -> Markup:
    keys = [element("span", text(name), class_=f"entry sample {origin}") for origin, name in ORIGINS]
    return element("p", *keys, class_="legend")


def _sample(one: Comparison, *, raw: bool) -> Markup:
    question = one.question
    asked = question.wording(one.turn, raw=raw)
    return join(
        [
            element("h3", text(f"{question.kind} · {question.name} · temperature {one.temperature:g}")),
            element("details", element("summary", text("the question")), element("pre", text(asked))),
            *[_answer(answer, one.plain) for answer in one.answers],
        ]
    )


def _answer(answer: Answer, plain: Answer) -> Markup:
    index = answer.first_difference(plain)
    same = "" if answer is plain else " · same text as plain" if index is None else f" · differs from token {index} on"
    pieces = [element("span", text(piece), class_=origin) for piece, origin in answer.pieces if piece]
    told = f"{answer.arm} · {len(answer.tokens)} tokens in {answer.stats.rounds} rounds{same}"
    opened = {} if answer is plain else {"open": "open"}
    return element("details", element("summary", text(told)), element("pre", *pieces), **opened)


def _circumstances(measurement: Measurement) -> Markup:
    setup, ran = measurement.setup, measurement.provenance
    versions = {"surefoot": ran.surefoot, "python": ran.python, **ran.packages}
    facts = [
        ("command", shlex.join(ran.command)),
        ("target", setup.model),
        ("drafter", setup.drafter),
        ("arithmetic", f"{setup.dtype}, exact={setup.exact}, {'strict' if setup.strict else 'not strict'}"),
        ("drafts a round", f"{setup.num_draft}, acceptance={setup.acceptance}"),
        ("temperatures", ", ".join(f"{value:g}" for value in setup.temperatures)),
        ("seed", setup.seed),
        ("questions", f"{setup.questions}, as {'chat messages' if setup.chat else 'raw text'}"),
        ("hardware", f"{ran.processor}, {ran.num_cores} cores, {ran.num_threads} threads, device {ran.device}"),
        ("versions", ", ".join(f"{name} {version}" for name, version in versions.items())),
        ("finished", ran.finished),
        *[("note", note) for note in measurement.notes],
        *[("skipped", skipped) for skipped in measurement.skipped],
    ]
    return _section("Circumstances", _facts(facts))


def _facts(facts: Sequence[tuple[str, object]]) -> Markup:
    return element(
        "dl", *[part for name, fact in facts for part in (element("dt", text(name)), element("dd", text(fact)))]
    )
