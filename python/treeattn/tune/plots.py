# SPDX-License-Identifier: Apache-2.0
"""Pictures of a tuning run."""

from __future__ import annotations

from pathlib import Path

from treeattn.tune.analysis import acceptance, predicted
from treeattn.tune.run import Tuned

BUDGETS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48)


def draw(folder: Path, tuned: Tuned) -> list[Path]:
    """Write the PNG files; none without matplotlib."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        return []
    figure, (speed, accepted, verify) = pyplot.subplots(1, 3, figsize=(14, 4), layout="constrained")
    for batch_size, found in tuned.found.items():
        for shape in ("chain", "tree"):
            trials = sorted(
                (trial for trial in found.trials if trial.setting.shape == shape),
                key=lambda trial: trial.setting.num_nodes,
            )
            sizes = [trial.setting.num_nodes for trial in trials]
            (line,) = speed.plot(
                sizes,
                [trial.speedup for trial in trials],
                "o-" if shape == "tree" else "s--",
                label=f"{shape}, batch {batch_size}",
            )
            promised = [predicted(tuned, trial) for trial in trials]
            speed.plot(sizes, promised, ":", color=line.get_color())
    speed.axhline(1.0, color="grey", linewidth=0.8)
    speed.set_title("speed-up against nodes of a draft (dotted: predicted)", fontsize=9)
    for temperature, recordings in tuned.recordings.items():
        for shape, style in (("tree", "o-"), ("chain", "s--")):
            points = [acceptance(recordings, shape, count) for count in BUDGETS]
            accepted.plot(BUDGETS, points, style, label=f"{shape}, T = {temperature}")
    accepted.set_title("draft tokens accepted per step", fontsize=9)
    costs = tuned.policy.costs
    rows = sorted({int(point[0]) for point in costs.verify})
    for context in sorted({int(point[1]) for point in costs.verify}):
        times = [costs.costs.verify(count, context) for count in rows]
        verify.step(rows, times, where="pre", label=f"context {context}")
    verify.set_title("milliseconds of verify against rows", fontsize=9)
    for axis in (speed, accepted, verify):
        axis.set_xscale("log", base=2)
        axis.grid(True, alpha=0.3)
        axis.legend(fontsize=7)
    path = folder / "tune.png"
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return [path]
