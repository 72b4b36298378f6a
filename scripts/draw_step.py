#!/usr/bin/env python3
"""Draws one training step, doc/step.svg: the forward straight down, the backward next to it straight up.

  scripts/draw_step.py doc/step.svg

The output is deterministic: dev/test/test_docs.sh compares it with the file in the tree. Colours follow the reader's
light or dark theme.
"""
import sys
from xml.sax.saxutils import escape

WIDTH = 1060
BOX, HEIGHT, PITCH = 230, 32, 62  # width and height of a box; distance of two rows
FORWARD, BACKWARD = 195, 635  # left edges of the two columns
LEFT_NOTES, RIGHT_NOTES = 168, 892
TOP, FRAME_GAP = 24, 26

# rows from top to bottom: (forward box, output, backward box, gradient that the backward reads)
ROWS = [
    ("", "", "AdamW", "times min(1, clip / norm)"),
    ("", "tokens (B,T)", "global norm, clipping", "gradients of all parameters"),
    ("embedding: wte + wpe", "encoded (B,T,C)", "embedding backward", "dresidual (B,T,C)"),
    ("layernorm", "ln1 (B,T,C)", "layernorm backward", "dln1 (B,T,C)"),
    ("column-parallel linear", "qkv (B,T,3C/t)", "linear backward", "dqkv (B,T,3C/t)"),
    ("attention", "atty (B,T,C/t)", "attention backward", "datty (B,T,C/t)"),
    ("row-parallel linear + residual", "residual2 (B,T,C)", "linear backward", "dresidual (B,T,C)"),
    ("layernorm", "ln2 (B,T,C)", "layernorm backward", "dln2 (B,T,C)"),
    ("column-parallel linear", "fch (B,T,4C/t)", "linear backward", "dfch (B,T,4C/t)"),
    ("GELU", "fch_gelu (B,T,4C/t)", "GELU backward, in the matmul", "dgelu (B,T,4C/t)"),
    ("row-parallel linear + residual", "residual3 (B,T,C)", "linear backward", "dresidual (B,T,C)"),
    ("layernorm", "lnf (B,T,C)", "layernorm backward", "dlnf (B,T,C)"),
    ("linear with wte, a logits chunk", "logits (rows,V/t)", "linear backward", "dlogits (rows,V/t)"),
    ("softmax, cross-entropy", "", "softmax backward, in place", ""),
]
FIRST, LAST = 3, 10  # the rows of a block

# row: the output is saved for the backward, or recomputed
SAVED = {
    2: ("saved", "saved"),
    3: ("recompute", "recomputed at -r 2 3 4"),
    4: ("recompute", "recomputed at -r 4"),
    5: ("recompute", "recomputed at -r 4"),
    6: ("recompute", "recomputed at -r 4"),
    7: ("recompute", "recomputed at -r 2 3 4"),
    8: ("recompute", "recomputed at -r 3 4"),
    9: ("recompute", "recomputed at -r 1 2 3 4"),
    10: ("saved", "saved (-rk k: every k-th)"),
}

# (row, pixels below the middle of the box, kind, lines), left of the forward and right of the backward
NOTES_LEFT = [
    (2, 0, "tensor", ["-tp: reduce-scatter"]),
    (3, 0, "zero", ["-z 3: all-gather of the", "layer's parameters,", "one layer ahead"]),
    (4, -20, "tensor", ["-tp: all-gather of ln1"]),
    (6, 0, "tensor", ["-tp: reduce-scatter", "of the partial sums"]),
    (8, -20, "tensor", ["-tp: all-gather of ln2"]),
    (10, 0, "tensor", ["-tp: reduce-scatter", "of the partial sums"]),
    (12, -20, "tensor", ["-tp: all-gather of lnf"]),
    (13, 0, "tensor", ["-tp: all-gather of the", "softmax statistics"]),
]
NOTES_RIGHT = [
    (0, 0, "zero", ["-z 1 2 3: a rank updates", "its shard; all-gather", "in the next forward"]),
    (1, 0, "zero", ["all-reduce of the", "shards' norms"]),
    (3, 0, "zero", ["gradients of the layer:", "-z 0: all-reduce", "-z 1 2 3: reduce-scatter"]),
    (4, 0, "tensor", ["-tp: reduce-scatter of", "dln1, during dqkvw"]),
    (6, 12, "tensor", ["-tp: all-gather", "of dresidual"]),
    (8, 0, "tensor", ["-tp: reduce-scatter of", "dln2, during dfcw"]),
    (10, -12, "zero", ["-z 3: all-gather of the", "layer's parameters"]),
    (10, 18, "tensor", ["-tp: all-gather", "of dresidual"]),
    (12, -16, "tensor", ["-tp: reduce-scatter", "of dlnf"]),
]
LEGEND = [
    ("zero", "-z", "ZeRO data parallelism"),
    ("tensor", "-tp t", "tensor parallelism over t ranks"),
    ("recompute", "-r", "recomputed in the backward"),
]

LIGHT = {"paper": "#ffffff", "ink": "#1f2328", "muted": "#59636e", "box": "#f6f8fa", "edge": "#8c959f",
         "zero": "#0969da", "tensor": "#8250df", "recompute": "#1a7f37"}
DARK = {"paper": "#0d1117", "ink": "#f0f6fc", "muted": "#9198a1", "box": "#151b23", "edge": "#656c76",
        "zero": "#4493f8", "tensor": "#ab7df8", "recompute": "#3fb950"}


def style(colours):
    rules = [f".paper {{ fill: {colours['paper']}; }}", f"text {{ fill: {colours['ink']}; }}",
             f".box {{ fill: {colours['box']}; stroke: {colours['edge']}; }}",
             f".frame, .line {{ fill: none; stroke: {colours['edge']}; }}", f".head {{ fill: {colours['edge']}; }}",
             f".muted, .saved {{ fill: {colours['muted']}; }}"]
    rules += [f".{kind} {{ fill: {colours[kind]}; }}" for kind in ("zero", "tensor", "recompute")]
    return rules


def text(x, y, words, kind="", anchor="middle"):
    return f'<text class="{kind}" x="{x}" y="{y}" text-anchor="{anchor}">{escape(words)}</text>'


def lines_of(x, y, lines, kind, anchor):
    """lines of a note, centred on y"""
    first = y + 4 - 7 * (len(lines) - 1)
    return [text(x, first + 14 * i, line, f"note {kind}", anchor) for i, line in enumerate(lines)]


def middle(row):
    """y of the middle of a row's boxes"""
    below_frame_edges = (row >= FIRST) + (row > LAST)
    return TOP + HEIGHT // 2 + PITCH * row + FRAME_GAP * below_frame_edges


def line(points, extra=""):
    return f'<polyline class="line" points="{" ".join(f"{x},{y}" for x, y in points)}"{extra}/>'


def arrow(x, start, end):
    """vertical arrow, head at the end"""
    back = -7 if end > start else 7
    return [line([(x, start), (x, end + back)]),
            f'<polygon class="head" points="{x},{end} {x - 4},{end + back} {x + 4},{end + back}"/>']


def box(left, row, words):
    y = middle(row) - HEIGHT // 2
    return [f'<rect class="box" x="{left}" y="{y}" width="{BOX}" height="{HEIGHT}" rx="6"/>',
            text(left + BOX // 2, middle(row) + 5, words)]


def columns():
    parts = []
    down, up = FORWARD + BOX // 2, BACKWARD + BOX // 2
    for row, (forward, output, backward, gradient) in enumerate(ROWS):
        if forward:
            parts += box(FORWARD, row, forward)
        parts += box(BACKWARD, row, backward)
        if row + 1 == len(ROWS):
            break
        begin, end = middle(row) + HEIGHT // 2, middle(row + 1) - HEIGHT // 2
        between = begin + (PITCH - HEIGHT) // 2
        if output:
            parts += arrow(down, begin if forward else begin + 4, end)
            parts.append(text(down + 9, between + 4, output, "shape", "start"))
        parts += arrow(up, end, begin)
        parts.append(text(up + 9, between + 4, gradient, "shape", "start"))
        if row in SAVED:
            kind, words = SAVED[row]
            parts.append(line([(FORWARD + BOX + 36, between), (up - 12, between)], ' stroke-dasharray="3 4"'))
            parts.append(text(FORWARD + BOX + 120, between - 5, words, f"note {kind}"))
    across = middle(len(ROWS) - 1)
    parts.append(line([(FORWARD + BOX, across), (BACKWARD - 7, across)]))
    parts.append(f'<polygon class="head" points="{BACKWARD},{across} {BACKWARD - 7},{across - 4} '
                 f'{BACKWARD - 7},{across + 4}"/>')
    parts.append(text((FORWARD + BOX + BACKWARD) // 2, across - 7, "losses (B,T)", "shape"))
    return parts


def residuals():
    """the residual stream around each half of a block, down in the forward and up in the backward"""
    parts = []
    for first, last in ((FIRST, FIRST + 3), (FIRST + 4, LAST)):
        above, below = middle(first) - HEIGHT // 2 - 8, middle(last) + HEIGHT // 2 + 5
        for column, aside, edge in ((FORWARD, FORWARD - 15, FORWARD), (BACKWARD, BACKWARD + BOX + 15, BACKWARD + BOX)):
            here = column + BOX // 2
            if column == FORWARD:
                parts.append(line([(here, above), (aside, above), (aside, middle(last)), (edge, middle(last))]))
            else:
                parts.append(line([(here, below), (aside, below), (aside, middle(first)), (edge, middle(first))]))
    return parts


def draw():
    height = middle(len(ROWS) - 1) + HEIGHT // 2 + TOP
    frame_top = middle(FIRST) - HEIGHT // 2 - 29
    frame_end = middle(LAST) + HEIGHT // 2 + 29
    parts = [f'<rect class="paper" width="{WIDTH}" height="{height}" rx="8"/>',
             f'<rect class="frame" x="8" y="{frame_top}" width="{WIDTH - 16}" height="{frame_end - frame_top}" rx="10" '
             'stroke-dasharray="7 5"/>',
             text((FORWARD + BOX + BACKWARD) // 2, frame_top + 18, "block, L times", "muted")]
    for i, (kind, flag, words) in enumerate(LEGEND):
        parts.append(text(24, 32 + 20 * i, flag, f"shape {kind}", "start"))
        parts.append(text(76, 32 + 20 * i, words, f"note {kind}", "start"))
    parts.append(text(FORWARD + BOX // 2 + 130, 32, "forward: down", "muted", "start"))
    parts.append(text(FORWARD + BOX // 2 + 130, 52, "backward: up", "muted", "start"))
    parts += residuals() + columns()
    parts += lines_of((FORWARD + BOX + BACKWARD) // 2, middle(LAST) - 6,
                      ["-r 4: the block runs again", "before its backward"], "recompute", "middle")
    for notes, x, anchor in ((NOTES_LEFT, LEFT_NOTES, "end"), (NOTES_RIGHT, RIGHT_NOTES, "start")):
        for row, below, kind, lines in notes:
            parts += lines_of(x, middle(row) + below, lines, kind, anchor)
    sans = "-apple-system, 'Segoe UI', 'Noto Sans', Helvetica, Arial, sans-serif"
    mono = "ui-monospace, SFMono-Regular, Menlo, 'Liberation Mono', monospace"
    css = [f"text {{ font: 14px {sans}; }}", f".shape {{ font: 12px {mono}; }}", ".note { font-size: 12px; }",
           *style(LIGHT), "@media (prefers-color-scheme: dark) {", *style(DARK), "}"]
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
                      f'height="{height}" role="img">',
                      "<title>One training step: the forward down, the backward up</title>",
                      "<style>", *css, "</style>", *parts, "</svg>"]) + "\n"


def main():
    if len(sys.argv) != 2 or sys.argv[1] in ("-h", "--help"):
        sys.exit(__doc__.strip())
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        file.write(draw())


if __name__ == "__main__":
    main()
