"""What the figures share: colours, axes, bands and intervals, short names, pictures, a figure as PNG.

Colours are Okabe & Ito's, which colour-blind readers can tell apart, and no meaning rests on colour alone.
"""

import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
from matplotlib import font_manager, rc_context
from matplotlib.axes import Axes
from matplotlib.backends import backend_agg, backend_pdf, backend_svg
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import FixedLocator, MaxNLocator, ScalarFormatter
from PIL import Image

from vitmed.core.process import NO_WARNINGS
from vitmed.core.text import visible
from vitmed.metrics.estimates import ClassNumbers, Estimate
from vitmed.metrics.metric_table import TITLES

BLUE, ORANGE, GREEN, RED = "#0072B2", "#E69F00", "#009E73", "#D55E00"
COLOURS = (BLUE, RED, GREEN, ORANGE, "#CC79A7", "#56B4E9", "#000000", "#B8A800")
GREY, BLACK = "#8A8A8A", "#000000"
LEGEND = 8  # classes that a legend names; of more, only the worst four
DPI = 120
LONGEST = 900  # characters of a text alternative
RTL = re.compile("[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc](?:[ '._/-]*[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc])*")
LARGE = 300_000  # bytes that a gallery may take on the page; a dozen of them fit into 5 MB


@dataclass(frozen=True)
class Drawn:
    """A figure as files: `small` for the page, in as few bytes as look alike, of the MIME type `kind`; its `text` is an
    alternative of titles, axes, legend and numbers."""

    png: bytes
    svg: bytes
    small: bytes
    kind: str
    text: str
    pdf: bytes = b""  # with its fonts; only where asked for


def drawn(figure: Figure, pictures: bool = False, pdf: bool = False) -> Drawn:
    """The figure as files; a palette of 256 colours would spoil `pictures`, which are a JPEG on the page."""
    image, stream = _raster(figure), io.BytesIO()
    figure.set_layout_engine("none")  # all parts are in place: to place them again takes as long as drawing
    with NO_WARNINGS, rc_context({"svg.hashsalt": "vitmed"}):  # a script that the font lacks shows boxes
        backend_svg.FigureCanvasSVG(figure).print_svg(stream, metadata={"Date": None, "Creator": None})
    vector = io.BytesIO()
    if pdf:
        with NO_WARNINGS, rc_context({"pdf.fonttype": 42}):  # TrueType: journals refuse type 3
            backend_pdf.FigureCanvasPdf(figure).print_pdf(vector, metadata={"CreationDate": None, "Creator": None})
    png, svg = _encoded(image, dpi=(DPI, DPI)), stream.getvalue()
    ways = [(png, "image/png")]
    if pictures:  # at the best quality that takes no more than `LARGE` bytes, otherwise at the lowest
        for quality in (88, 75, 60, 45, 30):
            jpeg = _encoded(image, "JPEG", quality=quality, subsampling=0 if quality > 80 else 2)
            if len(jpeg) <= LARGE:
                break
        ways.append((jpeg, "image/jpeg"))
    else:
        ways.append((_encoded(image.quantize(256, dither=Image.Dither.NONE), optimize=True), "image/png"))
        ways.append((svg, "image/svg+xml"))
    small, kind = min(ways, key=lambda way: len(way[0]))
    return Drawn(png, svg, small, kind, text_alternative(figure), vector.getvalue())


def text_alternative(figure: Figure) -> str:
    """The texts of a figure, from its title down, in one line; what panels share, once; up to `LONGEST` characters."""
    texts: list[str] = [figure.get_suptitle()]
    for part, axes in [(one, panel) for one in list[Any](figure.subfigs) or [figure] for panel in one.axes]:
        texts += [title for title in [part.get_suptitle()] if title not in texts]
        texts.append(axes.get_title())
        once = list[str]()
        for axis in (axes.xaxis, axes.yaxis) if axes.axison else ():
            formatter, at = axis.get_major_formatter(), axis.get_majorticklocs().tolist()
            named = isinstance(axis.get_major_locator(), FixedLocator) and not isinstance(formatter, ScalarFormatter)
            names = ", ".join(formatter.format_ticks(at)) if named else ""
            once.append(": ".join(text for text in (axis.get_label_text(), names) if text))
        legend = axes.get_legend()
        once += [text.get_text() for text in (legend.get_texts() if legend else ())]
        texts += [text for text in once if text not in texts]
        texts += [text.get_text() for text in axes.texts]
    for legend in figure.legends:
        texts += [text.get_text() for text in (legend.get_title(), *legend.get_texts())]
    texts += [text.get_text() for text in figure.texts if text.get_text() not in texts]
    text = "; ".join(" ".join(part.split()) for part in texts if part.strip()).replace(r"\$", "$")
    return text if len(text) <= LONGEST else text[:LONGEST].rsplit(" ", 1)[0] + " …"


def png(figure: Figure) -> bytes:
    return _encoded(_raster(figure), dpi=(DPI, DPI))


def _raster(figure: Figure) -> Image.Image:
    """RGB, drawn once: `Figure.savefig` draws twice, the first time for nothing but the layout."""
    # What no font can draw, as in a name that is not UTF-8, is shown with backslashes.
    written = [text.get_text() for text in figure.findobj(Text)]
    for axis in (axis for axes in figure.findobj(Axes) for axis in (axes.xaxis, axes.yaxis)):
        if isinstance(axis.get_major_locator(), FixedLocator):
            at = axis.get_majorticklocs().tolist()
            labels = axis.get_major_formatter().format_ticks(at)
            written += labels
            if (shown := list(map(visible, labels))) != labels:
                axis.set_ticks(at, shown)
    for text in figure.findobj(Text):
        if visible(text.get_text()) != text.get_text():
            text.set_text(visible(text.get_text()))
        if max("".join(written), default="") > "\u2e7f":
            text.set_fontfamily([*text.get_fontfamily(), *_east_asian_fonts()])
    figure.dpi = DPI
    canvas = backend_agg.FigureCanvasAgg(figure)
    with NO_WARNINGS:
        canvas.draw()
    return Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")


def _encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, format=kind, **options)
    return stream.getvalue()


@cache
def _east_asian_fonts() -> list[str]:
    """A few installed fonts with Chinese, Japanese or Korean characters, which matplotlib's own font lacks."""
    usual = re.compile(
        "Sans CJK|Droid Sans Fallback|WenQuanYi|YaHei|SimHei|MS Gothic|Malgun|PingFang|Hiragino|Arial Unicode"
    )
    return sorted({font.name for font in font_manager.fontManager.ttflist if usual.search(font.name)})[:3]


def show(axes: Axes, image: np.ndarray) -> None:
    """A picture (H, W) or (H, W, C), values 0 to 255."""
    if image.ndim == 3:  # without alpha, which matplotlib would draw on white
        image = image[..., :3] if image.shape[2] >= 3 else image[..., 0]
    axes.imshow(image, cmap="gray" if image.ndim == 2 else None, vmin=0, vmax=255, interpolation="nearest")


def hide_ticks(panels: Iterable[Axes]) -> None:
    """No ticks; and no frame around a panel without a picture."""
    for axes in panels:
        axes.set(xticks=[], yticks=[])
        axes.set_frame_on(bool(axes.images))


def sheet(size: tuple[float, float], rows: Sequence[tuple[str, Sequence[np.ndarray]]]) -> tuple[Figure, np.ndarray]:
    """Rows of pictures as in `show`, each with its name on the left, `size` in inches; and the panels, one or more."""
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(max(1, len(rows)), max([1, *(len(row) for _, row in rows)]), squeeze=False)
    for line, (name, row) in zip(panels, rows, strict=False):
        for axes, picture in zip(line, row, strict=False):
            show(axes, picture)
        line[0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize=10)
    hide_ticks(panels.flat)
    return figure, panels


def plot(x: str, y: str, size: tuple[float, float] = (7.6, 5.2)) -> tuple[Figure, Axes]:
    """A figure of one plot, with light lines behind it."""
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.add_subplot(xlabel=x, ylabel=y)
    axes.ticklabel_format(scilimits=(-4, 7))  # 250000, not 2.5 and 1e5 in a corner
    add_grid(axes)
    return figure, axes


def add_grid(axes: Axes, axis: Literal["both", "x", "y"] = "both") -> None:
    """Light lines behind the data."""
    axes.grid(axis=axis, color="0.9")
    axes.set_axisbelow(True)


def small_panels(
    count: int, beside: int, each: tuple[float, float], more: tuple[float, float], x: str, **shared: Any
) -> tuple[Figure, list[Axes], int]:
    """A figure of panels of `each` size, with `more` inches around them; the panels, and how many are side by side. The
    lowest of each column says what `x` is."""
    columns = min(beside, count)
    lines = -(-count // columns)
    figure = Figure(figsize=(each[0] * columns + more[0], each[1] * lines + more[1]), layout="constrained")
    panels = list(figure.subplots(lines, columns, squeeze=False, **shared).flat)
    for axes in panels[count:]:
        axes.set_axis_off()
    for axes in panels[max(0, count - columns) : count]:
        axes.set_xlabel(x, fontsize=9)
        axes.tick_params(labelbottom=True)
    return figure, panels[:count], columns


def legend_below(figure: Figure, columns: int) -> None:
    """One legend of all panels below them, where it hides no curve."""
    every = (pair for axes in figure.axes for pair in zip(*axes.get_legend_handles_labels(), strict=True))
    found = {text: handle for handle, text in every}
    figure.legend(list(found.values()), list(found), loc="outside lower center", ncols=columns, fontsize=9)


def numbers(found: Iterable[float | None]) -> np.ndarray:
    """NaN for None: matplotlib leaves it out."""
    return np.array(list(found), dtype=float)


def draw_band(axes: Axes, x: Sequence[float], found: Sequence[Estimate], colour: str) -> None:
    low, high = numbers(one.low for one in found), numbers(one.high for one in found)
    axes.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)


def forest(
    panels: Sequence[Axes],
    rows: Sequence[tuple[str, Mapping[str, Estimate] | ClassNumbers]],
    means: Mapping[str, Estimate | None],
    diamond: bool = False,
) -> None:
    """Numbers with their intervals, a kind, a key of `means`, in each panel and a name in each line; the panels share
    y. The dashed line is the mean; a `diamond` marks the first line."""
    for axes, (kind, mean) in zip(panels, means.items(), strict=True):
        if mean is not None and mean.value is not None:
            axes.axvline(mean.value, color=GREY, linestyle="--", linewidth=1)
        for y, found in ((y, row[kind]) for y, (_, row) in enumerate(rows) if kind in row):
            colour, marker = (BLACK, "D") if diamond and y == 0 else (BLUE, "o")
            if found.value is None:
                style: dict[str, Any] = {"fontsize": 8, "color": "0.35", "va": "center"}
                axes.text(0.02, y, "undefined", transform=axes.get_yaxis_transform(), **style)
                continue
            if found.low is not None:
                axes.plot(numbers([found.low, found.high]), [y, y], color=colour, linewidth=1.7)
            axes.plot(found.value, y, marker, color=colour, markersize=5.5)
        axes.set_xlabel(TITLES[kind])
        add_grid(axes, "x")
        axes.xaxis.set_major_locator(MaxNLocator(nbins=4))
    panels[0].set_yticks(range(len(rows)), [name for name, _ in rows], fontsize=9)
    panels[0].set_ylim(len(rows) - 0.5, -0.5)


def percent(share: float) -> str:
    """A share as a percentage; only 1 is written as 100 %, and only 0 as 0 %."""
    if 0.995 <= share < 1:
        return ">99%"
    return "<1%" if 0 < share <= 0.005 else f"{share:.0%}"


def plain(text: str) -> str:
    """Text that every font and file can hold, without the characters that change the direction of what follows."""
    return visible(text.translate(dict.fromkeys([*range(0x202A, 0x202F), *range(0x2066, 0x206A)])))


def path_label(name: str, most: int) -> str:
    """A path to write below a picture, in one or two lines; of a longer path the end, which identifies the image.

    The line breaks after a folder, else at the last mark where both halves fit, else where the line is full.
    """
    name = " ".join(plain(name).split())
    if len(name) > most:
        name = name if len(name) <= 2 * most else "…" + name[1 - 2 * most :]
        fit = range(max(1, len(name) - most), min(most, len(name) - 1) + 1)
        cuts = [[k for k in fit if name[k - 1] in marks] for marks in ("/", "_-. ")]
        cut = max(cuts[0] or cuts[1] or [len(name) - most])
        name = f"{name[:cut]}\n{name[cut:]}"
    return name.replace("$", r"\$")


def short(name: str, most: int) -> str:
    """A class name to write in a figure: one line, cut in its middle to `most` characters, no mathtext."""
    name = " ".join(plain(name).split())
    if len(name) > most:  # names of one family often differ at the end
        name = name[: most - most // 2 - 1].rstrip() + "…" + name[-(most // 2) :].lstrip()
    name = RTL.sub("\u200e\\g<0>\u200e", name)  # what is written from right to left moves no number beside it
    return (f" {name}" if name.startswith("_") else name).replace("$", r"\$")
