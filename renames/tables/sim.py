MESSAGE = """sim: rename to standard words

Faults are injected, results checked, frames forged by a faulty transport.
Each type name is used once in the workspace.
"""
SEM = """
@ crates/fawn-sim/src/post.rs
struct Post -> FaultyTransport
struct Letter -> OutgoingFrame
struct Told -> SeenRecord
field Post.told -> seen
@ crates/fawn-sim/src/history/check.rs
struct Step -> HistoryEvent
@ crates/fawn-sim/src/history/mod.rs
struct Operation -> HistoryOperation
enum Heard -> Observed
@ crates/fawn-sim/src/network.rs
struct Link -> NetworkLink
@ crates/fawn-sim/src/clients.rs
struct Client -> SimClient
struct Waiting -> WaitingOperation
@ crates/fawn-sim/src/world/mod.rs
struct Report -> RunReport
field? Report.limped -> ran_degraded
field? World.rough -> unclean
field? World.hurt -> degraded
@ crates/fawn-sim/src/world/strike.rs
fn strike -> inject
fn strike_transfer -> inject_at_transfer
@ crates/fawn-sim/src/world/verdict.rs
fn limp -> run_degraded
fn judge -> check
@ crates/fawn-sim/src/world/watch.rs
struct Watch -> Observer
field Watch.told -> seen_epochs
fn hear_losses -> note_losses
@ crates/fawn-sim/src/world/mod.rs
mod strike -> inject
mod verdict -> check
mod watch -> observe
@ crates/fawn-sim/src/lib.rs
mod post -> transport
"""
S = "crates/fawn-sim/**/*.rs"
TEXT = [
    ("c", S, r"\btold\b", "seen"),
    ("c", S, r"\bpost::", "transport::"),
    ("c", S, r"\bpost\b", "transport"),
    ("c", S, r"\bletters\b", "outgoing"),
    ("c", S, r"\bletter\b", "frame_out"),
    ("c", S, r"\brough\b", "unclean"),
    ("c", S, r"\bhurt\b", "degraded"),
    ("c", S, r"\blimped\b", "ran_degraded"),
    ("ds", S, r"\bletters\b", "outgoing frames"),
    ("ds", S, r"\bletter\b", "outgoing frame"),
    ("ds", S, r"\blimped\b", "ran degraded"),
    ("ds", S, r"\bstrikes\b", "injects faults"),
    ("m", "docs/**/*.md *.md", r"\blimped\b", "ran degraded"),
    ("c", "crates/fawn-sim/tests/**/*.rs xtask/**/*.rs", r"\blimped\b", "ran_degraded"),
]
