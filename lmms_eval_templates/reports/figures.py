"""The report's pictures. Needs matplotlib, which the `report` extra installs.

Meaning never rests on colour alone: template sets differ in marker and place, and the heat map's scale runs from light
to dark, so that every picture can be read in grey and by colour-blind readers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..sets import TemplateError
from .layouts import benchmark_name, setting_name
from .ratios import Ratio
from .summary import Summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INSTALL = "pictures need matplotlib: pip install 'lmms-eval-templates[report]'"
_WIDTH = 7.2  # inches
# Okabe and Ito's colours, which colour-blind people can tell apart, from dark to light.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000")
MARKERS = ("o", "s", "D", "^", "v")
_DASHES = ("--", ":", "-.", (0, (6, 1)), (0, (1, 4)))
RC: Any = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.hashsalt": "lmms-eval-templates",
    "savefig.dpi": 170,
}
_ANNOTATED = 12  # up to so many templates a heat map shows the numbers


@dataclass(frozen=True)
class Picture:
    """A drawn picture.

    Attributes:
        name: the files' stem.
        title: what it shows.
        description: the same facts in words, for those who do not see it.
        svg: the picture.
    """

    name: str
    title: str
    description: str
    svg: bytes


def matplotlib_missing() -> bool:
    """Whether pictures cannot be drawn."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return True
    return False


def draw_all(summary: Summary, ratios: Mapping[str, Ratio], folder: Path) -> Iterator[Picture]:
    """Draws every picture, and writes each as PNG and SVG.

    Args:
        ratios: template-to-data ratio of the models that have one.
        folder: to write to.

    Raises:
        TemplateError: matplotlib is not installed.
    """
    if matplotlib_missing():
        raise TemplateError(INSTALL)
    for benchmark in dict.fromkeys(benchmark for benchmark, _ in summary.keys):
        title = benchmark_name(benchmark)
        yield _save(
            folder,
            f"range_{benchmark}",
            f"{title}: from the worst to the best template",
            partial(_ranges, summary, benchmark),
        )
        yield _save(
            folder,
            f"distribution_{benchmark}",
            f"{title}: accuracy of each template, and the range if no template is better than another (grey)",
            partial(_distributions, summary, benchmark),
        )
        for setting in (setting for of, setting in summary.keys if of == benchmark):
            yield _save(
                folder,
                f"heatmap_{benchmark}_{setting}",
                f"{title}, {setting_name(setting)}: accuracy of each model with each template",
                partial(_heat_map, summary, (benchmark, setting)),
            )
    if any(ratio.value for ratio in ratios.values()):  # models without templates alone make no curve
        title = "Accuracy against the template-to-data ratio; bars reach from the worst to the best template"
        yield _save(folder, "ratio", title, partial(_ratio_curves, summary, ratios))


def _save(folder: Path, name: str, title: str, draw: Callable[[Figure], str]) -> Picture:
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(RC):
        figure = Figure(layout="constrained")
        description = draw(figure)
        figure.savefig(folder / f"{name}.png")
        figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
    return Picture(name, title, description, (folder / f"{name}.svg").read_bytes())


def _ranges(summary: Summary, benchmark: str, figure: Figure) -> str:
    """Figure 1a: a bar a model and template set, from worst to best template, with a mark at the average."""
    keys = [key for key in summary.keys if key[0] == benchmark]
    models = [model for model in summary.models if any(key in summary.analyses[model] for key in keys)]
    figure.set_size_inches(_WIDTH, 1.1 + len(models) * (0.15 + 0.2 * len(keys)))
    axes = figure.subplots()
    words = []
    for k, key in enumerate(keys):
        offset = (k - (len(keys) - 1) / 2) * 0.8 / len(keys)
        for row, model in enumerate(models):
            if key not in summary.analyses[model]:
                continue
            m = summary.analyses[model][key].metrics
            y, color, label = row + offset, COLORS[k % 5], setting_name(key[1]) if model == models[0] else None
            bar = [m["tm_worst"], m["tm_best"]]
            axes.plot(bar, [y, y], color=color, linewidth=4, alpha=0.45, solid_capstyle="butt")
            axes.plot(m["tm_avg"], y, MARKERS[k % 5], color=color, markersize=5, label=label)
            spread = f"{m['tm_max_min']:.1f}"
            axes.annotate(spread, (m["tm_best"], y), (6, 0), textcoords="offset points", va="center", fontsize=7)
            words.append(
                f"{model} {setting_name(key[1])} {m['tm_worst']:.1f} to {m['tm_best']:.1f}, mean {m['tm_avg']:.1f}"
            )
    _model_axis(axes, models)
    axes.set_xlabel("Accuracy (%); bars from worst to best template, Max-Min beside them, marks at Avg.")
    figure.legend(loc="outside upper right", ncols=len(keys), frameon=False)
    return "; ".join(words)


def _distributions(summary: Summary, benchmark: str, figure: Figure) -> str:
    """A dot a template over the band in which all templates would lie if none were better than another."""
    keys = [key for key in summary.keys if key[0] == benchmark]
    models = [model for model in summary.models if any(key in summary.analyses[model] for key in keys)]
    figure.set_size_inches(_WIDTH, 1.0 + 0.55 * len(models))
    words = []
    panels = figure.subplots(1, len(keys), sharex=True, sharey=True, squeeze=False)[0]
    for axes, key in zip(panels, keys, strict=True):
        axes.use_sticky_edges = False  # or bands that start at 0 would cut the dots there
        for row, model in enumerate(models):
            analysis = summary.analyses[model].get(key)
            if analysis is None:
                continue
            low, high = analysis.null_range
            axes.barh(row, high - low, 0.84, low, color="#DDDDDD", edgecolor="#888888", linewidth=0.5, zorder=1)
            dots = analysis.accuracies, row + _stacked(analysis.accuracies)
            axes.scatter(*dots, s=7, color=COLORS[0], zorder=2, linewidths=0)
            axes.plot([analysis.metrics["tm_avg"]] * 2, [row - 0.42, row + 0.42], color="black", linewidth=1, zorder=3)
            words.append(
                f"{model} {setting_name(key[1])}: templates {analysis.metrics['tm_worst']:.1f} to "
                f"{analysis.metrics['tm_best']:.1f}, without sensitivity {low:.1f} to {high:.1f}"
            )
        axes.set_title(setting_name(key[1]), fontsize=9)
        axes.set_xlabel("Accuracy (%)")
        _model_axis(axes, models)
    return "; ".join(words)


def _stacked(values: np.ndarray) -> np.ndarray:
    """Heights that spread equal values evenly around 0, shape as given."""
    heights = np.zeros(len(values))
    for value in np.unique(values):
        same = np.flatnonzero(values == value)
        step = min(0.08, 0.76 / len(same))
        heights[same] = (np.arange(len(same)) - (len(same) - 1) / 2) * step
    return heights


def _heat_map(summary: Summary, key: tuple[str, str], figure: Figure) -> str:
    """Figure 7: models by templates, darker is better; templates by their mean over models."""
    models = summary.models_with(key)
    grid = np.array([summary.analyses[model][key].accuracies for model in models])
    order = np.argsort(-grid.mean(axis=0), kind="stable")
    grid = grid[:, order]
    num_models, num_templates = grid.shape
    figure.set_size_inches(_WIDTH, 1.2 + 0.34 * num_models)
    axes = figure.subplots()
    mesh = axes.pcolormesh(grid, cmap="cividis_r", rasterized=True)
    figure.colorbar(mesh, ax=axes, label="Accuracy (%)")
    best = grid.argmax(axis=1)
    middle = (grid.min() + grid.max()) / 2
    for row in range(num_models):
        for column in range(num_templates):
            shade = "white" if grid[row, column] > middle else "black"
            if num_templates <= _ANNOTATED:
                label = f"{grid[row, column]:.1f}{'*' if column == best[row] else ''}"
                axes.text(column + 0.5, row + 0.5, label, ha="center", va="center", color=shade, fontsize=8)
            elif column == best[row]:
                axes.plot(column + 0.5, row + 0.5, "*", color=shade, markersize=6)
    axes.set_yticks(np.arange(num_models) + 0.5, models)
    axes.invert_yaxis()
    step = -(-num_templates // 25)
    axes.set_xticks(np.arange(0, num_templates, step) + 0.5, order[::step], fontsize=7, rotation=90 * (step > 1))
    axes.set_xlabel("Template's number, from best to worst on average (* a model's best)")
    winners = ", ".join(f"{model} {order[column]}" for model, column in zip(models, best, strict=True))
    return f"Number of each model's best template: {winners}"


def _ratio_curves(summary: Summary, ratios: Mapping[str, Ratio], figure: Figure) -> str:
    """Figures 3 and 5: a panel for the mean over benchmarks and one for each of them, a line a template set."""
    benchmarks = list(dict.fromkeys(benchmark for benchmark, _ in summary.keys))
    settings = list(dict.fromkeys(setting for _, setting in summary.keys))
    panels = [*(["overall"] if len(benchmarks) > 1 else []), *benchmarks]
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    figure.set_size_inches(_WIDTH, 0.8 + 2.2 * rows)
    grid = figure.subplots(rows, columns, squeeze=False, sharex=True)
    words = []
    lines = [(s, series) for s in settings for series in dict.fromkeys(r.series for r in ratios.values())]
    for axes, panel in zip(grid.flat, panels, strict=False):
        of_panel = benchmarks if panel == "overall" else [panel]
        for number, (setting, series) in enumerate(lines):
            points = _ratio_points(summary, ratios, series, [(benchmark, setting) for benchmark in of_panel])
            label = f"{setting_name(setting)} {series}".strip()
            style: dict[str, Any] = {"color": COLORS[number % 5]}
            curve = points[points[:, 0] > 0]
            beside = curve[:, 0] * 1.1 ** (number - (len(lines) - 1) / 2)  # bars of several lines next to each other
            below, above = curve[:, 1] - curve[:, 2], curve[:, 3] - curve[:, 1]
            marker = {"marker": MARKERS[number % 5], "markersize": 4}
            axes.errorbar(beside, curve[:, 1], [below, above], elinewidth=1, capsize=2, label=label, **marker, **style)
            for baseline in points[points[:, 0] == 0]:
                axes.axhline(baseline[1], linestyle=_DASHES[number % 5], linewidth=1, **style)
            words += [f"{benchmark_name(panel)} {label} at {ratio:g}: {avg:.1f}" for ratio, avg, *_ in points]
        axes.set_title(benchmark_name(panel), fontsize=9)
        axes.set_xscale("log")
    for axes in grid.flat[len(panels) :]:
        axes.remove()
    figure.supxlabel("Templates / training records (level lines: no templates)", fontsize=9)
    figure.supylabel("Accuracy (%)", fontsize=9)
    handles, labels = grid.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper right", ncols=len(labels), frameon=False)
    return "; ".join(words)


def _ratio_points(
    summary: Summary, ratios: Mapping[str, Ratio], series: str, keys: list[tuple[str, str]]
) -> np.ndarray:
    """Ratio, mean accuracy, mean worst and mean best template of the models that have all `keys`, shape [models, 4]."""
    rows = []
    for model, ratio in ratios.items():
        analyses = summary.analyses.get(model, {})
        if ratio.series == series and set(keys) <= set(analyses):
            metrics = [analyses[key].metrics for key in keys]
            rows.append([ratio.value, *(np.mean([m[n] for m in metrics]) for n in ("tm_avg", "tm_worst", "tm_best"))])
    return np.array(sorted(rows)).reshape(-1, 4)


def _model_axis(axes: Axes, models: list[str]) -> None:
    axes.set_yticks(range(len(models)), models)
    axes.set_ylim(len(models) - 0.5, -0.5)
    axes.grid(axis="x", linewidth=0.4, color="#BBBBBB")
    axes.set_axisbelow(True)
