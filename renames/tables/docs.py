MESSAGE = """docs: follow the renamed types and files
"""
D = "*.md docs/**/*.md"
TEXT = [
    ("m", D, r"\bfawn/server/turn\b", "fawn/server/event_loop"),
    ("m", D, r"\bfawn/server/post\b", "fawn/server/mailbox"),
    ("m", D, r"`turn`", "`run_once`"),
    ("m", D, r"`warm`", "`prefetch`"),
    ("m", D, r"`judge`", "`validate`"),
    ("m", D, r"`plain`", "`fast_path`"),
    ("m", D, r"`(decode_plain|plain_at|find_plain)`", lambda m: {"decode_plain": "`decode_fast`", "plain_at": "`find_in_memory`", "find_plain": "`find_fast`"}[m[1]]),
    ("d", "crates/fawn-node/**/*.rs", r"`turn`", "`run_once`"),
    ("m", "crates/fawn-chain/tests/it/scripts/*.txt", r"\bmedium\b", "disk"),
]
