"""Every cell of ``docs/exactness.md``, run again."""

from __future__ import annotations

from collections.abc import Sequence
from unittest.mock import patch

import pytest
from tests.matrix import DOCUMENT, DRAFTERS, FEATURES, TEMPERATURES, TITLES, cell, render, verdict

from surefoot.options import SamplingParams
from surefoot.sampling import RequestSampler


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("kind", TITLES)
@pytest.mark.parametrize("name", FEATURES)
def test_a_cell_is_exact(name: str, kind: str, drafter: str, temperature: float) -> None:
    found = cell(name, kind, drafter, temperature)
    assert found.ours == found.expected
    assert verdict(found, drafter) == "exact"


def test_the_document_shows_these_cells_and_no_others() -> None:
    assert DOCUMENT.read_text(encoding="utf-8") == render(lambda name, kind, drafter, temperature: "exact")


def test_every_option_of_sampling_is_a_row_or_known_not_to_need_one() -> None:
    others = {"temperature", "seed", "sample_index", "ignore_eos", "stop", "stop_token_ids"}
    assert set(SamplingParams.__dataclass_fields__) - others <= set(FEATURES)


def test_a_sampler_that_forgets_the_drafted_path_is_seen() -> None:
    """Negative control: with the history of the round's root alone, penalties differ inside a run."""
    draw = RequestSampler.draw

    def forgetful(self: RequestSampler, logits, prefix: Sequence[int] = ()) -> int:  # type: ignore[no-untyped-def]
        return draw(self, logits)

    with patch.object(RequestSampler, "draw", forgetful):
        assert not cell("repetition_penalty", "dense", "draft model", 0.8).exact
