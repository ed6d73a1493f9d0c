"""Positions are read from both spellings, every number of every type; what is unknown or contradicts is refused."""

from __future__ import annotations

import math
import re

import pytest
from tests.factories import raw_config

from surefoot.errors import CheckpointError, UnsupportedModelError
from surefoot.models import FAMILIES
from surefoot.models.config import DecoderConfig
from surefoot.ops.rope import Rope
from surefoot.ops.rope_scaling import Dynamic, Linear, LongRope, Scaling, Yarn

ORIGINAL = "original_max_position_embeddings"
FACTORS = {"short_factor": [1.0, 1.5], "long_factor": [2, 4.0]}
LONG = {"short_factors": (1.0, 1.5), "long_factors": (2.0, 4.0)}
SMALL = {"head_dim": 4, "max_position_embeddings": 512}


def parse(family: str = "llama", **overrides: object) -> DecoderConfig:
    return FAMILIES[family].parse(raw_config(family, **{**SMALL, **overrides}))


def scaled(scaling: Scaling) -> Rope:
    return Rope(theta=10000.0, dim=4, scaling=scaling)


def growth(factor: float, weight: float = 1.0) -> float:
    return 0.1 * weight * math.log(factor) + 1.0


CASES: dict[str, tuple[dict[str, object], Scaling, int]] = {
    "linear": ({"rope_type": "linear", "factor": 4}, Linear(factor=4.0), 512),
    "dynamic": ({"rope_type": "dynamic", "factor": 2.5}, Dynamic(factor=2.5, trained_context=512), 1280),
    "yarn": (
        {"rope_type": "yarn", "factor": 4.0},
        Yarn(factor=4.0, original_context=512, attention_factor=growth(4)),
        2048,
    ),
    "yarn, extended already": (
        {"rope_type": "yarn", "factor": 4.0, ORIGINAL: 128},
        Yarn(factor=4.0, original_context=128, attention_factor=growth(4)),
        512,
    ),
    "yarn, factor from the contexts": (
        {"rope_type": "yarn", ORIGINAL: 64},
        Yarn(factor=8.0, original_context=64, attention_factor=growth(8)),
        512,
    ),
    "yarn, every field": (
        {
            "rope_type": "yarn",
            "factor": 4.0,
            ORIGINAL: 256,
            "beta_fast": 16,
            "beta_slow": 2,
            "truncate": False,
            "attention_factor": 1.5,
            "mscale": 0.7,
            "mscale_all_dim": 0.9,
        },
        Yarn(factor=4.0, original_context=256, beta_fast=16.0, beta_slow=2.0, truncate=False, attention_factor=1.5),
        1024,
    ),
    "yarn, two mscales": (
        {"rope_type": "yarn", "factor": 4.0, "mscale": 0.7, "mscale_all_dim": 0.9},
        Yarn(factor=4.0, original_context=512, attention_factor=growth(4, 0.7) / growth(4, 0.9)),
        2048,
    ),
    "yarn, one mscale says nothing": (
        {"rope_type": "yarn", "factor": 4.0, "mscale": 0.7},
        Yarn(factor=4.0, original_context=512, attention_factor=growth(4)),
        2048,
    ),
    "longrope": (
        {"rope_type": "longrope", ORIGINAL: 128, **FACTORS},
        LongRope(**LONG, original_context=128, attention_factor=math.sqrt(1 + math.log(4) / math.log(128))),
        512,
    ),
    "longrope, factors given": (
        {"rope_type": "longrope", "factor": 2.0, "attention_factor": 1.2, ORIGINAL: 128, **FACTORS},
        LongRope(**LONG, original_context=128, attention_factor=1.2),
        512,
    ),
    "longrope, not extended yet": (
        {"rope_type": "longrope", "factor": 3, **FACTORS},
        LongRope(**LONG, original_context=512, attention_factor=math.sqrt(1 + math.log(3) / math.log(512))),
        1536,
    ),
}


@pytest.mark.parametrize(("section", "scaling", "context"), CASES.values(), ids=CASES)
def test_every_number_of_a_type_is_read_and_says_how_long_a_sequence_may_be(
    section: dict[str, object], scaling: Scaling, context: int
) -> None:
    spellings = [{"rope_scaling": section}, {"rope_parameters": {**section, "rope_theta": 10000.0}}]
    older = {"type": section["rope_type"], **section}
    spellings += [{"rope_scaling": older}, {"rope_scaling": {k: v for k, v in older.items() if k != "rope_type"}}]
    for family in ("llama", "mistral", "qwen2", "qwen3"):
        for spelling in spellings:
            config = parse(family, **spelling)
            assert config.rope == scaled(scaling)
            assert config.context_length == context


def test_the_original_context_may_stand_outside() -> None:
    for family in ("llama", "qwen3"):
        for section in ({}, {ORIGINAL: 64}):
            yarn = {"rope_type": "yarn", "factor": 2.0, **section}
            assert parse(family, rope_scaling=yarn, **{ORIGINAL: 64}).rope.scaling.original_context == 64
    with pytest.raises(CheckpointError, match=ORIGINAL):
        parse(rope_scaling={"rope_type": "yarn", "factor": 2.0, ORIGINAL: 32}, **{ORIGINAL: 64})
    with pytest.raises(UnsupportedModelError, match=ORIGINAL):
        parse(**{ORIGINAL: 64})


@pytest.mark.parametrize(
    ("section", "match"),
    [
        ({"rope_type": "dynamic", "factor": 2.0, "alpha": 8.0}, "alpha"),
        ({"rope_type": "dynamic", "factor": 2.0, ORIGINAL: 64}, ORIGINAL),
        ({"rope_type": "yarn", "factor": 2.0, "finetuned": True}, "finetuned"),
        ({"rope_type": "yarn", "factor": 2.0, "low_freq_factor": 1.0}, "low_freq_factor"),
        ({"rope_type": "longrope", ORIGINAL: 64, **FACTORS, "short_mscale": 1.2}, "short_mscale"),
        ({"rope_type": "su", ORIGINAL: 64, **FACTORS}, "su"),
        ({"rope_type": "default", "factor": 2.0}, "factor"),
    ],
)
def test_what_a_type_does_not_know_is_refused_by_name(section: dict[str, object], match: str) -> None:
    with pytest.raises(UnsupportedModelError, match=match):
        parse(rope_scaling=section)


@pytest.mark.parametrize(
    ("section", "match"),
    [
        ({"rope_type": "dynamic"}, "factor is missing"),
        ({"rope_type": "dynamic", "factor": -1}, "factor"),
        ({"rope_type": "dynamic", "factor": 10**6}, "factor"),
        ({"rope_type": "yarn", "factor": 2.0, "beta_fast": 1, "beta_slow": 2}, "beta_fast"),
        ({"rope_type": "yarn", "factor": 2.0, "truncate": 1}, "truncate"),
        ({"rope_type": "yarn", "factor": 2.0, "attention_factor": "big"}, "attention_factor"),
        ({"rope_type": "yarn", "factor": 2.0, ORIGINAL: 1}, ORIGINAL),
        ({"rope_type": "yarn", "factor": 2.0, "rope_theta": 1.0}, "rope_theta"),
        ({"rope_type": "longrope", ORIGINAL: 64}, "short_factor is missing"),
        ({"rope_type": "longrope", ORIGINAL: 64, **FACTORS, "long_factor": [1.0]}, "long_factor is '1 items'"),
        ({"rope_type": "longrope", ORIGINAL: 64, **FACTORS, "long_factor": [1.0, 0.0]}, "long_factor"),
        ({"rope_type": "longrope", ORIGINAL: 64, **FACTORS, "long_factor": [1.0, True]}, "long_factor"),
        ({"rope_type": "longrope", "type": "yarn", ORIGINAL: 64, **FACTORS}, "type"),
    ],
)
def test_a_damaged_number_is_named(section: dict[str, object], match: str) -> None:
    outside = {"rope_theta": None} if "rope_theta" in section else {}
    with pytest.raises(CheckpointError, match=re.escape(match)):
        parse(rope_scaling=section, **outside)


def test_heads_of_two_dimensions_have_no_room_for_dynamic() -> None:
    with pytest.raises(UnsupportedModelError, match="dynamic"):
        parse(head_dim=2, rope_scaling={"rope_type": "dynamic", "factor": 2.0})


class TestPhi3:
    """Its spellings, its defaults, and heads that are rotated in part."""

    @pytest.mark.parametrize("name", ["longrope", "su", "yarn"])
    def test_longrope_under_each_of_its_names(self, name: str) -> None:
        expected = LongRope(**LONG, original_context=128, attention_factor=math.sqrt(1 + math.log(4) / math.log(128)))
        for section in ({"type": name}, {"rope_type": name}, {"type": name, "rope_type": "longrope", ORIGINAL: 128}):
            config = parse("phi3", rope_scaling={**section, **FACTORS}, **{ORIGINAL: 128})
            assert config.rope == scaled(expected)
            assert config.context_length == 512

    @pytest.mark.parametrize("name", ["linear", "dynamic", "llama3"])
    def test_no_other_type(self, name: str) -> None:
        with pytest.raises(UnsupportedModelError, match=name):
            parse("phi3", rope_scaling={"type": name, "factor": 2.0})

    def test_the_original_context_is_4096_where_the_file_is_silent(self) -> None:
        section = {"type": "longrope", **FACTORS}
        found = parse("phi3", rope_scaling=section, max_position_embeddings=8192)
        assert found.rope.scaling.original_context == 4096
        with pytest.raises(CheckpointError, match=ORIGINAL):
            parse("phi3", rope_scaling={**section, ORIGINAL: 128})
        assert parse("phi3", **{ORIGINAL: 4096}).rope == scaled(Scaling())

    def test_part_of_each_head_is_rotated(self) -> None:
        assert parse("phi3", head_dim=16, partial_rotary_factor=0.75).rope.dim == 12
        inside = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.75}
        assert parse("phi3", head_dim=16, rope_parameters=inside).rope.dim == 12
        assert parse("phi3", head_dim=16, rope_parameters=inside, partial_rotary_factor=0.75).rope.dim == 12
        for wrong in (0.5, 1.5):
            with pytest.raises(CheckpointError, match="partial_rotary_factor"):
                parse("phi3", head_dim=16, rope_parameters=inside, partial_rotary_factor=wrong)
        with pytest.raises(CheckpointError, match="partial_rotary_factor"):
            parse("phi3", head_dim=16, partial_rotary_factor=1.25)
        for odd in (0.7, 0.05):
            with pytest.raises(UnsupportedModelError, match="partial_rotary_factor"):
                parse("phi3", head_dim=16, partial_rotary_factor=odd)

    def test_one_window_or_none(self) -> None:
        assert parse("phi3").windows == (None, None, None)
        assert parse("phi3", sliding_window=None).windows == (None, None, None)
        assert parse("phi3", sliding_window=9).windows == (9, 9, 9)

    def test_fields_of_published_files(self) -> None:
        published = {
            "attention_bias": False,
            "mlp_bias": False,
            "lm_head_bias": False,
            "full_attn_mod": 1,
            "interpolate_factor": 1,
            "resid_pdrop": 0.0,
            "auto_map": {
                "AutoConfig": "microsoft/Phi-4-mini-instruct--configuration_phi3.Phi3Config",
                "AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM",
                "AutoTokenizer": "Xenova/gpt-4o",
            },
        }
        assert parse("phi3", **published) == parse("phi3")
        changes = {"lm_head_bias": True, "full_attn_mod": 2, "auto_map": {"AutoConfig": "evil.Config"}}
        for field, value in (*changes.items(), ("auto_map", "code"), ("auto_map", {"AutoModel": "x"})):
            with pytest.raises(UnsupportedModelError, match=field):
                parse("phi3", **{**published, field: value})
