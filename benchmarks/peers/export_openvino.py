"""Writes a checkpoint as OpenVINO's intermediate representation, fp32, with its tokenizer: a process of its own, so
that the exporter's libraries are not beside what is measured.

    python export_openvino.py CHECKPOINT OUTPUT
"""

from __future__ import annotations

import sys

import openvino
from openvino_tokenizers import convert_tokenizer
from optimum.intel import OVModelForCausalLM
from transformers import AutoTokenizer


def main(model: str, path: str) -> None:
    """Exports ``model`` into the directory ``path``."""
    exported = OVModelForCausalLM.from_pretrained(
        model, export=True, compile=False, load_in_8bit=False, local_files_only=True
    )
    exported.save_pretrained(path)
    tokenizer, detokenizer = convert_tokenizer(AutoTokenizer.from_pretrained(model), with_detokenizer=True)
    openvino.save_model(tokenizer, f"{path}/openvino_tokenizer.xml")
    openvino.save_model(detokenizer, f"{path}/openvino_detokenizer.xml")


if __name__ == "__main__":
    main(*sys.argv[1:])
