MESSAGE = """node: rename to standard words

Sessions are stalled by budgets and limits, requests elsewhere are
forwarded and outstanding, shards exchange message batches, and an act of
the loop is an iteration. Each type name is used once in the workspace,
but for those that the one executor removes.
"""
SEM = """
@ crates/fawn-node/src/output.rs
enum Output -> ShardOutput
@ crates/fawn-node/src/options.rs
struct ProcessFacts -> ServerInfo
@ crates/fawn-node/src/status.rs
struct Counters -> ShardCounters
field Counters.away -> forwarded
field Counters.served -> executed_for_peers
field Counters.asked_again -> rereads
field Counters.turns -> iterations
field RepliesStatus.expected_bytes -> reserved_bytes
field ClusterStatus.stands_since -> unavailable_since
field ShardStatus.standing -> proxy_sessions
@ crates/fawn-node/src/session/mod.rs
enum Phase -> SessionPhase
field Session.listed -> scheduled
field Session.charged -> usage
field Session.charged_short_bytes -> usage_short_bytes
field Session.room_bytes -> budget_left_bytes
field Session.waits_for_room -> waits_for_budget
field Session.away -> outstanding
field Session.stands_for -> proxy_for
field Session.own -> own_writes
field Session.reading -> own_reads
field Session.announced -> output_announced
fn may_go_on -> may_resume
fn has_room -> has_capacity
fn has_reply_room -> has_reply_capacity
@ crates/fawn-node/src/session/room.rs
struct Charge -> Usage
field Charge.held_bytes -> ready_bytes
field Charge.behind_bytes -> blocked_bytes
field Charge.expected_bytes -> reserved_bytes
field Charge.part_bytes -> partial_bytes
struct Room -> ReplyBudget
field Room.charged -> usage
field Room.held_bytes_peak -> ready_bytes_peak
fn look -> share_with
fn has_for -> has_capacity_for
fn takes -> admits
fn takes_part -> admits_partial
fn note -> update
fn charge -> set_usage
@ crates/fawn-node/src/session/table.rs
field Sessions.listed -> scheduled
field Sessions.room -> budget
field Sessions.standing_room -> proxy_budget
fn room_of -> budget_of
fn note -> update_budget
fn call_waiting -> resume_waiting
fn wants_turn -> has_due_work
fn list -> schedule
fn take_listed -> take_scheduled
fn return_listed -> return_scheduled
const STANDING_PART -> PROXY_SHARE
@ crates/fawn-node/src/session/ahead.rs
struct Looked -> Prefetched
struct Ahead -> Lookahead
field Ahead.looked -> prefetched
fn look -> fill
fn look_at_firsts -> peek_firsts
fn look_at_one -> peek_one
@ crates/fawn-node/src/session/consume.rs
fn warm -> prefetch
fn execute_looked -> execute_prefetched
fn begin_looked -> begin_prefetched
fn within_room -> within_budget
fn consume_rarer -> consume_other
fn handle_looked -> handle_prefetched
fn wait_for_room -> wait_for_budget
fn tell -> notify_host
const LOOKS_AHEAD -> LOOKS_AHEAD
@ crates/fawn-node/src/session/replies.rs
enum Wait -> ReplyWait
variant Wait.Turn -> Order
enum Reply -> ReplyState
variant Reply.Held -> Ready
variant Reply.Expected -> Reserved
struct Slot -> ReplySlot
fn charge -> usage
fn expect -> reserve_bytes
fn expected_bytes -> reserved_bytes
fn hold_part -> set_partial
field Replies.expected_bytes -> reserved_bytes
field Replies.part_bytes -> partial_bytes
@ crates/fawn-node/src/session/out.rs
struct BufferPool -> OutputBufferPool
@ crates/fawn-node/src/execute/core.rs
struct Core -> ShardState
struct Scratch -> EvaluationScratch
fn has_room -> has_capacity
field Core.facts -> server_info
@ crates/fawn-node/src/execute/resume.rs
struct Host -> ShardContext
field Host.core -> state
enum Progress -> OpProgress
fn go_on_reading -> resume_op
fn read_anew -> read_again
fn retry_late -> retry_deferred
@ crates/fawn-node/src/execute/read.rs
enum Went -> ReadOutcome
fn go_on -> resume_read
@ crates/fawn-node/src/execute/evaluate.rs
struct Kept -> KeptEntry
struct Answer -> EvaluatedReply
enum Form -> EvaluatedForm
struct Decision -> UpdateDecision
@ crates/fawn-node/src/execute/update.rs
enum Decided -> DecidedUpdate
@ crates/fawn-node/src/execute/fit.rs
enum Fit -> Admit
variant Fit.Yes -> Accept
variant Fit.Later -> Retry
variant Fit.Never -> Reject
fn fits -> admit_reply
@ crates/fawn-node/src/execute/scan.rs
struct Step -> ScanRequest
@ crates/fawn-node/src/execute/mod.rs
variant Flow.Next -> Continue
variant Stall.Room -> SessionLimit
variant Stall.Replies -> ReplyBudget
enum Later -> Blocked
@ crates/fawn-node/src/pending/mod.rs
struct Pending -> WaitQueue
field Pending.late -> deferred
@ crates/fawn-node/src/pending/keys.rs
struct KeyQueues -> OpQueues
@ crates/fawn-node/src/pending/op.rs
enum Target -> ReplyPlace
struct Asker -> ReplyTarget
enum Action -> OpAction
fn asker -> reply_target
struct Op -> PendingOp
@ crates/fawn-node/src/pending/reads.rs
fn to_user -> to_token
fn from_user -> from_token
enum Waiter -> ReadWaiter
@ crates/fawn-node/src/pending/batch.rs
struct Gathered -> MultiReply
enum OwnedReply -> StoredReply
struct Batch -> PendingMulti
struct Item -> MultiItem
@ crates/fawn-node/src/front/front_end.rs
struct FrontEnd -> ClientGateway
field FrontEnd.desk -> router
fn begin_turn -> begin_iteration
fn finish_turn -> finish_iteration
fn wants_turn -> has_due_work
fn turn -> run_once
fn set_behind -> set_backend_stats
@ crates/fawn-node/src/front/desk.rs
struct Desk -> RequestRouter
enum Purpose -> OpOwner
variant Purpose.Line -> Key
variant Purpose.Wide -> Keyspace
field Desk.lines -> queues
field Desk.late -> deferred
field Desk.wides -> keyspace_ops
field Desk.barred -> fenced
field Desk.facts -> server_info
field Desk.behind -> backend_stats
fn has_room -> has_capacity
fn send_late -> send_deferred
@ crates/fawn-node/src/front/lines.rs
type LineName -> SessionKey
struct Line -> KeyQueue
struct Lines -> KeyQueues
field Lines.lines -> queues
@ crates/fawn-node/src/pending/keys.rs
type KeyQueue -> OpQueue
@ crates/fawn-node/src/front/host.rs
trait ClientHost -> ClientService
fn ClientHost.turn -> run_once
fn ClientHost.wants_turn -> has_due_work
fn ClientHost.handle_letter -> handle_batch
fn ClientHost.take_letter -> take_batch
fn ClientHost.set_others -> set_peer_stats
@ crates/fawn-node/src/front/map_keeping.rs
struct MapKeeping -> MapPersistence
@ crates/fawn-node/src/front/local.rs
struct Member -> LocalMember
field LocalCluster.map_keeping -> map_persistence
field LocalCluster.stands_since -> unavailable_since
@ crates/fawn-node/src/front/wide.rs
fn begin_wide -> begin_keyspace_op
fn wide_done -> keyspace_op_done
fn finish_wide -> finish_keyspace_op
@ crates/fawn-node/src/shard.rs
field Shard.core -> state
fn turn -> run_once
fn turn_blocking -> run_once_blocking
fn wants_turn -> has_due_work
@ crates/fawn-node/src/replica.rs
struct Replica -> SoloReplica
@ crates/fawn-node/src/shards/letter.rs
enum Kind -> MessageKind
variant Kind.Asked -> Requests
variant Kind.Answered -> Replies
variant Kind.Closed -> SessionClosed
variant Kind.Reset -> ResetStats
struct Piece -> Message
struct Letter -> MessageBatch
field Letter.pieces -> messages
fn pieces -> messages
fn room_bytes -> capacity_bytes
@ crates/fawn-node/src/shards/links.rs
struct Links -> PeerMailboxes
field Links.speaking -> ready_replies
field Links.rests -> unprocessed_input
field Links.late -> deferred
field Links.wides -> keyspace_ops
field Links.house -> internal_requests
field Links.others -> peer_stats
fn has_room -> has_capacity
fn tell_all -> send_to_all
fn tell -> send_message
fn take_letter -> take_batch
fn standing -> proxy_sessions
fn has_unsaid -> has_unsent
@ crates/fawn-node/src/shards/peers.rs
type Pieces -> SessionInputs
fn handle_letter -> handle_batch
fn take_letter -> take_batch
fn set_others -> set_peer_stats
fn standing_for -> proxy_for
fn close_standing -> close_proxy
@ crates/fawn-node/src/shards/away.rs
struct Asked -> ForwardedOp
struct Late -> DeferredRead
struct Way -> PeerFifo
struct Away -> Outstanding
field Away.ways -> peers
field Away.again -> repeated
field Away.late -> deferred
variant Awaited.Wide -> Keyspace
fn way -> peer
fn put_late -> put_deferred
fn send_wide -> send_keyspace_op
field Asked.is_again -> is_reread
@ crates/fawn-node/src/shards/answers.rs
fn answers -> handle_replies
fn take_answers -> take_replies
fn answered -> handle_reply
fn ask_later -> defer
fn ask_late -> retry_deferred_reads
fn forget_away -> forget_outstanding
@ crates/fawn-node/src/shards/wide.rs
enum Place -> KeysPlace
fn wide_answered -> keyspace_op_replied
@ crates/fawn-node/src/wide/mod.rs
enum Form -> KeyspaceOpKind
struct Wide -> KeyspaceOp
field Wide.form -> kind
@ crates/fawn-node/src/cluster/output.rs
enum Output -> NodeOutput
struct OwnedReply -> ClusterReply
enum Refused -> SubmitError
@ crates/fawn-node/src/cluster/status.rs
struct Counters -> BackEndCounters
@ crates/fawn-node/src/cluster/persist.rs
enum Kept -> PersistedBlob
@ crates/fawn-node/src/cluster/parked.rs
struct Asker -> Origin
struct Parked -> WaitingRequest
enum Purpose -> ReadPurpose
struct ParkedRequests -> ClusterWaitQueue
field Parked.stamp -> generation
field Parked.asker -> origin
field ParkedRequests.stamp -> generation
fn to_user -> to_token
fn from_user -> from_token
@ crates/fawn-node/src/cluster/mail.rs
struct Peer -> PeerStream
struct Mail -> PeerLinks
enum Local -> LocalFrame
@ crates/fawn-node/src/cluster/config.rs
field NodeLimits.beat_ms -> heartbeat_ms
field NodeLimits.frontend -> router
@ crates/fawn-node/src/cluster/frontend.rs
struct FrontEnd -> ClusterClient
@ crates/fawn-node/src/cluster/node.rs
field Node.front_end -> client
field Node.mail -> links
field Node.beat_at -> heartbeat_at
fn turn -> run_once
fn finish_turn -> finish_iteration
fn beat -> send_heartbeat
fn submit_wide -> submit_keyspace_op
@ crates/fawn-node/src/cluster/head.rs
struct Job -> UpdateJob
enum Decided -> HeadDecision
@ crates/fawn-node/src/cluster/forward.rs
enum Taken -> TakenRecords
@ crates/fawn-node/src/cluster/backend.rs
struct Member -> HostedMember
field BackEnd.told -> announced_to
fn Member.hears -> is_receiving
@ crates/fawn-node/src/cluster/wide.rs
fn handle_wide -> handle_keyspace_op
fn write_wide -> write_keyspace_op
fn wide_job -> keyspace_job
@ crates/fawn-node/src/cluster/payload/mod.rs
fn is_wide -> is_keyspace
fn encode_wide -> encode_keyspace
fn decode_wide -> decode_keyspace
@ crates/fawn-node/src/execute/mod.rs
mod wide -> keyspace_op
@ crates/fawn-node/src/shards/mod.rs
mod wide -> keyspace_op
mod letter -> message_batch
mod links -> peer_mailboxes
mod away -> outstanding
mod answers -> replies
@ crates/fawn-node/src/front/mod.rs
mod wide -> keyspace_op
mod desk -> request_router
mod lines -> key_queues
mod front_end -> client_gateway
mod host -> client_service
mod map_keeping -> map_persistence
@ crates/fawn-node/src/cluster/mod.rs
mod wide -> keyspace_op
mod mail -> peer_links
mod frontend -> cluster_client
mod parked -> wait_queue
@ crates/fawn-node/src/session/mod.rs
mod room -> reply_budget
mod ahead -> lookahead
@ crates/fawn-node/src/lib.rs
mod wide -> keyspace_op
""".replace("const LOOKS_AHEAD -> LOOKS_AHEAD\n", "")
N = "crates/fawn-node/**/*.rs"
SRC = "crates/fawn-node/src/**/*.rs"
DOCS = "docs/**/*.md *.md eval/experiments/*.md"
PROSE = "crates/**/*.rs fuzz/**/*.rs xtask/**/*.rs"
TURN = r"\b([Aa]|[Tt]h(?:e|is)|[Pp]er|[Oo]ne|[Ee]ach|[Ee]very|[Nn]ext|[Ll]ast|[Aa]nother|same|first|further|two|between|its own|shard's|node's|loop's|engine's) turn(s?)\b(?! (?:to|into|out|off|away|of them))"


def iteration(match):
    word = match[1]
    if word in ("a", "A"):
        word += "n"
    return f"{word} iteration{match[2]}"


NOT_TURN = " !crates/fawn-bench/** !crates/fawn-chain/** !crates/fawn-wire/**"
TEXT = [
    # Locals and parameters.
    ("c", N, r"\bNodeOutput as NodeOutput\b", "NodeOutput"),
    ("c", N, r"\bcluster::Output\b", "cluster::NodeOutput"),
    ("c", "crates/fawn-node/src/{execute,shards}/**/*.rs crates/fawn-node/src/shard.rs", r"\bcore: &(mut )?ShardState", r"state: &\1ShardState"),
    ("c", "crates/fawn-node/src/{execute,shards}/**/*.rs crates/fawn-node/src/shard.rs", r"(?<!::)(?<!mod )(?<!use )\bcore\b(?!::)", "state"),
    ("c", "crates/fawn-node/src/{execute,shards,pending,front}/**/*.rs", r"\basker\b", "reply_target"),
    ("c", "crates/fawn-node/src/cluster/**/*.rs", r"\basker\b", "origin"),
    ("c", "crates/fawn-node/src/cluster/**/*.rs", r"\bstamp\b", "generation"),
    ("c", "crates/fawn-node/src/cluster/**/*.rs", r"\bmail: &mut PeerLinks\b", "links: &mut PeerLinks"),
    ("c", "crates/fawn-node/src/cluster/**/*.rs", r"\bmail\b", "links"),
    ("c", "crates/fawn-node/src/**/*.rs", r"\blooked\b", "prefetched"),
    ("c", "crates/fawn-node/src/session/*.rs", r"\bahead\b", "lookahead"),
    ("c", "crates/fawn-node/src/session/*.rs", r"\broom\b", "budget"),
    ("c", "crates/fawn-node/src/session/*.rs", r"\bcharge\b", "usage"),
    ("c", "crates/fawn-node/src/**/*.rs", r"\bstanding_bytes_max\b", "proxy_bytes_max"),
    ("c", "crates/fawn-node/src/session/*.rs", r"\blisted\b", "scheduled"),
    ("c", N, r"\bturns\b", "iterations"),
    ("c", N, r"\bWARM_KEYS_MAX\b", "PREFETCH_KEYS_MAX"),
    ("c", "crates/fawn-node/src/{shards,wide,keyspace_op,front,shard}/**/*.rs crates/fawn-node/src/shard.rs", r"\baway\b", "outstanding"),
    ("c", "crates/fawn-node/src/{execute,pending}/**/*.rs", r"\baway::", "outstanding::"),
    ("c", "crates/fawn-node/src/**/*.rs", r"\bstep_away\b", "step_forwarded"),
    ("c", "crates/fawn-node/src/front/*.rs", r"\bdesk\b", "router"),
    ("c", "crates/fawn-node/src/front/*.rs", r"\bwide\b", "keyspace_op"),
    ("c", "crates/fawn-node/src/shards/*.rs", r"\bwide\b(?!::)", "keyspace_op"),
    ("c", "crates/fawn-node/src/{shards,execute,front}/*.rs", r"\bwides\b", "keyspace_ops"),
    ("c", N, r"\bwide::", "keyspace_op::"),
    ("c", "crates/fawn-node/src/**/*.rs crates/fawn-node/tests/**/*.rs crates/fawn-node/examples/*.rs", r"\bletters\b", "batches"),
    ("c", "crates/fawn-node/src/**/*.rs crates/fawn-node/tests/**/*.rs crates/fawn-node/examples/*.rs", r"\bletter\b", "batch"),
    ("c", "crates/fawn-node/tests/**/*.rs crates/fawn-node/examples/*.rs", r"\bhandle_letter\b", "handle_batch"),
    ("c", "crates/fawn-node/tests/**/*.rs crates/fawn-node/examples/*.rs", r"\btake_letter\b", "take_batch"),
    ("c", "crates/fawn-node/src/**/*.rs", r"\bLETTER", "BATCH"),
    ("c", "crates/fawn-node/src/**/*.rs", r"\bfacts\b", "server_info"),
    ("c", "crates/fawn-node/src/{execute,pending,front}/**/*.rs", r"\bgathered\b", "multi_reply"),
    ("c", "crates/fawn-node/src/front/client_gateway.rs", r"\bbehind\b", "backend_stats"),
    ("c", "crates/fawn-node/src/shards/*.rs", r"\bhouse\b", "internal_requests"),
    # Prose that names things.
    ("ds", N, r"\bletters\b", "message batches"),
    ("ds", N, r"\bletter\b", "message batch"),
    ("ds", N, r"\bLetters\b", "Message batches"),
    ("ds", N, r"\bLetter\b", "Message batch"),
    ("d", PROSE + NOT_TURN, TURN, iteration),
    ("s", "crates/{fawn,fawn-node}/**/*.rs", TURN, iteration),
    ("m", DOCS, TURN, iteration),
    ("d", PROSE, r"\btwo (\w+ )?turns\b", r"two \1iterations"),
    ("d", N, r"`Letter`", "`MessageBatch`"),
    ("d", "crates/fawn-{node,chain,sim}/**/*.rs", r"\bheart ?beats?\b|\bbeats\b", "heartbeats"),
    ("d", "crates/fawn-{node,chain,sim}/**/*.rs", r"\b(a|the|its|one|each|every|next|last) beat\b", r"\1 heartbeat"),
    ("c", "crates/fawn-{node,chain,sim}/**/*.rs", r"\bbeat_ms\b", "heartbeat_ms"),
    ("s", "crates/fawn-node/src/execute/server/info.rs", r'^"turns"$', '"iterations"'),
    # Names of the status page and of INFO.
    ("cs", "crates/{fawn,fawn-node,fawn-sim}/**/*.rs", r"\bkeys_about\b", "keys_estimated"),
    ("cs", "crates/{fawn,fawn-node,fawn-sim}/**/*.rs", r"\bfawn_copying_keys_about\b", "fawn_copying_keys_estimated"),
    ("m", "docs/**/*.md tests/**/*.py crates/fawn/src/admin/**", r"\bfawn_copying_keys_about\b", "fawn_copying_keys_estimated"),
    ("m", "docs/**/*.md tests/**/*.py crates/fawn/src/admin/**", r"\bkeys_about\b", "keys_estimated"),
    ("cs", "crates/{fawn,fawn-node,fawn-sim}/**/*.rs", r"\bstands_since\b", "unavailable_since"),
    ("cs", "crates/{fawn,fawn-node}/**/*.rs", r"\bstands_ms\b", "unavailable_ms"),
    ("m", "docs/**/*.md tests/**/*.py crates/fawn/src/admin/**", r"\bstands_ms\b", "unavailable_ms"),
    ("m", "docs/**/*.md tests/**/*.py", r"\basked_again\b", "rereads"),
    # Tests.
    ("c", "crates/fawn-node/tests/**/*.rs", r"\btest_bed\b", "test_harness"),
    ("c", "crates/fawn-node/tests/**/*.rs", r"\bBed\b", "Harness"),
    ("c", "crates/fawn-node/tests/**/*.rs", r"\bbeds\b", "harnesses"),
    ("c", "crates/fawn-node/tests/**/*.rs", r"\bbed\b", "harness"),
    ("c", "crates/fawn-node/tests/**/*.rs crates/fawn-node/examples/*.rs", r"\.turn\(", ".run_once("),
    ("c", "crates/fawn-node/tests/**/*.rs", r"\bfn turn\b", "fn run_once"),
    ("d", "crates/fawn-node/tests/**/*.rs", r"\b(test )?bed\b", "harness"),
    ("d", "crates/fawn-node/tests/**/*.rs", r"`Bed`", "`Harness`"),
]
MOVES = [
    ("crates/fawn-node/tests/it/bed.rs", "crates/fawn-node/tests/it/harness.rs"),
    ("crates/fawn-node/tests/it/test_bed.rs", "crates/fawn-node/tests/it/test_harness.rs"),
    ("crates/fawn-node/tests/it/front/bed.rs", "crates/fawn-node/tests/it/front/harness.rs"),
]
