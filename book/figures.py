"""The look of all figures, and the small diagram that opens each chapter.

    from book.figures import BLUE, GREY, ORANGE, diagram

Importing it sets matplotlib's defaults. The colours are Okabe & Ito's, which
colour-blind readers can tell apart; every figure stands on white.
"""

import matplotlib.pyplot as plt
from matplotlib.patches import FancyBboxPatch, Rectangle

BLUE, ORANGE, GREEN = "#0072B2", "#D55E00", "#009E73"
BLACK, GREY = "#222222", "#767676"

plt.rcParams.update(
    {
        "figure.figsize": (5.2, 3.2),
        "figure.dpi": 120,
        "figure.facecolor": "white",
        "figure.constrained_layout.use": True,
        "font.size": 10,
        "axes.titlesize": 11,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "image.cmap": "viridis",
        "legend.frameon": False,
    }
)

# part: (x, y, width, label, the names that light it)
LOOP = "layer model"
PARTS = [
    (0.0, 4.0, 0.7, "ids", "weights tokens model"),
    (1.15, 4.0, 1.2, "embedding", "embedding model"),
    (0.1, 2.75, 0.62, "norm", f"norm {LOOP}"),
    (0.84, 2.75, 1.05, "DeltaNet", f"delta chunk deltanet {LOOP}"),
    (2.01, 2.75, 0.62, "norm", f"norm {LOOP}"),
    (2.75, 2.75, 0.55, "MLP", f"mlp {LOOP}"),
    (0.1, 1.45, 0.62, "norm", f"norm {LOOP}"),
    (0.84, 1.45, 1.05, "attention", f"rope attention {LOOP}"),
    (2.01, 1.45, 0.62, "norm", f"norm {LOOP}"),
    (2.75, 1.45, 0.55, "MLP", f"mlp {LOOP}"),
    (0.0, 0.0, 0.7, "norm", "norm model"),
    (1.15, 0.0, 0.7, "head", "embedding head model"),
    (2.3, 0.0, 0.9, "next id", "tokens sampling generation"),
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
        size=10,
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
    arrow(ax, (0.1, line), (3.4, line))
    for reads, adds in ((0.41, 1.365), (2.32, 3.025)):
        arrow(ax, (reads, line), (reads, y))
        arrow(ax, (adds, y), (adds, line))
        ax.text(adds + 0.06, line + 0.01, "+", va="bottom", color=BLACK)


def memories(ax, lit):
    """The table beside the DeltaNet layers, the cache beside attention."""
    table, cache = {"state", "delta", "deltanet"}, {"state", "attention"}
    for y, colour, title, names in (
        (2.52, ORANGE, "table S:\nfixed size", table),
        (1.22, BLUE, "cache K, V:\ngrows", cache),
    ):
        on = bool(lit & names)
        for row in range(4):
            for column in range(4 if colour == ORANGE else 7):
                ahead = column > 4
                ax.add_patch(
                    Rectangle(
                        (3.95 + 0.17 * column, y + 0.17 * row),
                        0.17,
                        0.17,
                        facecolor=colour if on and not ahead else "white",
                        edgecolor=BLACK if on else GREY,
                        linewidth=0.8,
                        linestyle=":" if ahead else "-",
                    )
                )
        weight = "bold" if on else "normal"
        ax.text(3.95, y + 0.74, title, color=BLACK, weight=weight)
        arrow(ax, (3.5, y + 0.35), (3.9, y + 0.35), "<->", colour)


def diagram(*lit):
    """Draw the model with some parts lit: `diagram("norm", "mlp")`.

    The names are those of NAMES; a chapter lights what it builds.
    """
    unknown = set(lit) - NAMES
    if unknown:
        raise ValueError(f"no such part: {unknown}; there are {NAMES}")
    _, ax = plt.subplots(figsize=(5.2, 4.5))
    for y, label, colour in (
        (2.4, "3 linear layers", ORANGE),
        (1.1, "1 full layer", BLUE),
    ):
        ax.add_patch(Rectangle((-0.05, y), 3.5, 1.15, facecolor="#F2F2F2"))
        ax.add_patch(Rectangle((-0.05, y), 0.06, 1.15, facecolor=colour))
        ax.text(0.1, y + 0.97, label, color=BLACK, va="center")
    for x, y, width, label, names in PARTS:
        colour = {2.75: ORANGE, 1.45: BLUE}.get(y, BLACK)
        box(ax, x, y, width, label, colour, bool(set(lit) & {*names.split()}))
    stream(ax, 2.75)
    stream(ax, 1.45)
    for start, end in (
        ((0.7, 4.25), (1.15, 4.25)),
        ((1.75, 4.0), (1.75, 3.57)),
        ((1.75, 2.4), (1.75, 2.27)),
        ((0.35, 1.1), (0.35, 0.5)),
        ((0.7, 0.25), (1.15, 0.25)),
        ((1.85, 0.25), (2.3, 0.25)),
    ):
        arrow(ax, start, end)
    ax.text(0.5, 0.75, "then the same four again, several times", color=BLACK)
    memories(ax, set(lit))
    ax.set(xlim=(-0.1, 5.2), ylim=(-0.05, 4.55), aspect="equal")
    ax.axis("off")
    plt.show()
