MESSAGE = """flash: rename to standard words

One name per type in the workspace: `DataDir`, `FileDevice`, `IoClass`,
`IoRequest` and `IoOperation` instead of `Place`, `AnyDevice`, `Cause`,
`Request` and `Operation`. The files follow.
"""
SEM = """
@ crates/fawn-flash/src/place.rs
struct Place -> DataDir
@ crates/fawn-flash/src/real.rs
field RealDevice.place -> data_dir
struct RealDevice -> QueuedDevice
trait Queue -> IoQueue
@ crates/fawn-flash/src/any.rs
type AnyDevice -> FileDevice
@ crates/fawn-flash/src/device.rs
enum Cause -> IoClass
enum Operation -> IoOperation
@ crates/fawn-flash/src/stats.rs
struct CauseStats -> IoClassStats
@ crates/fawn-flash/src/request.rs
struct Request -> IoRequest
enum Memory -> IoBuffer
field Request.cause -> class
@ crates/fawn-flash/src/region.rs
trait Plain -> PlainBytes
@ crates/fawn-flash/src/cache/slab.rs
type Page -> CachePage
struct Slab -> PageSlab
@ crates/fawn-flash/src/cache/table.rs
struct Table -> FrameTable
@ crates/fawn-flash/src/cache/queues.rs
enum Queue -> CacheQueue
struct Link -> QueueLink
@ crates/fawn-flash/src/uring/slots.rs
struct Slot -> UringSlot
enum Step -> NextStep
@ crates/fawn-flash/src/uring/ring.rs
struct Ring -> UringRing
@ crates/fawn-flash/src/portable/pool.rs
struct Job -> PoolJob
struct Inbox -> JobQueue
struct Shared -> PoolState
field? silenced -> silenced
@ crates/fawn-flash/src/sim/inode.rs
type Block -> SimBlock
@ crates/fawn-flash/src/sim/directory.rs
enum Edit -> DirectoryEdit
@ crates/fawn-flash/src/sim/faults.rs
enum Fault -> DeviceFault
@ crates/fawn-flash/src/sim/device.rs
struct Handle -> OpenFileState
@ crates/fawn-flash/src/lib.rs
mod place -> data_dir
mod any -> file_device
mod real -> queued_device
""".replace("field? silenced -> silenced\n", "")
F = "crates/fawn-flash/**/*.rs"
DEV = "crates/fawn-flash/src/{file_device,queued_device,data_dir,request}.rs crates/fawn-flash/src/uring/*.rs crates/fawn-flash/src/portable/*.rs"
TEXT = [
    # Inside a macro.
    ("c", "crates/fawn-flash/src/uring/ring.rs", r"\bSlot\b", "UringSlot"),
    ("c", DEV, r"(?<![:\w])place\b(?!\w|s)", "data_dir"),
    ("c", F, r"\bcause\b", "class"),
    ("c", F, r"\bcauses\b", "classes"),
    ("c", F, r"\bdata_dir: data_dir\b", "data_dir"),
    ("c", "crates/fawn-flash/tests/**/*.rs crates/fawn-flash/src/**/*.rs", r"\bCAUSE\b", "CLASS"),
    ("d", F, r"by cause\b", "by I/O class"),
    ("d", F, r"\bcauses?\b(?=`)", "class"),
    ("c", "crates/fawn-ds/src/{engine/lookup,recovery/io,engine/flush}.rs", r"\bcause\b", "class"),
]
