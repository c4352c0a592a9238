"""What came of it: tables with ratios to the best peer and shares of the limit, and everything as JSON.

Owns: medians, ratios, shares, verdicts, the JSON's schema, and the environment a result holds for. Refuses to know: how
figures are taken.
"""

from __future__ import annotations

import json
import platform
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from engines_lab.limits import Costs
from engines_lab.measures import Measure, Target
from engines_lab.rounds import Run, Turn
from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from taximeter import __version__
from taximeter.engine import kernels

SCHEMA = "taximeter-bench-engines/1"
_OURS = "taximeter"
_FILE_WIDTH = 180
_QUIET = 0.05
"""Up to this share of the processors, others are no reason to doubt a figure."""


class Report:
    """Collects turns; called with each. What is in `path` is whole after every one."""

    def __init__(self, path: Path | None, *, rounds: int, threads: int) -> None:
        self._path = path
        self._runs: dict[str, Run] = {}
        self._turns: dict[str, list[Turn]] = {}
        self._absent: dict[str, Mapping[str, str]] = {}
        self._costs: dict[str, Costs] = {}
        self._versions: dict[str, str] = {}
        self._head = {
            "schema": SCHEMA,
            "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "rounds": rounds,
            "environment": environment(threads),
        }

    def begin(self, run: Run, absent: Mapping[str, str]) -> None:
        """A model's turns follow. `absent` are engines that cannot take part, and why."""
        self._runs[run.model] = run
        self._turns[run.model] = []
        self._absent[run.model] = absent
        self._costs[run.model] = Costs.of(run.places.packaged[run.model])
        for contestant in run.contestants:
            self._versions.setdefault(contestant.label, contestant.version())

    def __call__(self, run: Run, turn: Turn) -> None:
        self._turns[run.model].append(turn)
        if self._path is not None:
            unfinished = self._path.with_name(f"{self._path.name}.unfinished")
            unfinished.write_text(json.dumps(self._document(), indent=1) + "\n")
            unfinished.replace(self._path)  # at once: a run may be killed at any moment

    def _document(self) -> dict[str, object]:
        return {
            **self._head,
            "versions": self._versions,
            "models": {
                model: {
                    "absent": dict(self._absent[model]),
                    "weights_bytes": self._costs[model].weights_bytes,
                    "turns": [asdict(turn) for turn in turns],
                    "lines": [line.as_json() for line in self._lines(model)],
                }
                for model, turns in self._turns.items()
            },
        }

    def _lines(self, model: str) -> list[Line]:
        turns, costs = self._turns[model], self._costs[model]
        peers = {contestant.label for contestant in self._runs[model].contestants if contestant.is_peer}
        return [Line(measure, turns, peers, costs) for measure in self._runs[model].measures]

    def tables(self, model: str) -> Group:
        """The comparison, then every engine's figures, then who is absent and what is void."""
        lines, labels = self._lines(model), [who.label for who in self._runs[model].contestants]
        verdicts = Table(title=f"{model}: ours against the best peer", box=SIMPLE_HEAD)
        for heading in ("measure", "unit", "best peer", "ours", "ratio", "limit", "share", "must", "aim"):
            verdicts.add_column(heading, justify="left" if heading in ("measure", "unit") else "right")
        for line in lines:
            verdicts.add_row(*line.cells())
        everyone = Table(title=f"{model}: medians (lowest to highest)", box=SIMPLE_HEAD)
        everyone.add_column("measure")
        for label in labels:
            everyone.add_column(label, justify="right")
        for line in lines:
            everyone.add_row(f"{line.measure.title}, {line.measure.unit}", *(line.spread(label) for label in labels))
        notes = [f"{label} did not take part: {reason}" for label, reason in self._absent[model].items()]
        for turn in self._turns[model]:
            notes += [f"{turn.engine}, round {turn.round + 1}, {key}: void, {why}" for key, why in turn.void.items()]
        shares = [turn.others_share for turn in self._turns[model] if turn.others_share is not None]
        if loud := [share for share in shares if share > _QUIET]:
            said = f"other programs used {min(loud):.0%} to {max(loud):.0%} of the processors"
            notes.append(f"In {len(loud)} of {len(shares)} turns {said} meanwhile: those figures are too low.")
        return Group(verdicts, everyone, *_machine_line(self._turns[model]), *map(Text, notes))

    def ratios(self, models: Sequence[str]) -> Table:
        """One line for each model: ours, the best peer's and the ratio, measure by measure."""
        lines = {model: self._lines(model) for model in models if self._turns.get(model)}
        table = Table(title="ours, the best peer, how many times as good", box=SIMPLE_HEAD)
        table.add_column("model")
        measures = next(([line.measure for line in told] for told in lines.values()), [])
        for measure in measures:
            table.add_column(f"{measure.title}, {measure.unit}", justify="right")
        for model, told in lines.items():
            table.add_row(model, *(line.summary() for line in told))
        return table


class Line:
    """One measure over all rounds."""

    def __init__(self, measure: Measure, turns: list[Turn], peers: set[str], costs: Costs) -> None:
        self.measure = measure
        rounds: dict[str, dict[int, float]] = {}
        limits: list[float] = []
        for turn in turns:
            if measure.key in turn.figures:
                rounds.setdefault(turn.engine, {})[turn.round] = turn.figures[measure.key]
            if measure.limit is not None and turn.machine is not None:
                limit = measure.limit(costs, turn.machine)
                limits += [] if limit is None else [limit]
        self.limit = statistics.median(limits) if limits else None
        self.figures = {label: list(figures.values()) for label, figures in rounds.items()}
        medians = {label: statistics.median(figures) for label, figures in self.figures.items()}
        self.ours = medians.get(_OURS)
        better = max if measure.more_is_better else min
        self.best_peer = better(peers & medians.keys(), key=lambda label: medians[label], default=None)
        self.best = None if self.best_peer is None else medians[self.best_peer]
        theirs = {} if self.best_peer is None else rounds[self.best_peer]
        both = [(figure, theirs[at]) for at, figure in rounds.get(_OURS, {}).items() if at in theirs]
        self.ratios = [ours / best if measure.more_is_better else best / ours for ours, best in both]

    @property
    def ratio(self) -> float | None:
        """How many times as good as the best peer: above 1 is ahead, whichever way the measure runs. The median of the
        rounds' own: what slowed a round down slowed both."""
        return statistics.median(self.ratios) if self.ratios else None

    @property
    def share(self) -> float | None:
        """Of the physical limit."""
        if self.ours is None or self.limit is None:
            return None
        return self.ours / self.limit if self.measure.more_is_better else self.limit / self.ours

    def reaches(self, target: Target) -> bool | None:
        """None when it cannot be said."""
        parts: list[bool | None] = []
        if target.ratio is not None:
            parts.append(None if self.ratio is None else self.ratio >= target.ratio)
        if target.share is not None:
            parts.append(None if self.share is None else self.share >= target.share)
        if target.value is not None:
            parts.append(None if self.ours is None else self.ours <= target.value)
        return False if False in parts else None if None in parts else True

    def cells(self) -> list[str]:
        best = "" if self.best is None else f"{number(self.best)} [dim]{escape(str(self.best_peer))}[/dim]"
        return [
            self.measure.title,
            self.measure.unit,
            best,
            "" if self.ours is None else f"[bold]{number(self.ours)}[/bold]",
            self._ratio(),
            "" if self.limit is None else number(self.limit),
            "" if self.share is None else f"{self.share:.0%}",
            self._verdict(self.measure.must),
            self._verdict(self.measure.aim),
        ]

    def _ratio(self) -> str:
        if self.ratio is None:
            return ""
        spread = f" [dim]({min(self.ratios):.2f} to {max(self.ratios):.2f})[/dim]" if len(self.ratios) > 1 else ""
        return f"{self.ratio:.2f} ×{spread}"

    def _verdict(self, target: Target) -> str:
        parts = [
            f"{target.ratio:g} ×" if target.ratio is not None else "",
            f"{target.share:.0%}" if target.share is not None else "",
            f"{target.value:g}" if target.value is not None else "",
        ]
        color = {True: "green", False: "red", None: "dim"}[self.reaches(target)]
        return f"[{color}]{', '.join(filter(None, parts))}[/{color}]"

    def summary(self) -> str:
        """Ours, the best peer's and the ratio."""
        ours, best = (("void" if figure is None else number(figure)) for figure in (self.ours, self.best))
        return f"{ours}, {best}, " + ("" if self.ratio is None else f"[bold]{self.ratio:.2f} ×[/bold]")

    def spread(self, label: str) -> str:
        figures = self.figures.get(label)
        if not figures:
            return "void"
        if len(figures) == 1:
            return number(figures[0])
        return f"{number(statistics.median(figures))} ({number(min(figures))} to {number(max(figures))})"

    def as_json(self) -> dict[str, object]:
        return {
            "measure": self.measure.key,
            "unit": self.measure.unit,
            "more_is_better": self.measure.more_is_better,
            "medians": {label: statistics.median(figures) for label, figures in self.figures.items()},
            "best_peer": self.best_peer,
            "ratio": self.ratio,
            "ratios": self.ratios,
            "limit": self.limit,
            "share": self.share,
            "must": asdict(self.measure.must) | {"reached": self.reaches(self.measure.must)},
            "aim": asdict(self.measure.aim) | {"reached": self.reaches(self.measure.aim)},
        }


def environment(threads: int) -> dict[str, object]:
    """What a result holds for."""
    return {
        "cpu": _cpu_name(),
        "threads": threads,
        "memory_gb": round(_memory_kb("MemTotal") / 1024 / 1024, 1),
        "huge_pages": _text("/sys/kernel/mm/transparent_hugepage/enabled"),
        "system": platform.platform(),
        "python": platform.python_version(),
        "taximeter": __version__,
        "kernels": kernels.level(),
        "levels": list(kernels.levels()),
    }


def page() -> Console:
    """Where tables go: as wide as the terminal, and in a file wide enough for them."""
    return Console() if sys.stdout.isatty() else Console(width=_FILE_WIDTH)


def number(figure: float) -> str:
    """Three digits, or as many as there are before the point."""
    return f"{figure:,.0f}" if figure >= 100 else f"{figure:.1f}" if figure >= 10 else f"{figure:.2f}"


def _machine_line(turns: list[Turn]) -> list[Text]:
    """The machine's rates over all turns, lowest to highest."""
    machines = [turn.machine for turn in turns if turn.machine is not None]
    if not machines:
        return [Text("The machine's limits are unknown: there is no C compiler.")] if turns else []

    def said(name: str, values: list[float | None], unit: str) -> str:
        known = sorted(value for value in values if value is not None)
        if not known:
            return f"{name} unknown"
        return f"{name} {number(statistics.median(known))} ({number(known[0])} to {number(known[-1])}) {unit}"

    def column(pick: str) -> list[float | None]:
        return [getattr(machine, pick) for machine in machines]

    parts = [
        said("reads", column("read_gb_per_s"), "GB/s"),
        said("reads as large as the weights", column("read_weights_gb_per_s"), "GB/s"),
        said("int8", column("int8_gop_per_s"), "GOP/s"),
        said("bf16", column("bf16_gflop_per_s"), "GFLOP/s"),
    ]
    return [Text("The machine in these rounds: " + "; ".join(parts))]


def _cpu_name() -> str:
    for line in _text("/proc/cpuinfo").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def available_bytes() -> int | None:
    """Memory that programs could still have without anything being swapped out; None where the system does not tell."""
    return _memory_kb("MemAvailable") * 1024 or None


def _memory_kb(what: str) -> int:
    for line in _text("/proc/meminfo").splitlines():
        if line.startswith(f"{what}:"):
            return int(line.split()[1])
    return 0


def _text(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""
