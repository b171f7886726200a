MESSAGE = """types: rename to standard words

A type name is used once in the workspace. `StoredEntry` and the trait
`KeyValueStore` keep their names where they are unique.
"""
SEM = """
@ crates/fawn-types/src/operation.rs
trait Operation -> DataOperation
@ crates/fawn-types/src/store.rs
trait Store -> KvStore
@ crates/fawn-types/src/sip.rs
struct? State -> SipState
@ crates/fawn-dli/src/append.rs
enum Place -> AppendEnd
@ crates/fawn-dli/src/set.rs
struct Set -> SetOperation
"""
MESSAGE = """types: use each type name once

The traits `Operation` and `Store` become `DataOperation` and `KvStore`, so
that neither shares its name with a request, a device operation or the
embedded store.
"""
TEXT = []
