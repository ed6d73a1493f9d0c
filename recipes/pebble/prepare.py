"""Prepares a run: trains the tokenizer, fixes the evaluation set, drops contaminated files, writes the token arrays.

    python -m recipes.pebble.prepare --work /path/to/work

The tokenizer is trained on the standard library alone. The packages of `packages.json` must be in the work folder.
"""

import argparse
import hashlib
import json
import platform
from pathlib import Path

import numpy as np
from recipes.pebble.corpus import SourceFile, collect_sources, split_held_out
from recipes.pebble.packages import read_list, read_package
from recipes.pebble.tokenizer import EOS, save_tokenizer, train_tokenizer
from tokenizers import Tokenizer

BUNDLE = Path(__file__).resolve().parents[2] / "src" / "surefoot" / "pebble"
NUM_PROMPTS = 40
PROMPT_TOKENS = 160
GENERATED_TOKENS = 128
WINDOW = 50
MAX_REPEATED_SHARE = 0.5
HASH_STRIDE = 16
ENCODED_AT_ONCE = 500
MAX_POSITIONS = 2048


def window_hashes(ids: np.ndarray, window: int = WINDOW) -> np.ndarray:
    """Returns one 64-bit hash for each run of `window` tokens in `ids` [N]; equal runs have equal hashes."""
    if len(ids) < window:
        return np.zeros(0, dtype=np.uint64)
    multiplier, total = np.uint64(0x9E3779B97F4A7C15), np.zeros(len(ids) - window + 1, dtype=np.uint64)
    values = (ids.astype(np.uint64) + np.uint64(1)) * np.uint64(0xD6E8FEB86659FD93)
    for offset in range(window):
        total = total * multiplier + values[offset : offset + len(total)]
    return total


def drop_contaminated(
    candidates: dict[str, np.ndarray], held_out: dict[str, np.ndarray]
) -> tuple[dict[str, np.ndarray], dict[str, list[str]]]:
    """Returns (clean candidates, {dropped path: held-out paths that it shares WINDOW tokens with})."""
    hashes = {path: window_hashes(ids) for path, ids in held_out.items()}
    every = np.unique(np.concatenate(list(hashes.values())))
    clean, dropped = {}, {}
    for path, ids in candidates.items():
        own = window_hashes(ids)
        places = np.minimum(np.searchsorted(every, own), len(every) - 1)
        if (every[places] == own).any():
            dropped[path] = [name for name, theirs in hashes.items() if np.isin(own, theirs).any()]
        else:
            clean[path] = ids
    return clean, dropped


def drop_repeats(documents: dict[str, np.ndarray], seen: set[int]) -> dict[str, np.ndarray]:
    """Returns the documents, in their order, that are not mostly copies of those before them.

    A document goes when more than MAX_REPEATED_SHARE of its WINDOW-token runs occurred before, judged on the runs whose
    hash HASH_STRIDE divides. `seen` holds these hashes and grows.
    """
    kept = {}
    for path, ids in documents.items():
        hashes = window_hashes(ids)
        chosen = set(hashes[hashes % np.uint64(HASH_STRIDE) == 0].tolist())
        if len(chosen & seen) <= MAX_REPEATED_SHARE * len(chosen):
            kept[path] = ids
            seen |= chosen
    return kept


def build_evaluation(tokenizer: Tokenizer, held_out: list[SourceFile]) -> dict[str, object]:
    """Returns the evaluation set: prompts spread evenly over the held-out text, each with room for its continuation."""
    encoded = [tokenizer.encode(source.text, add_special_tokens=False).ids for source in held_out]
    room = [len(ids) - PROMPT_TOKENS - GENERATED_TOKENS for ids in encoded]
    starts = np.cumsum([0, *room])
    prompts = []
    for index in range(NUM_PROMPTS):
        position = int((index + 0.5) * starts[-1] / NUM_PROMPTS)
        module = int(np.searchsorted(starts, position, side="right")) - 1
        offset = position - int(starts[module])
        ids = encoded[module][offset : offset + PROMPT_TOKENS]
        source = held_out[module]
        prompts.append(
            {
                "file": source.path,
                "offset": offset,
                "sha256": hashlib.sha256(source.text.encode()).hexdigest(),
                "ids": ids,
                "text": tokenizer.decode(ids, skip_special_tokens=False),
            }
        )
    return {
        "python": platform.python_version(),
        "prompt_tokens": PROMPT_TOKENS,
        "generated_tokens": GENERATED_TOKENS,
        "held_out": [source.path for source in held_out],
        "prompts": prompts,
    }


def fix_evaluation(evaluation: dict[str, object]) -> None:
    """Writes the evaluation set once; later runs must build the same one.

    Raises ValueError when it differs: another Python has other sources, and numbers would no longer compare.
    """
    path = BUNDLE / "evaluation.json"
    text = json.dumps(evaluation, indent=1) + "\n"
    if path.exists() and path.read_text(encoding="utf-8") != text:
        fixed = json.loads(path.read_text(encoding="utf-8"))["python"]
        raise ValueError(
            f"{path} was fixed with Python {fixed} and this is {platform.python_version()}; "
            "run the recipe with that Python, or remove the file to start a new series of numbers"
        )
    BUNDLE.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def encode_sources(tokenizer: Tokenizer, sources: list[SourceFile]) -> dict[str, np.ndarray]:
    """Returns {path: token ids [N] as uint16}."""
    encoded = {}
    for start in range(0, len(sources), ENCODED_AT_ONCE):
        some = sources[start : start + ENCODED_AT_ONCE]
        encodings = tokenizer.encode_batch_fast([source.text for source in some], add_special_tokens=False)
        for source, encoding in zip(some, encodings, strict=True):
            encoded[source.path] = np.array(encoding.ids, dtype=np.uint16)
    return encoded


def write_documents(path: Path, documents: list[np.ndarray], eos: int) -> int:
    """Writes `documents`, each led by the end-of-text token, as one array with their starts; returns the tokens."""
    led = [np.concatenate([np.array([eos], dtype=np.uint16), ids]) for ids in documents]
    starts = np.cumsum([0, *map(len, led)])
    np.savez(path, tokens=np.concatenate(led), starts=starts)
    return int(starts[-1])


def prepare_packages(tokenizer: Tokenizer, work: Path, held_out: dict[str, np.ndarray], eos: int) -> dict[str, object]:
    """Writes the packages' library code, without their tests, as one token array; returns what was kept and dropped."""
    seen: set[int] = set()
    documents: list[np.ndarray] = []
    rows, dropped = [], {}
    for package in read_list():
        sources = [source for source in read_package(package, work / "wheels") if not source.is_test]
        clean, contaminated = drop_contaminated(encode_sources(tokenizer, sources), held_out)
        kept = drop_repeats(clean, seen)
        documents += kept.values()
        dropped |= contaminated
        rows.append({"name": package.name, "files": len(kept), "tokens": sum(map(len, kept.values()))})
    return {
        "package_tokens": write_documents(work / "packages.npz", documents, eos),
        "packages": rows,
        "dropped_from_packages": dropped,
    }


def main() -> None:
    """Runs the preparation; `prepare.json` says what it kept and dropped."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--work", type=Path, required=True)
    work = parser.parse_args().work
    work.mkdir(parents=True, exist_ok=True)

    training, held_out = split_held_out(collect_sources())
    tokenizer = train_tokenizer(source.text for source in training)
    save_tokenizer(tokenizer, work / "tokenizer", MAX_POSITIONS)
    fix_evaluation(build_evaluation(tokenizer, held_out))

    held_out_ids = encode_sources(tokenizer, held_out)
    clean, dropped = drop_contaminated(encode_sources(tokenizer, training), held_out_ids)
    eos = tokenizer.token_to_id(EOS)
    tests = {source.path for source in training if source.is_test}
    report = {
        "python": platform.python_version(),
        "code_files": sum(path not in tests for path in clean),
        "test_files": sum(path in tests for path in clean),
        "code_tokens": write_documents(work / "code.npz", [clean[p] for p in clean if p not in tests], eos),
        "test_tokens": write_documents(work / "test.npz", [clean[p] for p in clean if p in tests], eos),
        "held_out_tokens": write_documents(work / "held_out.npz", list(held_out_ids.values()), eos),
        "held_out_characters": sum(len(source.text) for source in held_out),
        "dropped": dropped,
        **prepare_packages(tokenizer, work, held_out_ids, eos),
    }
    (work / "prepare.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
