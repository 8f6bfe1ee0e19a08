"""The page of notation, made from one list.

    python book/notation.py        writes book/notation.md

A test holds the list to the package and to the chapters: each code name is
one that the package uses, and the first chapter uses it.
"""

from pathlib import Path

PAGE = Path(__file__).parent / "notation.md"

# (symbol, what it is, shape, code name, first chapter)
SIZES = [
    ("$B$", "rows of a batch", "", "B", 2),
    ("$T$", "tokens in a row, in this call", "", "T", 2),
    ("$V$", "rows of the vocabulary table", "", "vocab_size", 1),
    ("$H$", "width of the stream", "", "hidden_size", 1),
    ("$I$", "hidden units of the MLP", "", "intermediate_size", 3),
    ("$d$", "size of an attention head", "", "head_dim", 4),
    ("$d_k$", "rows of a memory table", "", "dk", 6),
    ("$d_v$", "columns of a memory table", "", "dv", 6),
    ("$H_k$", "key heads of a linear layer", "", "Hk", 6),
    ("$H_v$", "value heads of a linear layer", "", "Hv", 6),
    ("$C$", "tokens of a chunk", "", "chunk_size", 8),
]
VECTORS = [
    ("", "token numbers", "$[B, T]$", "ids", 1),
    ("$x$", "the stream: a vector for each token", "$[B, T, H]$", "x", 2),
    ("$E$", "the vocabulary table", "$[V, H]$", "embed_tokens", 2),
    ("", "a score for each possible next id", "$[B, T, V]$", "logits", 2),
    ("$w$", "a norm's weight; its gain is $1 + w$", "$[H]$", "weight", 3),
    ("$\\varepsilon$", "what keeps a root from zero", "", "eps", 3),
    ("$\\theta$", "base of the rotations", "", "theta", 4),
    ("", "cosine and sine of each angle", "$[B, T, r/2]$", "cos, sin", 4),
    ("$r$", "dimensions of a head that turn", "", "rotary_dim", 4),
]
ATTENTION = [
    ("$q$", "query: what a token asks", "$[B, T, h, d]$", "q", 5),
    ("$k$", "key: what a token is found by", "$[B, T, h, d]$", "k", 5),
    ("$v$", "value: what a token hands over", "$[B, T, h, d]$", "v", 5),
    ("", "which columns a token may read", "", "allowed", 5),
    ("", "output gate of a full layer", "$[B, T, h, d]$", "gate", 5),
]
MEMORY = [
    ("$S$", "memory table of a head", "$[B, H_v, d_k, d_v]$", "S", 6),
    ("$g$", "log of the decay, $\\le 0$", "$[B, T, H_v]$", "g", 6),
    ("$\\beta$", "strength of a write, 0 to 1", "$[B, T, H_v]$", "beta", 6),
    ("$A$", "how fast a head forgets", "$[H_v]$", "A_log", 7),
    ("", "shift of a head's step size", "$[H_v]$", "dt_bias", 7),
    ("$z$", "gate of the gated norm", "$[B, T, H_v, d_v]$", "z", 7),
    ("", "the convolution's last inputs", "$[B, w-1, c]$", "window", 7),
    ("$D$", "decay from token $j$ to token $i$", "$[C, C]$", "D", 8),
    ("$L$", "how much of write $j$ token $i$ finds again", "$[C, C]$", "L", 8),
    ("$U$", "a chunk's writes, were its table empty", "$[C, d_v]$", "U", 8),
    (
        "$W$",
        "what they owe the table: writes are $U - W S$",
        "$[C, d_k]$",
        "W",
        8,
    ),
    ("", "marks real tokens, not pads", "$[B, \\ge T]$", "mask", 5),
    ("", "what a layer keeps between calls", "", "state", 5),
]
CHOICE = [
    ("$\\tau$", "flattens or sharpens the scores", "", "temperature", 12),
    (
        "$\\rho$",
        "divides or multiplies scores seen",
        "",
        "repetition_penalty",
        12,
    ),
    (
        "$p$",
        "the distribution that the next id is drawn from",
        "$[V]$",
        "p",
        12,
    ),
]
KERNELS = [
    ("", "numbers of a key that a tile holds", "", "BK", 16),
    ("", "columns of a table that a program holds", "", "BV", 16),
    (
        "$X$",
        "solves a chunk: $(I + L) X = \\mathrm{diag}(\\beta)$",
        "$[C, C]$",
        "solve",
        17,
    ),
]
GROUPS = [
    ("Sizes", SIZES),
    ("Vectors and tables", VECTORS),
    ("Attention", ATTENTION),
    ("Linear layers", MEMORY),
    ("Choosing the next token", CHOICE),
    ("Kernels", KERNELS),
]

INTRO = """\
# Notation

A symbol means the same in every chapter, and the code calls it by the name in
the fourth column. Vectors are rows: $x W$, not $W x$, so a stored matrix
`[out, in]` is used as its transpose. A letter in a shape is a size from the
first table; $h$ is a number of heads, $w$ the width of a convolution and $c$
its channels.

Two letters have a second meaning where no confusion is possible: $K$ and $V$
are also all keys and all values of a row, one below the other, and $L$ is also
the number of layers.
"""


def page():
    parts = [INTRO]
    for title, rows in GROUPS:
        head = "| symbol | meaning | shape | code | chapter |\n"
        lines = [f"## {title}\n\n{head}|---|---|---|---|---|"]
        for symbol, meaning, shape, code, chapter in rows:
            name = ", ".join(f"`{part}`" for part in code.split(", "))
            lines.append(
                f"| {symbol} | {meaning} | {shape} | {name} | {chapter} |"
            )
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
