#!/usr/bin/env python3
"""Checks the asm statements of llmc/ and of the CUDA sources against a table. `make lint` runs it.

    dev/asm.py      prints each finding; exit status 1 after one

Compilers may move, merge or delete an asm statement as its qualifiers allow, and no test notices a missing one. Its
operands are not checked here: `make test-ptx` executes them.
"""
import re
import subprocess
import sys

MEMORY = 'volatile and a "memory" clobber'  # an access to memory, or an order of accesses
EFFECT = 'volatile and no "memory" clobber'  # an effect that no access of the kernel can see, or needs
PURE = "neither volatile nor a clobber"  # the result depends on the operands alone
STATEMENTS = {
    "griddepcontrol.wait;": MEMORY,
    "griddepcontrol.launch_dependents;": EFFECT,  # behind the wait; the next kernel waits for the memory by itself
    "prefetch.global.L2 [%0];": EFFECT,  # changes no value
    "ex2.approx.ftz.f32 %0, %1;": PURE,
    "rcp.approx.ftz.f32 %0, %1;": PURE,
    "cvt.rn.bf16x2.f32 %0, %1, %2;": PURE,
    "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];": MEMORY,
    "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];": MEMORY,
    "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};": EFFECT,
    "cp.async.cg.shared.global [%0], [%1], 16, %2;": MEMORY,
    "cp.async.commit_group;": MEMORY,
    "cp.async.wait_group %0;": MEMORY,
}
NOT_CODE = re.compile(r'("(?:\\.|[^"\\\n])*")|/\*.*?\*/|//[^\n]*', re.S)  # comments, and strings, which stay
STATEMENT = re.compile(r'\s*(volatile|__volatile__|)\s*\(((?:\s*"[^"]*")+)[^;]*?(:\s*"memory"\s*)?\)\s*;')


def main():
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "llmc", "*.cu"], check=True,
                            capture_output=True, text=True).stdout.split()
    findings, unused = [], set(STATEMENTS)
    for path in listed:
        with open(path, encoding="utf-8") as file:
            code = NOT_CODE.sub(lambda m: m.group(1) or re.sub(r"[^\n]", " ", m.group()), file.read())
        for word in re.finditer(r"\b(?:__)?asm(?:__)?\b", code):
            where = f"{path}:{code.count(chr(10), 0, word.start()) + 1}: asm"
            statement = STATEMENT.match(code, word.end())
            volatile, strings, clobber = statement.groups() if statement else ("", "", "")
            text = "".join(re.findall(r'"([^"]*)"', strings))
            found = (MEMORY if clobber else EFFECT) if volatile else "a clobber alone" if clobber else PURE
            if text not in STATEMENTS:
                findings.append(f'{where}: "{text}" is not in the table of dev/asm.py')
            elif found != STATEMENTS[text]:
                findings.append(f'{where}: "{text}" has {found}, expected {STATEMENTS[text]}')
            unused.discard(text)
    findings += [f'dev/asm.py: no statement is "{text}": undo a mistaken change, or remove its row'
                 for text in sorted(unused)]
    print(*findings, f"asm: {len(findings)} findings", sep="\n")
    return len(findings) > 0


if __name__ == "__main__":
    sys.exit(main())
