#!/usr/bin/env python3
"""Checks the includes of llmc/ and of the trainer. `make lint` runs it.

    dev/includes.py      prints each finding; exit status 1 after one

1. A header includes each header whose names it uses, and no file includes one that it does not use. A name belongs to
   the header that defines it outside of braces: a function, a macro, a type, a constant of an enum, a table. A name
   that two headers define belongs to neither.
   `#include "..."  // IWYU pragma: export` passes the names of a header on.
   A column of an operation (adamw_cpu.h, adamw.cuh) includes its contract (adamw.h) in any case.
   The names in a macro count where it is expanded, and those of flag_table.def in flag_table.h.
2. A folder includes only folders that are before it in ORDER.
"""
import collections
import re
import subprocess
import sys

# each folder may include those above it, and itself; "" is llmc/ itself: the operations
ORDER = ["common", "", "shapes", "memory", "parallel", "data", "checkpoint", "self_check", "run", "trainer"]
EXPORT = re.compile(r'^#include "([^"]*)"[^\n]*IWYU pragma: export', re.M)
INCLUDE = re.compile(r'^#include "([^"]*)"', re.M)
NOT_CODE = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|^#include[^\n]*', re.S | re.M)
ATTRIBUTE = re.compile(r"^__attribute__\(\(.*?\)\) ", re.M)
# patterns of definitions outside of braces; the first group is the name or, for the constants of an enum, the list
FUNCTION = re.compile(r"^(?!typedef|#|\s|\}|return)[^\n=;{}]*?\b(\w+)\([^;{}]*?\) ?\{", re.M)
OTHERS = [re.compile(pattern, re.M | re.S) for pattern in (
    r"^#define (\w{3,})", r"^\} (\w+);", r"^typedef [^{}\n]*?\b(\w+);", r"^typedef [^;{}]*?\(\*(\w+)\)\(",
    r"^(?:typedef )?(?:struct|union|enum) (\w+) \{", r"^(?:static|extern) const [^=;(]*?\b(\w+)(?:\[[^\]]*\])* = ")]
MACRO = re.compile(r"^#define (\w+)(?:[^\n\\]|\\\n|\\.)*", re.M)
USE = re.compile(r"(?<![\w.])(?<!->)(?<!struct )([A-Za-z_]\w*)(?=\s*(\(?))")
ENUM = re.compile(r"^(?:typedef )?enum(?: \w+)? \{(.*?)\}", re.M | re.S)


def folder(path):
    parts = path.split("/")
    return "trainer" if len(parts) == 1 else parts[1] if len(parts) > 2 else ""


def main():
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "llmc", "train_gpt2.cu"], check=True,
                            capture_output=True, text=True).stdout.split()
    files = {}
    for path in listed:
        if path.endswith((".h", ".cuh", ".cu")):
            with open(path, encoding="utf-8") as file:
                files[path] = file.read()
    with open("llmc/run/flag_table.def", encoding="utf-8") as rows:
        files["llmc/run/flag_table.h"] += rows.read()
    codes = {path: ATTRIBUTE.sub("", NOT_CODE.sub(" ", text)) for path, text in files.items()}
    owners, functions = collections.defaultdict(set), set()
    for path, code in codes.items():
        names = set(FUNCTION.findall(code))
        functions |= names
        for pattern in OTHERS:
            names |= set(pattern.findall(code))
        for constants in ENUM.findall(code):
            names |= set(re.findall(r"(?:^|,)\s*([A-Z]\w+)", constants))
        for name in names:
            owners[name].add(path)
    for code in codes.values():
        for name in re.findall(r"^#undef (\w+)", code, re.M):
            owners.pop(name, None)

    macros = {m.group(1): m.group() for code in codes.values() for m in MACRO.finditer(code)}

    def provides(header):
        return {header}.union(*map(provides, EXPORT.findall(files.get(header, ""))))

    def names_used(code, path, values=False):
        """{header: names of it that the code uses}; values: a function that is not called counts too"""
        used = collections.defaultdict(set)
        for name, follows in USE.findall(code):
            owner = owners.get(name, {path})
            called = follows or values or name not in functions
            if len(owner) == 1 and not owner & {path, "train_gpt2.cu"} and called:
                used[next(iter(owner))].add(name)
        return used

    findings = 0
    for path, code in codes.items():
        used = names_used(MACRO.sub("", code), path)
        expanded = [body for name, body in macros.items() if re.search(rf"\b{name}\b", code)]
        in_macros = names_used("\n".join([code, *expanded]), path, values=True)
        included = INCLUDE.findall(files[path])
        provided = set().union(*map(provides, included))
        missing = sorted(h for h in set(used) - provided
                         if path.startswith("llmc/") and (path.endswith(".cuh") or h.endswith(".h")))
        contract = re.sub(r"(_cpu)?\.\w+$", ".h", path)
        needless = sorted(h for h in set(included) & set(files) - set(EXPORT.findall(files[path])) - {contract}
                          if not provides(h) & set(in_macros))
        wrong = sorted(h for h in included if h in files and ORDER.index(folder(h)) > ORDER.index(folder(path)))
        for header in missing:
            print(f"{path}: uses {', '.join(sorted(used[header])[:4])} of {header}: include it")
        for header in needless:
            print(f"{path}: uses nothing of {header}: do not include it")
        for header in wrong:
            print(f"{path}: includes {header}, whose folder comes later: {' < '.join(f or 'llmc' for f in ORDER)}")
        findings += len(missing) + len(needless) + len(wrong)
    print(f"includes: {findings} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
