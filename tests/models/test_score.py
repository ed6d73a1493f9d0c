"""Scoring many rows at once gives what plain decoding gives, one token after the other."""

from __future__ import annotations

import pytest
import torch
from tests.factories import make_model
from tests.models.routes import NOTHING, Case, chain_case, random_case, step_logits, tree_logits

from surefoot.models import forward
from surefoot.models.decoder import DecoderModel
from surefoot.ops import attention
from surefoot.tree import chain
from surefoot.types import Capture

VOCAB = 97
KINDS: dict[str, dict[str, object]] = {
    "llama": {"family": "llama", "num_key_value_heads": 4},
    "mistral": {"family": "mistral", "sliding_window": 5},
    "phi3": {"family": "phi3", "sliding_window": 5, "partial_rotary_factor": 0.5},
    "qwen2": {"family": "qwen2", "use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1},
    "qwen3": {"family": "qwen3", "num_key_value_heads": 1, "tie_word_embeddings": True},
}
CASES = {
    "one row": chain_case(1, VOCAB, 9, 1),
    "chain": chain_case(2, VOCAB, 9, 6),
    "chain in several calls": chain_case(3, VOCAB, 4, 7, 4),
    "tree": random_case(4, VOCAB, 9, 12),
    "tree in several calls": random_case(5, VOCAB, 11, 12, 3),
    "long tree": random_case(6, VOCAB, 3, 20, 1),
    "tree without a prompt": random_case(7, VOCAB, 0, 7, 2),
}

pytestmark = pytest.mark.usefixtures("one_thread")


def tiny(kind: str, dtype: torch.dtype, **options: object) -> DecoderModel:
    """A model of one kind; width 72 is no multiple of a vector, so that scalar tails are met."""
    overrides = {"num_hidden_layers": 2, "intermediate_size": 72} | KINDS[kind] | options
    return make_model(dtype=dtype, **overrides)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_rows_of_any_tree_equal_plain_decoding_in_fp64(kind: str, case: Case) -> None:
    model = tiny(kind, torch.float64)
    torch.testing.assert_close(tree_logits(model, case), step_logits(model, case), rtol=0, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_any_tree_equal_plain_decoding_to_the_bit_in_exact_arithmetic(kind: str, dtype: torch.dtype) -> None:
    model = tiny(kind, dtype, exact="require")
    assert model.strict
    for name, case in CASES.items():
        assert torch.equal(tree_logits(model, case), step_logits(model, case)), name


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_equal_plain_decoding_to_the_bit_on_two_threads_as_well(dtype: torch.dtype) -> None:
    model = tiny("mistral", dtype, exact="require", num_hidden_layers=1, hidden_size=256, intermediate_size=520)
    case = CASES["tree in several calls"]
    assert torch.equal(tree_logits(model, case), step_logits(model, case))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
def test_chunking_changes_no_bit_in_exact_arithmetic(kind: str, dtype: torch.dtype) -> None:
    case = chain_case(8, VOCAB, 23, 3)
    models = [tiny(kind, dtype, exact="require", prefill_chunk=size) for size in (512, 1, 7, 8)]
    whole, *chunked = [tree_logits(model, case) for model in models]
    assert all(torch.equal(whole, logits) for logits in chunked)


@pytest.mark.parametrize("kind", KINDS)
def test_sequences_in_one_call_do_not_see_each_other(kind: str) -> None:
    model = tiny(kind, torch.float64)
    cases = [random_case(9, VOCAB, 5, 6), chain_case(10, VOCAB, 14, 1), chain_case(11, VOCAB, 1, 4)]
    rounds = []
    for case in cases:
        cache = model.new_cache(32)
        list(model.prefill(case.prompt, cache, NOTHING))
        rounds.append((case.trees()[0], cache))
    together = model.score(rounds, Capture(layers=(1, 0), final=True))
    for case, out in zip(cases, together, strict=True):
        cache = model.new_cache(32)
        list(model.prefill(case.prompt, cache, NOTHING))
        (alone,) = model.score([(case.trees()[0], cache)], Capture(layers=(1, 0), final=True))
        for ours, theirs in zip(
            (out.logits, out.final, *out.layers), (alone.logits, alone.final, *alone.layers), strict=True
        ):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9)


def test_sequences_in_one_call_change_no_bit_in_exact_arithmetic() -> None:
    model = tiny("qwen2", torch.bfloat16, exact="require")
    cases = [random_case(seed, VOCAB, 4 + seed, 5) for seed in range(3)]
    rounds = []
    for case in cases:
        cache = model.new_cache(32)
        list(model.prefill(case.prompt, cache, NOTHING))
        rounds.append((case.trees()[0], cache))
    for case, out in zip(cases, model.score(rounds, NOTHING), strict=True):
        assert torch.equal(out.logits, tree_logits(model, case))


@pytest.mark.parametrize("kind", KINDS)
def test_chunks_of_a_prompt_show_what_one_forward_shows(kind: str) -> None:
    tokens = chain_case(12, VOCAB, 20, 1).prompt
    seen = []
    for size in (512, 6):
        model = tiny(kind, torch.float64, prefill_chunk=size)
        chunks = list(model.prefill(tokens, model.new_cache(20), Capture(layers=(0, 1), final=True, logits=True)))
        assert [len(chunk) for chunk, _ in chunks] == ([20] if size == 512 else [6, 6, 6, 2])
        assert sum((chunk for chunk, _ in chunks), ()) == tokens
        outputs = [out for _, out in chunks]
        seen.append([torch.cat([select(out) for out in outputs]) for select in SELECTORS])
    for whole, chunked in zip(*seen, strict=True):
        torch.testing.assert_close(whole, chunked, rtol=0, atol=1e-9)


SELECTORS = (lambda out: out.logits, lambda out: out.final, lambda out: out.layers[0], lambda out: out.layers[1])


def test_prefill_computes_logits_of_the_last_row_alone_unless_asked() -> None:
    model = tiny("llama", torch.float64, prefill_chunk=4)
    tokens = tuple(range(10))
    quiet = [out for _, out in model.prefill(tokens, model.new_cache(10), NOTHING)]
    loud = [out for _, out in model.prefill(tokens, model.new_cache(10), Capture(logits=True))]
    assert [None if out.logits is None else len(out.logits) for out in quiet] == [None, None, 1]
    assert [len(out.logits) for out in loud] == [4, 4, 2]
    torch.testing.assert_close(quiet[-1].logits[-1], loud[-1].logits[-1], rtol=0, atol=1e-12)


def test_captures_fit_together() -> None:
    model = tiny("qwen3", torch.float64)
    (out,) = model.score([(chain([5, 6, 7]), model.new_cache(8))], Capture(layers=(1, 0, 1), final=True))
    assert torch.equal(out.layers[0], out.layers[2])
    assert not torch.equal(out.layers[0], out.layers[1])
    torch.testing.assert_close(model.unembed(out.final), out.logits, rtol=0, atol=1e-12)
    torch.testing.assert_close(
        model.unembed(torch.nn.functional.rms_norm(out.layers[0], (48,), model.norm, 1e-6)),
        out.logits,
        rtol=0,
        atol=1e-12,
    )
    assert torch.equal(model.embed(torch.tensor([[3], [4]])), model.embedding[torch.tensor([[3], [4]])])
    assert model.unembed(out.final[None]).shape == (1, 3, VOCAB)


def test_logits_are_at_least_fp32() -> None:
    for dtype, expected in (
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float32),
        (torch.float64, torch.float64),
    ):
        model = tiny("llama", dtype)
        (out,) = model.score([(chain([1, 2]), model.new_cache(4))], Capture(layers=(0,), final=True))
        assert out.logits.dtype == expected
        assert out.final.dtype == out.layers[0].dtype == dtype


class TestTheCheckersSee:
    """Negative controls: each defect must be found by the comparison above."""

    case = CASES["tree"]

    def differs(self, model: DecoderModel) -> bool:
        expected = step_logits(model, self.case)
        return not torch.allclose(tree_logits(model, self.case), expected, rtol=0, atol=1e-9)

    def test_nothing_wrong(self) -> None:
        assert not self.differs(tiny("llama", torch.float64))

    def test_positions_by_node_index_instead_of_depth(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def by_index(self: forward.Forward, spans: list[forward.Span]) -> tuple[torch.Tensor, torch.Tensor]:
            start = spans[0].cache.length + len(spans[0].nodes.parents) - spans[0].num_new
            return spans[0].cache.rope.run(start, spans[0].num_new)

        monkeypatch.setattr(forward.Forward, "_angles", by_index)
        assert self.differs(tiny("llama", torch.float64))

    def test_siblings_that_see_each_other(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def lower_triangle(parents: tuple[int, ...]) -> torch.Tensor:
            return torch.ones(len(parents), len(parents), dtype=torch.bool).tril()

        monkeypatch.setattr(attention, "ancestor_mask", lower_triangle)
        assert self.differs(tiny("llama", torch.float64))

    def test_a_window_counted_in_rows(self, monkeypatch: pytest.MonkeyPatch) -> None:
        right = attention._visible

        def by_rows(around: attention.Round, window: int | None) -> torch.Tensor:
            visible = right(around, None)
            if window is not None:
                rows = torch.arange(around.stop)
                visible &= rows[-around.num_new :, None] - rows < window
            return visible

        monkeypatch.setattr(attention, "_visible", by_rows)
        assert self.differs(tiny("mistral", torch.float64))

    def test_one_bit_that_depends_on_the_number_of_rows(self) -> None:
        model = tiny("llama", torch.float64, exact="require")
        exact = model._forward._rows.linear

        class OneBitOff:
            def __getattr__(self, name: str) -> object:
                return getattr(exact_rows, name)

            @staticmethod
            def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
                out = exact(x, weight, bias)
                return torch.nextafter(out, out + 1) if len(x) > 1 else out

        exact_rows = model._forward._rows
        model._forward._rows = OneBitOff()
        assert not torch.equal(tree_logits(model, self.case), step_logits(model, self.case))
