MESSAGE = """ds: rename to standard words

`OverlayHit`, `Probe`, `Location`, `MemoryHit` and `certify` instead of
private words; a range's state transfer is called that. Each type name is
used once in the workspace.
"""
SEM = """
@ crates/fawn-ds/src/range.rs
struct Progress -> RangeProgress
fn Progress.kept_under -> watermark_for
struct Pending -> PendingRecord
enum CopyStage -> TransferStage
struct CopyState -> TransferState
fn RangeState.begin_anew -> begin_again
@ crates/fawn-ds/src/fuzz.rs
struct Base -> DamagedStore
fn goes_on -> continues
@ crates/fawn-ds/src/overlay.rs
enum Base -> OverlayBase
@ crates/fawn-ds/src/engine/copy.rs
enum? CopiedResults -> TransferredResults
@ crates/fawn-ds/src/engine/copy_scan.rs
enum Gathered -> CellGather
struct CopyScan -> TransferScan
enum CopyStep -> TransferStep
fn copy_step -> transfer_step
struct Held -> HeldRecord
struct Listed -> ListedRecord
@ crates/fawn-ds/src/engine/fetch.rs
struct Span -> ReadSpan
struct Resume -> FetchResume
enum Spot -> Location
enum Wanted -> Expected
type RuledOut -> Rejected
enum Look -> Probe
enum Read -> MemoryRead
enum Gathered -> SpanBytes
fn look -> probe
fn look_once -> probe_once
fn damaged -> unreachable_record
fn judged -> read_of
@ crates/fawn-ds/src/engine/lookup.rs
enum Step -> LookupStep
enum Aim -> OverlayHit
fn aim -> find_in_overlay
fn find_plain -> find_fast
fn look_at_record -> probe_record
fn look_through_index -> probe_index
@ crates/fawn-ds/src/engine/plain.rs
struct PlainHit -> MemoryHit
enum PlainSpot -> MemoryLocation
fn plain_at -> find_in_memory
@ crates/fawn-ds/src/engine/segments.rs
enum Next -> NextSegment
fn vouch -> certify
fn vouch_when_due -> certify_when_due
fn tend_segments -> maintain_segments
@ crates/fawn-ds/src/engine/drop_rule/mod.rs
enum? Kept -> KeepReason
fn? kept_because -> keep_reason
@ crates/fawn-ds/src/engine/drop_rule/tests.rs
struct? Search -> HistorySearch
struct? Segment -> ModelSegment
struct? Store -> ModelStore
struct? Range -> ModelRange
struct? Record -> ModelRecord
@ crates/fawn-ds/src/engine/warm.rs
fn warm -> prefetch
fn warm_records -> prefetch_records
const WARM_KEYS_MAX -> PREFETCH_KEYS_MAX
@ crates/fawn-ds/src/engine/commit.rs
fn bury -> release_old
@ crates/fawn-ds/src/format/manifest/decode.rs
fn judge -> validate_end
struct Decoded -> DecodedManifest
@ crates/fawn-ds/src/format/manifest/edit.rs
enum Edit -> ManifestEdit
@ crates/fawn-ds/src/format/manifest/state.rs
struct RangeEntry -> ManifestRange
struct CopyEntry -> TransferEntry
@ crates/fawn-ds/src/format/record/plain.rs
struct Plain -> PlainRecord
@ crates/fawn-ds/src/format/record/mod.rs
struct Place -> RecordPlace
@ crates/fawn-ds/src/format/scan.rs
enum Verdict -> SegmentVerdict
fn judge -> validate
@ crates/fawn-ds/src/index/slab.rs
struct Handle -> BlockHandle
struct Moved -> MovedPage
struct Block -> SlabBlock
struct Class -> SizeClass
struct Page -> IndexPage
struct PageMut -> IndexPageMut
struct Slab -> IndexSlab
@ crates/fawn-ds/src/index/mod.rs
fn warm -> prefetch
@ crates/fawn-ds/src/index/table.rs
struct Table -> CellTable
@ crates/fawn-ds/src/index/grow.rs
struct Taken -> TakenPage
@ crates/fawn-ds/src/recovery/index_build.rs
struct Entry -> ScannedEntry
@ crates/fawn-ds/src/recovery/conflicts.rs
struct Run -> RecordRun
@ crates/fawn-ds/src/log/window.rs
struct BufferPool -> AppendBufferPool
@ crates/fawn-ds/src/recovery/judge.rs
fn judge_ends -> validate_ends
@ crates/fawn-ds/src/check.rs
fn judge -> check_ends
struct Finding -> CheckFinding
@ crates/fawn-ds/src/embed/driver.rs
enum? Op -> StoreOp
enum? Waiting -> WaitingOp
enum? Progress -> StoreOpProgress
@ crates/fawn-ds/src/embed/mod.rs
struct? Inbox -> OpInbox
@ crates/fawn-ds/src/engine/mod.rs
mod plain -> fast_path
mod warm -> prefetch
mod copy -> transfer
mod copy_scan -> transfer_scan
@ crates/fawn-ds/src/format/record/mod.rs
mod plain -> fast_path
@ crates/fawn-ds/src/recovery/mod.rs
mod judge -> validate
"""
D = "crates/fawn-ds/**/*.rs"
TEXT = [
    ("c", "crates/fawn-ds/src/engine/*.rs", r"\bspot\b", "location"),
    ("c", "crates/fawn-ds/src/engine/*.rs", r"\bruled_out\b", "rejected"),
    ("c", "crates/fawn-ds/src/engine/fetch.rs", r"\bwanted\b", "expected"),
    ("c", "crates/fawn-ds/**/*.rs", r"\bvouched\b", "certified"),
    ("c", "crates/fawn-ds/**/*.rs", r"\bvouch(?=\b|_)", "certify"),
    ("c", "crates/fawn-ds/**/*.rs", r"_vouched\b", "_certified"),
    ("c", "crates/fawn-ds/**/*.rs", r"\bvouches\b", "certifies"),
    ("c", "crates/fawn-ds/**/*.rs", r"\bvouched_", "certified_"),
    ("ds", "crates/**/*.rs", r"\bvouched\b", "certified"),
    ("ds", "crates/**/*.rs", r"\bvouches for\b", "certifies"),
    ("ds", "crates/**/*.rs", r"\bvouch for\b", "certify"),
    ("ds", "crates/**/*.rs", r"\bvouches\b", "certifies"),
    ("ds", "crates/**/*.rs", r"\bvouch\b", "certify"),
    ("ds", "crates/**/*.rs", r"\bcertified for\b", "certified"),
    ("ds", "crates/**/*.rs", r"\bvouching\b", "certifying"),
    ("ds", "crates/**/*.rs", r"\bVouches for\b", "Certifies"),
    ("ds", "crates/**/*.rs", r"\bVouches\b", "Certifies"),
    ("m", "docs/**/*.md *.md", r"\bvouched for\b", "certified"),
    ("m", "docs/**/*.md *.md", r"\bvouched\b", "certified"),
    ("m", "docs/**/*.md *.md", r"\bvouches for\b", "certifies"),
    ("m", "docs/**/*.md *.md", r"\bvouch for\b", "certify"),
    ("m", "docs/**/*.md *.md", r"\bvouches\b", "certifies"),
    ("m", "docs/**/*.md *.md", r"\bvouch\b", "certify"),
    ("d", "crates/**/*.rs", r"\b(is|are|was|were|becomes?|declared|made) void\b", r"\1 invalidated"),
    ("m", "docs/**/*.md *.md", r"\b(is|are|was|were|becomes?|declared|made) void\b", r"\1 invalidated"),
    ("c", D, r"\bWARM_KEYS_MAX\b", "PREFETCH_KEYS_MAX"),
    ("c", D, r"\bvoid\b", "invalidated"),
    ("c", D, r"\bvoid_", "invalidated_"),
    # Corrupt, disk.
    ("csd", "crates/**/*.rs fuzz/**/*.rs xtask/**/*.rs", r"\bdamaged\b", "corrupt"),
    ("c", "crates/fawn/src/{layout,data_dir}/*.rs", r"\bDamaged\b", "Corrupt"),
    ("c", "crates/**/*.rs", r"\bdamaged_", "corrupt_"),
    ("sd", "crates/**/*.rs", r"\bDamaged\b", "Corrupt"),
    ("m", "docs/**/*.md *.md eval/experiments/*.md tests/**/*.py", r"\bdamaged\b", "corrupt"),
    ("m", "docs/**/*.md *.md", r"\bDamaged\b", "Corrupt"),
    ("ds", "crates/**/*.rs fuzz/**/*.rs xtask/**/*.rs", r"\bmedium\b", "disk"),
    ("ds", "crates/**/*.rs fuzz/**/*.rs xtask/**/*.rs", r"\bmedia\b", "disks"),
    ("ds", "crates/**/*.rs fuzz/**/*.rs xtask/**/*.rs", r"\bMedium\b", "Disk"),
    ("m", "docs/**/*.md *.md tests/**/*.py eval/experiments/*.md", r"\bmedium\b", "disk"),
    ("m", "docs/**/*.md *.md", r"\bmedia\b", "disks"),
]
MOVES = [("crates/fawn-ds/tests/it/vouched.rs", "crates/fawn-ds/tests/it/certified.rs")]
