#!/usr/bin/env python3
"""Applies the tables in tables/*.py to a checkout. See NOTES.md for its use."""
import argparse, collections, glob, importlib, os, pathlib, re, subprocess, sys, time
HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from lsp import Lsp
import rustlex

GROUPS = ["flash", "types", "wire", "ds", "chain", "node", "server", "sim", "bench", "docs"]
ID = r"[A-Za-z_][A-Za-z0-9_]*"
VIS = r"(?:pub(?:\([a-z: ]+\))? )?"
QUAL = r"(?:const )?(?:async )?(?:unsafe )?"


class Problems:
    def __init__(self):
        self.lines = []

    def add(self, text):
        self.lines.append(text)
        print("  !", text, flush=True)


PROBLEMS = Problems()


class Tree:
    """The checkout: reads, writes, moves; remembers what was moved."""

    def __init__(self, root):
        self.root = pathlib.Path(root).resolve()
        self.moved = {}
        self.lsp = None
        self.open = {}

    def files(self, patterns):
        out = subprocess.run(["git", "-C", str(self.root), "ls-files", "-co", "--exclude-standard"], capture_output=True, text=True, check=True)
        existing = [p for p in out.stdout.splitlines() if (self.root / p).is_file()]
        regexes = [(not p.startswith("!"), glob_regex(p.lstrip("!"))) for p in patterns.split()]
        found = []
        for path in existing:
            wanted = False
            for positive, regex in regexes:
                if regex.fullmatch(path):
                    wanted = positive
            if wanted:
                found.append(path)
        return found

    def read(self, path):
        return (self.root / path).read_text()

    def write(self, path, text):
        (self.root / path).write_text(text)
        if self.lsp and path.endswith(".rs"):
            self.sync(path, text)

    def sync(self, path, text):
        uri = self.lsp.uri(str(self.root / path))
        if path in self.open:
            self.open[path] += 1
            self.lsp.notify("textDocument/didChange", {"textDocument": {"uri": uri, "version": self.open[path]}, "contentChanges": [{"text": text}]})
        else:
            self.open[path] = 1
            self.lsp.notify("textDocument/didOpen", {"textDocument": {"uri": uri, "languageId": "rust", "version": 1, "text": text}})

    def move(self, old, new):
        (self.root / new).parent.mkdir(parents=True, exist_ok=True)
        pairs = []
        if (self.root / old).is_dir():
            for path in sorted((self.root / old).rglob("*")):
                if path.is_file():
                    rel = str(path.relative_to(self.root))
                    pairs.append((rel, new + rel[len(old):]))
        else:
            pairs.append((old, new))
        for a, b in pairs:
            if (self.root / b).exists():
                raise RuntimeError(f"{b} exists already")
        for a, b in pairs:
            if self.lsp and a in self.open:
                self.lsp.notify("textDocument/didClose", {"textDocument": {"uri": self.lsp.uri(str(self.root / a))}})
                del self.open[a]
        for a, b in pairs:
            (self.root / b).parent.mkdir(parents=True, exist_ok=True)
            os.rename(self.root / a, self.root / b)
            self.moved[a] = b
        if (self.root / old).is_dir():
            for directory in sorted((p for p in (self.root / old).rglob("*") if p.is_dir()), reverse=True):
                directory.rmdir()
            (self.root / old).rmdir()
        if self.lsp:
            self.lsp.changed([], [(str(self.root / a), str(self.root / b)) for a, b in pairs])
            for a, b in pairs:
                if b.endswith(".rs"):
                    self.sync(b, self.read(b))

    def current(self, path):
        while path in self.moved and not (self.root / path).exists():
            path = self.moved[path]
        return path


def glob_regex(pattern):
    out = ""
    i = 0
    while i < len(pattern):
        if pattern.startswith("**/", i):
            out += "(?:.*/)?"
            i += 3
        elif pattern.startswith("**", i):
            out += ".*"
            i += 2
        elif pattern[i] == "*":
            out += "[^/]*"
            i += 1
        elif pattern[i] == "{":
            j = pattern.index("}", i)
            out += "(?:" + "|".join(re.escape(x) for x in pattern[i + 1:j].split(",")) + ")"
            i = j + 1
        else:
            out += re.escape(pattern[i])
            i += 1
    return re.compile(out)


# ---- semantic rows ---------------------------------------------------------------------------------------------------

def parse_sem(text):
    """`@ file` opens a section; then rows `kind [Owner.]name -> new`."""
    rows, path = [], None
    for raw in text.splitlines():
        line = raw.split("#")[0].strip()
        if not line:
            continue
        if line.startswith("@"):
            path = line[1:].strip()
            continue
        match = re.fullmatch(rf"(\w+)(\?)? (?:({ID})\.)?({ID}) -> ({ID})", line)
        if not match:
            raise SystemExit(f"not a row: {raw!r}")
        kind, optional, owner, old, new = match.groups()
        rows.append({"path": path, "kind": kind, "owner": owner, "old": old, "new": new, "optional": bool(optional), "row": f"{path}: {line}"})
    return rows


ITEM = {"struct": "struct", "enum": "enum", "trait": "trait", "type": "type", "static": "static"}


def locate(text, row):
    """Offsets of the defining identifiers."""
    kind, old, owner = row["kind"], re.escape(row["old"]), row["owner"]
    spans = [(0, len(text))]
    if owner:
        spans = []
        for match in re.finditer(rf"^{VIS}(?:unsafe )?(?:struct|enum|trait|union) {owner}\b[^;]*?\{{.*?^\}}|^(?:unsafe )?impl\b[^{{]*\b{owner}\b[^{{]*\{{.*?^\}}", text, re.M | re.S):
            spans.append(match.span())
    if kind == "type_any":
        regex = rf"^\s*{VIS}(?:unsafe )?(?:struct|enum|trait|type|union) ({old})\b"
    elif kind in ITEM:
        regex = rf"^\s*{VIS}(?:unsafe )?{kind} ({old})\b"
    elif kind == "const":
        regex = rf"^\s*{VIS}(?:const|static) ({old})\b"
    elif kind == "fn":
        regex = rf"^\s*{VIS}{QUAL}fn ({old})\b"
    elif kind == "field":
        regex = rf"^\s*{VIS}({old}): "
        if owner:
            regex += rf"|[{{,] ?({old}): "
    elif kind == "variant":
        regex = rf"^\s*({old})\b(?=[(,{{\s]|$)|[{{,] ?({old})\b(?=[(,{{ ])"
    elif kind == "mod":
        regex = rf"^\s*{VIS}mod ({old});"
    elif kind == "tfield":
        regex = rf"\b({old}): "
    else:
        raise SystemExit(f"kind {kind}?")
    found = []
    for start, end in spans:
        for match in re.finditer(regex, text[start:end], re.M):
            group = next(i for i in range(1, len(match.groups()) + 1) if match[i] is not None)
            at = start + match.start(group)
            line_start = text.rfind("\n", 0, at) + 1
            if "//" in text[line_start:at]:
                continue
            found.append(at)
    return found


def position(text, offset):
    line = text.count("\n", 0, offset)
    start = text.rfind("\n", 0, offset) + 1
    return line, len(text[start:offset].encode())


def offsets(text):
    starts = [0]
    for line in text.split("\n"):
        starts.append(starts[-1] + len(line) + 1)
    return starts


def to_edits(text, lsp_edits):
    starts = offsets(text)
    lines = text.split("\n")

    def offset(pos):
        line = lines[pos["line"]] if pos["line"] < len(lines) else ""
        return starts[pos["line"]] + len(line.encode()[:pos["character"]].decode())
    return [(offset(e["range"]["start"]), offset(e["range"]["end"]), e["newText"]) for e in lsp_edits]


def sem_round(tree, rows, stats):
    """Renames as many rows as do not touch each other, again and again until none is left."""
    todo = rows
    first = True
    while todo:
        accepted = collections.defaultdict(dict)   # path -> (start, end) -> text
        moves, later, used = [], [], []
        for row in todo:
            path = tree.current(row["path"])
            if not (tree.root / path).is_file():
                if not row["optional"]:
                    PROBLEMS.add(f"no file: {row['row']}")
                continue
            text = tree.read(path)
            found = locate(text, row)
            if row["kind"] in ("fn", "field") and row["owner"] and len(found) > 1 and row["kind"] == "field":
                found = found[:1]
            if not found:
                if not row["optional"]:
                    PROBLEMS.add(f"no definition: {row['row']}")
                continue
            if len(found) > 1 and row["kind"] not in ("fn",):
                PROBLEMS.add(f"{len(found)} definitions, the first is taken: {row['row']}")
                found = found[:1]
            if len(found) > 1 and not row["owner"]:
                PROBLEMS.add(f"{len(found)} functions, name the owner: {row['row']}")
                continue
            line, column = position(text, found[0])
            try:
                result = tree.lsp.rename(str(tree.root / path), line, column, row["new"])
            except RuntimeError as error:
                PROBLEMS.add(f"refused ({error}): {row['row']}")
                continue
            edits, ops = collections.defaultdict(list), []
            for change in (result or {}).get("documentChanges", []):
                if change.get("kind") == "rename":
                    ops.append((change["oldUri"], change["newUri"]))
                elif "textDocument" in change:
                    edits[os.path.relpath(tree.lsp.path(change["textDocument"]["uri"]), tree.root)] += change["edits"]
            if any(p.startswith("..") or p.startswith("target") for p in edits):
                PROBLEMS.add(f"reaches outside the tree: {row['row']}")
                continue
            mine = {p: to_edits(tree.read(p), e) for p, e in edits.items()}
            clash = False
            for p, list_ in mine.items():
                for start, end, new in list_:
                    for (s, e), t in accepted[p].items():
                        if start < e and s < end and not (s == start and e == end and t == new):
                            clash = True
            if clash:
                later.append(row)
                continue
            for p, list_ in mine.items():
                for start, end, new in list_:
                    accepted[p][(start, end)] = new
            moves += ops
            used.append((row, list(mine)))
            stats["identifiers"] += 1
            stats["places"] += sum(len(list_) for list_ in mine.values())
        for p, edits in accepted.items():
            if not edits:
                continue
            text = tree.read(p)
            for (start, end), new in sorted(edits.items(), reverse=True):
                text = text[:start] + new + text[end:]
            tree.write(p, text)
        for row, paths in used:
            prose_of(tree, row, paths)
        for old, new in sorted(moves, key=lambda move: -move[0].count("/")):
            old, new = (os.path.relpath(tree.lsp.path(u), tree.root) for u in (old, new))
            tree.move(old, new)
            stats["files"] += 1
            tree.write_moves.append((old, new))
        if moves:
            time.sleep(2)
        if later and len(later) == len(todo):
            for row in later:
                PROBLEMS.add(f"cannot be separated from another rename: {row['row']}")
            return
        todo = later
        first = False


def prose_of(tree, row, paths):
    """Comments of the files that use the name: what stands in backticks follows."""
    if row["kind"] == "mod":
        folder = os.path.dirname(row["path"])
        for path in tree.files(folder + "/*.rs " + folder + "/" + row["old"] + "/*.rs"):
            text = tree.read(path)
            name = re.compile(rf"`((?:super::|crate::|self::)?){re.escape(row['old'])}(`|::)")
            new = rustlex.map_pieces(text, ("comment",), lambda part: name.sub(rf"`\g<1>{row['new']}\g<2>", part))
            if new != text:
                tree.write(path, new)
        return
    word = re.compile(rf"\b{re.escape(row['old'])}\b")
    for path in set(paths):
        path = tree.current(path)
        text = tree.read(path)
        change = lambda comment: rustlex.map_backticks(comment, lambda quoted: word.sub(row["new"], quoted))
        new = rustlex.map_pieces(text, ("comment",), change)
        if new != text:
            tree.write(path, new)


# ---- text rows -------------------------------------------------------------------------------------------------------

def text_rows(tree, rows, stats, unused):
    """Rows (kinds, scope, regex, replacement): kinds of c(ode) d(oc comment and other comments) s(trings) or m (whole file)."""
    names = {"c": "code", "d": "comment", "s": "string"}
    cache = {}
    for kinds, scope, regex, new in rows:
        count = 0
        pattern = re.compile(regex, re.M)
        if scope not in cache:
            cache[scope] = tree.files(scope)
        for path in cache[scope]:
            if not (tree.root / path).is_file():
                continue
            try:
                text = tree.read(path)
            except UnicodeDecodeError:
                continue
            if not pattern.search(text):
                continue
            if "m" in kinds or not path.endswith(".rs"):
                changed, n = pattern.subn(new, text)
                count += n
            else:
                counter = [0]

                def change(part):
                    out, n = pattern.subn(new, part)
                    counter[0] += n
                    return out
                changed = rustlex.map_pieces(text, [names[k] for k in kinds], change)
                if "c" in kinds and "s" not in kinds and counter[0]:
                    # Names captured by format strings.
                    captured = lambda string: CAPTURED.sub(lambda m: "{" + pattern.sub(new, m[1]), string)
                    changed = rustlex.map_pieces(changed, ["string"], captured)
                count += counter[0]
            if changed != text:
                tree.write(path, changed)
        stats["texts"] += count
        if not count:
            unused.append(f"{kinds} {scope} {regex}")


def path_rows(tree, moves, stats):
    """Documents, tests and comments that name a moved file."""
    files = [p for p in tree.files("** !Cargo.lock !eval/results/** !crates/fawn/data/**") if p.endswith((".md", ".rs", ".py", ".toml", ".txt"))]
    table = []
    for old, new in moves:
        table.append((old, new))
        if old.endswith("/mod.rs"):
            table.append((old[:-7], new[:-7]))
        if not old.endswith(".rs"):
            table.append((old + "/", new + "/"))
    for path in files:
        text = tree.read(path)
        changed = text
        for old, new in sorted(table, key=lambda pair: -len(pair[0])):
            changed = re.sub(rf"(?<![\w/-]){re.escape(old)}(?![\w-]|\.rs)", new, changed)
        if changed != text:
            tree.write(path, changed)


CAPTURED = re.compile(r"\{([a-z_]\w*)(?=[:}])")
SHORTHAND = re.compile(r"(?<=[{,])(\s+)([a-z_]\w{2,}): \2(?=\s*[,}])")


def shorthand_all(tree):
    """`{ name: name }` is `{ name }`."""
    for path in tree.files("**/*.rs"):
        text = tree.read(path)
        new = rustlex.map_pieces(text, ["code"], lambda code: SHORTHAND.sub(r"\1\2", code))
        if new != text:
            tree.write(path, new)


def names_in_backticks(tree, stats):
    """Type names in backticks of comments and documents, where one old name has one new name and is no type any more."""
    mapping = collections.defaultdict(set)
    for group in GROUPS:
        for row in parse_sem(getattr(importlib.import_module(f"tables.{group}"), "SEM", "")):
            if row["kind"] in ("struct", "enum", "trait", "type", "type_any"):
                mapping[row["old"]].add(row["new"])
    there = set()
    declaration = re.compile(r"\b(?:struct|enum|trait|type|union|fn|const|mod) (\w+)|^\s*([A-Z]\w+)\b(?=[(,{ ])", re.M)
    sources = {path: tree.read(path) for path in tree.files("**/*.rs")}
    for text in sources.values():
        there.update(name for pair in declaration.findall(text) for name in pair if name)
    names = {old: next(iter(new)) for old, new in mapping.items() if len(new) == 1 and old not in there}
    pattern = re.compile(r"\b(" + "|".join(sorted(names)) + r")\b")
    change = lambda text: rustlex.map_backticks(text, lambda quoted: pattern.sub(lambda m: names[m[1]], quoted))
    for path, text in sources.items():
        new = rustlex.map_pieces(text, ("comment",), change)
        if new != text:
            stats["texts"] += 1
            tree.write(path, new)
    for path in tree.files("*.md docs/**/*.md eval/*.md eval/experiments/*.md"):
        text = tree.read(path)
        if (new := change(text)) != text:
            stats["texts"] += 1
            tree.write(path, new)


# ---- comments that became too long ------------------------------------------------------------------------------------

WIDTH = 120


def rewrap(text, old_lines=frozenset()):
    """Wraps again each paragraph of line comments of which a line became longer than WIDTH."""
    lines, out, i = text.split("\n"), [], 0
    comment = re.compile(r"^(\s*)(//[/!]?) (?! )(.*)$")
    special = re.compile(r"^(#|[-*] |\d+\. |\||```|\[\^)")
    in_fence = False
    while i < len(lines):
        match = comment.match(lines[i])
        if match and match[3].startswith("```"):
            in_fence = not in_fence
        if not match or in_fence or special.match(match[3]):
            out.append(lines[i])
            i += 1
            continue
        prefix = match[1] + match[2] + " "
        block = []
        while i < len(lines) and (m := comment.match(lines[i])) and m[1] + m[2] + " " == prefix and not (special.match(m[3])):
            block.append(m[3])
            i += 1
        if all(len(prefix + line) <= WIDTH or prefix + line in old_lines for line in block):
            out += [prefix + line for line in block]
            continue
        at = next(k for k, line in enumerate(block) if len(prefix + line) > WIDTH and prefix + line not in old_lines)
        out += [prefix + line for line in block[:at]]
        words, line = " ".join(block[at:]).split(" "), ""
        for word in words:
            if line and len(prefix + line + " " + word) > WIDTH:
                out.append(prefix + line)
                line = word
            else:
                line = f"{line} {word}" if line else word
        out.append(prefix + line)
    return "\n".join(out)


def long_lines(tree):
    return {line for path in tree.files("**/*.rs") for line in tree.read(path).split("\n") if len(line) > WIDTH}


def rewrap_all(tree):
    for path in tree.files("**/*.rs"):
        text = tree.read(path)
        new = rewrap(text, tree.long)
        if new != text:
            tree.write(path, new)


# ---- main ------------------------------------------------------------------------------------------------------------

def run(command, root, check=True):
    print("$", " ".join(command), flush=True)
    return subprocess.run(command, cwd=root, check=check)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", default=".")
    parser.add_argument("--groups", default=",".join(GROUPS), help="comma-separated, in this order: " + ",".join(GROUPS))
    parser.add_argument("--commit", action="store_true", help="format and commit after each group (body from the table)")
    parser.add_argument("--check", action="store_true", help="cargo check after each group")
    parser.add_argument("--no-sem", action="store_true", help="text rows only")
    args = parser.parse_args()
    tree = Tree(args.root)
    tree.write_moves = []
    tree.long = long_lines(tree)
    dirty = subprocess.run(["git", "-C", str(tree.root), "status", "--porcelain"], capture_output=True, text=True).stdout
    if dirty:
        raise SystemExit("the checkout is not clean")
    groups = args.groups.split(",")
    tables = {g: importlib.import_module(f"tables.{g}") for g in groups}
    begun = time.time()
    if not args.no_sem:
        tree.lsp = Lsp(tree.root)
        tree.lsp.wait_quiescent()
        print(f"rust-analyzer is ready after {time.time() - begun:.0f} s", flush=True)
    totals = collections.Counter()
    unused = []
    for group in groups:
        stats = collections.Counter()
        table = tables[group]
        print(f"== {group}", flush=True)
        tree.write_moves = []
        if tree.lsp:
            for text in getattr(table, "PRE", []):
                text_rows(tree, [text], stats, unused)
            rows = parse_sem(getattr(table, "SEM", ""))
            members = [r for r in rows if r["kind"] in ("field", "variant", "fn", "const", "static", "tfield")]
            types = [r for r in rows if r["kind"] in ("struct", "enum", "trait", "type", "type_any")]
            mods = [r for r in rows if r["kind"] == "mod"]
            sem_round(tree, members, stats)
            sem_round(tree, types, stats)
            sem_round(tree, mods, stats)
        for old, new in getattr(table, "MOVES", []):
            if (tree.root / old).exists():
                tree.move(old, new)
                tree.write_moves.append((old, new))
                stats["files"] += 1
            else:
                PROBLEMS.add(f"no file to move: {old}")
        text_rows(tree, getattr(table, "TEXT", []), stats, unused)
        path_rows(tree, tree.write_moves, stats)
        if group == "docs":
            names_in_backticks(tree, stats)
        shorthand_all(tree)
        rewrap_all(tree)
        print(" ", dict(stats), f"{time.time() - begun:.0f} s", flush=True)
        totals.update(stats)
        if args.commit or args.check:
            run(["cargo", "fmt", "--all"], tree.root, False)
            for path in list(tree.open):
                if (tree.root / path).is_file():
                    tree.sync(path, tree.read(path))
        if args.check:
            run(["nice", "cargo", "check", "--workspace", "--all-targets", "-q"], tree.root, False)
        if args.commit:
            run(["git", "add", "-A"], tree.root)
            if subprocess.run(["git", "diff", "--cached", "--quiet"], cwd=tree.root).returncode == 0:
                continue
            message = getattr(table, "MESSAGE", f"{group}: rename to standard words")
            subprocess.run(["git", "commit", "-q", "-F", "-"], input=message, text=True, cwd=tree.root, check=True)
    if tree.lsp:
        tree.lsp.close()
    run(["cargo", "fmt", "--all"], tree.root, False)
    rewrap_all(tree)
    print("total", dict(totals), f"{time.time() - begun:.0f} s")
    if unused:
        print(f"{len(unused)} text rows changed nothing:")
        for row in unused:
            print("  -", row)
    print(f"{len(PROBLEMS.lines)} problems")
    for line in PROBLEMS.lines:
        print("  !", line)


if __name__ == "__main__":
    main()
