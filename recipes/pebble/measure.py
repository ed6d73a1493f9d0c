"""Measures shipped model directories offline: held-out loss, repetition, and how far the draft follows the target.

python -m recipes.pebble.measure --work /path/to/work
"""

import argparse
import json
from pathlib import Path

import torch
from recipes.pebble.batches import held_out_batches
from recipes.pebble.export import load_exported
from recipes.pebble.generate import continue_prompts
from recipes.pebble.network import Network, count_parameters
from recipes.pebble.prepare import BUNDLE, GENERATED_TOKENS, MAX_POSITIONS
from recipes.pebble.train import COMPARED_LENGTH, default_device, held_out_loss
from torch import Tensor

DRAFTED = 4
SAMPLED_TEMPERATURE = 0.8
GRAM = 8


def repeated_share(outputs: list[list[int]], gram: int = GRAM) -> float:
    """Returns the share of `gram`-token runs that occurred earlier in the same output."""
    repeated, count = 0, 0
    for output in outputs:
        runs = [tuple(output[i : i + gram]) for i in range(len(output) - gram + 1)]
        count += len(runs)
        repeated += len(runs) - len(set(runs))
    return repeated / count


def tokens_per_round(chances_BT: Tensor, drafted: int = DRAFTED) -> float:
    """Returns the mean tokens of a round that starts at any position, given each position's chance of acceptance.

    A round yields one token and, for each drafted token, the chance that it and all before it are accepted.
    """
    windows = chances_BT.unfold(1, drafted, 1)
    return 1.0 + windows.cumprod(dim=-1).sum(dim=-1).mean().item()


@torch.no_grad()
def acceptance(target: Network, draft: Network, ids_BT: Tensor, prompt: int, temperature: float) -> Tensor:
    """Returns the draft's chance of acceptance at each generated position [B, generated].

    At temperature 0 it is 1 where both choose the same token; otherwise the overlap, the sum over tokens of
    min(p, q), which maximal coupling attains.
    """
    with torch.autocast(ids_BT.device.type, torch.bfloat16):
        logits = [network.logits(ids_BT[:, :-1])[:, prompt - 1 :].float() for network in (target, draft)]
    if temperature == 0:
        return (logits[0].argmax(-1) == logits[1].argmax(-1)).float()
    p, q = (torch.softmax(each / temperature, dim=-1) for each in logits)
    return torch.minimum(p, q).sum(dim=-1)


def held_out_losses(network: Network, held_out: Path, device: torch.device) -> dict[str, float]:
    """Returns the loss in nats per token on all held-out text, cut in windows of several lengths."""
    losses = {}
    for length in (COMPARED_LENGTH, MAX_POSITIONS):
        losses[str(length)] = round(held_out_loss(network, held_out_batches(held_out, length, rows=4), device), 4)
    return losses


def measure(target: Network, draft: Network, prompts_BT: Tensor, held_out: Path) -> dict[str, object]:
    """Returns every offline number of the pair, computed where the prompts are."""
    results: dict[str, object] = {}
    for name, network in (("target", target), ("draft", draft)):
        results[name] = {
            "parameters": count_parameters(network),
            "held_out_loss": held_out_losses(network, held_out, prompts_BT.device),
        }
    for temperature in (0.0, SAMPLED_TEMPERATURE):
        random = torch.Generator(prompts_BT.device).manual_seed(0)
        ids = continue_prompts(target, prompts_BT, GENERATED_TOKENS, temperature, random)
        chances = acceptance(target, draft, ids, prompts_BT.shape[1], temperature)
        results[f"temperature {temperature}"] = {
            "repeated_8_grams": round(repeated_share(ids[:, prompts_BT.shape[1] :].tolist()), 4),
            "acceptance": round(chances.mean().item(), 4),
            "tokens_per_round": round(tokens_per_round(chances), 3),
        }
    return results


def read_prompts() -> Tensor:
    """Returns the evaluation prompts [40, 160]."""
    evaluation = json.loads((BUNDLE / "evaluation.json").read_text(encoding="utf-8"))
    return torch.tensor([prompt["ids"] for prompt in evaluation["prompts"]])


def main() -> None:
    """Measures the pair in `--models` and prints the numbers as JSON."""
    parser = argparse.ArgumentParser(description="Measure pebble offline.")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--models", type=Path, default=BUNDLE, help="folder that holds pebble and pebble-draft")
    parser.add_argument("--device", default=default_device())
    options = parser.parse_args()
    device = torch.device(options.device)
    target, draft = (load_exported(options.models / name).to(device) for name in ("pebble", "pebble-draft"))
    print(json.dumps(measure(target, draft, read_prompts().to(device), options.work / "held_out.npz"), indent=1))


if __name__ == "__main__":
    main()
