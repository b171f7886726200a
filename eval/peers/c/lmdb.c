/* LMDB: a copy-on-write B+tree in one memory map. Its cache is the system's page cache, whatever the budget. */
#include "store.h"
#include <lmdb.h>
#include <stdlib.h>
#include <string.h>

struct store { MDB_env *env; MDB_dbi dbi; };
struct session { struct store *store; MDB_txn *read, *write; };

static void check(const char *what, int code) {
    if (code != 0) die(what, mdb_strerror(code));
}

struct store *store_open(const char *dir, const struct setup *setup) {
    struct store *store = calloc(1, sizeof *store);
    if (!store) die("lmdb", "out of memory");
    check("mdb_env_create", mdb_env_create(&store->env));
    /* Copies of pages, and pages that are half full. */
    check("mdb_env_set_mapsize", mdb_env_set_mapsize(store->env, (setup->data_bytes * 4 + (64 << 20)) / 4096 * 4096));
    check("mdb_env_set_maxreaders", mdb_env_set_maxreaders(store->env, 1024));
    /* Its documentation advises against read-ahead for random reads of more data than memory. */
    unsigned flags = MDB_NORDAHEAD | MDB_NOTLS | (setup->sync ? 0 : MDB_NOSYNC);
    check("mdb_env_open", mdb_env_open(store->env, dir, flags, 0666));
    MDB_txn *txn;
    check("mdb_txn_begin", mdb_txn_begin(store->env, NULL, 0, &txn));
    check("mdb_dbi_open", mdb_dbi_open(txn, NULL, 0, &store->dbi));
    check("mdb_txn_commit", mdb_txn_commit(txn));
    return store;
}

void store_flush(struct store *store) { check("mdb_env_sync", mdb_env_sync(store->env, 1)); }

void store_close(struct store *store) {
    mdb_env_close(store->env);
    free(store);
}

struct session *session_open(struct store *store) {
    struct session *session = calloc(1, sizeof *session);
    if (!session) die("lmdb", "out of memory");
    session->store = store;
    check("mdb_txn_begin", mdb_txn_begin(store->env, NULL, MDB_RDONLY, &session->read));
    mdb_txn_reset(session->read);
    return session;
}

void session_close(struct session *session) {
    mdb_txn_abort(session->read);
    free(session);
}

void session_begin(struct session *session) {
    check("mdb_txn_begin", mdb_txn_begin(session->store->env, NULL, 0, &session->write));
}

void session_end(struct session *session) {
    check("mdb_txn_commit", mdb_txn_commit(session->write));
    session->write = NULL;
}

static void write_one(struct session *session, const char *key, MDB_val *value) {
    int is_alone = session->write == NULL;
    if (is_alone) session_begin(session);
    MDB_val name = {KEY_BYTES, (void *)key};
    int code = value ? mdb_put(session->write, session->store->dbi, &name, value, 0)
                     : mdb_del(session->write, session->store->dbi, &name, NULL);
    if (code != MDB_NOTFOUND) check("write", code);
    if (is_alone) session_end(session);
}

void session_put(struct session *session, const char *key, const char *value, size_t value_bytes) {
    MDB_val stored = {value_bytes, (void *)value};
    write_one(session, key, &stored);
}

void session_delete(struct session *session, const char *key) { write_one(session, key, NULL); }

long session_get(struct session *session, const char *key, char *out, size_t capacity) {
    MDB_val name = {KEY_BYTES, (void *)key}, value;
    check("mdb_txn_renew", mdb_txn_renew(session->read));
    int code = mdb_get(session->read, session->store->dbi, &name, &value);
    long len = -1;
    if (code == 0) {
        len = (long)value.mv_size;
        memcpy(out, value.mv_data, value.mv_size < capacity ? value.mv_size : capacity);
    } else if (code != MDB_NOTFOUND) check("mdb_get", code);
    mdb_txn_reset(session->read);
    return len;
}
