#!/usr/bin/env python3
"""Lists functions with parameters packed into a tuple pattern, `(a, b): (A, B)`. Usage: tuples.py [ROOT]"""
import pathlib, re, sys
root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")
HEAD = re.compile(r"\bfn (\w+)")
count = 0
for path in sorted(p for g in ("crates/*/src/**/*.rs", "xtask/src/**/*.rs", "fuzz/src/**/*.rs") for p in root.glob(g)):
    text = path.read_text()
    for m in HEAD.finditer(text):
        end = text.find("{", m.end())
        semi = text.find(";", m.end())
        if semi != -1 and (end == -1 or semi < end):
            end = semi
        head = text[m.end():end]
        for t in re.finditer(r"(?:^|[(,]\s*)(\((?:mut )?\w+(?:, (?:mut )?\w+)+\)): (\([^\n]*?\))(?=,|\)\s|\)$|\n)", head):
            line = text.count("\n", 0, m.end() + t.start(1)) + 1
            print(f"{path.relative_to(root)}:{line} {m[1]} {t[1]}: {t[2]}")
            count += 1
print("#", count)
