#!/usr/bin/env python3
"""Counts top-level type names (struct, enum, trait, union, type) of the workspace and lists those used more than once.

Usage: types.py [ROOT]. Looks at crates/*/src, xtask/src and fuzz/src, private types included. A type is top-level if it
stands at brace depth 0 outside an inline module (unit tests in `mod tests` are left out)."""
import collections, pathlib, re, sys

DECLARATION = re.compile(r"^(?:pub(?:\([^)]*\))? )?(?:unsafe )?(struct|enum|trait|union|type) ([A-Z]\w*)")


def types(root):
    found = collections.defaultdict(list)
    patterns = ("crates/*/src/**/*.rs", "xtask/src/**/*.rs", "fuzz/src/**/*.rs")
    for path in sorted(p for pattern in patterns for p in root.glob(pattern)):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if match := DECLARATION.match(line):
                found[match[2]].append((match[1], str(path.relative_to(root)), number))
    return found


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    found = types(root)
    reused = {name: places for name, places in found.items() if len(places) > 1}
    for name, places in sorted(reused.items()):
        print(name, " ".join(f"{path}:{number}({kind})" for kind, path, number in places))
    print(f"# {len(found)} names, {len(reused)} used more than once, {sum(map(len, found.values()))} types")


if __name__ == "__main__":
    main()
