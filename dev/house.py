#!/usr/bin/env python3
"""Measures how far a reader of the sources has to go: a table with one column a tree.

    dev/house.py [--list] [TREE...]      (default: the tree that holds this script; --list names each finding)

Rows and their conventions:
  trainer          lines of train_gpt2.cu, and the line at which block_forward is defined.
  reach            distinct functions that block_forward calls, directly or through others, without block_forward.
                   The call graph is made of names: a function is a definition outside of braces in train_gpt2.cu or
                   llmc/, and a call is the name of a function before a parenthesis. A call through a table of function
                   pointers (Ops, Device, CommBackend) is a leaf and counts 0; macros count 0. A function that does
                   not return (run_error) counts 1 and is a leaf.
    no collectives   reach, if functions defined in files named comm* are leaves that count 0: a collective is an
                     operation between ranks.
  named types      typedefs of a struct, union or enum that is written on several lines, counted by the closing line
                   `} Name;`, in train_gpt2.cu and llmc/.
    all            names of structs, unions and enums, on one line or several, by typedef or not.
                   An anonymous enum of constants has no name.
  files            of llmc/: at top level, and in all.
  README           words between spaces.
  what-clauses     comments of C sources, scripts and Makefiles whose first words are one of OPENERS; then sentences
                   inside comments that begin so. A block of consecutive comment lines is one comment.
  function lines   median, 90th percentile and maximum of the definitions that reach uses, first line to closing brace.
                   Then the same of llmc/*.cuh, where the kernels are.
"""
import argparse
import os
import re
import statistics
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
OPENERS = ("what", "whatever", "whoever", "whichever", "whose", "that which", "those that", "those which", "those who",
           "those whose", "those of", "as far as", "so many", "so much", "so long")
C_SOURCES = (".c", ".h", ".cu", ".cuh")
OUTSIDE = ("build", "data", "runs")  # folders of the root that hold no sources
KEYWORDS = {"if", "for", "while", "switch", "return", "sizeof", "do", "else", "case", "defined", "alignof"}


def read(path):
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def tree_files(tree):
    """paths of all files of a tree, relative to it, without built files and hidden folders other than .ci"""
    found = []
    for folder, names, files in os.walk(tree):
        at_root = os.path.samefile(folder, tree)
        names[:] = sorted(n for n in names if (n[0] != "." or n == ".ci") and not (at_root and n in OUTSIDE))
        found += [os.path.relpath(os.path.join(folder, name), tree) for name in sorted(files)]
    return found


def is_collective(path):
    return os.path.basename(path).startswith("comm") and path.endswith((".h", ".cuh"))


# ---- C, without a compiler


DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n\\]|\\.)*(?:\\\n(?:[^\n\\]|\\.)*)*", re.M)
C_TOKEN = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)


def blank(text):
    """the text as spaces; its line ends stay"""
    return re.sub(r"[^\n]", " ", text)


def code_only(text):
    """C with comments, strings and preprocessor lines made blank: each character keeps its line and column"""
    text = C_TOKEN.sub(lambda token: blank(token.group()), text)
    return DIRECTIVE.sub(lambda line: blank(line.group()), text)


def closing(code, begin):
    """the index behind the brace that closes the one at `begin`"""
    depth = 0
    for brace in re.finditer(r"[{}]", code[begin:]):
        depth += 1 if brace.group() == "{" else -1
        if depth == 0:
            return begin + brace.end()
    return len(code)


PARENTHESES = r"\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)"  # three deep
ATTRIBUTES = re.compile(r"\b(?:__launch_bounds__|__attribute__|__align__|alignas)\s*" + PARENTHESES)
TEMPLATE = re.compile(r"\btemplate\s*<(?:[^<>]|<[^<>]*>)*>")


def function_name(head):
    """the name that a definition's head declares as a function, or None: a type, an array, a namespace"""
    head = TEMPLATE.sub(" ", ATTRIBUTES.sub(" ", head))
    name = re.search(r"(~?\w+|operator\s*\S+)\s*\(", head)
    if not name or "=" in head[:name.start()] or re.match(r"\s*(typedef|struct\s+\w+\s*$|enum|namespace)\b", head):
        return None
    return None if name.group(1) in KEYWORDS else name.group(1)


def functions(code):
    """(name, first line, last line, body) of every definition outside of braces"""
    found, at = [], 0
    while (brace := code.find("{", at)) >= 0:
        head = code[at:brace]
        head_at = at + max(head.rfind(";"), head.rfind("}")) + 1  # behind the declaration before it
        head = code[head_at:brace]
        if re.search(r'\bnamespace\b|\bextern\s*$', head):
            at = brace + 1
            continue
        end = closing(code, brace)
        name = function_name(head)
        if name:
            first = code.count("\n", 0, head_at + len(head) - len(head.lstrip())) + 1
            found.append((name, first, code.count("\n", 0, end) + 1, code[brace:end]))
        at = end
    return found


TYPE = re.compile(r"\b(?:struct|union|enum|class)\b(?:\s+(?:alignas|__align__)\s*\([^)]*\))?\s*(\w+)?[^;(){}=]*\{")
TYPEDEF_END = re.compile(r"^\} \w+;", re.M)


def named_types(code):
    """names of the structs, unions and enums that are defined here"""
    names, code = set(), TEMPLATE.sub(lambda parameters: blank(parameters.group()), code)
    for match in TYPE.finditer(code):
        behind = re.match(r"\s*(?:__attribute__\s*\(\(.*?\)\)\s*)?(\w+)", code[closing(code, match.end() - 1):])
        alias = behind.group(1) if behind and re.search(r"\btypedef\s*$", code[:match.start()]) else None
        if match.group(1) or alias:
            names.add(alias or match.group(1))
    return names


class Program:
    """the functions of the trainer and its headers, and which of them calls which"""

    def __init__(self, sources):
        self.lengths, self.home, self.calls, self.first = [], {}, {}, {}
        bodies = {}
        for path in sorted(sources, key=lambda p: (p != "train_gpt2.cu", p.endswith(".cuh"), p)):
            for name, first, last, body in functions(sources[path]):
                self.lengths.append((last - first + 1, f"{name} ({path}:{first})"))
                # a name that a kernel file uses again is another function
                if name in self.home and self.home[name] != path and path.endswith(".cuh"):
                    continue
                self.home.setdefault(name, path)
                self.first.setdefault(name, first)
                bodies.setdefault(name, []).append(body)
        for name, texts in bodies.items():
            called = {call for text in texts for call in re.findall(r"(?<![\w.>])(\w+)\s*\(", text)}
            self.calls[name] = (called & bodies.keys()) - {name}
        self.calls.update((name, set()) for name in ("run_error", "input_error"))

    def reach(self, start, leaf=lambda path: False):
        """names of the functions reached from `start`, without the functions of files that are a `leaf`"""
        reached, waiting = set(), [start]
        while waiting:
            for name in sorted(self.calls.get(waiting.pop(), ())):
                if name not in reached and name != start and not leaf(self.home[name]):
                    reached.add(name)
                    waiting.append(name)
        return reached


# ---- comments


def joined(lines):
    """(line, text) of comments from (line, text) of comment lines: consecutive lines are one comment"""
    comments = []
    for number, text in lines:
        if comments and number == comments[-1][2] + 1:
            comments[-1] = (comments[-1][0], comments[-1][1] + "\n" + text, number)
        else:
            comments.append((number, text, number))
    return [(first, text) for first, text, _ in comments]


def c_comments(text):
    lines, blocks = [], []
    for token in C_TOKEN.finditer(text):
        number = text.count("\n", 0, token.start()) + 1
        if token.group().startswith("/*"):
            blocks.append((number, token.group()[2:-2]))
        elif token.group().startswith("//"):
            begin = text.rfind("\n", 0, token.start()) + 1
            if text[begin:token.start()].strip():  # beside code: not continued by the next line's
                blocks.append((number, token.group()[2:]))
            else:
                lines.append((number, token.group()[2:]))
    return joined(lines) + blocks


def hash_comments(text, python):
    lines, blocks = [], []
    if python:
        blocks = [(text.count("\n", 0, doc.start()) + 1, doc.group(1))
                  for doc in re.finditer(r'^[ \t]*"""(.*?)"""', text, re.S | re.M)]
    for number, line in enumerate(text.split("\n"), 1):
        comment = re.match(r"\s*#(?!!)(.*)|[^#]*?\s##?\s(.*)", line)
        if comment and comment.group(1) is not None:
            lines.append((number, comment.group(1)))
        elif comment and line.count('"') % 2 == 0 and line.count("'") % 2 == 0:
            blocks.append((number, comment.group(2)))
    return joined(lines) + blocks


def comments_of(path, text):
    name = os.path.basename(path)
    if name.endswith(C_SOURCES):
        return c_comments(text)
    if name.endswith((".sh", ".py", ".mk")) or name == "Makefile" or text.startswith("#!"):
        return hash_comments(text, name.endswith(".py"))
    return []


OPENING = re.compile(r"\W*(?:" + "|".join(word.replace(" ", r"\s+") for word in OPENERS) + r")\b", re.I)
# the sign that ends a sentence, or an empty line, or the columns between a name and its description
SENTENCE = re.compile(r"(?<=[.;:!?])\s+|\n\s*\n|\n(?=[ \t]*\S+[ ]{2,})|(?<=\S)[ ]{2,}")


def what_clauses(tree, paths):
    """(comments, sentences) as "path:line: text" of those that begin with a what-clause"""
    comments, sentences = [], []
    for path in paths:
        text = read(os.path.join(tree, path))
        for line, comment in comments_of(path, text):
            if OPENING.match(comment):
                comments.append(f"{path}:{line}: {' '.join(comment.split())[:90]}")
            at = 0
            for sentence in SENTENCE.split(comment):
                begin = comment.index(sentence, at)
                at = begin + len(sentence)
                if begin > 0 and OPENING.match(sentence) and sentence.strip()[:1].isupper():
                    number = line + comment.count("\n", 0, begin + len(sentence) - len(sentence.lstrip()))
                    sentences.append(f"{path}:{number}: {' '.join(sentence.split())[:90]}")
    return comments, sentences


# ---- the table


def print_names(heading, names):
    print(heading, *(f"  {name}" for name in names), sep="\n")


def quantiles(sizes):
    """median / 90th percentile / maximum of sorted numbers"""
    return f"{statistics.median(sizes):g} / {sizes[len(sizes) * 9 // 10]} / {sizes[-1]}"


def measure(tree, listed):
    """rows of (name, value) of a tree; `listed` prints the names behind the numbers"""
    paths = tree_files(tree)
    sources = {p: code_only(read(os.path.join(tree, p))) for p in paths
               if p == "train_gpt2.cu" or p.startswith("llmc/") and p.endswith(C_SOURCES)}
    program = Program(sources)
    if "block_forward" not in program.home:
        sys.exit(f"house.py: {tree}: found no definition of block_forward in train_gpt2.cu or llmc/; name a tree of "
                 "this project")
    reach = program.reach("block_forward")
    no_comm = program.reach("block_forward", is_collective)
    types = {(path, name) for path in sources for name in named_types(sources[path])}
    llmc = [p for p in paths if p.startswith("llmc/")]
    comments, sentences = what_clauses(tree, paths)
    lengths = sorted(program.lengths)
    sizes = [length for length, _ in lengths]
    kernels = sorted(length for length, where in lengths if re.search(r"\(llmc/\w+\.cuh:", where))
    if listed:
        print_names(f"== {tree}: functions reached", sorted(f"{program.home[name]}: {name}" for name in reach))
        print_names("named types, all", (f"{path}: {name}" for path, name in sorted(types)))
        print_names("longest functions", (f"{length} {name}" for length, name in lengths[:-9:-1]))
        print_names("comments with a what-clause first", comments)
        print_names("sentences with a what-clause first", sentences)
    home, line = program.home["block_forward"], program.first["block_forward"]
    return [
        ("lines of train_gpt2.cu", read(os.path.join(tree, "train_gpt2.cu")).count("\n")),
        ("line of block_forward", f"{line}{'' if home == 'train_gpt2.cu' else ' of ' + home}"),
        ("functions reached from block_forward", len(reach)),
        ("  no collectives", len(no_comm)),
        ("named types", sum(len(TYPEDEF_END.findall(code)) for code in sources.values())),
        ("  all", len(types)),
        ("files of llmc/, top level", sum(p.count("/") == 1 for p in llmc)),
        ("files of llmc/, all", len(llmc)),
        ("words of README.md", len(read(os.path.join(tree, "README.md")).split())),
        ("comments with a what-clause first", len(comments)),
        ("sentences with a what-clause first", len(sentences)),
        ("functions", len(sizes)),
        ("function lines, median / p90 / max", quantiles(sizes)),
        ("  of the operations' .cuh", quantiles(kernels)),
    ]


def main():
    parser = argparse.ArgumentParser(description="Measures source trees; one column a tree.")
    parser.add_argument("trees", nargs="*", default=[ROOT], metavar="TREE")
    parser.add_argument("--list", action="store_true", help="name each function, type and comment that is counted")
    args = parser.parse_args()
    trees = [os.path.abspath(tree) for tree in args.trees]
    columns = [measure(tree, args.list) for tree in trees]
    names = [os.path.basename(tree) for tree in trees]
    width = max(16, *(len(name) + 2 for name in names))
    print(f"{'':38}" + "".join(f"{name:>{width}}" for name in names))
    for row in zip(*columns):
        print(f"{row[0][0]:38}" + "".join(f"{str(value):>{width}}" for _, value in row))


if __name__ == "__main__":
    main()
