"""Defects of hybrid and sparse models: how they are read, wired and weighed."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

MOE = "tests/ops/test_moe.py::"
LAYOUTS = "tests/loading/test_hybrid_layouts.py::"
PARITY = "tests/models/test_hybrid_parity.py::test_logits_and_every_layer_agree_with_transformers"
ROWS = "tests/models/test_hybrid_rows.py::"

HYBRIDS = (
    Mutant(
        name="ties-between-experts-to-the-sort",
        bug="two equal experts change places with the number of rows",
        file="ops/moe.py",
        before="descending=True, stable=True).indices[:, : shape.num_active]",
        after="descending=False, stable=True).indices.flip(1)[:, : shape.num_active]",
        killer=MOE + "test_the_lower_of_two_equal_experts_is_chosen",
    ),
    Mutant(
        name="scores-of-experts-keep-their-digits",
        bug="near ties go to other experts than in transformers, and than on the kernels",
        file="ops/moe.py",
        before="route(rows.linear(x_NH, router_EH, None), shape)",
        after="route(rows.linear(x_NH.float(), router_EH.float(), None), shape)",
        killer=MOE + "test_scores_are_rounded_to_the_models_type_before_experts_are_chosen",
    ),
    Mutant(
        name="experts-weighed-as-if-renormalised",
        bug="norm_topk_prob is ignored: shapes are right, answers are not",
        file="ops/moe.py",
        before="    if shape.renormalised:",
        after="    if True:",
        killer=MOE + "test_the_mixture_is_the_obvious_loop",
    ),
    Mutant(
        name="experts-weighed-in-another-order",
        bug="weights and experts are sorted apart: the likeliest expert's share goes to another",
        file="ops/moe.py",
        before="weights_NA = likely_NE.gather(1, chosen_NA)",
        after="weights_NA = likely_NE.topk(shape.num_active).values",
        killer=MOE + "test_the_mixture_is_the_obvious_loop",
    ),
    Mutant(
        name="gates-side-by-side",
        bug="sigmoids of rows laid end to end differ in their vector's tail",
        file="ops/mlp.py",
        before="    return torch.stack(opened) * x_NF",
        after="    return gated(x_NF, gate_NF) + 0 * opened[0]",
        killer="tests/ops/test_exactness.py::test_gates_have_the_bits_of_the_row_alone",
    ),
    Mutant(
        name="a-head-has-its-gate-first",
        bug="query and gate of every head change places",
        file="models/tensors.py",
        before="(config.head_dim, config.head_dim), (1, 0))",
        after="(config.head_dim, config.head_dim), (0, 1))",
        killer=PARITY + "[3.5]",
    ),
    Mutant(
        name="norms-without-their-one",
        bug="weights that mean 1 + w are taken as they are",
        file="models/weights.py",
        before="return 1 + weight.to(torch.promote_types(weight.dtype, torch.float32))",
        after="return weight.to(torch.promote_types(weight.dtype, torch.float32))",
        killer=PARITY + "[3.5]",
    ),
    Mutant(
        name="decay-rates-in-half-width",
        bug="A_log is rounded with the weights, and every token forgets a little more or less",
        file="models/weights.py",
        before='return frozenset(("a_log", "dt_bias", *centred))',
        after="return frozenset(centred)",
        killer="tests/models/test_hybrid_parity.py::test_what_must_not_be_rounded_stays_fp32_in_half_width_models",
    ),
    Mutant(
        name="grouped-gates-change-places",
        bug="write gates and decay gates of Qwen3-Next are read for each other",
        file="models/hybrid_tensors.py",
        before="(served, served), (0, 1))",
        after="(served, served), (1, 0))",
        killer=LAYOUTS + "test_grouped_and_flat_projections_are_the_same_model",
    ),
    Mutant(
        name="ups-above-gates",
        bug="an expert's gate and up change places where they are apart",
        file="models/hybrid_tensors.py",
        before='for part, rows in (("gate", top), ("up", top + inner)):',
        after='for part, rows in (("up", top), ("gate", top + inner)):',
        killer=LAYOUTS + "test_experts_apart_and_fused_are_the_same_model[qwen3_moe]",
    ),
    Mutant(
        name="mlx-conversions-load",
        bug="norms get their 1 twice: text is fluent for a while",
        file="models/hybrid_tensors.py",
        before='if name.endswith("linear_attn.conv1d.weight") and len(shape) == 3 and shape[-1] == 1 < shape[1]:',
        after="if False:",
        killer=LAYOUTS + "test_a_conversion_for_mlx_is_refused",
    ),
    Mutant(
        name="layers-find-each-others-rows",
        bug="attention layers count delta layers among them and read another layer's keys",
        file="models/forward.py",
        before="slots = [*enumerate(config.attention_layers), *enumerate(sorted(config.delta_layers))]",
        after="slots = [*((0, layer) for layer in config.attention_layers), *enumerate(sorted(config.delta_layers))]",
        killer=ROWS + "test_rounds_of_every_kind_leave_what_plain_decoding_leaves[torch-qwen3_moe]",
    ),
)
