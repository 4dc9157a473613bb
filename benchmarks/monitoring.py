"""How often `vitmed monitor` gives an alarm where nothing changed, and how soon where something did.

    python benchmarks/monitoring.py --worlds 200
    python benchmarks/monitoring.py --worlds 200 --long

A world has patients whose images are alike, a model with an AUROC of about 0.85, and 2 % of images unlike the others.
Each run draws a reference and a period of 1,000 new images, both from the world, so the truth behind the reference is
unknown to the charts, as at work. "no change": the share of periods with an alarm, asked 0.05. The others change the
new images from the first on: the share with an alarm, and after how many images, at the median. `--long`: logs of
100,000 images without a change; the share of worlds with an alarm after 1,000, 5,000, 20,000 and 100,000 images, of one
look at the newest period, of charts that start anew for each look after 100 images, and of charts that run on; and how
often such an alarm begins.
"""

from __future__ import annotations

import argparse

import numpy as np

from vitmed.metrics.control_charts import Reference, Stream, choose_limits, highest

PERIOD, SHIFT, LOOK = 1000, 0.5, 100
LENGTHS = (1_000, 5_000, 20_000, 100_000)
CHANGES = {
    "no change": {},
    "3 x as many unlike": {"unlike": 0.06},
    "scores rise by 0.5 logits": {"rise": 0.5},
    "half of the contrast": {"contrast": 0.5},
}


def draw(
    patients: int, each: int, rng: np.random.Generator, unlike: float = 0.02, rise: float = 0.0, contrast: float = 1.0
) -> tuple[dict[str, Stream], np.ndarray]:
    """Streams of images of a world, and their patients. `rise` moves the scores, `contrast` weakens the signal."""
    owner = np.repeat(np.arange(patients), each)
    truth = rng.normal(-1, 1.5, patients)[owner] + rng.normal(0, 0.7, len(owner))
    label = rng.random(len(owner)) < 1 / (1 + np.exp(-truth))
    score = 1 / (1 + np.exp(-(contrast * truth + rise + rng.normal(0, 0.5, len(owner)))))
    called = score > 0.4
    return {
        "probability": Stream(score, least=0.05),
        "unlike": Stream(rng.random(len(owner)) < unlike, ("rise",), share=True),
        "calibration": Stream(label - score, least=0.05),
        "sensitivity": Stream(np.where(label, called, np.nan), ("fall",), share=True),
        "specificity": Stream(np.where(label, np.nan, ~called), ("fall",), share=True),
    }, owner


def long_logs(worlds: int, simulations: int) -> None:
    """Print the table of logs of many periods."""
    for patients, each in ((200, 1), (1000, 1), (200, 5), (1000, 5)):
        looked, ran, begun = [], [], []
        for seed in range(worlds):
            rng = np.random.default_rng([seed, patients, each])
            reference = Reference.of(*draw(patients, each, rng))
            limits, _ = choose_limits(reference, SHIFT, PERIOD, 0.05, simulations, seed)
            values = reference.standardised(draw(LENGTHS[-1] // each, each, rng)[0])
            high, alarms = np.zeros(len(values), bool), np.zeros((len(values) - PERIOD) // LOOK + 1, bool)
            for c, one in enumerate(reference.streams.values()):
                high |= highest(values[:, c], one.sides, SHIFT / 2) > limits[c]
                periods = np.lib.stride_tricks.sliding_window_view(values[:, c], PERIOD)[::LOOK]
                for part in np.array_split(np.arange(len(alarms)), 20):
                    alarms[part] |= (highest(periods[part], one.sides, SHIFT / 2) > limits[c]).any(axis=1)
            looked.append(alarms)
            ran.append([high[:count].any() for count in LENGTHS])
            begun.append(alarms[0] + (alarms[1:] & ~alarms[:-1]).sum())
        looks = np.array(looked)
        last = [(count - PERIOD) // LOOK for count in LENGTHS]
        shares = {
            "one look": looks[:, last],
            "any look": np.stack([looks[:, : i + 1].any(1) for i in last], 1),
            "ran on": ran,
        }
        print(f"reference of {patients} patients, {each} images each:")
        for name, alarms_at in shares.items():
            print(f"  {name:10}", " ".join(f"{share:.3f}" for share in np.asarray(alarms_at).mean(axis=0)))
        print(
            f"  of all looks {looks.mean():.4f}; an alarm begins every {LENGTHS[-1] / np.mean(begun):,.0f} images",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", type=int, default=200)
    parser.add_argument("--simulations", type=int, default=500)
    parser.add_argument("--long", action="store_true")
    asked = parser.parse_args()
    if asked.long:
        long_logs(asked.worlds, asked.simulations)
        return
    for patients, each in ((50, 1), (200, 1), (1000, 1), (50, 5), (200, 5)):
        found: dict[str, list[float]] = {name: [] for name in CHANGES}
        for seed in range(asked.worlds):
            rng = np.random.default_rng([seed, patients, each])
            reference = Reference.of(*draw(patients, each, rng))
            limits, _ = choose_limits(reference, SHIFT, PERIOD, 0.05, asked.simulations, seed)
            for name, change in CHANGES.items():
                new, _ = draw(-(-PERIOD // each), each, rng, **change)
                values = reference.standardised(new)[:PERIOD]
                high = [
                    highest(values[:, c], one.sides, SHIFT / 2) > limits[c]
                    for c, one in enumerate(reference.streams.values())
                ]
                alarm = np.any(high, axis=0)
                found[name].append(float(alarm.argmax()) + 1 if alarm.any() else np.inf)
        print(f"reference of {patients} patients, {each} images each:")
        for name, first in found.items():
            alarms = np.isfinite(first)
            after = f", after {np.median(first):.0f} images" if alarms.mean() > 0.5 else ""
            error = 1.96 * np.sqrt(alarms.mean() * (1 - alarms.mean()) / len(first))
            print(f"  {name:26} {alarms.mean():.3f} +- {error:.3f}{after}", flush=True)


if __name__ == "__main__":
    main()
