"""How vitmed shares a machine: alone, beside busy processes, beside itself, and in half a core.

    python benchmarks/busy.py
    python benchmarks/busy.py --spin default 0 1000 100000        # how long threads wait before they sleep
    python benchmarks/busy.py --quick

`demo`, `train` and `predict` run in each place, in turns. Each round begins with a quiet run, and each ratio is taken
within its round: wall seconds to the fair share, and CPU seconds (of all processes) to those of the quiet run. On C
cores, beside N busy processes, a fair share takes (C + N) / C times as long; beside itself, as many times as there are
copies; in half a core, the CPU seconds of the quiet run / 0.5. The goals are 1.3 and 1.1. A first run, not timed, fills
the caches of vitmed.

Half a core is a control group (version 1 or 2, as root), else a scope of systemd; where neither is permitted, a line
says so. The machine must be idle. `OMP_NUM_THREADS`, `OMP_WAIT_POLICY` and `GOMP_SPINCOUNT` of the shell are left out.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from turns import busy, in_child, machine, quartiles, say

from vitmed.core.process import cores

THREADS = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
ENTER = 'echo $$ > "$1/cgroup.procs" && shift && exec "$@"'
Cost = tuple[float, float]  # wall and CPU seconds


def cost(commands: list[list[str]], spin: str) -> Cost:
    """Run commands at once; the mean of each. Raises RuntimeError for one that fails."""
    environment = {name: value for name, value in os.environ.items() if name not in THREADS}
    environment |= {} if spin == "default" else {"GOMP_SPINCOUNT": spin}
    began, running = time.perf_counter(), {}
    for command in commands:
        log = tempfile.TemporaryFile()  # noqa: SIM115
        running[subprocess.Popen(command, env=environment, stdout=log, stderr=log).pid] = log
    wall = cpu = 0.0
    while running:
        pid, status, used = os.wait3(0)
        if pid not in running:  # another child of this process
            continue
        log = running.pop(pid)
        log.seek(0)
        if status:
            raise RuntimeError(log.read().decode(errors="replace")[-2000:])
        wall, cpu = wall + time.perf_counter() - began, cpu + used.ru_utime + used.ru_stime
    return wall / len(commands), cpu / len(commands)


@contextmanager
def half_a_core() -> Iterator[list[str] | None]:
    """The words before a command that may use half a core; None where no way is permitted."""
    for root, name, limit in (
        ("/sys/fs/cgroup", "cpu.max", "50000 100000"),
        ("/sys/fs/cgroup/cpu", "cpu.cfs_quota_us", "50000"),
    ):
        group = Path(root, f"vitmed-busy-{os.getpid()}")
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            if (group / name).is_file():  # the controller is enabled here
                (group / name).write_text(limit)
                yield ["sh", "-c", ENTER, "sh", str(group)]
                return
        finally:
            group.rmdir()
    scope = ["systemd-run", "--quiet", "--scope", "-p", "CPUQuota=50%"]
    permitted = shutil.which(scope[0]) and subprocess.run([*scope, "true"], capture_output=True).returncode == 0
    yield scope if permitted else None


def commands_in(place: Path, quick: bool) -> dict[str, list[str]]:
    """Name -> words of each command, without its output; draws the images and trains the model of `predict`."""
    vitmed, model = [sys.executable, "-m", "vitmed"], place / "model"
    small = ["demo", "--cells", "200" if quick else "1000"]
    cost([[*vitmed, *small, "-o", str(place / "demo")]], "default")
    data = next(path for path in (place / "demo").iterdir() if (path / "train").is_dir() or path.name == "images")
    train = ["train", str(data), "--no-report", "--epochs", "2" if quick else "20"]
    cost([[*vitmed, *train, "-o", str(place), "--name", model.name]], "default")
    predict = ["predict", str(data), "--checkpoint", str(model), "--force", "--csv"]
    return {"demo": [*vitmed, *small, "-o"], "train": [*vitmed, *train, "-o"], "predict": [*vitmed, *predict]}


def measure(words: list[str], place: Path, spin: str, options: argparse.Namespace) -> dict[str, tuple[float, float]]:
    """Where -> (wall / fair share, CPU / quiet CPU) in one round, after "quiet", which has the seconds."""
    numbers = iter(range(10**6))

    def once(copies: int = 1, before: list[str] | None = None) -> Cost:
        with tempfile.TemporaryDirectory(dir=place) as folder:
            return cost([[*(before or []), *words, f"{folder}/{next(numbers)}"] for _ in range(copies)], spin)

    wall, cpu = once()
    found = {"quiet": (wall, cpu)}
    for count in options.busy:
        with busy(count):
            time.sleep(1)
            beside = once()
        found[f"beside {count} busy"] = (beside[0] / (wall * (cores() + count) / cores()), beside[1] / cpu)
    beside = once(options.copies)
    found[f"{options.copies} at once"] = (beside[0] / (options.copies * wall), beside[1] / cpu)
    with half_a_core() as before:
        if before is not None:
            beside = once(before=before)
            found["half a core"] = (beside[0] / max(wall, cpu / 0.5), beside[1] / cpu)
        else:
            say("  half a core: neither a control group nor systemd-run is permitted here")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--busy", type=int, nargs="*", default=[1, 2, 4, 8], metavar="N")
    parser.add_argument("--copies", type=int, default=4, metavar="N")
    parser.add_argument("--only", nargs="+", choices=("demo", "train", "predict"), default=("demo", "train", "predict"))
    parser.add_argument(
        "--spin", nargs="+", default=["default"], metavar="TURNS", help="GOMP_SPINCOUNT; default: unset"
    )
    parser.add_argument("--quick", action="store_true", help="a few images, one round, few places: that it works")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.busy, options.copies = 1, [1], 2
    lines = []
    print(
        f"{in_child(machine)}\n\n| command | GOMP_SPINCOUNT | where | wall / fair share | CPU / quiet |\n"
        "|---|---|---|---|---|"
    )
    with tempfile.TemporaryDirectory() as folder:
        commands = commands_in(Path(folder), options.quick)
        for name in options.only:
            rounds: dict[str, list[dict[str, tuple[float, float]]]] = {spin: [] for spin in options.spin}
            for spin in options.spin:  # the first run with each measures the machine for vitmed's plan
                with tempfile.TemporaryDirectory(dir=folder) as output:
                    cost([[*commands[name], f"{output}/first"]], spin)
            for number in range(options.rounds):
                for spin in options.spin if number % 2 == 0 else reversed(options.spin):
                    rounds[spin].append(measure(commands[name], Path(folder), spin, options))
                say(f"  {name}: round {number + 1} of {options.rounds}")
            for spin, found in rounds.items():
                for where in found[0]:
                    parts = [quartiles([one[where][part] for one in found]) for part in (0, 1)]
                    told = [f"{middle:.2f} ({low:.2f}-{high:.2f})" for low, middle, high in parts]
                    unit = " s" if where == "quiet" else ""
                    print(f"| {name} | {spin} | {where} | {told[0]}{unit} | {told[1]}{unit} |", flush=True)
                    lines.append(
                        {"command": name, "spin": spin, "where": where, "rounds": [one[where] for one in found]}
                    )
    if options.json is not None:
        options.json.write_text(json.dumps(lines, indent=1) + "\n")


if __name__ == "__main__":
    main()
