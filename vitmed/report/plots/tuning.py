"""The pictures of a search over settings: its history, and which settings mattered."""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from vitmed.core.text import counted
from vitmed.metrics.tuning_study import TuningStudy
from vitmed.report.plots.drawing import BLUE, GREEN, GREY, ORANGE, RED, plot, short


def history_figure(study: TuningStudy) -> Figure:
    """Each trial: finished, stopped early or failed; the best so far; the plan; the winner trained once more."""
    figure, axes = plot("trial", f"{study.title} on validation")
    done = [trial for trial in study.trials if trial.state == "done" and trial.value is not None]
    stopped = [trial for trial in study.trials if trial.state == "stopped" and trial.value is not None]
    failed = [trial.number for trial in study.trials if trial.state == "failed"]
    best, x, y = None, [], []
    for trial in done:
        assert trial.value is not None
        if best is None or (trial.value > best if study.higher else trial.value < best):
            best = trial.value
        x.append(trial.number)
        y.append(best)
    last = max(trial.number for trial in study.trials)
    axes.step([*x, last], [*y, y[-1]], where="post", color=BLUE, linewidth=1.2, alpha=0.6, label="best so far")
    axes.plot([t.number for t in done], [t.value for t in done], "o", color=BLUE, label="finished")  # type: ignore[arg-type]
    if stopped:
        values = [t.value for t in stopped]
        axes.plot([t.number for t in stopped], values, "v", color=GREY, fillstyle="none", label="stopped early")  # type: ignore[arg-type]
    if failed:
        axes.plot(failed, [0.02] * len(failed), "x", color=RED, transform=axes.get_xaxis_transform(), label="failed")
    if study.plan is not None and (planned := study.trial(study.plan).value) is not None:
        axes.axhline(planned, color=ORANGE, linestyle="--", linewidth=1.2, label="the plan's settings")
    for again, marker, name in ((study.refit_val, "D", "validation"), (study.test, "s", "test")):
        if again is not None and again.value is not None:
            place = last + (1.5 if marker == "D" else 2.5) * max(1, last / 25)
            if again.low is not None and again.high is not None:
                axes.plot([place, place], [again.low, again.high], color=GREEN, linewidth=1.7)
            axes.plot(place, again.value, marker, color=GREEN, label=f"the winner trained once more: {name}")
    axes.set_xlim(0, last + 3.5 * max(1, last / 25))
    axes.set_xticks([tick for tick in MaxNLocator(10, integer=True).tick_values(1, last) if 1 <= tick <= last])
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=2, fontsize=9, frameon=False)
    return figure


def importance_figure(study: TuningStudy) -> Figure | None:
    """The share of the variance between finished trials that each setting explains; None where it is not known."""
    if not study.importance:
        return None
    ranked = sorted(study.importance.items(), key=lambda one: one[1])
    finished = sum(trial.state == "done" for trial in study.trials)
    label = f"share of the variance of {study.title} between {counted(finished, 'finished trial')}"
    figure, axes = plot(label, "", (7.6, 1.4 + 0.42 * len(ranked)))
    axes.grid(axis="y", visible=False)
    axes.barh([short(place, 40) for place, _ in ranked], [share for _, share in ranked], color=BLUE, height=0.6)
    for row, (_, share) in enumerate(ranked):
        axes.text(share + 0.01, row, f"{share:.0%}", va="center", fontsize=9)
    axes.set_xlim(0, 1.08)
    return figure
