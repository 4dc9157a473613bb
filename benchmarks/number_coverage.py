"""How often the 95 % intervals of a predicted number hold the truth, in simulated tests.

    python benchmarks/number_coverage.py                  # 2,000 tests of each design; minutes on one core
    python benchmarks/number_coverage.py --tests 200      # a look

True numbers, and the errors of a model, are drawn: normal or heavy-tailed (Student's t with 4 degrees), alone or with
1 to 9 images of a patient, whose error has a share "alike" of the variance in common. The truth is what the same
functions give for a large sample. A cell is the percentage of the tests in which the interval holds it; where some
tests have no interval, their share stands behind it in brackets.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from vitmed.core.base_models import Target
from vitmed.metrics.estimates import Estimate
from vitmed.metrics.kinds.number import NumberPredictions, PreparedNumbers, bland_altman

LARGE = 400_000  # images whose numbers are the truth


@dataclass(frozen=True)
class Design:
    """One kind of test set: patients or images, images each, error in common, shape of the errors."""

    units: int
    many: bool = False
    alike: float = 0.0
    heavy: bool = False
    error: float = 0.5  # standard deviation over that of the true numbers

    def draw(self, rng: np.random.Generator, units: int | None = None) -> NumberPredictions:
        """One test set."""
        g = units or self.units
        sizes = rng.integers(1, 10, g) if self.many else np.ones(g, int)
        patient = np.repeat(np.arange(g), sizes)
        n = len(patient)
        labels = rng.normal(50, 10, g)[patient] + (rng.normal(0, 2, n) if self.many else 0)
        noise = rng.standard_t(4, n) / 2**0.5 if self.heavy else rng.normal(size=n)
        own = rng.standard_t(4, g) / 2**0.5 if self.heavy else rng.normal(size=g)
        scale = 10 * self.error
        error = scale * (self.alike**0.5 * own[patient] + (1 - self.alike) ** 0.5 * noise)
        logits = np.stack([(labels + 1 + error - 50) / 10, np.log(rng.uniform(0.5, 1.5, n) * scale / 10)], axis=1)
        groups = tuple(map(str, patient)) if self.many else None
        target = Target(kind="number", centre=50.0, spread=10.0)
        return NumberPredictions(
            ("age",), ("",) * n, groups, labels, logits.astype(np.float32), target=target, reach=1.5
        )


DESIGNS = [
    *(Design(n, heavy=heavy) for n in (10, 30, 100, 500) for heavy in (False, True)),
    *(Design(g, True, alike, heavy) for g in (10, 30, 100) for alike in (0.0, 0.6) for heavy in (False, True)),
]


def estimates(predictions: NumberPredictions) -> Iterator[tuple[str, Estimate]]:
    """What is judged, by name."""
    yield from PreparedNumbers.evaluate(predictions).overall.items()
    agreement = bland_altman(predictions)
    assert agreement is not None
    yield from (("lower", agreement.lower), ("upper", agreement.upper), ("trend", agreement.trend))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tests", type=int, default=2000)
    tests, names = parser.parse_args().tests, list[str]()
    for design in DESIGNS:
        rng = np.random.default_rng(0)
        large = design.draw(rng, LARGE // (5 if design.many else 1))
        truth = {name: one.value or 0.0 for name, one in estimates(large)}
        held, known = dict.fromkeys(truth, 0), dict.fromkeys(truth, 0)
        for _ in range(tests):
            for name, one in estimates(design.draw(rng)):
                if one.low is not None and one.high is not None:
                    known[name] += 1
                    held[name] += one.low <= truth[name] <= one.high
        if not names:
            names = list(truth)
            print("| units | images each | alike | errors |", " | ".join(names), "|")
            print("|" + "---|" * (4 + len(names)))
        shares = {n: f" ({known[n] / tests:.2f})" * (known[n] < tests) for n in names}
        cells = [f"{100 * held[n] / max(1, known[n]):.1f}{shares[n]}" for n in names]
        kind = ("1-9" if design.many else "1", f"{design.alike:g}", "heavy" if design.heavy else "normal")
        print(f"| {design.units} |", " | ".join([*kind, *cells]), "|", flush=True)


if __name__ == "__main__":
    main()
