/* RocksDB through its C interface: the settings of the side that runs `db_bench`, and a row cache if asked for. Its budget
 * is the block cache and the row cache; indexes, filters and memtables are additional. */
#include "store.h"
#include <rocksdb/c.h>
#include <stdlib.h>
#include <string.h>

struct store { rocksdb_t *db; rocksdb_readoptions_t *read; rocksdb_writeoptions_t *write; };
struct session { struct store *store; };

static void check(const char *what, char *error) {
    if (error) die(what, error);
}

struct store *store_open(const char *dir, const struct setup *setup) {
    struct store *store = calloc(1, sizeof *store);
    if (!store) die("rocksdb", "out of memory");
    rocksdb_options_t *options = rocksdb_options_create();
    rocksdb_block_based_table_options_t *table = rocksdb_block_based_options_create();
    uint64_t row_bytes = setup->memory_bytes * (uint64_t)setup->row_cache_percent / 100;
    rocksdb_block_based_options_set_block_cache(table, rocksdb_cache_create_lru(setup->memory_bytes - row_bytes));
    rocksdb_block_based_options_set_filter_policy(table, rocksdb_filterpolicy_create_bloom_full(10));
    rocksdb_options_set_block_based_table_factory(options, table);
    if (row_bytes > 0) rocksdb_options_set_row_cache(options, rocksdb_cache_create_lru(row_bytes));
    rocksdb_options_set_create_if_missing(options, 1);
    rocksdb_options_set_compression(options, rocksdb_no_compression);
    rocksdb_options_set_use_direct_reads(options, 1);
    rocksdb_options_set_use_direct_io_for_flush_and_compaction(options, 1);
    rocksdb_options_set_level_compaction_dynamic_level_bytes(options, 1);
    rocksdb_options_set_max_background_jobs(options, 2);
    rocksdb_options_set_bytes_per_sync(options, 1 << 20);
    rocksdb_options_set_max_open_files(options, -1);
    char *error = NULL;
    store->db = rocksdb_open(options, dir, &error);
    check("rocksdb_open", error);
    store->read = rocksdb_readoptions_create();
    store->write = rocksdb_writeoptions_create();
    if (setup->sync) rocksdb_writeoptions_set_sync(store->write, 1);
    else rocksdb_writeoptions_disable_WAL(store->write, 1);
    return store;
}

void store_flush(struct store *store) {
    rocksdb_flushoptions_t *options = rocksdb_flushoptions_create();
    char *error = NULL;
    rocksdb_flush(store->db, options, &error);
    check("rocksdb_flush", error);
    rocksdb_flushoptions_destroy(options);
}

void store_close(struct store *store) {
    rocksdb_close(store->db);
    free(store);
}

struct session *session_open(struct store *store) {
    struct session *session = calloc(1, sizeof *session);
    if (!session) die("rocksdb", "out of memory");
    session->store = store;
    return session;
}

void session_close(struct session *session) { free(session); }

void session_begin(struct session *session) { (void)session; }

void session_end(struct session *session) { (void)session; }

void session_put(struct session *session, const char *key, const char *value, size_t value_bytes) {
    char *error = NULL;
    rocksdb_put(session->store->db, session->store->write, key, KEY_BYTES, value, value_bytes, &error);
    check("rocksdb_put", error);
}

void session_delete(struct session *session, const char *key) {
    char *error = NULL;
    rocksdb_delete(session->store->db, session->store->write, key, KEY_BYTES, &error);
    check("rocksdb_delete", error);
}

long session_get(struct session *session, const char *key, char *out, size_t capacity) {
    char *error = NULL;
    rocksdb_pinnableslice_t *slice = rocksdb_get_pinned(session->store->db, session->store->read, key, KEY_BYTES, &error);
    check("rocksdb_get", error);
    if (!slice) return -1;
    size_t len;
    const char *value = rocksdb_pinnableslice_value(slice, &len);
    memcpy(out, value, len < capacity ? len : capacity);
    rocksdb_pinnableslice_destroy(slice);
    return (long)len;
}
