#!/usr/bin/env python3
"""A quick check of a renamed tree, before cargo: rust-analyzer's errors less those it reports on any tree (macros and
build scripts are off). Usage: diag.py [ROOT]"""
import re, subprocess, sys
root = sys.argv[1] if len(sys.argv) > 1 else "."
out = subprocess.run(["nice", "rust-analyzer", "diagnostics", root, "--severity", "error", "--disable-build-scripts",
                      "--disable-proc-macros"], capture_output=True, text=True).stdout
noise = re.compile(r"to_string|E0605|unresolved import$|dyn Display|\bst_\w+|f_bavail|f_frsize|no such associated item"
                   r"|Vec<str|as_raw_fd|as_fd|file_name|file_type|xtask/src/tidy/length|&\[&\[u8; 3\]\]|on type `!`|on type `Path`")
found = set()
for m in re.finditer(r"crate ([\w-]+), file \S*?/((?:crates|fuzz|xtask)/[^:]+): Error \w+\(\"(\w+)\"\) from LineCol \{ line: (\d+), col: (\d+) \} to LineCol \{[^}]*\}: (.*)", out):
    line = f"{m[2]}:{int(m[4]) + 1}:{int(m[5]) + 1} {m[3]} {m[6].strip()}"
    if not noise.search(line):
        found.add(line)
print("\n".join(sorted(found)))
print(len(found), "errors")
