"""The benchmarks against other engines: their models, their figures, their workers, and how both are told."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.checkpoints import SHAPES, Kind, checkpoint
from benchmarks.decode import MEASUREMENTS as DECODE
from benchmarks.decode import PEERS, faster, rate, same_tokens
from benchmarks.figures import Aim, Figure, Findings, prompts, save
from benchmarks.hybrid import MEASUREMENTS as HYBRID
from benchmarks.kernels import MEASUREMENTS as KERNELS
from benchmarks.kernels import equal_alone, filled
from benchmarks.peers.client import INTERPRETERS, Answer, Arm, Peer, PeerError, Setup, in_turn, running
from benchmarks.rollback import MEASUREMENTS as ROLLBACK
from benchmarks.speed_report import TITLES, part, sections

import surefoot
from surefoot.engine import Engine
from surefoot.options import SamplingParams
from surefoot.protocols import Cache, Target
from surefoot.types import Capture, DraftTree, TargetOutput


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def test_the_shapes_have_the_sizes_they_are_named_after(cache: Path) -> None:
    def parameters(name: str) -> int:
        shape = SHAPES[name]
        head = shape.hidden_size // shape.num_attention_heads
        attention = shape.hidden_size * 2 * (shape.hidden_size + head * shape.num_key_value_heads)
        layer = attention + 3 * shape.hidden_size * shape.intermediate_size
        return shape.vocab_size * shape.hidden_size + shape.num_hidden_layers * layer

    sizes = {name: parameters(name) / 1e6 for name in SHAPES}
    assert sizes == pytest.approx({"14m": 14.2, "1m": 0.92, "0.5b": 494, "10m": 9.8}, rel=0.01)
    assert 2e6 * sizes["1m"] == pytest.approx(
        (checkpoint("1m", "random", cache) / "model.safetensors").stat().st_size, rel=0.02
    )


@pytest.mark.parametrize(("kind", "share"), [("repeats", 1.0), ("misses", 0.0)])
def test_every_draft_is_right_or_every_draft_is_wrong(cache: Path, kind: Kind, share: float) -> None:
    target = checkpoint("1m", "repeats", cache)
    engine = surefoot.load(target, checkpoint("1m", kind, cache))
    (prompt,) = prompts(1, 24, 4096)
    result = engine.generate(prompt, SamplingParams(max_tokens=40, ignore_eos=True))
    assert set(result.tokens) == {prompt[-1]}
    assert result.stats.drafted > 20
    assert result.stats.accepted / result.stats.drafted == share


def test_a_checkpoint_is_made_once_and_is_the_same_each_time(cache: Path, tmp_path: Path) -> None:
    path = checkpoint("1m", "random", cache)
    made = (path / "model.safetensors").stat().st_mtime_ns
    assert checkpoint("1m", "random", cache) == path
    assert (path / "model.safetensors").stat().st_mtime_ns == made
    again = checkpoint("1m", "random", tmp_path)
    assert (again / "model.safetensors").read_bytes() == (path / "model.safetensors").read_bytes()


def test_prompts_are_fresh_and_free_of_special_ids() -> None:
    drawn = prompts(20, 16, 4096)
    assert len(set(drawn)) == 20
    assert min(map(min, drawn)) >= 16
    assert drawn == prompts(20, 16, 4096)


@pytest.mark.parametrize(
    ("aim", "met", "missed"), [(Aim(at_least=2), (2.0, 3.0), (1.99,)), (Aim(at_most=1.1), (1.1, 0.5), (1.11,))]
)
def test_an_aim_is_one_bound_which_counts_as_met_itself(
    aim: Aim, met: Sequence[float], missed: Sequence[float]
) -> None:
    assert [aim.met(value) for value in (*met, *missed)] == [True] * len(met) + [False] * len(missed)


def answer(seconds: float, tokens: tuple[int, ...] = (1, 2, 3)) -> Answer:
    return Answer(prefill_seconds=100.0, decode_seconds=seconds, num_first=1, tokens=tokens)


def test_rates_leave_out_the_prefill_and_the_first_token() -> None:
    assert rate("x", [answer(0.5)]).median == 4.0
    assert rate("x", [replace(answer(0.5), num_first=2)]).median == 2.0


def test_ratios_are_taken_turn_by_turn_and_above_one_where_ours_is_faster() -> None:
    answers = {"ours": [answer(1.0), answer(10.0)], "theirs": [answer(2.0), answer(20.0)]}
    figure = faster("x", answers, "ours", "theirs")
    assert (figure.low, figure.median, figure.high) == (2.0, 2.0, 2.0)
    assert faster("x", answers, "theirs", "ours").median == 0.5


def test_other_tokens_are_counted() -> None:
    answers = {"surefoot": [answer(1), answer(1)], "other": [answer(1), answer(1, (1, 2, 4))]}
    assert same_tokens("x", answers, "other").median == 0.5


FIGURES = (
    Figure.of("a: plain", "times", [1.0, 2.0, 9.0], Aim(at_least=2)),
    Figure.of("b: plain", "times", [1.5], Aim(at_least=2)),
    Figure.of("c: plain", "tokens/s", [1234.5]),
)


def test_saving_a_part_keeps_the_others(tmp_path: Path) -> None:
    path = tmp_path / "decode.json"
    findings = Findings(figures=FIGURES, versions={"peer": "1.0"})
    save(path, {"plain": findings})
    save(path, {"memory": replace(findings, figures=())})
    document = json.loads(path.read_text(encoding="utf-8"))
    assert list(document) == ["plain", "memory"]
    assert tuple(Figure.read(raw) for raw in document["plain"]["figures"]) == FIGURES


def test_the_report_shows_misses_with_their_reasons(tmp_path: Path) -> None:
    save(tmp_path / "decode.json", {"plain": Findings(figures=FIGURES, versions={"peer": "1.0"}, left_out=("gone",))})
    (text,) = sections(tmp_path)
    assert "| a: plain | 2 times | 1 to 9 | at least 2: met |" in text
    assert "| b: plain | 1.5 times | 1.5 to 1.5 | at least 2: **missed** |" in text
    assert "| c: plain | 1234 tokens/s |" in text
    assert "1 of 2 aims missed: the reason is not known yet." in text
    assert "peer 1.0" in text
    assert "left out: gone" in text
    (tmp_path / "reasons.json").write_text(json.dumps({"decode.plain": "it is slow."}), encoding="utf-8")
    assert "1 of 2 aims missed: it is slow." in sections(tmp_path)[0]


def test_every_measurement_has_a_place_in_the_report() -> None:
    assert {name: set(order) for name, (_, _, order) in TITLES.items()} == {
        "decode": set(DECODE),
        "kernels": set(KERNELS),
        "hybrid": set(HYBRID),
        "rollback": set(ROLLBACK),
    }


def test_without_results_there_is_no_section(tmp_path: Path) -> None:
    assert sections(tmp_path) == []


def test_a_part_without_misses_gives_no_reason(tmp_path: Path) -> None:
    save(tmp_path / "kernels.json", {"draft": Findings(figures=FIGURES[:1], versions={})})
    document = json.loads((tmp_path / "kernels.json").read_text(encoding="utf-8"))
    assert "missed" not in part("kernels.draft", document["draft"], {"kernels.draft": "none"})


class Coupled:
    """A target whose rows know whether there are others beside them."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def __getattr__(self, name: str) -> object:
        return getattr(self._target, name)

    def score(self, rounds: Sequence[tuple[DraftTree, Cache]], capture: Capture) -> list[TargetOutput]:
        outs = self._target.score(rounds, capture)
        return [
            replace(out, logits=out.logits * (1 + 1e-6 * (len(rounds) - 1))) for out in outs if out.logits is not None
        ]


def test_sequences_that_change_each_others_bits_are_seen(cache: Path) -> None:
    engine = surefoot.load(checkpoint("1m", "random", cache), dtype="float32", exact="require")
    chosen = prompts(3, 24, 4096)
    assert equal_alone("x", engine, chosen, 6).median == 1
    coupled = Engine(Coupled(engine.target))  # type: ignore[arg-type]  # a proxy
    assert equal_alone("x", coupled, chosen, 6).median == 0


def test_contexts_are_beginnings_of_one_text(cache: Path) -> None:
    target = surefoot.load(checkpoint("1m", "random", cache)).target
    caches = filled(target, (8, 40))
    assert {length: one.length for length, one in caches.items()} == {8: 8, 40: 40}
    assert all(one.capacity - one.length >= 8 for one in caches.values())


def setup(cache: Path) -> Setup:
    return Setup(cache=cache, dtype="float32", threads=1, num_draft=3)


def test_a_worker_answers_like_the_engine_in_this_process(cache: Path) -> None:
    model = checkpoint("1m", "random", cache)
    (prompt,) = prompts(1, 24, 4096)
    expected = surefoot.load(model, dtype="float32").generate(prompt, SamplingParams(max_tokens=9, ignore_eos=True))
    with running({"draft": Arm(engine="surefoot", model=model, draft=model)}, setup(cache)) as peers:
        answer = peers["draft"].generate(prompt, 9)
        seconds = peers["draft"].forwards(prompt, (1, 4), 2)
        peak = peers["draft"].peak_bytes()
    assert answer.tokens == expected.tokens
    assert answer.prefill_seconds > 0
    assert answer.decode_seconds > 0
    assert list(seconds) == [1, 4]
    assert peak > 50e6


def test_arms_begin_with_another_one_each_turn() -> None:
    peers: dict[str, Peer] = dict.fromkeys("abc")  # type: ignore[arg-type]  # nobody is asked
    assert [[name for name, _ in in_turn(peers, turn)] for turn in (0, 1, 2)] == [list("abc"), list("bca"), list("cab")]


def test_a_worker_that_ends_is_quoted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho 'no such model' >&2\n", encoding="utf-8")
    broken.chmod(0o755)
    monkeypatch.setitem(INTERPRETERS, "surefoot", broken)
    with (
        pytest.raises(PeerError, match="no such model"),
        running({"plain": Arm(engine="surefoot", model=tmp_path)}, setup(tmp_path)),
    ):
        pass


@pytest.mark.parametrize("engine", ["surefoot", *PEERS])
def test_every_engine_has_a_worker_and_an_interpreter(engine: str) -> None:
    script = Path(sys.modules["benchmarks.peers.client"].__file__ or "").with_name(f"with_{engine}.py")
    assert script.exists()
    assert engine in INTERPRETERS


def test_half_an_environment_counts_as_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    interpreter = tmp_path / "llama-cpp" / "bin" / "python"
    monkeypatch.setattr("benchmarks.peers.client.ENVIRONMENTS", tmp_path)
    monkeypatch.setitem(INTERPRETERS, "llama_cpp", interpreter)
    arm = Arm(engine="llama_cpp", model=tmp_path)
    assert not arm.installed
    (tmp_path / "llama-cpp").mkdir()
    (tmp_path / "llama-cpp" / ".installed").touch()
    assert arm.installed
    assert Arm(engine="surefoot", model=tmp_path).installed
