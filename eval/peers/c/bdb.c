/* Berkeley DB 5.3: a B-tree with its own cache of the whole budget, without transactions and logs, as in
 * [FAWN09 §4.1.2]. A durable put syncs the whole database. Debian builds it without direct
 * I/O, so the system caches its pages once more. */
#include "store.h"
#include <db.h>
#include <stdlib.h>
#include <string.h>

struct store { DB_ENV *env; DB *db; int sync; };
struct session { struct store *store; };

static void check(const char *what, int code) {
    if (code != 0) die(what, db_strerror(code));
}

struct store *store_open(const char *dir, const struct setup *setup) {
    struct store *store = calloc(1, sizeof *store);
    if (!store) die("bdb", "out of memory");
    store->sync = setup->sync;
    check("db_env_create", db_env_create(&store->env, 0));
    uint64_t memory = setup->memory_bytes < (1 << 20) ? 1 << 20 : setup->memory_bytes;
    u_int32_t regions = (u_int32_t)(memory >> 31) + 1;      /* of less than 4 GiB */
    check("set_cachesize", store->env->set_cachesize(store->env, (u_int32_t)(memory >> 30), (u_int32_t)(memory & ((1 << 30) - 1)), (int)regions));
    u_int32_t flags = DB_CREATE | DB_PRIVATE | DB_THREAD | DB_INIT_MPOOL | DB_INIT_CDB;
    check("env open", store->env->open(store->env, dir, flags, 0666));
    check("db_create", db_create(&store->db, store->env, 0));
    check("set_pagesize", store->db->set_pagesize(store->db, 4096));
    check("db open", store->db->open(store->db, NULL, "data.db", NULL, DB_BTREE, DB_CREATE | DB_THREAD, 0666));
    return store;
}

void store_flush(struct store *store) { check("sync", store->db->sync(store->db, 0)); }

void store_close(struct store *store) {
    check("close", store->db->close(store->db, 0));
    check("env close", store->env->close(store->env, 0));
    free(store);
}

struct session *session_open(struct store *store) {
    struct session *session = calloc(1, sizeof *session);
    if (!session) die("bdb", "out of memory");
    session->store = store;
    return session;
}

void session_close(struct session *session) { free(session); }

void session_begin(struct session *session) { (void)session; }

void session_end(struct session *session) { (void)session; }

static DBT dbt_of(const char *bytes, size_t len) {
    DBT dbt;
    memset(&dbt, 0, sizeof dbt);
    dbt.data = (void *)bytes;
    dbt.size = dbt.ulen = (u_int32_t)len;
    dbt.flags = DB_DBT_USERMEM;
    return dbt;
}

static void after_write(struct session *session, const char *what, int code) {
    if (code != DB_NOTFOUND) check(what, code);
    if (session->store->sync) store_flush(session->store);
}

void session_put(struct session *session, const char *key, const char *value, size_t value_bytes) {
    DBT name = dbt_of(key, KEY_BYTES), stored = dbt_of(value, value_bytes);
    after_write(session, "put", session->store->db->put(session->store->db, NULL, &name, &stored, 0));
}

void session_delete(struct session *session, const char *key) {
    DBT name = dbt_of(key, KEY_BYTES);
    after_write(session, "del", session->store->db->del(session->store->db, NULL, &name, 0));
}

long session_get(struct session *session, const char *key, char *out, size_t capacity) {
    DBT name = dbt_of(key, KEY_BYTES), value = dbt_of(out, capacity);
    int code = session->store->db->get(session->store->db, NULL, &name, &value, 0);
    if (code == DB_NOTFOUND) return -1;
    check("get", code);
    return (long)value.size;
}
