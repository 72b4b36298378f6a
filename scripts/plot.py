#!/usr/bin/env python3
"""Draws runs, or memory plans as stacked bars.

  scripts/plot.py RUN [RUN ...] -o OUT.html    one page with every panel; hover for values, drag to zoom
  scripts/plot.py RUN [RUN ...] -o OUT.png     the same panels as a picture; .svg too
  scripts/plot.py RUN [RUN ...] --table        final losses, tokens and time as Markdown; --table=csv as CSV
  scripts/plot.py --plan OUT.svg FLAGS [FLAGS ...]     one bar for each `train_gpt2 --plan=json FLAGS`

RUN is a run directory, the folder after -o of train_gpt2. The panels are training loss, validation loss, HellaSwag
accuracy, learning rate, gradient norm and tokens per second. A panel without data is left out. HellaSwag has lines for
GPT-2 and GPT-3 of the run's size.

Runs whose flags differ by --seed only are a group: a line for the mean, and a band from the lowest to the highest seed,
as far as the shortest run goes. Flags that change only files, speed or memory (-o, -n, -s, -r, --threads ...) do not
divide a group, unless it has a seed twice. The label of a group is the flags that differ, or its folder if they are
more than three. If one flag differs, and has numbers, a panel draws the final loss against it.

  --against steps|tokens|time   the horizontal axis (default steps); time is the sum of the steps' milliseconds
  --smooth X                    exponential smoothing of fields that every step has (0 disables; the default is a
                                window of 1 % of the steps, X = 1 - 100/steps)
  --panels A,B+C                fields of metrics.jsonl to draw; B and C share a panel; `all` draws every field

The vertical range is chosen without the first 3 % of a run and without outliers. Such values leave the panel. In the
table, a range in brackets is from the lowest to the highest seed, and the final training loss is smoothed.

e.g. scripts/plot.py runs/a runs/b -o ab.html --against tokens
     scripts/plot.py runs/sweep/* -o sweep.png --table
     scripts/plot.py --plan plan.svg '-e d48 -b 4 -r 1' '-e d48 -b 4 -r 4' '-e d48 -b 4 --fit=16'
In a plan, the parts of a bar are tensors. Tensors below 1 % of the largest bar are one part for each lifetime.
TRAIN_GPT2 names the program; the default is ./train_gpt2, or else the installed program. Pictures need matplotlib;
pages need only Python.
"""
import argparse
import colorsys
import csv
import datetime
import json
import os
import shlex
import subprocess
import sys

sys.dont_write_bytecode = True  # no __pycache__ among the scripts
from run_metrics import Parser, is_number, model_shape, read_json, read_steps, run_name, stop  # noqa: E402

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


# Flags that do not form groups: those that change neither the training nor its speed; and those that change its speed,
# memory or rounding, or how long one start of it lasts.
ASIDE = ["output", "resume", "seed", "val-every", "hellaswag", "sample-every", "sample-tokens", "prompt", "temperature",
         "top-k", "top-p", "tokenizer", "checkpoint-every", "keep", "major-every", "keep-best", "gpu-log",
         "init-method", "process-rank", "gpus-per-node", "shared-folder"]
SPEED = ["micro-batch", "time-limit", "fit", "recompute", "recompute-every", "recompute-layers", "offload", "nan-check",
         "device", "threads", "graph", "fuse-gelu", "profile", "zero-stage", "tensor-parallel", "gather-again",
         "processes"]
MOST_FLAGS = 3  # in a label


def read_run(folder):
    """"rows" has {step: (tokens, seconds, fields)}, tokens and seconds since the start; a field is None for NaN"""
    flags = read_json(os.path.join(folder, "config.json"))
    rows, tokens, seconds = {}, 0, 0
    for step, fields in read_steps(os.path.join(folder, "metrics.jsonl")).items():
        step_seconds = (fields.get("ms") or 0) / 1000
        seconds += step_seconds
        tokens += step_seconds * (fields.get("tokens_per_s") or 0)
        rows[step] = (tokens, seconds, fields)
    return {"name": run_name(folder), "rows": rows, "flags": flags,
            "published": HELLASWAG.get(model_shape(folder, flags), {})}


def seeds_of(runs, aside=ASIDE + SPEED):
    """[[run, ...]]: runs with the same flags, but for those aside and for different seeds"""
    groups = {}
    for run in runs:
        flags = {name: value for name, value in run["flags"].items() if name not in aside}
        groups.setdefault(json.dumps(flags, sort_keys=True), []).append(run)
    result = []
    for group in groups.values():
        if len({run["flags"].get("seed") for run in group}) == len(group):
            result.append(group)
        else:
            result += [[run] for run in group] if aside is ASIDE else seeds_of(group, ASIDE)
    return result


def mean(values):
    return None if None in values else sum(values) / len(values)


def join(runs):
    """The columns of a group: "steps", "tokens" and "time" (in seconds) have a value for each row, a row is a step that
    all runs have. "fields" has [rows, values of a run, values of the next, ...] for each field, with None for NaN."""
    started = [run["rows"] for run in runs if run["rows"]]
    steps = [step for step in (started or [{}])[0] if all(step in rows for rows in started)]
    fields = {}
    for name in dict.fromkeys(name for step in steps for rows in started for name in rows[step][2]):
        having = [rows for rows in started if any(name in rows[step][2] for step in steps)]
        at = [i for i, step in enumerate(steps) if all(name in rows[step][2] for rows in having)]
        fields[name] = [at, *([rows[steps[i]][2][name] for i in at] for rows in having)]
    more = f" and {len(runs) - 1} more" if len(runs) > 1 else ""
    return {"name": runs[0]["name"] + more, "runs": runs, "steps": steps, "fields": fields,
            "tokens": [round(mean([rows[step][0] for rows in started])) for step in steps],
            "time": [round(mean([rows[step][1] for rows in started]), 3) for step in steps],
            "flags": {name: value for name, value in runs[0]["flags"].items()
                      if all(run["flags"].get(name) == value for run in runs)},
            "published": runs[0]["published"]}


def differing_flags(groups, aside):
    """{flag: [value of each group]} of the flags that differ; None if the runs of a group differ"""
    names = dict.fromkeys(name for group in groups for name in group["flags"] if name not in aside)
    table = {name: [group["flags"].get(name) for group in groups] for name in names}
    return {name: values for name, values in table.items() if len(set(map(json.dumps, values))) > 1}


def flag_text(value):
    return "none" if value is None else value if isinstance(value, str) else json.dumps(value)


def read_groups(folders):
    """(groups, flags): the groups with names and colours, and the flags in which they differ"""
    runs = [read_run(folder) for folder in folders]
    if len({run["name"] for run in runs}) < len(runs):  # runs of one name in different folders
        for run, folder in zip(runs, folders):
            run["name"] = folder.rstrip("/")
    groups = [join(group) for group in seeds_of(runs)]
    flags = differing_flags(groups, ASIDE + SPEED)
    if all(is_number(value) for values in flags.values() for value in values):
        groups.sort(key=lambda group: [group["flags"][name] for name in flags])
    for aside in (ASIDE + SPEED, ASIDE):
        flags = differing_flags(groups, aside)
        labels = [", ".join(f"{name} {flag_text(values[i])}" for name, values in flags.items())
                  for i in range(len(groups))]
        if len(set(labels)) == len(groups):
            break
    for i, group in enumerate(groups):
        if flags and len(flags) <= MOST_FLAGS and len(set(labels)) == len(groups):
            group["name"] = labels[i]
        group["color"] = COLORS[i] if i < len(COLORS) else hue(i)
    return groups, flags


def hue(i):
    """Any number of colours: steps of the golden ratio around the colour wheel."""
    return "#" + "".join(f"{int(255 * part):02x}" for part in colorsys.hls_to_rgb(i * 0.618 % 1, 0.4, 0.7))


def has_data(run, field):
    return any(value is not None for values in run["fields"].get(field, [])[1:] for value in values)


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
    """Exponential moving average. The division by the sum of weights, 1 - factor^n, removes the pull of the start
    towards 0. None stays None and leaves the average unchanged. factor None: the window is 1 % of the values."""
    if factor is None:
        factor = 1 - 1 / max(1, len(values) / 100)
    average = weight = 0
    result = []
    for value in values:
        if value is not None:
            average = factor * average + (1 - factor) * value
            weight = factor * weight + (1 - factor)
        result.append(None if value is None else average / weight)
    return result


def curve(group, name, factor):
    """The mean, the lowest and the highest of the smoothed runs; None where one of them is NaN"""
    columns = list(zip(*(smoothed(values, 0 if name in EXACT else factor) for values in group["fields"][name][1:])))
    return [[None if None in column else pick(column) for column in columns] for pick in (mean, min, max)]


# ---- the results of runs: the table, and the panel of the final loss against a flag

RESULTS = {"final_val_loss": "final validation loss", "best_val_loss": "best validation loss",
           "final_loss": "final training loss", "tokens": "tokens", "seconds": "time"}


def results(group, factor):
    """{result: [value of each run that has it]}; None for NaN"""
    found = {name: [] for name in RESULTS}
    for run in group["runs"]:
        rows = run["rows"].values()
        val_loss, loss = ([fields[name] for _, _, fields in rows if name in fields] for name in ("val_loss", "loss"))
        found["final_val_loss"] += val_loss[-1:]
        found["best_val_loss"] += sorted(value for value in val_loss if value is not None)[:1]
        found["final_loss"] += smoothed(loss, factor)[-1:]
        for tokens, seconds, _ in list(rows)[-1:]:
            found["tokens"].append(tokens)
            found["seconds"].append(seconds)
    return found


def clock(seconds):
    return str(datetime.timedelta(seconds=round(seconds)))


def result_text(name, values):
    """The mean, and if the runs differ, the lowest and the highest"""
    if not values or None in values:
        return "NaN" if values else ""
    text = {"tokens": short, "seconds": clock}.get(name, "{:.4f}".format)
    low, high = text(min(values)), text(max(values))
    return text(mean(values)) + (f" ({low} to {high})" if low != high else "")


def print_table(groups, flags, factor, kind):
    """A row for each group. CSV has the mean, the lowest and the highest in columns of their own."""
    named = len(set(map(json.dumps, zip(*flags.values())))) < len(groups)  # the flags do not tell the groups apart
    head = ["runs"] * named + list(flags) + ["seeds"]
    rows = [[group["name"]] * named + [flag_text(values[i]) for values in flags.values()] + [str(len(group["runs"]))]
            for i, group in enumerate(groups)]
    if kind == "csv":
        head += [column for name in RESULTS for column in (name, f"{name}_min", f"{name}_max")]
        for row, group in zip(rows, groups):
            for values in results(group, factor).values():
                row += ["" if not values else "nan" if None in values else f"{pick(values):.9g}"
                        for pick in (mean, min, max)]
        csv.writer(sys.stdout, lineterminator="\n").writerows([head, *rows])
        return
    for row, group in zip(rows, groups):
        row += [result_text(name, values) for name, values in results(group, factor).items()]
    for row in [head + list(RESULTS.values()), ["---"] * (len(head) + len(RESULTS)), *rows]:
        print("| " + " | ".join(text.replace("|", "\\|") for text in row) + " |")


def sweep_of(groups, flags, factor):
    """The final loss of each run against the flag that differs; None if several flags do, or one without numbers.
    "points" has [value of the flag, [loss of each run]] for each group, with None for NaN."""
    if len(flags) != 1 or not all(map(is_number, list(flags.values())[0])):
        return None
    (flag, values), = flags.items()
    found = [results(group, factor) for group in groups]
    name = "final_val_loss" if all(result["final_val_loss"] for result in found) else "final_loss"
    return {"flag": flag, "log": min(values) > 0 and max(values) > 10 * min(values),
            "title": f"{RESULTS[name]} against {flag}",
            "points": [[value, result[name]] for value, result in zip(values, found)]}


# ---- runs as a picture

STYLES = ["-", "--", ":"]  # of the fields that share a panel
FEW = 60  # values or fewer have a dot each

def short(x, _=None):
    """1500000 as 1.5M"""
    for size, letter, least in ((1e12, "T", 1e12), (1e9, "B", 1e9), (1e6, "M", 1e6), (1e3, "k", 1e4)):
        if abs(x) >= least:
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
            rows, *seeds = run["fields"].get(name, [[]])
            first = 0 if name in WHOLE else START * len(run["steps"])
            known = [(row, value) for values in seeds for row, value in zip(rows, values) if value is not None]
            kept = sorted(value for row, value in known if row >= first) or [value for _, value in known]
            cut = 0 if name in EXACT else int(OUTLIERS * len(kept))
            lows += kept[cut:cut + 1]
            highs += kept[len(kept) - 1 - cut:len(kept) - cut]
    low, high = min(lows), max(highs + lows)
    margin = 0.05 * (high - low) or 0.05 * abs(high) or 1
    return low - margin, high + (2 if "hellaswag" in panel else 1) * margin  # room for a line's label


def numbers(values):
    return [float("nan") if value is None else value for value in values]


def draw_curve(axes, run, name, arguments, divisor, style, marker):
    """One field of one group: the smoothed mean, over the raw values of its run or over the band of its runs"""
    rows, *seeds = run["fields"][name]
    xs = [run[arguments.against][row] / divisor for row in rows]
    ys, low, high = map(numbers, curve(run, name, arguments.smooth))
    if len(seeds) > 1:
        axes.fill_between(xs, low, high, color=run["color"], alpha=0.2, linewidth=0)
    elif numbers(seeds[0]) != ys:
        axes.plot(xs, numbers(seeds[0]), color=run["color"], alpha=0.25, linewidth=0.6)
    axes.plot(xs, ys, style, color=run["color"], linewidth=1.4, marker=marker, markersize=3)


def dress(axes, title, label):
    axes.set_title(title, loc="left", fontsize=10.5)
    axes.set_xlabel(label, fontsize=9)
    axes.grid(color="#e6e6e6", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=9, color="#999999")
    axes.xaxis.set_major_formatter(short)
    axes.yaxis.set_major_formatter(short)


def draw_panel(plt, axes, runs, panel, arguments):
    divisor, label = horizontal_axis(runs, arguments.against)
    for i, name in enumerate(panel):
        most = max(len(run["fields"].get(name, [[]])[0]) for run in runs)
        for run in (run for run in runs if name in run["fields"]):
            draw_curve(axes, run, name, arguments, divisor, STYLES[i % 3], "o" if most <= FEW else None)
    for text, y in published_points(runs, panel).items():
        axes.axhline(y, color="#777777", linewidth=0.9, linestyle=(0, (4, 3)))
        axes.annotate(f"{text}: {y:g}", (0, y), xycoords=("axes fraction", "data"), xytext=(4, 2),
                      textcoords="offset points", fontsize=8, color="#555555")
    axes.margins(x=0.02)
    axes.set_ylim(vertical_range(runs, panel))
    dress(axes, " and ".join(TITLES.get(name, name) for name in panel), label)
    axes.xaxis.set_major_locator(plt.MaxNLocator(6, integer=True, steps=[1, 2, 5, 10]))
    if len(panel) > 1:
        color = runs[0]["color"] if len(runs) == 1 else "#444444"
        handles = [plt.Line2D([], [], linestyle=STYLES[i % 3], color=color) for i in range(len(panel))]
        axes.legend(handles, [TITLES.get(name, name) for name in panel], fontsize=9, frameon=False)


def draw_sweep(axes, runs, sweep):
    """A point for each run, and a line through the means; none of a group with NaN"""
    means = sorted((value, mean(losses)) for value, losses in sweep["points"] if losses and None not in losses)
    axes.plot(*zip(*means), color="#777777", linewidth=1.2)
    for run, (value, losses) in zip(runs, sweep["points"]):
        axes.plot([value] * len(losses), losses, "o", color=run["color"], markersize=5)
    dress(axes, sweep["title"], sweep["flag"])
    axes.set_xscale("log" if sweep["log"] else "linear")
    axes.set_xticks([value for value, _ in sweep["points"]])
    axes.xaxis.set_major_formatter(short)
    axes.minorticks_off()


def draw_runs(plt, runs, panels, sweep, arguments):
    """A figure of at most three columns. The legend of the runs is below the panels."""
    count = len(panels) + bool(sweep)
    columns = {1: 1, 2: 2, 4: 2}.get(count, 3)
    rows = -(-count // columns)
    size = (9, 4.4) if count == 1 else (4.3 * columns, 3.1 * rows + 0.4)
    figure, grid = plt.subplots(rows, columns, figsize=size, squeeze=False)
    for axes, panel in zip(grid.flat, panels):
        draw_panel(plt, axes, runs, panel, arguments)
    if sweep:
        draw_sweep(grid.flat[count - 1], runs, sweep)
    for axes in grid.flat[count:]:
        axes.set_visible(False)
    handles = {run["name"]: plt.Line2D([], [], color=run["color"], linewidth=2) for run in runs}
    if any(len(run["runs"]) > 1 for run in runs):
        handles["lowest to highest seed"] = plt.Rectangle((0, 0), 1, 1, color="#777777", alpha=0.3, linewidth=0)
    legend_columns = min(len(handles), 4)
    figure.legend(handles.values(), handles, loc="lower center", ncol=legend_columns, frameon=False, fontsize=9.5)
    legend_inches = 0.06 + 0.2 * -(-len(handles) // legend_columns)
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
    for name, (rows, *seeds) in run["fields"].items():
        if name in drawn:
            fields[name] = [[place[row] for row in rows if row in place]]
            fields[name] += [[value and float(f"{value:.6g}") for row, value in zip(rows, values) if row in place]
                             for values in seeds]
    return {**run, "every": every, "fields": fields,
            **{axis: [run[axis][row] for row in kept] for axis in ("steps", "tokens", "time")}}


def page(runs, panels, sweep, arguments):
    """plot.html with the data inside. "</" would end the script, and is written as "<\\/"."""
    data = {
        "panels": [{"fields": panel, "title": " and ".join(TITLES.get(name, name) for name in panel),
                    "published": published_points(runs, panel)}
                   for panel in panels],
        "runs": [{**thinned(run, sum(panels, [])), "flags": None, "runs": None, "seeds": len(run["runs"])}
                 for run in runs],
        "sweep": sweep,
        "titles": TITLES, "exact": EXACT, "whole": WHOLE, "start": START, "outliers": OUTLIERS, "few": FEW,
        "flags": {name: list(map(flag_text, values))
                  for name, values in differing_flags(runs, ("output", "resume")).items()},
        "against": arguments.against, "smooth": arguments.smooth,
    }
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "plot.html"), encoding="utf-8") as file:
        template = file.read()
    return template.replace("DATA", json.dumps(data, separators=(",", ":")).replace("</", "<\\/"), 1)


# ---- the program

def load_matplotlib():
    try:
        import matplotlib
    except ImportError:
        stop(f"{sys.executable} has no matplotlib; install python3-matplotlib (Debian's Python), or run "
             f"{sys.executable} -m pip install matplotlib, or write a page: -o OUT.html")
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


def plot_runs(runs, flags, arguments):
    ending = check_ending(arguments.o, (".html", ".png", ".svg"))
    panels = choose_panels(runs, arguments.panels)
    sweep = sweep_of(runs, flags, arguments.smooth) if arguments.panels in (None, "all") else None
    if ending == ".html":
        text = page(runs, panels, sweep, arguments)
        save(arguments.o, lambda path: save_text(path, text))
        return
    plt = load_matplotlib()
    figure = draw_runs(plt, runs, panels, sweep, arguments)
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
    parser.add_argument("-o", metavar="OUT")
    parser.add_argument("--table", choices=("markdown", "csv"))
    parser.add_argument("--against", choices=("steps", "tokens", "time"), default="steps")
    parser.add_argument("--smooth", type=factor)
    parser.add_argument("--panels")
    words = sys.argv[1:]
    if "--table" in words:  # a run may follow, which argparse would take for the kind of table
        at = words.index("--table")
        kind = "csv" if words[at + 1:at + 2] == ["csv"] else "markdown"
        words[at:at + 1 + (kind == "csv")] = [f"--table={kind}"]
    arguments = parser.parse_args(words)
    if not arguments.o and not arguments.table:
        parser.error("the following arguments are required: -o, or --table")
    groups, flags = read_groups(arguments.run)
    if arguments.o:
        plot_runs(groups, flags, arguments)
    if arguments.table:
        print_table(groups, flags, arguments.smooth, arguments.table)


if __name__ == "__main__":
    main()
