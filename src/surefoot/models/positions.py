"""Reads how positions become angles, and how long a sequence may be."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from surefoot.models.config import MAX_CONTEXT
from surefoot.models.fields import FieldReader
from surefoot.ops.rope import Rope
from surefoot.ops.rope_scaling import Dynamic, Linear, Llama3, LongRope, Scaling, Yarn

DEFAULT_THETA = 10000.0
PARTIAL, ORIGINAL = "partial_rotary_factor", "original_max_position_embeddings"


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeFields:
    """Where a type reads its numbers.

    Attributes:
        section: the object that names the type.
        outer: the fields around it.
        theta: the base, read already.
        dim: how many dimensions of a head are rotated.
        context: ``max_position_embeddings``.
        original: the context before an extension where no field says; None: ``context``.
    """

    section: FieldReader
    outer: FieldReader
    theta: float
    dim: int
    context: int
    original: int | None

    def original_context(self) -> int:
        """The context before the extension, given in the section, around it (that one counts), or in both alike."""
        inside = self.section.count(ORIGINAL, self.context)
        if ORIGINAL not in self.outer and self.original is None:
            found = inside
        else:
            found = self.outer.count(ORIGINAL, self.original)
            if ORIGINAL in self.section and inside != found:
                raise self.section.damaged(ORIGINAL, inside, f"the {found} outside of it")
        if found < 2:
            raise self.section.damaged(ORIGINAL, found, "at least 2")
        return found


Reading = tuple[Scaling, int]
"""A type with its numbers, and the longest context it is meant for."""


def read_default(found: RopeFields) -> Reading:
    """Nothing to read."""
    return Scaling(), found.context


def read_linear(found: RopeFields) -> Reading:
    """``max_position_embeddings`` is taken at its word: files differ in whether it counts the factor."""
    return Linear(factor=found.section.number("factor")), found.context


def read_llama3(found: RopeFields) -> Reading:
    """``max_position_embeddings`` counts the extension."""
    section = found.section
    low, high = section.number("low_freq_factor"), section.number("high_freq_factor")
    if low >= high:
        raise section.damaged("low_freq_factor", low, f"less than high_freq_factor ({high})")
    scaling = Llama3(
        factor=section.number("factor"),
        low_freq_factor=low,
        high_freq_factor=high,
        original_context=section.count(ORIGINAL),
    )
    return scaling, found.context


def read_dynamic(found: RopeFields) -> Reading:
    """``max_position_embeddings`` is the trained context; ``factor`` says how much further it is meant to go."""
    factor = found.section.number("factor")
    if found.dim <= 2:
        raise found.section.unsupported("rope_type", "dynamic", "heads with more than 2 rotated dimensions for it")
    return Dynamic(factor=factor, trained_context=found.context), max(found.context, int(factor * found.context))


def read_yarn(found: RopeFields) -> Reading:
    """``max_position_embeddings`` may count the extension or not; the longer of the two is meant."""
    section, original = found.section, found.original_context()
    if found.theta <= 1:
        raise section.damaged("rope_theta", found.theta, "more than 1, for yarn")
    factor = section.number("factor", found.context / original)
    fast, slow = section.number("beta_fast", 32.0), section.number("beta_slow", 1.0)
    if fast < slow:
        raise section.damaged("beta_fast", fast, f"at least beta_slow ({slow})")
    scaling = Yarn(
        factor=factor,
        original_context=original,
        beta_fast=fast,
        beta_slow=slow,
        truncate=section.flag("truncate", True),
        attention_factor=section.number("attention_factor", _yarn_attention_factor(section, factor)),
    )
    return scaling, max(found.context, int(factor * original))


def _yarn_attention_factor(section: FieldReader, factor: float) -> float:
    """The paper's, or a quotient of two where both ``mscale`` and ``mscale_all_dim`` are there."""

    def growth(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    both = "mscale" in section and "mscale_all_dim" in section
    mscale, all_dim = section.number("mscale", 1.0), section.number("mscale_all_dim", 1.0)
    return growth(mscale) / growth(all_dim) if both else growth(1.0)


def read_longrope(found: RopeFields) -> Reading:
    """``max_position_embeddings`` counts the extension, unless it is the original context itself."""
    section, original, pairs = found.section, found.original_context(), found.dim // 2
    factor = section.number("factor", found.context / original)
    growth = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    scaling = LongRope(
        short_factors=section.numbers("short_factor", pairs),
        long_factors=section.numbers("long_factor", pairs),
        original_context=original,
        attention_factor=section.number("attention_factor", growth),
    )
    return scaling, found.context if found.context > original else max(found.context, int(factor * original))


RopeReader = Callable[[RopeFields], Reading]
ROPE_TYPES: Mapping[str, RopeReader] = {
    "default": read_default,
    "linear": read_linear,
    "dynamic": read_dynamic,
    "yarn": read_yarn,
    "longrope": read_longrope,
    "llama3": read_llama3,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeTraits:
    """What a family's configs may say of positions.

    Attributes:
        types: the types by the names they have there.
        partial: the part of each head's dimensions that is rotated where ``partial_rotary_factor`` does not say;
            None: all are, and the field may say nothing else.
        original: the context before an extension where no field says; None: ``max_position_embeddings``.
        silent: fields that say nothing of text.
    """

    types: Mapping[str, RopeReader]
    partial: float | None = None
    original: int | None = None
    silent: tuple[str, ...] = ()


ALL_TYPES = RopeTraits(types=ROPE_TYPES)


def read_positions(fields: FieldReader, traits: RopeTraits, head_dim: int) -> tuple[Rope, int]:
    """RoPE from ``rope_theta`` and ``rope_scaling``, or from ``rope_parameters`` as transformers 5 writes it.

    Also returns the context length.
    """
    context = fields.count("max_position_embeddings", most=MAX_CONTEXT)
    top_theta = fields.number("rope_theta", DEFAULT_THETA)
    legacy, modern = fields.section("rope_scaling"), fields.section("rope_parameters")
    if legacy is not None and modern is not None:
        raise fields.damaged("rope_scaling", fields.get("rope_scaling"), "nothing beside rope_parameters")
    section = modern or legacy or FieldReader({})
    theta = section.number("rope_theta", top_theta)
    if "rope_theta" in fields and theta != top_theta:
        raise fields.damaged("rope_theta", top_theta, f"the {theta} of rope_parameters")
    for name in traits.silent:
        section.get(name)
    dim = head_dim if traits.partial is None else _read_rotated(fields, section, head_dim, traits.partial)
    found = RopeFields(section=section, outer=fields, theta=theta, dim=dim, context=context, original=traits.original)
    scaling, longest = _read_type(section, traits.types)(found)
    section.finish()
    if longest > MAX_CONTEXT:
        raise section.damaged("factor", section.get("factor"), f"a context of at most {MAX_CONTEXT} tokens with it")
    return Rope(theta=theta, dim=dim, scaling=scaling), longest


def _read_type(section: FieldReader, types: Mapping[str, RopeReader]) -> RopeReader:
    """The reader of the type named by ``rope_type``, by ``type`` in older files, or by both alike."""
    old = section.text("type", "default")
    name = section.text("rope_type", old)
    if name not in types:
        raise section.unsupported("rope_type", name, ", ".join(types))
    if "type" in section and types.get(old) is not types[name]:
        raise section.damaged("type", old, f"the {name!r} of rope_type")
    return types[name]


def _read_rotated(fields: FieldReader, section: FieldReader, head_dim: int, default: float) -> int:
    """How many dimensions of a head are rotated; the factor may be in the section, around it, or in both alike."""
    outside, inside = fields.number(PARTIAL, default), section.number(PARTIAL, default)
    if PARTIAL in fields and PARTIAL in section and outside != inside:
        raise section.damaged(PARTIAL, inside, f"the {outside} outside of it")
    factor = inside if PARTIAL in section else outside
    dim = int(head_dim * factor)
    if factor > 1:
        raise fields.damaged(PARTIAL, factor, "at most 1")
    if dim < 2 or dim % 2:
        raise fields.unsupported(PARTIAL, factor, f"an even number of the {head_dim} dimensions of a head with it")
    return dim
