//! Counters of a shard's event loop, and tables of counters as JSON for the admin port.
use fawn_node::{Counted, StoreStatus, counters};
use serde_json::{Map, Value, json};

counters! {
    /// Counts of the event loop since the start, never reset; current values where no name ends with `_total`.
    #[derive(Clone, Copy, Debug, Default)]
    pub(crate) struct LoopCounters {
        connections: u64, "Client connections open.", prometheus "fawn_connections";
        accepted: u64, "Client connections accepted.", prometheus "fawn_connections_accepted_total";
        dropped: u64, "Client connections closed by the server: slow senders, slow readers, holders of the most input.", prometheus "fawn_connections_dropped_total";
        iterations: u64, "Iterations of the event loop.", prometheus "fawn_loop_iterations_total";
        reads: u64, "Reads from client sockets.", prometheus "fawn_socket_reads_total";
        writes: u64, "Writes to client sockets.", prometheus "fawn_socket_writes_total";
        input_bytes: u64, "Bytes received from clients.", prometheus "fawn_received_bytes_total";
        output_bytes: u64, "Bytes sent to clients.", prometheus "fawn_sent_bytes_total";
        batches_received: u64, "Message batches from the process's other shards.",
            prometheus "fawn_shard_messages_received_total";
        batches_sent: u64, "Message batches to the process's other shards.",
            prometheus "fawn_shard_messages_sent_total";
        input_held_bytes: u64, "Bytes of incomplete requests.", prometheus "fawn_input_held_bytes";
        input_waiting: u64, "Connections whose long request waits for admission.", prometheus "fawn_input_waiting";
        output_held_bytes: u64, "Bytes of replies that clients have not taken.", prometheus "fawn_output_held_bytes";
    }
}

/// The table as a JSON object, by the names of its fields.
pub(super) fn object(table: &impl Counted) -> Map<String, Value> {
    let mut object = Map::new();
    table.visit(&mut |names, value| {
        object.insert(names.field.to_owned(), value.into());
    });
    object
}

pub(super) fn store_json(store: &StoreStatus) -> Value {
    let device = store.devices().map(|(class, counters)| {
        let mut device = object(&counters);
        device.insert("class".to_owned(), class.name().into());
        device
    });
    let mut report = object(store);
    report.insert("device".to_owned(), device.collect());
    report.insert("device_name".to_owned(), store.device_name.into());
    // The table has a number.
    report.insert("poisoned".to_owned(), json!(store.poisoned));
    report.into()
}
