/* The interface of a peer store, as `driver.c` uses it. Failures end the program with a message on standard error. */
#ifndef STORE_H
#define STORE_H
#include <stddef.h>
#include <stdint.h>

enum { KEY_BYTES = 16 };

struct setup {
    uint64_t memory_bytes;      /* budget of the store's own cache */
    uint64_t data_bytes;        /* keys and values together */
    int sync;                   /* each put returns after a sync */
    int row_cache_percent;      /* share of the budget for a cache of rows, where there is one */
};

struct store;
struct session;                 /* one thread's access to a store */

struct store *store_open(const char *dir, const struct setup *setup);
/* Everything put so far is in the store's files. */
void store_flush(struct store *store);
void store_close(struct store *store);

struct session *session_open(struct store *store);
void session_close(struct session *session);
/* Puts between begin and end may be committed together. */
void session_begin(struct session *session);
void session_end(struct session *session);
void session_put(struct session *session, const char *key, const char *value, size_t value_bytes);
void session_delete(struct session *session, const char *key);
/* Copies the value into `out` of `capacity` bytes; returns its length, or -1 if there is none. */
long session_get(struct session *session, const char *key, char *out, size_t capacity);

_Noreturn void die(const char *what, const char *detail);

#endif
