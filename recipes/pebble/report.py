"""Thins a run's log to `curves.json` and draws it as `curves.svg` beside this file.

python -m recipes.pebble.report --work /path/to/work
"""

import argparse
import json
from pathlib import Path

HERE = Path(__file__).resolve().parent
MAX_POINTS = 200
WIDTH, HEIGHT, MARGIN = 720, 400, 48
SERIES = (
    ("train_loss", "target, training text", "#9aa7b4"),
    ("held_out_loss", "target, held-out text", "#1f6feb"),
)

Record = dict[str, float]


def read_log(path: Path) -> list[Record]:
    """Returns the records of a JSON-lines log; of records for one step, left by an interrupted run, the last counts."""
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    by_step = {record["step"]: record for record in records}
    return [by_step[step] for step in sorted(by_step)]


def thin(records: list[Record], max_points: int = MAX_POINTS) -> list[Record]:
    """Returns at most about `max_points` records, keeping each one that holds a held-out loss and the last."""
    stride = -(-len(records) // max_points)
    last = len(records) - 1
    return [r for i, r in enumerate(records) if i % stride == 0 or "held_out_loss" in r or i == last]


def polyline(points: list[tuple[float, float]], color: str) -> str:
    """Returns one SVG line through `points`."""
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="1.8"/>'


def draw(records: list[Record], low: float = 1.0, high: float = 4.0) -> str:
    """Returns an SVG of the losses in nats per token over the tokens seen."""
    most = records[-1]["tokens"]

    def place(tokens: float, loss: float) -> tuple[float, float]:
        share = (min(max(loss, low), high) - low) / (high - low)
        return MARGIN + tokens / most * (WIDTH - 2 * MARGIN), HEIGHT - MARGIN - share * (HEIGHT - 2 * MARGIN)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        'font-size="12"><rect width="100%" height="100%" fill="white"/>'
    ]
    for tick in range(int(2 * low), int(2 * high) + 1):
        _, y = place(0, tick / 2)
        parts.append(f'<path d="M{MARGIN} {y:.1f}H{WIDTH - MARGIN}" stroke="#e5e8eb"/>')
        parts.append(f'<text x="{MARGIN - 28}" y="{y + 4:.1f}">{tick / 2}</text>')
    for million in range(0, int(most / 1e6) + 1, 100):
        x, _ = place(million * 1e6, low)
        parts.append(f'<text x="{x - 4:.1f}" y="{HEIGHT - MARGIN + 18}">{million}</text>')
    parts.append(f'<text x="{WIDTH // 2 - 60}" y="{HEIGHT - 10}">million tokens seen</text>')
    for row, (key, label, color) in enumerate(SERIES):
        parts.append(polyline([place(r["tokens"], r[key]) for r in records if key in r], color))
        y = MARGIN + 18 * row
        parts.append(f'<text x="{WIDTH - MARGIN - 170}" y="{y}" fill="{color}">{label}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def main() -> None:
    """Writes both files and prints the totals of the run."""
    parser = argparse.ArgumentParser(description="Draw pebble's curves.")
    parser.add_argument("--work", type=Path, required=True)
    work = parser.parse_args().work
    train = thin(read_log(work / "train.jsonl"))
    rows = {"train": train, "distill": thin(read_log(work / "distill.jsonl"))}
    text = ",\n".join(
        f' "{name}": [\n' + ",\n".join("  " + json.dumps(r) for r in records) + "\n ]" for name, records in rows.items()
    )
    (HERE / "curves.json").write_text("{\n" + text + "\n}\n", encoding="utf-8")
    (HERE / "curves.svg").write_text(draw(train), encoding="utf-8")
    print(json.dumps(train[-1]))


if __name__ == "__main__":
    main()
