MESSAGE = """chain: rename to standard words

`Router` routes operations, `Rejection` says why one is refused, and a
member that cannot be brought up by records receives a state transfer in
chunks. Each type name is used once in the workspace.
"""
SEM = """
@ crates/fawn-chain/src/bytes.rs
struct Reader -> FrameReader
@ crates/fawn-chain/src/completions.rs
struct Completion -> CompletedUpdate
struct Session -> ClientCompletions
@ crates/fawn-chain/src/frontend.rs
struct Frontend -> Router
struct FrontendOptions -> RouterOptions
struct Pending -> PendingOperation
struct? Window -> RangeWindow
@ crates/fawn-chain/src/manager/planner.rs
struct? Layout -> RingLayout
@ crates/fawn-chain/src/manager/round.rs
struct Decision -> RoundDecision
@ crates/fawn-chain/src/map/mod.rs
struct Member -> ChainMember
@ crates/fawn-chain/src/message/mod.rs
struct Report -> MemberReport
variant Body.CopyWanted -> TransferWanted
variant Body.Copy -> Transfer
field Body.as_of -> read_version
@ crates/fawn-chain/src/message/copy.rs
enum CopyCursor -> TransferCursor
@ crates/fawn-chain/src/replica/copy_in.rs
struct CopyIn -> TransferIn
fn handle_copied -> handle_transferred
fn want_copy -> want_transfer
fn begin_copy -> begin_transfer
fn handle_copy -> handle_transfer
@ crates/fawn-chain/src/replica/copy_out.rs
fn handle_copy_wanted -> handle_transfer_wanted
fn copy_header -> transfer_header
@ crates/fawn-chain/src/replica/link.rs
struct Link -> ReplicaLink
field Link.told -> announced
@ crates/fawn-chain/src/replica/middle.rs
fn take_told -> take_announced
@ crates/fawn-chain/src/replica/repair.rs
fn? link_told -> to_announce
@ crates/fawn-chain/src/replica/mod.rs
enum Phase -> ReplicaPhase
field Replica.copy -> transfer
@ crates/fawn-chain/src/replica/output.rs
enum Output -> ReplicaOutput
struct Progress -> LogProgress
enum Refusal -> Rejection
variant FrameVerdict.Copy -> Transfer
variant? Output.FinishCopy -> FinishTransfer
variant? Output.BeginCopy -> BeginTransfer
@ crates/fawn-chain/src/lib.rs
mod frontend -> router
@ crates/fawn-chain/src/message/mod.rs
mod copy -> transfer
@ crates/fawn-chain/src/replica/mod.rs
mod copy_in -> transfer_in
mod copy_out -> transfer_out
"""
C = "crates/fawn-chain/**/*.rs"
COPY = "crates/fawn-{chain,ds,node,sim}/**/*.rs fuzz/**/*.rs"
TEXT = [
    # Range copies are state transfers; `copies` stays the number of replicas.
    ("c", COPY, r"\bcopy_part_bytes_max\b", "transfer_chunk_bytes_max"),
    ("c", COPY, r"\bCOPY_PART_", "TRANSFER_CHUNK_"),
    ("c", COPY, r"\bCopy(?=[A-Z])", "Transfer"),
    ("c", COPY, r"(?<=[a-z])(?<!Pre)Copy\b", "Transfer"),
    ("c", COPY, r"\bcopy_(?!from_slice|within|nonoverlapping|from\b)(?=[a-z])", "transfer_"),
    ("c", COPY, r"(?<=[a-z]_)copy(?=_|\b)", "transfer"),
    ("d", COPY, r"(?<=`)copy_(?=[a-z])", "transfer_"),
    ("d", COPY, r"(?<=[`:])Copy(?=[A-Z])", "Transfer"),
    ("c", "crates/fawn-{chain,node,sim}/**/*.rs fuzz/**/*.rs", r"\bas_of\b", "read_version"),
    ("m", "crates/fawn-chain/tests/it/scripts/*.txt docs/**/*.md", r"\bas_of\b", "read_version"),
    ("ds", "crates/fawn-{chain,node,sim}/**/*.rs", r"\bas_of\b", "read_version"),
    ("c", "crates/fawn-chain/src/replica/*.rs", r"\btold\b", "announced"),
    ("c", "crates/fawn-chain/src/replica/{transfer_in,middle,handshake,mod,tail}.rs", r"\bcopy\b", "transfer"),
    ("ds", "crates/**/*.rs", r"\bgivers?\b", lambda m: "senders" if m[0].endswith("s") else "sender"),
    ("m", "docs/**/*.md *.md", r"\bgivers?\b", lambda m: "senders" if m[0].endswith("s") else "sender"),
    ("ds", "crates/**/*.rs", r"\bclosed in order\b", "cleanly shut down"),
    ("m", "docs/**/*.md *.md tests/**/*.py", r"\bclosed in order\b", "cleanly shut down"),
    ("ds", "crates/**/*.rs", r"\bcopied anew\b", "fully resynced"),
    ("m", "docs/**/*.md *.md tests/**/*.py", r"\bcopied anew\b", "fully resynced"),
    ("ds", "crates/**/*.rs", r"\bspine\b", "epoch history"),
    ("m", "docs/**/*.md *.md", r"\bspine\b", "epoch history"),
    ("ds", "crates/fawn-{chain,node,sim}/**/*.rs", r"\b(a|A) part of a copy\b", r"\1 chunk of a transfer"),
    ("ds", "crates/fawn-{chain,node,sim}/**/*.rs", r"\bparts of a copy\b", "chunks of a transfer"),
]
