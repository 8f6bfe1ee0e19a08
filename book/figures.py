"""The look of all figures, and the small diagram that opens each chapter.

    from book.figures import BLUE, GREY, ORANGE, diagram

Importing it sets matplotlib's defaults. The colours are Okabe & Ito's, which
colour-blind readers can tell apart; every figure stands on white.
"""

import matplotlib.pyplot as plt
from matplotlib.patches import FancyBboxPatch, Rectangle

BLUE, ORANGE, GREEN = "#0072B2", "#D55E00", "#009E73"
BLACK, GREY, PALE = "#222222", "#767676", "#E4E4E4"

plt.rcParams.update(
    {
        "figure.figsize": (6, 3.4),
        "figure.dpi": 120,
        "figure.facecolor": "white",
        "figure.constrained_layout.use": True,
        "font.size": 9,
        "axes.titlesize": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "image.cmap": "viridis",
        "legend.frameon": False,
    }
)

# part: (x, y, width, label, the names that light it)
LOOP = "layer model"
PARTS = [
    (0.0, 4.3, 1.0, "ids", "weights tokens model"),
    (1.5, 4.3, 1.6, "embedding", "embedding model"),
    (0.1, 2.95, 0.75, "norm", f"norm {LOOP}"),
    (1.0, 2.95, 1.35, "DeltaNet", f"delta chunk deltanet {LOOP}"),
    (2.5, 2.95, 0.75, "norm", f"norm {LOOP}"),
    (3.4, 2.95, 0.7, "MLP", f"mlp {LOOP}"),
    (0.1, 1.55, 0.75, "norm", f"norm {LOOP}"),
    (1.0, 1.55, 1.35, "attention", f"rope attention {LOOP}"),
    (2.5, 1.55, 0.75, "norm", f"norm {LOOP}"),
    (3.4, 1.55, 0.7, "MLP", f"mlp {LOOP}"),
    (0.0, 0.0, 0.85, "norm", "norm model"),
    (1.35, 0.0, 0.85, "head", "embedding head model"),
    (2.7, 0.0, 1.1, "next id", "tokens sampling generation"),
]
NAMES = {"state"}.union(*(lit.split() for *_, lit in PARTS))


def box(ax, x, y, width, label, colour, lit):
    ax.add_patch(
        FancyBboxPatch(
            (x, y),
            width,
            0.5,
            boxstyle="round,pad=0,rounding_size=0.08",
            facecolor=colour if lit else "white",
            edgecolor=BLACK if lit else GREY,
            linewidth=1.8 if lit else 0.8,
        )
    )
    ax.text(
        x + width / 2,
        y + 0.24,
        label,
        ha="center",
        va="center",
        color="white" if lit else BLACK,
        weight="bold" if lit else "normal",
    )


def arrow(ax, start, end, style="->", colour=GREY):
    ax.annotate(
        "",
        end,
        start,
        arrowprops={
            "arrowstyle": style,
            "color": colour,
            "shrinkA": 0,
            "shrinkB": 0,
        },
    )


def stream(ax, y):
    """The vector x that a layer's two halves read and add to."""
    line = y - 0.17
    arrow(ax, (0.1, line), (4.2, line))
    for reads, adds in ((0.475, 1.675), (2.875, 3.75)):
        arrow(ax, (reads, line), (reads, y))
        arrow(ax, (adds, y), (adds, line))
        ax.text(adds + 0.1, line + 0.03, "+", va="bottom", color=BLACK)


def memories(ax, lit):
    """The table beside the DeltaNet layers, the cache beside attention."""
    table, cache = {"state", "delta", "deltanet"}, {"state", "attention"}
    for y, colour, title, names in (
        (2.72, ORANGE, "table S: fixed size", table),
        (1.32, BLUE, "cache K, V: grows", cache),
    ):
        on = bool(lit & names)
        for row in range(4):
            for column in range(4 if colour == ORANGE else 7):
                ahead = column > 4
                ax.add_patch(
                    Rectangle(
                        (4.8 + 0.17 * column, y + 0.17 * row),
                        0.17,
                        0.17,
                        facecolor=colour if on and not ahead else "white",
                        edgecolor=BLACK if on else GREY,
                        linewidth=0.8,
                        linestyle=":" if ahead else "-",
                    )
                )
        weight = "bold" if on else "normal"
        ax.text(4.62, y + 0.78, title, color=BLACK, weight=weight)
        arrow(ax, (4.3, y + 0.45), (4.75, y + 0.45), "<->", colour)


def diagram(*lit):
    """Draw the model with some parts lit: `diagram("norm", "mlp")`.

    The names are those of NAMES; a chapter lights what it builds.
    """
    unknown = set(lit) - NAMES
    if unknown:
        raise ValueError(f"no such part: {unknown}; there are {NAMES}")
    figure, ax = plt.subplots(figsize=(5.6, 4.1))
    for y, label, colour in (
        (2.6, "3 linear layers", ORANGE),
        (1.2, "1 full layer", BLUE),
    ):
        ax.add_patch(
            Rectangle((-0.05, y), 4.3, 1.15, facecolor=PALE, alpha=0.5)
        )
        ax.add_patch(Rectangle((-0.05, y), 0.06, 1.15, facecolor=colour))
        ax.text(0.1, y + 0.95, label, color=BLACK, va="center", size=8)
    for x, y, width, label, names in PARTS:
        colour = {2.95: ORANGE, 1.55: BLUE}.get(y, BLACK)
        box(ax, x, y, width, label, colour, bool(set(lit) & {*names.split()}))
    stream(ax, 2.95)
    stream(ax, 1.55)
    for start, end in (
        ((1.0, 4.55), (1.5, 4.55)),
        ((2.3, 4.3), (2.3, 3.8)),
        ((2.1, 2.6), (2.1, 2.4)),
        ((0.42, 1.2), (0.42, 0.5)),
        ((0.85, 0.25), (1.35, 0.25)),
        ((2.2, 0.25), (2.7, 0.25)),
    ):
        arrow(ax, start, end)
    ax.text(0.6, 0.85, "then the same four again, several times", size=8)
    memories(ax, set(lit))
    ax.set(xlim=(-0.1, 6.5), ylim=(-0.1, 4.9), aspect="equal")
    ax.axis("off")
    plt.show()
