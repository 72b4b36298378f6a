#!/usr/bin/python3
"""Draws runs, or memory plans as stacked bars.

  scripts/plot.py RUN [RUN ...] -o OUT.html    one page with every panel; hover for values, drag to zoom
  scripts/plot.py RUN [RUN ...] -o OUT.png     the same panels as a picture; .svg too
  scripts/plot.py --plan OUT.svg FLAGS [FLAGS ...]     one bar for each `train_gpt2 --plan=json FLAGS`

RUN is a run directory, the folder after -o of train_gpt2. The panels are training loss, validation loss, HellaSwag
accuracy, learning rate, gradient norm and tokens per second. A panel without data is left out. HellaSwag has lines for
GPT-2 and GPT-3 of the run's size.

  --against steps|tokens|time   the horizontal axis (default steps); time is the sum of the steps' milliseconds
  --smooth X                    exponential smoothing of fields that every step has (default 0.95; 0 disables)
  --panels A,B+C                fields of metrics.jsonl to draw; B and C share a panel; `all` draws every field

The vertical range is chosen without the first 3 % of a run and without outliers. Such values leave the panel.

e.g. scripts/plot.py runs/a runs/b -o ab.html --against tokens
     scripts/plot.py --plan plan.svg '-e d48 -b 4 -r 1' '-e d48 -b 4 -r 4' '-e d48 -b 4 --fit=16'
In a plan, the parts of a bar are tensors. Tensors below 1 % of the largest bar are one part for each lifetime.
TRAIN_GPT2 names the program; the default is ./train_gpt2, or else the installed program. Pictures need matplotlib;
pages need only Python.
"""
import argparse
import colorsys
import json
import os
import shlex
import subprocess
import sys

sys.dont_write_bytecode = True  # no __pycache__ among the scripts
from run_metrics import Parser, model_shape, read_json, read_steps, run_name, stop  # noqa: E402

# ---- memory plans

SMALL = 0.01  # of the largest bar
SHADES = {"state": "Blues", "saved": "Greens", "scratch": "Oranges"}


def read_plan(flags):
    """The first rank's plan. Stops with the program's error if the program refuses the flags."""
    program = os.environ.get("TRAIN_GPT2", "./train_gpt2" if os.path.exists("./train_gpt2") else "train_gpt2")
    try:
        done = subprocess.run([program, "--plan=json", *shlex.split(flags)], capture_output=True, text=True)
    except OSError as error:
        stop(f"could not run {program}: {error.strerror}; build it with make, or name it in TRAIN_GPT2")
    if done.returncode != 0:
        stop(done.stderr.strip())
    return json.loads(done.stdout)["ranks"][0]


def parts_of(plan, least):
    """[(lifetime, name, bytes)]; the small tensors of a lifetime are one entry."""
    parts = []
    for lifetime in SHADES:
        tensors = [t for t in plan["tensors"] if t["lifetime"] == lifetime]
        parts += [(lifetime, t["name"], t["bytes"]) for t in tensors if t["bytes"] >= least]
        rest = sum(t["bytes"] for t in tensors if t["bytes"] < least)
        if rest:
            parts.append((lifetime, "others", rest))
    return parts


def draw_plans(plt, axes, titles):
    plans = [read_plan(title) for title in titles]
    largest = max(plan["total"] for plan in plans)
    names = {}  # (lifetime, name): shade, the same in every bar
    for plan in plans:
        for lifetime, name, _ in parts_of(plan, SMALL * largest):
            names.setdefault((lifetime, name), None)
    for lifetime, shades in SHADES.items():
        members = [key for key in names if key[0] == lifetime]
        for i, key in enumerate(members):
            names[key] = plt.get_cmap(shades)(0.9 - 0.6 * i / max(len(members) - 1, 1))
    for at, plan in enumerate(plans):
        bottom = 0
        for lifetime, name, size in parts_of(plan, SMALL * largest):
            gib = size / 2**30
            axes.bar(at, gib, 0.6, bottom=bottom, color=names[lifetime, name], edgecolor="white", linewidth=0.5)
            if size > 0.03 * largest:
                axes.text(at, bottom + gib / 2, name, ha="center", va="center", fontsize=7)
            bottom += gib
        axes.text(at, bottom, f"{bottom:.2f}", ha="center", va="bottom", fontsize=9)
    handles = [plt.Rectangle((0, 0), 1, 1, color=color) for color in names.values()]
    axes.legend(handles, [f"{lifetime}: {name}" for lifetime, name in names], fontsize=6, loc="center left",
                bbox_to_anchor=(1, 0.5))
    axes.set_xticks(range(len(titles)), titles, fontsize=8)
    axes.set_ylabel("GiB")


# ---- runs: what both the picture and the page draw

TITLES = {"loss": "training loss", "val_loss": "validation loss", "hellaswag": "HellaSwag accuracy",
          "bits_per_byte": "validation bits per byte",
          "lr": "learning rate", "grad_norm": "gradient norm", "tokens_per_s": "tokens per second",
          "ms": "milliseconds per step", "mfu": "MFU"}
PANELS = ["loss", "val_loss", "hellaswag", "lr", "grad_norm", "tokens_per_s"]  # without --panels
EXACT = ["val_loss", "bits_per_byte", "hellaswag", "lr"]  # never smoothed
WHOLE = ["hellaswag", "lr"]  # the vertical range covers the start of the run too
START = 0.03  # share of a run in which the loss falls so far that a range with it would flatten the rest
OUTLIERS = 0.005  # share of the values, at either end, that the vertical range may leave out
COLORS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8c6d1f", "#56b4e9", "#7b3294", "#444444"]

# HellaSwag accuracy by (layers, channels). GPT-2: OpenAI's checkpoints scored by llm.c (dev/vislog.ipynb there). GPT-3:
# zero-shot, table H.1 of Brown et al. 2020. llm.c compares GPT-2 774M with GPT-3 760M, and 1558M with 1.3B.
# Validation loss has no such lines, because the loss depends on the validation tokens.
HELLASWAG = {
    (12, 768): {"GPT-2 124M": 0.2945, "GPT-3 125M": 0.337},
    (24, 1024): {"GPT-2 350M": 0.3752, "GPT-3 350M": 0.436},
    (36, 1280): {"GPT-2 774M": 0.4320, "GPT-3 760M": 0.510},
    (48, 1600): {"GPT-2 1558M": 0.4889, "GPT-3 1.3B": 0.547},
    (24, 1536): {"GPT-3 760M": 0.510},
    (24, 2048): {"GPT-3 1.3B": 0.547},
}


def read_run(folder):
    """The columns of a run: "steps", "tokens" and "time" (in seconds) have a value for each row, a row is a step.
    "fields" has [rows, values] for each field, with None for NaN."""
    steps = read_steps(os.path.join(folder, "metrics.jsonl"))
    flags = read_json(os.path.join(folder, "config.json"))
    run = {"name": run_name(folder), "steps": list(steps), "tokens": [], "time": [], "fields": {}, "flags": flags,
           "published": HELLASWAG.get(model_shape(folder, flags), {})}
    tokens = seconds = 0
    for row, fields in enumerate(steps.values()):
        step_seconds = (fields.get("ms") or 0) / 1000
        seconds += step_seconds
        tokens += step_seconds * (fields.get("tokens_per_s") or 0)
        run["time"].append(round(seconds, 3))
        run["tokens"].append(round(tokens))
        for name, value in fields.items():
            rows, values = run["fields"].setdefault(name, [[], []])
            rows.append(row)
            values.append(value)
    return run


def read_runs(folders):
    runs = [read_run(folder) for folder in folders]
    if len({run["name"] for run in runs}) < len(runs):  # runs of one name in different folders
        for run, folder in zip(runs, folders):
            run["name"] = folder.rstrip("/")
    for i, run in enumerate(runs):
        run["color"] = COLORS[i] if i < len(COLORS) else hue(i)
    return runs


def hue(i):
    """Any number of colours: steps of the golden ratio around the colour wheel."""
    return "#" + "".join(f"{int(255 * part):02x}" for part in colorsys.hls_to_rgb(i * 0.618 % 1, 0.4, 0.7))


def has_data(run, field):
    return any(value is not None for value in run["fields"].get(field, [[], []])[1])


def choose_panels(runs, words):
    """[[field, ...]]: the fields of each panel. Stops if --panels names a field that no run has."""
    fields = dict.fromkeys(name for run in runs for name in run["fields"])
    if words == "all":
        chosen = [[name] for name in PANELS + [name for name in fields if name not in PANELS]]
    elif words:
        chosen = [panel.split("+") for panel in words.split(",")]
        for name in sum(chosen, []):
            if name not in fields:
                stop(f"--panels {words}: no run has the field '{name}'; the fields are {', '.join(fields)}")
    else:
        chosen = [[name] for name in PANELS]
    panels = [[name for name in panel if any(has_data(run, name) for run in runs)] for panel in chosen]
    panels = [panel for panel in panels if panel]
    if not panels:
        stop(f"{' '.join(run['name'] for run in runs)}: metrics.jsonl has no values to draw yet; "
             "wait for the run's first step")
    return panels


def published_points(runs, panel):
    """{label: accuracy} of the lines in a panel"""
    if "hellaswag" not in panel:
        return {}
    return {label: y for run in runs if has_data(run, "hellaswag") for label, y in run["published"].items()}


def smoothed(values, factor):
    """Exponential moving average. The division by the sum of weights removes the pull of the start towards 0. None
    stays None and leaves the average unchanged."""
    average = weight = 0
    result = []
    for value in values:
        if value is not None:
            average = factor * average + (1 - factor) * value
            weight = factor * weight + (1 - factor)
        result.append(None if value is None else average / weight)
    return result


# ---- runs as a picture

STYLES = ["-", "--", ":"]  # of the fields that share a panel
FEW = 60  # values or fewer have a dot each

def short(x, _=None):
    """1500000 as 1.5M"""
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(x) >= size:
            return f"{x / size:.4g}{letter}"
    return f"{x:.4g}"


def horizontal_axis(runs, against):
    """(divisor, label) of the horizontal axis"""
    if against != "time":
        return 1, {"steps": "step", "tokens": "tokens"}[against]
    longest = max((run["time"][-1] for run in runs if run["time"]), default=0)
    unit, seconds = next(((u, s) for u, s in (("hours", 3600), ("minutes", 60)) if longest >= 2 * s), ("seconds", 1))
    return seconds, f"training time in {unit}"


def vertical_range(runs, panel):
    """(low, high) without the start of a run and without outliers. Values outside leave the panel at its edge."""
    lows, highs = list(published_points(runs, panel).values()), []
    for run in runs:
        for name in panel:
            rows, values = run["fields"].get(name, [[], []])
            first = 0 if name in WHOLE else START * len(run["steps"])
            kept = sorted(value for row, value in zip(rows, values) if value is not None and row >= first)
            kept = kept or [value for value in values if value is not None]
            cut = 0 if name in EXACT else int(OUTLIERS * len(kept))
            lows += kept[cut:cut + 1]
            highs += kept[len(kept) - 1 - cut:len(kept) - cut]
    low, high = min(lows), max(highs + lows)
    margin = 0.05 * (high - low) or 0.05 * abs(high) or 1
    return low - margin, high + (2 if "hellaswag" in panel else 1) * margin  # room for a line's label


def draw_curve(axes, run, name, arguments, divisor, style, marker):
    """One field of one run, with the raw values faint behind a smoothed curve"""
    rows, values = run["fields"].get(name, [[], []])
    xs = [run[arguments.against][row] / divisor for row in rows]
    ys = [float("nan") if value is None else value for value in values]
    if arguments.smooth and name not in EXACT:
        axes.plot(xs, ys, color=run["color"], alpha=0.2, linewidth=0.6)
        ys = [float("nan") if value is None else value for value in smoothed(values, arguments.smooth)]
    axes.plot(xs, ys, style, color=run["color"], linewidth=1.4, marker=marker, markersize=3)


def draw_panel(plt, axes, runs, panel, arguments):
    divisor, label = horizontal_axis(runs, arguments.against)
    for i, name in enumerate(panel):
        most = max(len(run["fields"].get(name, [[]])[0]) for run in runs)
        for run in runs:
            draw_curve(axes, run, name, arguments, divisor, STYLES[i % 3], "o" if most <= FEW else None)
    for text, y in published_points(runs, panel).items():
        axes.axhline(y, color="#777777", linewidth=0.9, linestyle=(0, (4, 3)))
        axes.annotate(f"{text}: {y:g}", (0, y), xycoords=("axes fraction", "data"), xytext=(4, 2),
                      textcoords="offset points", fontsize=8, color="#555555")
    axes.margins(x=0.02)
    axes.set_ylim(vertical_range(runs, panel))
    axes.set_title(" and ".join(TITLES.get(name, name) for name in panel), loc="left", fontsize=10.5)
    axes.set_xlabel(label, fontsize=9)
    axes.grid(color="#e6e6e6", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=9, color="#999999")
    axes.xaxis.set_major_formatter(short)
    axes.xaxis.set_major_locator(plt.MaxNLocator(6))
    axes.yaxis.set_major_formatter(lambda y, _: short(y) if abs(y) >= 10000 else f"{y:.4g}")
    if len(panel) > 1:
        color = runs[0]["color"] if len(runs) == 1 else "#444444"
        handles = [plt.Line2D([], [], linestyle=STYLES[i % 3], color=color) for i in range(len(panel))]
        axes.legend(handles, [TITLES.get(name, name) for name in panel], fontsize=9, frameon=False)


def draw_runs(plt, runs, panels, arguments):
    """A figure of at most three columns. The legend of the runs is below the panels."""
    count = len(panels)
    columns = {1: 1, 2: 2, 4: 2}.get(count, 3)
    rows = -(-count // columns)
    size = (9, 4.4) if count == 1 else (4.3 * columns, 3.1 * rows + 0.4)
    figure, grid = plt.subplots(rows, columns, figsize=size, squeeze=False)
    for axes, panel in zip(grid.flat, panels):
        draw_panel(plt, axes, runs, panel, arguments)
    for axes in grid.flat[count:]:
        axes.set_visible(False)
    handles = [plt.Line2D([], [], color=run["color"], linewidth=2) for run in runs]
    legend_columns = min(len(runs), 4)
    figure.legend(handles, [run["name"] for run in runs], loc="lower center", ncol=legend_columns, frameon=False,
                  fontsize=9.5)
    legend_inches = 0.06 + 0.2 * -(-len(runs) // legend_columns)
    figure.tight_layout(rect=(0, legend_inches / size[1], 1, 1), w_pad=1.5, h_pad=1.2)
    return figure


# ---- runs as a page

MOST_ROWS = 10000  # of a run in a page: about 0.5 MB


def thinned(run, drawn):
    """The run's `drawn` fields at every n-th step and every evaluated step, so that a browser draws the run quickly"""
    every = -(-len(run["steps"]) // MOST_ROWS)
    evaluated = {row for name in ("val_loss", "hellaswag") for row in run["fields"].get(name, [[], []])[0]}
    kept = [row for row in range(len(run["steps"])) if row % every == 0 or row in evaluated]
    kept += [] if not run["steps"] or kept[-1] == len(run["steps"]) - 1 else [len(run["steps"]) - 1]
    place = {row: i for i, row in enumerate(kept)}
    fields = {}
    for name, (rows, values) in run["fields"].items():
        if name in drawn:
            pairs = [(place[row], value) for row, value in zip(rows, values) if row in place]
            fields[name] = [[row for row, _ in pairs], [value and float(f"{value:.6g}") for _, value in pairs]]
    return {**run, "every": every, "fields": fields,
            **{axis: [run[axis][row] for row in kept] for axis in ("steps", "tokens", "time")}}


def differing_flags(runs):
    """{flag: [text of each run]} of the flags that differ. The output folder always differs and is left out."""
    names = dict.fromkeys(name for run in runs for name in run["flags"] if name not in ("output", "resume"))
    table = {name: [json.dumps(run["flags"].get(name)) for run in runs] for name in names}
    return {name: [text.strip('"') for text in texts] for name, texts in table.items() if len(set(texts)) > 1}


def page(runs, panels, arguments):
    """plot.html with the data inside. "</" would end the script, and is written as "<\\/"."""
    data = {
        "panels": [{"fields": panel, "title": " and ".join(TITLES.get(name, name) for name in panel),
                    "published": published_points(runs, panel)}
                   for panel in panels],
        "runs": [{key: value for key, value in thinned(run, sum(panels, [])).items() if key != "flags"}
                 for run in runs],
        "titles": TITLES, "exact": EXACT, "whole": WHOLE, "start": START, "outliers": OUTLIERS, "few": FEW,
        "flags": differing_flags(runs), "against": arguments.against,
        "smooth": arguments.smooth,
    }
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "plot.html"), encoding="utf-8") as file:
        template = file.read()
    return template.replace("DATA", json.dumps(data, separators=(",", ":")).replace("</", "<\\/"), 1)


# ---- the program

def load_matplotlib():
    try:
        import matplotlib
    except ImportError:
        stop("matplotlib is missing; install python3-matplotlib (Debian) or matplotlib (PyPI), or write a page: "
             "-o OUT.html")
    matplotlib.use("Agg")
    matplotlib.rcParams["svg.fonttype"] = "none"  # text stays text
    matplotlib.rcParams["svg.hashsalt"] = "train_gpt2"  # the same run gives the same file
    import matplotlib.pyplot as plt
    return plt


def check_ending(path, endings):
    ending = os.path.splitext(path)[1]
    if ending not in endings:
        stop(f"{path} ends in '{ending}'; expected {', '.join(endings[:-1])} or {endings[-1]}")
    return ending


def save(path, write):
    try:
        write(path)
    except OSError as error:
        stop(f"could not write {path}: {error.strerror}", 1)


def save_text(path, text):
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def plot_plans(out, titles):
    check_ending(out, (".svg", ".png", ".pdf"))
    plt = load_matplotlib()
    figure, axes = plt.subplots(figsize=(10, 6))
    draw_plans(plt, axes, titles)
    save(out, lambda path: figure.savefig(path, bbox_inches="tight"))


def plot_runs(arguments):
    ending = check_ending(arguments.o, (".html", ".png", ".svg"))
    runs = read_runs(arguments.run)
    panels = choose_panels(runs, arguments.panels)
    if ending == ".html":
        text = page(runs, panels, arguments)
        save(arguments.o, lambda path: save_text(path, text))
        return
    plt = load_matplotlib()
    figure = draw_runs(plt, runs, panels, arguments)
    undated = {"metadata": {"Date": None}} if ending == ".svg" else {}
    save(arguments.o, lambda path: figure.savefig(path, dpi=150, **undated))


def factor(text):
    try:
        if 0 <= float(text) < 1:
            return float(text)
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"expected a number from 0 to below 1, found '{text}'")


def main():
    if sys.argv[1:2] == ["--plan"]:  # before argparse, which takes '-e d12' for a flag of its own
        if len(sys.argv) < 4:
            stop("--plan: expected an output file and the flags of each bar; see scripts/plot.py --help")
        plot_plans(sys.argv[2], sys.argv[3:])
        return
    parser = Parser(allow_abbrev=False)
    parser.add_argument("run", nargs="+")
    parser.add_argument("-o", metavar="OUT", required=True)
    parser.add_argument("--against", choices=("steps", "tokens", "time"), default="steps")
    parser.add_argument("--smooth", type=factor, default=0.95)
    parser.add_argument("--panels")
    plot_runs(parser.parse_args())


if __name__ == "__main__":
    main()
