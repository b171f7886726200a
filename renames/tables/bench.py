MESSAGE = """bench, xtask: use each type name once
"""
SEM = """
@ crates/fawn-bench/src/process.rs
struct Usage -> ProcessUsage
struct Line -> ProcessLine
struct Owned -> OwnedChild
@ crates/fawn-bench/src/client.rs
enum Protocol -> ClientProtocol
enum Answer -> ClientReply
struct Connection -> BenchConnection
struct Loop -> RequestLoop
@ crates/fawn-bench/src/server_ladder.rs
enum Peer -> BenchPeer
@ crates/fawn-bench/src/cli/output.rs
struct Output -> OutputArgs
struct Pairs -> PairArgs
@ crates/fawn-bench/src/cli/server.rs
struct Server -> ServerArgs
@ crates/fawn-bench/src/cli/memory.rs
struct Memory -> MemoryArgs
@ crates/fawn-bench/src/cli/store.rs
struct Store -> StoreArgs
@ crates/fawn-bench/src/cli/report.rs
struct Report -> ReportArgs
@ crates/fawn-bench/src/cli/device.rs
struct Device -> DeviceArgs
@ crates/fawn-bench/src/cli/mod.rs
enum Rung -> BenchLevel
@ crates/fawn-bench/src/groups.rs
type Settings -> RowSettings
struct Group -> RowGroup
struct Line -> ReportLine
struct Run -> BenchRun
@ crates/fawn-bench/src/store/rocksdb/output.rs
struct Report -> RocksDbReport
@ crates/fawn-bench/src/store/ladder.rs
enum Engine -> EngineChoice
@ crates/fawn-bench/src/store/mod.rs
struct Shape -> DataShape
@ crates/fawn-bench/src/store/fawn_ds/reads.rs
struct Slot -> ReadSlot
@ crates/fawn-bench/src/store/fawn_ds/session.rs
struct Session -> BenchSession
@ crates/fawn-bench/src/sut.rs
struct Server -> ServerUnderTest
@ crates/fawn-bench/src/device.rs
struct DeviceOptions -> DeviceBenchOptions
@ crates/fawn-bench/src/lib.rs
mod medium -> disk
@ xtask/src/server.rs
struct Server -> TestServer
@ xtask/src/main.rs
struct Args -> XtaskArgs
enum Command -> XtaskCommand
@ xtask/src/peers.rs
struct Peer -> BenchmarkPeer
@ xtask/src/tidy/mod.rs
struct Finding -> TidyFinding
@ fuzz/src/lib.rs
struct Target -> FuzzTarget
@ fuzz/src/main.rs
struct Args -> FuzzArgs
"""
B = "crates/fawn-bench/**/*.rs"
TEXT = [
    ("c", "crates/fawn-bench/src/cli/*.rs", r"\brung\b", "level"),
    ("ds", B, r"\brungs\b", "levels"),
    ("ds", B, r"\brung\b", "level"),
    ("ds", B, r"\bRung\b", "Level"),
    ("m", "docs/**/*.md *.md eval/experiments/*.md eval/*.md xtask/**/*.rs", r"\brungs\b", "levels"),
    ("m", "docs/**/*.md *.md eval/experiments/*.md eval/*.md xtask/**/*.rs", r"\brung\b", "level"),
]
