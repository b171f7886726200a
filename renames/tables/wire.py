MESSAGE = """wire: rename to standard words

`ReplyFormat`, `CommandArgs`, `ParseError` and `MultiReply` say what they
are; the protocol between shards is called internal, and short cuts past a
decoder are fast paths. Each type name is used once in the workspace.
"""
SEM = """
@ crates/fawn-wire/src/shape.rs
enum Shape -> ReplyFormat
type_any RespShape -> RespFormat
type_any? MemcachedShape -> MemcachedFormat
@ crates/fawn-wire/src/command.rs
enum Connection -> ConnectionCommand
enum Server -> ServerCommand
enum Keyspace -> KeyspaceCommand
struct Multi -> MultiCommand
field Multi.gather -> multi_reply
enum Each -> EachKey
fn plain_set -> unconditional_set
@ crates/fawn-wire/src/codec.rs
struct Limits -> CodecLimits
fn Codec.decode_plain -> decode_fast
variant Protocol.Native -> Internal
variant Codec.Native -> Internal
@ crates/fawn-wire/src/args.rs
@ crates/fawn-wire/src/inline.rs
struct Line -> InlineCommand
enum Stop -> InlineStop
@ crates/fawn-wire/src/gather.rs
struct Gather -> MultiReplyEncoder
enum Fold -> ReplyFold
@ crates/fawn-wire/src/native/bytes.rs
enum FormError -> MessageDecodeError
struct Reader -> MessageReader
@ crates/fawn-wire/src/native/mod.rs
struct NativeState -> InternalState
fn put_wide_frame -> put_keyspace_frame
fn hash_of -> carried_hash
@ crates/fawn-wire/src/native/reply.rs
struct OwnedForm -> EncodedReply
fn put_form -> put_kind
@ crates/fawn-wire/src/native/wide.rs
enum WideRequest -> KeyspaceRequest
struct Pairs -> KeyValuePairs
fn put_wide -> put_keyspace
fn read_wide -> read_keyspace
fn is_wide -> is_keyspace
@ crates/fawn-wire/src/client/resp.rs
enum Reply -> RespReply
enum Stop -> ReplyStop
struct Head -> ReplyHead
struct Items -> ReplyItems
@ crates/fawn-wire/src/client/memcached.rs
struct Store -> StoreCommand
enum Reply -> MemcachedReply
@ crates/fawn-wire/src/client/mod.rs
enum Parsed -> ParsedReply
@ crates/fawn-wire/src/resp/decode.rs
type Parsed -> ParseResult
fn RespState.decode_plain -> decode_fast
@ crates/fawn-wire/src/resp/frame.rs
struct Frame -> RespFrame
enum Stop -> FrameStop
struct Resume -> ScanResume
@ crates/fawn-wire/src/resp/refusal.rs
enum Refusal -> ParseError
@ crates/fawn-wire/src/resp/invocation.rs
struct Invocation -> CommandArgs
fn Invocation.rest -> from
@ crates/fawn-wire/src/memcached/line.rs
struct Line -> MemcachedLine
@ crates/fawn-wire/src/memcached/commands.rs
struct Header -> StorageHeader
@ crates/fawn-wire/src/commands/lookup.rs
struct Index -> CommandIndex
@ crates/fawn-wire/src/commands/mod.rs
struct Flags -> CommandFlags
enum Group -> CommandGroup
@ crates/fawn-wire/src/lib.rs
mod shape -> reply_format
mod native -> internal
mod gather -> multi_reply
@ crates/fawn-wire/src/native/mod.rs
mod wide -> keyspace_op
@ crates/fawn-wire/src/commands/mod.rs
mod answer -> introspection
@ crates/fawn-wire/src/resp/mod.rs
mod shortcut -> fast_path
mod refusal -> parse_error
mod invocation -> command_args
"""
W = "crates/fawn-wire/**/*.rs"
ALL = "crates/**/*.rs fuzz/**/*.rs xtask/**/*.rs"
INTERNAL = "crates/fawn-wire/src/internal/*.rs"
DOCS = "**/*.md !eval/results/**"
TEXT = [
    # Locals and parameters.
    ("c", W, r"\binvocation\b", "args"),
    ("c", "crates/fawn-wire/**/*.rs crates/fawn-node/src/**/*.rs crates/fawn-node/tests/**/*.rs fuzz/**/*.rs", r"\bshape\b", "format"),
    ("c", "crates/fawn-wire/**/*.rs crates/fawn-node/src/**/*.rs crates/fawn-node/tests/**/*.rs", r"\bany_shape\b", "any_format"),
    ("c", "crates/fawn-wire/**/*.rs crates/fawn-node/src/**/*.rs", r"\bformat: format\b", "format"),
    ("ds", "crates/fawn-wire/**/*.rs crates/fawn-node/**/*.rs fuzz/**/*.rs", r"\bshape\b", "format"),
    ("ds", "crates/fawn-wire/**/*.rs crates/fawn-node/**/*.rs fuzz/**/*.rs", r"\bshapes\b", "formats"),
    ("c", "crates/fawn-wire/src/resp/*.rs crates/fawn-wire/src/commands/*.rs", r"\brefusal\b", "error"),
    ("d", "crates/fawn-wire/**/*.rs crates/fawn-node/**/*.rs", r"\bworded\b", "encoded"),
    ("d", "crates/fawn-wire/**/*.rs", r"\bshort ?cuts?\b", "fast path"),
    ("d", "crates/fawn-wire/**/*.rs", r"\bThe short ?cut\b", "The fast path"),
    # The protocol between shards.
    ("ds", ALL, r"\bnative (protocol|form|forms|frame|frames|request|requests|reply|replies|message|messages|codec)\b", r"internal \1"),
    ("ds", ALL, r"\bnative\b", "internal"),
    ("c", ALL, r"\bnative::", "internal::"),
    ("c", "crates/fawn-wire/src/fuzz.rs fuzz/**/*.rs crates/fawn-wire/tests/**/*.rs", r"\bnative\b", "internal"),
    ("m", "docs/**/*.md ARCHITECTURE.md CONTRIBUTING.md README.md CHANGELOG.md", r"\bnative\b", "internal"),
    ("c", "crates/fawn-wire/**/*.rs crates/fawn-node/**/*.rs crates/fawn-wire/src/fuzz.rs fuzz/**/*.rs", r"\bWideRequest\b", "KeyspaceRequest"),
    ("m", "docs/**/*.md ARCHITECTURE.md", r"\bWideRequest\b", "KeyspaceRequest"),
    ("c", INTERNAL + " crates/fawn-wire/src/fuzz.rs", r"\bwide\b", "keyspace"),
    ("c", INTERNAL, r"\bevery_wide_request_survives", "every_keyspace_request_survives"),
    ("d", INTERNAL, r"\b([Ww])ide request", lambda m: ("K" if m[1] == "W" else "k") + "eyspace request"),
    ("c", "crates/fawn-wire/src/commands/table.rs", r"\bGroup\b", "CommandGroup"),
]
