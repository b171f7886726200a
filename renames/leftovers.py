#!/usr/bin/env python3
"""Counts house words that are left, in code and in prose, by file. Usage: leftovers.py [ROOT] [--code|--prose|--strings]"""
import collections, pathlib, re, subprocess, sys
sys.path.insert(0, str(pathlib.Path(__file__).parent))
import rustlex
args = [a for a in sys.argv[1:] if not a.startswith("--")]
want = next((a[2:] for a in sys.argv[1:] if a.startswith("--")), "code")
root = pathlib.Path(args[0] if args else ".")
CODE = re.compile(r"(?:(?<=_)|\b)(turns?|letters?|bells?|company|desk|rooms?|away|standing|house|wides?|told|tells?|looked|looks?|warm|late|again|anew|kept|giver|medium|damaged|vouch\w*|judge\w*|void|worded|wording|shapes?|native|gather\w*|spot|ruled_out|aim|asker|asked|places?|facts|beat|barred|behind|dawdl\w*|seats?|board|intake|heard|hears?|copy|parts?|hurt|rough|limp\w*|strike\w*|verdicts?|rungs?|bed|go_on|goes_on)(?=_|\b)")
PROSE = re.compile(r"\b(nobody|somebody|whoever|anew|beside|under way|goes on|go on|some day|dearer|told|tells?|hears?|heard|says|said|turns?|rooms?|letters?|medium|damaged|worded|in order|Owns|stands?|answers?|answered|house|away)\b")
files = subprocess.run(["git", "-C", str(root), "ls-files", "*.rs"], capture_output=True, text=True).stdout.split()
total, by_file = collections.Counter(), {}
for f in files:
    text = (root / f).read_text()
    counts = collections.Counter()
    for kind, part in rustlex.pieces(text):
        if kind == {"code": "code", "prose": "comment", "strings": "string"}[want]:
            for m in (CODE if want == "code" else PROSE).finditer(part):
                counts[m[1].lower()] += 1
    if counts:
        by_file[f] = counts
        total.update(counts)
print("#", sum(total.values()), " ".join(f"{w} {n}" for w, n in total.most_common()))
for f, counts in sorted(by_file.items(), key=lambda item: -sum(item[1].values()))[:60]:
    print(f"{f}: {sum(counts.values())}  " + " ".join(f"{w} {n}" for w, n in counts.most_common(9)))
