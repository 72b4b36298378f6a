#!/usr/bin/env python3
"""Draws runs of train_gpt2: a panel for each quantity, a line for each run.

  scripts/plot.py RUN [RUN ...] -o OUT.html    one page that loads nothing: hover for values, drag to zoom
  scripts/plot.py RUN [RUN ...] -o OUT.png     a picture, .svg too; needs matplotlib
  scripts/plot.py RUN [RUN ...] --table        final losses, tokens and time, as Markdown

RUN is a run directory, the folder after -o of train_gpt2. The panels are training loss, validation loss, HellaSwag
accuracy, learning rate, gradient norm and tokens per second; a panel without data is left out.

Runs that differ by --seed are one group: a line for the mean, and a band from the lowest to the highest seed, up to
the end of the shortest run. Flags that change only files, speed or memory do not divide a group, unless it has a seed
twice. A group is named by the flags that differ, or by its folder if they are more than three.

A curve is an exponential average over the raw values, which are a thin line. The vertical range is chosen without the
first 3 % of a run and without outliers; such values leave the panel. Time is the sum of the steps' milliseconds,
without evaluations. Runs of GPT-2's sizes have the accuracy of GPT-2 and GPT-3 as dashed lines in HellaSwag's panel.
In the table a range in brackets is from the lowest to the highest seed, and the final training loss is smoothed.
"""
import argparse
import datetime
import html
import json
import math
import os
import sys

TITLES = {"loss": "training loss", "val_loss": "validation loss", "hellaswag": "HellaSwag accuracy",
          "bits_per_byte": "validation bits per byte", "lr": "learning rate", "grad_norm": "gradient norm",
          "tokens_per_s": "tokens per second", "ms": "milliseconds per step", "mfu": "MFU"}
PANELS = "loss,val_loss,hellaswag,lr,grad_norm,tokens_per_s"
EXACT = ["val_loss", "bits_per_byte", "hellaswag", "lr"]  # never smoothed, and without outliers
WHOLE = ["hellaswag", "lr"]  # the vertical range covers the start of the run too
START, OUTLIERS = 0.03, 0.005  # shares of the steps, and of the values at either end, outside of the vertical range
MOST_POINTS = 4000  # of a curve in a page: 0.2 MB
COLORS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8c6d1f", "#56b4e9", "#7b3294", "#444444", "#e69f00", "#117733"]

# flags that change neither the training nor its speed, and flags that change its speed, memory or rounding
FILES = ["output", "resume", "seed", "val-every", "hellaswag", "sample-every", "sample-tokens", "prompt", "temperature",
         "top-k", "top-p", "tokenizer", "checkpoint-every", "keep", "major-every", "keep-best", "gpu-log",
         "init-method", "process-rank", "gpus-per-node", "shared-folder"]
SPEED = ["micro-batch", "time-limit", "fit", "recompute", "recompute-every", "recompute-layers", "offload", "nan-check",
         "device", "graph", "fuse-gelu", "profile", "zero-stage", "tensor-parallel", "gather-again", "processes"]

# HellaSwag accuracy by -e. GPT-2: OpenAI's checkpoints scored by llm.c (dev/vislog.ipynb there). GPT-3: zero-shot,
# table H.1 of Brown et al. 2020. Validation loss has no such lines, since it depends on the validation tokens.
PUBLISHED = {"d12": {"GPT-2 124M": 0.2945, "GPT-3 125M": 0.337}, "d24": {"GPT-2 350M": 0.3752, "GPT-3 350M": 0.436},
             "d36": {"GPT-2 774M": 0.4320, "GPT-3 760M": 0.510}, "d48": {"GPT-2 1558M": 0.4889, "GPT-3 1.3B": 0.547}}


def stop(sentence, status=2):
    """Ends the program. Status 2: wrong usage or input. Status 1: failure while running."""
    print(f"{os.path.basename(sys.argv[0])}: {sentence}", file=sys.stderr)
    sys.exit(status)


# ---- the files of a run

def read_whole_lines(path):
    """The text of metrics.jsonl up to its last newline. After that is half a line, still being written."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read()
    except OSError as error:
        stop(f"could not read {path} ({error.strerror}); give a run directory, the folder after -o of train_gpt2")
    return text[:text.rfind("\n") + 1]


def parse_lines(path, text, earlier=0):
    """[(step, {field: number or None})] of a text from metrics.jsonl, after `earlier` lines of the file. None is
    null, NaN or infinity. Fields that are not numbers are left out."""
    parsed = []
    for number, line in enumerate(text.splitlines(), earlier + 1):
        try:
            found = json.loads(line)
            step = int(found.pop("step"))
        except (ValueError, TypeError, KeyError, AttributeError):
            stop(f"line {number} of {path} is not a JSON object with a step; delete the line")
        parsed.append((step, {name: value if value is not None and math.isfinite(value) else None
                              for name, value in found.items() if value is None or type(value) in (int, float)}))
    return parsed


def read_flags(folder):
    """The flags in config.json; {} without the file."""
    path = os.path.join(folder, "config.json")
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        stop(f"could not read {path} ({error}); restore the file, or remove it to go on without it")


def read_run(folder):
    """"rows" has {step: {field: number, or None for NaN}}, in the order of steps; each row has the tokens and the
    seconds since the start too. Of two values for a field of a step, the later counts."""
    path, found, tokens, seconds = os.path.join(folder, "metrics.jsonl"), {}, 0, 0
    for step, fields in parse_lines(path, read_whole_lines(path)):
        found.setdefault(step, {}).update(fields)
    rows = dict(sorted(found.items()))
    for step, fields in rows.items():
        seconds += (fields.get("ms") or 0) / 1000
        tokens += (fields.get("ms") or 0) / 1000 * (fields.get("tokens_per_s") or 0)
        fields.update({"steps": step, "tokens": round(tokens), "time": seconds})
    return {"name": run_name(folder), "rows": rows, "flags": read_flags(folder)}


def run_name(folder):
    return os.path.basename(os.path.abspath(folder))


# ---- groups of runs

def common_flags(runs):
    return {name: value for name, value in runs[0]["flags"].items()
            if all(run["flags"].get(name) == value for run in runs)}


def group_runs(runs):
    """[[run, ...]]: runs with the same flags and different seeds"""
    groups = {}
    for run in runs:
        flags = {name: value for name, value in run["flags"].items() if name not in FILES + SPEED}
        groups.setdefault(json.dumps(flags, sort_keys=True), []).append(run)
    seeds = [[run["flags"].get("seed") for run in group] for group in groups.values()]
    return [part for group, of in zip(groups.values(), seeds)
            for part in ([group] if len(set(of)) == len(of) else [[run] for run in group])]


def read_groups(folders):
    """(groups, flags): the groups with names and colours, and {flag: [value of each group]} of flags that differ"""
    runs = [read_run(folder) for folder in folders]
    if len({run["name"] for run in runs}) < len(runs):  # runs of one name in different folders
        for run, folder in zip(runs, folders):
            run["name"] = folder.rstrip("/")
    groups = [{"runs": part, "flags": common_flags(part)} for part in group_runs(runs)]
    names = [name for name in groups[0]["flags"] if name not in FILES and all(name in g["flags"] for g in groups)]
    names = [name for name in names if len({json.dumps(g["flags"][name]) for g in groups}) > 1]
    if all(type(g["flags"][name]) in (int, float) for g in groups for name in names):
        groups.sort(key=lambda g: [g["flags"][name] for name in names])
    flags = {name: [g["flags"][name] for g in groups] for name in names}
    labels = [", ".join(f"{name} {values[i]}" for name, values in flags.items()) for i in range(len(groups))]
    for i, group in enumerate(groups):
        name, more = group["runs"][0]["name"], len(group["runs"]) - 1
        told_apart = 0 < len(flags) <= 3 and len(set(labels)) == len(groups)
        group["name"] = labels[i] if told_apart else f"{name} and {more} more" if more else name
        group["color"] = COLORS[i % len(COLORS)]
    return groups, flags


# ---- curves and panels: what both the picture and the page draw

def mean(values):
    return None if None in values else sum(values) / len(values)


def smoothed(values, factor):
    """Exponential moving average. The division by the sum of weights, 1 - factor^n, removes the pull of the start
    towards 0. None stays None and leaves the average unchanged. factor None: the window is 1 % of the values."""
    factor = 1 - 1 / max(1, len(values) / 100) if factor is None else factor
    average = weight = 0
    result = []
    for value in values:
        if value is not None:
            average = factor * average + (1 - factor) * value
            weight = factor * weight + (1 - factor)
        result.append(None if value is None else average / weight)
    return result


def curve(group, name, factor):
    """Columns of a field: steps, tokens and time; the mean of the seeds; the smoothed mean, and the lowest and highest
    smoothed seed. A step is there if all runs with the field have it. None is NaN; without values there is no curve."""
    having = [run["rows"] for run in group["runs"] if any(name in row for row in run["rows"].values())]
    shared = [step for step in (having[0] if having else []) if all(name in rows.get(step, {}) for rows in having)]
    seeds = [[rows[step][name] for step in shared] for rows in having]
    if all(value is None for seed in seeds for value in seed):
        return None
    smooth = list(zip(*(smoothed(seed, 0 if name in EXACT else factor) for seed in seeds)))
    columns = {axis: [mean([rows[step][axis] for rows in having]) for step in shared]
               for axis in ("steps", "tokens", "time")}
    columns.update(raw=[mean(values) for values in zip(*seeds)], mean=[mean(values) for values in smooth])
    for end, pick in (("low", min), ("high", max)):
        columns[end] = [None if None in values else pick(values) for values in smooth] if len(seeds) > 1 else []
    first = 0 if name in WHOLE else START * max(max(rows) for rows in having)
    return {"columns": columns, "field": name, "first": first, "cut": 0 if name in EXACT else OUTLIERS}


def make_panels(groups, words, factor):
    """[{"title", "lines": {label: y}, "curves"}]. Stops if --panels names a field that no run has."""
    fields = list(dict.fromkeys(name for group in groups for run in group["runs"] for row in run["rows"].values()
                                for name in row if name not in ("steps", "tokens", "time")))
    given = ",".join(dict.fromkeys([*PANELS.split(","), *fields])) if words == "all" else words or PANELS
    panels = []
    for names in (part.split("+") for part in given.split(",")):
        for name in names:
            if words not in (None, "all") and name not in fields:
                stop(f"--panels {words}: no run has the field '{name}'; the fields are {', '.join(fields)}")
        curves = [{**found, "group": i, "dash": k} for k, name in enumerate(names) for i, group in enumerate(groups)
                  if (found := curve(group, name, factor))]
        lines = {} if "hellaswag" not in names else {
            label: y for c in curves
            for label, y in PUBLISHED.get(str(groups[c["group"]]["flags"].get("model")).split(":")[-1], {}).items()}
        styles = [f" ({style})" if len(names) > 1 else "" for style in ("solid", "dashed", "dotted")] * len(names)
        title = ", ".join(TITLES.get(name, name) + style for name, style in zip(names, styles))
        panels += [{"title": title, "curves": curves, "lines": lines}] if curves else []
    if not panels:
        stop(f"{groups[0]['name']}: metrics.jsonl has no values to draw yet; wait for the run's first step")
    return panels


def vertical_range(panel):
    """(low, high) without the start of a run and without outliers"""
    ends = list(panel["lines"].values())
    for c in panel["curves"]:
        known = [(step, y) for step, y in zip(c["columns"]["steps"], c["columns"]["raw"]) if y is not None]
        kept = sorted(y for step, y in known if step >= c["first"]) or sorted(y for _, y in known)
        cut = int(c["cut"] * len(kept))
        ends += kept[cut:cut + 1] + kept[-1 - cut:][:1]
    margin = 0.05 * (max(ends) - min(ends)) or 0.05 * abs(max(ends)) or 1
    return min(ends) - margin, max(ends) + margin * (2 if panel["lines"] else 1)  # room for a line's label


# ---- the table

def short(x, _=None):
    """1500000 as 1.5M"""
    for size, letter, least in ((1e12, "T", 1e12), (1e9, "B", 1e9), (1e6, "M", 1e6), (1e3, "k", 1e4)):
        if abs(x) >= least:
            return f"{x / size:.4g}{letter}"
    return f"{x:.4g}"


def make_table(groups, flags, factor):
    """rows of texts, the head first: a row for each group"""
    def across(form, values):
        if not values or None in values:
            return "NaN" if values else ""
        low, high = form(min(values)), form(max(values))
        return form(mean(values)) + (f" ({low} to {high})" if low != high else "")

    rows = [["run", *flags, "seeds", "final validation loss", "best validation loss", "final training loss", "tokens",
             "time"]]
    for i, group in enumerate(groups):
        columns = [[] for _ in range(5)]
        for run in group["runs"]:
            val_loss, loss = ([row[name] for row in run["rows"].values() if name in row] for name in
                              ("val_loss", "loss"))
            best = sorted(value for value in val_loss if value is not None)
            last = list(run["rows"].values())[-1:]
            for column, found in zip(columns, (val_loss[-1:], best[:1], smoothed(loss, factor)[-1:],
                                               [row["tokens"] for row in last], [row["time"] for row in last])):
                column += found
        forms = ["{:.4f}".format] * 3 + [short, lambda seconds: str(datetime.timedelta(seconds=round(seconds)))]
        rows.append([group["name"], *(str(values[i]) for values in flags.values()), str(len(group["runs"])),
                     *map(across, forms, columns)])
    return rows


# ---- a picture

def draw_picture(groups, panels, axis, label, path):
    try:
        import matplotlib
    except ImportError:
        stop(f"{sys.executable} has no matplotlib; install python3-matplotlib (Debian's Python), or run "
             f"{sys.executable} -m pip install matplotlib, or write a page: -o OUT.html")
    matplotlib.use("Agg")
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "train_gpt2"})  # text stays text; same bytes
    import matplotlib.pyplot as plt
    columns = {1: 1, 2: 2, 4: 2}.get(len(panels), 3)
    rows = -(-len(panels) // columns)
    size = (9, 4.4) if len(panels) == 1 else (4.3 * columns, 3.1 * rows + 0.4)
    figure, grid = plt.subplots(rows, columns, figsize=size, squeeze=False)
    for axes in grid.flat[len(panels):]:
        axes.set_visible(False)
    for axes, panel in zip(grid.flat, panels):
        for c in panel["curves"]:
            color, found = groups[c["group"]]["color"], c["columns"]
            raw, ys, low, high = ([float("nan") if y is None else y for y in found[name]]
                                  for name in ("raw", "mean", "low", "high"))
            if low:
                axes.fill_between(found[axis], low, high, color=color, alpha=0.2, linewidth=0)
            elif raw != ys:
                axes.plot(found[axis], raw, color=color, alpha=0.25, linewidth=0.6)
            axes.plot(found[axis], ys, ["-", "--", ":"][c["dash"] % 3], color=color, linewidth=1.4,
                      marker="o" if len(ys) <= 60 else None, markersize=3)
        for text, y in panel["lines"].items():
            axes.axhline(y, color="#777777", linewidth=0.9, linestyle=(0, (4, 3)))
            axes.annotate(f"{text}: {y:g}", (0, y), xycoords=("axes fraction", "data"), xytext=(4, 2),
                          textcoords="offset points", fontsize=8, color="#555555")
        axes.set_ylim(vertical_range(panel))
        axes.set_title(panel["title"], loc="left", fontsize=10.5)
        axes.set_xlabel(label, fontsize=9)
        axes.grid(color="#e6e6e6", linewidth=0.7)
        axes.spines[["top", "right"]].set_visible(False)
        axes.xaxis.set_major_locator(plt.MaxNLocator(6, integer=True, steps=[1, 2, 5, 10]))
        axes.xaxis.set_major_formatter(short)
        axes.yaxis.set_major_formatter(short)
    handles = [plt.Line2D([], [], color=group["color"], linewidth=2, label=group["name"]) for group in groups]
    if any(len(group["runs"]) > 1 for group in groups):
        handles.append(plt.Rectangle((0, 0), 1, 1, color="#777777", alpha=0.3, label="lowest to highest seed"))
    figure.legend(handles=handles, loc="lower center", ncol=min(len(handles), 4), frameon=False, fontsize=9.5)
    figure.tight_layout(rect=(0, (0.06 + 0.2 * -(-len(handles) // 4)) / size[1], 1, 1), w_pad=1.5, h_pad=1.2)
    figure.savefig(path, dpi=150, **({"metadata": {"Date": None}} if path.endswith(".svg") else {}))


# ---- a page

def thinned(column, every):
    """every n-th value and the last, with six digits"""
    kept = column[::every] + (column[-1:] if len(column) % every != 1 and every > 1 else [])
    return [value and float(f"{value:.6g}") for value in kept]


def write_page(groups, panels, labels, table, axis, path):
    """plot.html with the data inside. "</" would end the script, and is written as "<\\/"."""
    for c in (c for panel in panels for c in panel["curves"]):
        every = -(-len(c["columns"]["steps"]) // MOST_POINTS)
        c["columns"] = {name: thinned(column, every) for name, column in c["columns"].items()}
    data = {"panels": panels, "groups": [[group["name"], group["color"]] for group in groups], "labels": labels,
            "axis": axis}
    cells = ("".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in table)
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "plot.html"), encoding="utf-8") as file:
        text = file.read().replace("TABLE", "\n".join(f"<tr>{row}</tr>" for row in cells), 1)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text.replace("DATA", json.dumps(data, separators=(",", ":")).replace("</", "<\\/"), 1))


# ---- the program

def factor(text):
    if not 0 <= float(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a number from 0 to below 1, found '{text}'")
    return float(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
                                     allow_abbrev=False, usage="plot.py RUN [RUN ...] [-o OUT] [OPTIONS]")
    parser.add_argument("run", nargs="+", metavar="RUN", help="a run directory")
    parser.add_argument("-o", metavar="OUT", help="the file to write: .html, .png or .svg")
    parser.add_argument("--table", action="store_true", help="print a row of results for each group")
    parser.add_argument("--against", choices=("steps", "tokens", "time"), default="steps", help="the horizontal axis")
    parser.add_argument("--smooth", type=factor, metavar="X", help="factor of the exponential average, 0 for none "
                        "(default: the window is 1%% of the steps, 1 - 100/steps)")
    parser.add_argument("--panels", metavar="A,B+C", help="fields of metrics.jsonl to draw; B and C share a panel; "
                        "`all` draws every field")
    given = parser.parse_args()
    ending = os.path.splitext(given.o or "")[1]
    if not given.o and not given.table:
        stop("there is nothing to write; give -o OUT.html or --table")
    if given.o and ending not in (".html", ".png", ".svg"):
        stop(f"{given.o} ends in '{ending}'; expected .html, .png or .svg")
    groups, flags = read_groups(given.run)
    table = make_table(groups, flags, given.smooth)
    if given.o:
        panels = make_panels(groups, given.panels, given.smooth)
        columns = [c["columns"] for panel in panels for c in panel["curves"]]
        unit, seconds = next((unit, s) for unit, s in (("hours", 3600), ("minutes", 60), ("seconds", 1))
                             if s == 1 or max(c["time"][-1] for c in columns) >= 2 * s)
        for found in columns:
            found["time"] = [time / seconds for time in found["time"]]
        labels = {"steps": "step", "tokens": "tokens", "time": f"training time in {unit}"}
        try:
            if ending == ".html":
                write_page(groups, panels, labels, table, given.against, given.o)
            else:
                draw_picture(groups, panels, given.against, labels[given.against], given.o)
        except OSError as error:
            stop(f"could not write {given.o}: {error.strerror}", 1)
    if given.table:
        for row in [table[0], ["---"] * len(table[0]), *table[1:]]:
            print("| " + " | ".join(text.replace("|", "\\|") for text in row) + " |")


if __name__ == "__main__":
    main()
