MESSAGE = """server: rename to standard words

The event loop, mailboxes between shards, admission control, the limit of
connections and shared statistics are called that, in code, metrics, logs
and documents: `fawn_loop_iterations_total` was `fawn_turns_total`,
`fawn_shard_messages_*_total` were `fawn_letters_*_total`, and
`fawn_rereads_total` was `fawn_asked_again_total`.
"""
SEM = """
@ crates/fawn/src/server/turn.rs
struct Turn -> EventLoop
fn turn -> run_once
fn may_wait -> may_park
field Turn.pieces -> read_batch
field Turn.company -> peers
field Turn.ready -> read_queue
field Turn.touched -> write_queue
field Turn.intake -> admission
field Turn.owes_turn -> needs_another_iteration
field Turn.stop_by -> shutdown_deadline
fn list -> schedule_read
fn touch -> schedule_write
struct Wake -> WakeSources
const BELL -> WAKER_TOKEN
const BUSY_TURNS_MAX -> BUSY_ITERATIONS_MAX
@ crates/fawn/src/server/read.rs
struct Pieces -> ReadBatch
struct Piece -> ReadInput
field Pieces.list -> inputs
fn room -> spare
fn execute_pieces -> execute_batch
fn executed -> after_batch
fn feed -> process_input
fn fed -> after_input
fn again -> reschedule_read
fn read_piece -> read_into_batch
const PIECES_MAX -> BATCH_INPUTS_MAX
@ crates/fawn/src/server/write.rs
fn release -> release_buffers
@ crates/fawn/src/server/intake.rs
struct Intake -> AdmissionControl
field Intake.line -> queue
fn may_receive -> may_receive
fn call_waiting -> admit_waiting
fn leave_intake -> leave_admission
fn end_intake -> end_admission
fn expire_intake -> drop_slow_senders
fn has_input_room -> has_input_budget
@ crates/fawn/src/server/limits.rs
const INPUT_PATIENCE -> SLOW_SENDER_TIMEOUT
const INPUT_PATIENCE_BYTES -> SLOW_SENDER_BYTES_MIN
struct Limits -> ShardLimits
@ crates/fawn/src/server/post.rs
struct Post -> Mailbox
struct Peer -> PeerQueue
struct Bell -> Waker
field Bell.sleeps -> parked
fn ring -> wake_if_parked
field Post.early -> received_while_parking
field Post.bell -> waker
field Peer.bell -> waker
field Peer.kept -> unsent
fn has_kept -> has_unsent
fn may_sleep -> prepare_park
fn woke -> unpark
@ crates/fawn/src/server/company.rs
struct Company -> PeerShards
field Company.post -> mailbox
field Company.told_at -> published_at
enum Ending -> DrainState
variant Ending.LastTurn -> LastIteration
enum Step -> DrainStep
variant Step.Turn -> Iterate
fn may_sleep -> prepare_park
fn woke -> unpark
fn step_to_end -> next_drain_step
fn take_letters -> receive_batches
fn hand_letters -> send_batches
fn tell_status -> publish_stats
const LETTERS_MAX -> BATCHES_MAX
@ crates/fawn/src/server/shared.rs
struct Shared -> ProcessState
struct Seats -> ConnectionLimit
struct Board -> SharedStats
field Shared.seats -> connections
field Shared.board -> stats
fn give_back -> release
@ crates/fawn/src/server/conn.rs
enum Phase -> ConnPhase
field Conn.rest -> input_buf
struct Flags -> ConnFlags
field Flags.listed -> read_scheduled
field Flags.touched -> write_scheduled
field Flags.waits -> awaits_admission
enum Moved -> IoResult
variant Moved.Bytes -> Progress
variant Moved.Blocked -> WouldBlock
variant Moved.End -> Eof
variant Moved.Broken -> Failed
fn moved -> io_result
@ crates/fawn/src/server/shard.rs
struct Places -> ListenAddrs
struct Shards -> ShardHandles
struct Server -> RunningServer
field Server.places -> listen_addrs
fn places -> listen_addrs
@ crates/fawn/src/server/start.rs
struct Ending -> ThreadEnd
struct Starting -> ShardThread
@ crates/fawn/src/server/backing.rs
trait Backing -> Backend
struct Opening -> BackendConfig
field Opening.facts -> server_info
@ crates/fawn/src/server/control.rs
struct Report -> ShardReport
@ crates/fawn/src/server/counters.rs
struct Counters -> LoopCounters
field Counters.turns -> iterations
field Counters.letters_received -> batches_received
field Counters.letters_sent -> batches_sent
field NodeCounts.asked_again -> rereads
field NodeCounts.reply_expected_bytes -> reply_reserved_bytes
field DeviceCounts.cause -> class
@ crates/fawn/src/server/watch.rs
struct Watch -> ConnTimers
struct Due -> ConnDeadline
@ crates/fawn/src/server/run.rs
fn tell -> log_serving
@ crates/fawn/src/admin/metrics.rs
enum Kind -> MetricKind
@ crates/fawn/src/admin/pages.rs
type Page -> PageResponse
@ crates/fawn/src/cli/mod.rs
enum Command -> CliCommand
@ crates/fawn/src/cli/config.rs
enum Action -> ConfigAction
struct Check -> ConfigCheck
@ crates/fawn/src/client/mod.rs
struct Client -> CliClient
@ crates/fawn/src/config/file.rs
struct Lines -> SettingLines
@ crates/fawn/src/config/units.rs
struct Span -> TimeSpan
@ crates/fawn/src/config/flags.rs
struct Flags -> SettingFlags
@ crates/fawn/src/config/shards.rs
enum Shards -> ShardCount
@ crates/fawn/src/load/progress.rs
struct Progress -> LoadProgress
struct Lines -> ProgressLines
@ crates/fawn/src/load/lines.rs
struct Lines -> InputLines
enum Line -> InputLine
@ crates/fawn/src/load/row.rs
struct Row -> LoadRow
@ crates/fawn/src/load/send.rs
struct Batch -> LoadBatch
@ crates/fawn/src/layout/file.rs
enum Refused -> LayoutFileError
@ crates/fawn/src/layout/mod.rs
fn places -> shard_dirs
@ crates/fawn/src/main.rs
mod layout -> data_dir
@ crates/fawn/src/server/mod.rs
mod turn -> event_loop
mod post -> mailbox
mod company -> peer_shards
mod intake -> admission
mod backing -> backend
mod watch -> timers
mod shared -> process_state
""".replace("fn may_receive -> may_receive\n", "")
S = "crates/fawn/src/server/*.rs"
F = "crates/fawn/**/*.rs"
DOCS = "docs/**/*.md *.md eval/experiments/*.md"
PY = "tests/**/*.py"
from tables.node import TURN, iteration
TEXT = [
    # Inside a macro.
    ("c", "crates/fawn/src/config/flags.rs", r"\bFlags\b", "SettingFlags"),
    ("c", S, r"\bturn::", "event_loop::"),
    ("c", "crates/fawn/src/server/start.rs", r"use super::event_loop::\{self, ", "use super::event_loop::{self, "),
    ("c", "crates/fawn/src/server/start.rs", r"\blet mut turn = EventLoop", "let mut event_loop = EventLoop"),
    ("c", "crates/fawn/src/server/start.rs", r"\bturn\.(run|into_shard)\(", r"event_loop.\1("),
    ("c", S, r"\bcompany\b", "peers"),
    ("c", S, r"\bcompanies\b", "peer_shards"),
    ("c", S, r"\bcompany_due\b", "peers_due"),
    ("c", S, r"\bpieces\b", "reads"),
    ("c", S, r"\bpiece\b", "read_input"),
    ("c", S, r"\bmoved\b", "result"),
    ("c", S, r"\bposts\b", "mailboxes"),
    ("c", S, r"\bpost::connect\b", "mailbox::connect"),
    ("c", S, r"\bpost\b", "mailbox"),
    ("c", S, r"\bbells\b", "wakers"),
    ("c", S, r"\bbell\b", "waker"),
    ("c", F, r"\bletters\b", "batches"),
    ("c", F, r"\bletter\b", "batch"),
    ("c", S, r"\bLETTERS\b", "BATCHES"),
    ("c", S, r"\bevery_letter_comes\b", "every_batch_comes"),
    ("c", S, r"\bone_letter_is_kept\b", "one_batch_is_kept"),
    ("c", S, r"\bnobody_sleeps_over_a_letter\b", "no_shard_stays_parked_over_a_batch"),
    ("c", S, r"\bseats_are_counted\b", "connections_are_counted"),
    ("c", S, r"\bthe_board_sums\b", "shared_stats_sum"),
    ("c", S, r"\bdawdlers\b", "slow_senders"),
    ("c", S, r"\bpatience\b", "timeout"),
    ("c", S, r"\bbusy_turns\b", "busy_iterations"),
    ("c", S, r"\btold\b", "event"),
    ("c", "crates/fawn/src/server/mailbox.rs", r"\bheard\b", "received"),
    ("c", S, r"\bfacts\b", "server_info"),
    ("c", "crates/fawn/src/**/*.rs", r"\bplaces\b", "listen_addrs"),
    ("c", "crates/fawn/src/server/counters.rs", r"\bcause\b", "class"),
    ("c", "crates/fawn/src/admin/metrics.rs", r"\bcause\b", "class"),
    ("c", "crates/fawn-node/src/execute/server/info.rs", r"\bcause\b", "class"),
    ("s", "crates/fawn/src/admin/metrics.rs", r'cause=', "class="),
    ("s", "crates/fawn/src/admin/metrics.rs", r"\{cause\}", "{class}"),
    ("d", "crates/fawn/src/**/*.rs crates/fawn-node/src/status.rs", r"\b(by|and|one|per) cause\b", r"\1 I/O class"),
    ("m", PY, r'\bcause\b', "io_class"),
    ("m", DOCS, r"device bytes per cause\b", "device bytes per I/O class (`class`)"),
    ("m", DOCS, r"\bby cause\b", "by I/O class"),
    # Metrics, logs, texts.
    ("m", F + " " + DOCS + " " + PY, r"\bfawn_turns_total\b", "fawn_loop_iterations_total"),
    ("m", F + " " + DOCS + " " + PY, r"\bfawn_letters_(sent|received)_total\b", r"fawn_shard_messages_\1_total"),
    ("m", F + " " + DOCS + " " + PY, r"\bfawn_asked_again_total\b", "fawn_rereads_total"),
    ("m", F + " " + DOCS + " " + PY, r"\bfawn_reply_expected_bytes\b", "fawn_reply_reserved_bytes"),
    ("s", F, r"\bTurns of the event loop\.", "Iterations of the event loop."),
    ("s", F, r"\bLetters of the process's other shards\.", "Message batches from the process's other shards."),
    ("s", F, r"\bLetters to the process's other shards\.", "Message batches to the process's other shards."),
    ("s", F, r"\bReads repeated for want of room for their reply\.", "Reads repeated because their reply was over budget."),
    ("s", F, r"\bReplies that reads under way should bring\.", "Estimated replies of reads in flight."),
    ("s", F, r"\bConnections that wait for room for a reply\.", "Connections that wait for the reply budget."),
    ("s", F, r"\bConnections whose long request waits for room\.", "Connections whose long request waits for admission."),
    ("s", F, r"\bRequests refused because too much was under way\.", "Requests refused because too much was in flight."),
    ("s", S, r"a connection that dawdles in a request others wait for is closed", "slow sender disconnected: other requests wait for its memory"),
    ("s", S, r"incomplete requests exceed their room: the largest one's connection is closed", "incomplete requests exceed their budget: the connection of the largest is closed"),
    ("s", S, r"replies not taken exceed their room", "replies not taken exceed their budget"),
    ("s", S, r"a shard could not be woken; it goes on at its next event", "a shard could not be woken; it continues at its next event"),
    # Prose.
    ("ds", F, r"\bletters\b", "batches"),
    ("ds", F, r"\bletter\b", "batch"),
    ("ds", S, r"\bLetters\b", "Batches"),
    ("ds", S, r"\bbells\b", "wakers"),
    ("ds", S, r"\bbell\b", "waker"),
    ("ds", S, r"\bdawdlers\b", "slow senders"),
    ("ds", S, r"\bdawdler\b", "slow sender"),
    ("ds", F, r"\bdawdles\b", "sends too slowly"),
    ("ds", S, r"\bseats for connections\b", "a limit of connections"),
    ("ds", S, r"\bSeats for connections\b", "The limit of connections"),
    ("ds", S, r"\bseats\b", "connections"),
    ("ds", S, r"\bseat\b", "connection"),
    ("ds", S, r"\b(a|the) board\b", "the shared statistics"),
    ("d", S, r"`rest`", "`input_buf`"),
    ("m", "docs/**/*.md ARCHITECTURE.md CONTRIBUTING.md README.md CHANGELOG.md eval/experiments/*.md", r"\bletters\b", "message batches"),
    ("m", "docs/**/*.md ARCHITECTURE.md CONTRIBUTING.md README.md CHANGELOG.md eval/experiments/*.md", r"\bletter\b", "message batch"),
    ("m", "docs/**/*.md ARCHITECTURE.md CONTRIBUTING.md README.md CHANGELOG.md eval/experiments/*.md", r"\bbells\b", "wakers"),
    ("m", "docs/**/*.md ARCHITECTURE.md CONTRIBUTING.md README.md CHANGELOG.md eval/experiments/*.md", r"\bbell\b", "waker"),
    ("m", "docs/**/*.md *.md", r"\bThe turn\b", "The iteration"),
    ("m", "docs/**/*.md *.md", r"\bdawdlers?\b", "slow senders"),
    ("m", "docs/**/*.md *.md", r"\bdawdles\b", "sends too slowly"),
]
