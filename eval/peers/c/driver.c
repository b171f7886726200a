/* A peer store under the workloads of `fawn bench store`: `peer-NAME DIR` reads commands from standard input, one a line,
 * and prints one JSON object for each. eval/peers/README.md has the protocol. */
#include "store.h"
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

enum { POOL_BYTES = 256 << 10, BATCH = 1000, THREADS_MAX = 256, PARTS_MAX = 256, VALUE_BYTES_MAX = 1 << 20, STRIPES = 4096 };
enum { STEPS = 64, BUCKETS = 64 * STEPS };      /* of the latency histogram: 64 steps for each power of two */

_Noreturn void die(const char *what, const char *detail) {
    fprintf(stderr, "%s: %s\n", what, detail);
    exit(1);
}

static uint64_t mix_bits(uint64_t z) {          /* the output function of SplitMix64 */
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

static uint64_t random_next(uint64_t *state) {
    *state += 0x9E3779B97F4A7C15u;
    return mix_bits(*state);
}

static uint64_t random_below(uint64_t *state, uint64_t bound) {
    return (uint64_t)(((unsigned __int128)random_next(state) * bound) >> 64);
}

static double random_unit(uint64_t *state) { return (double)((random_next(state) >> 11) + 1) / 9007199254740993.0; }

static double seconds_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* ---- the data: computed from its number, so that every read can be checked ---- */

static struct {
    uint64_t keys;
    size_t value_bytes;
    int parts;
    uint32_t *rounds;           /* of each key; UINT32_MAX: deleted */
    char *pool;
    struct store *stores[PARTS_MAX];
} data;

static void key_of(uint64_t n, char *out) {
    uint64_t mixed = mix_bits(n + 0x517CC1B7 + 0x9E3779B97F4A7C15u);
    for (int place = 0; place < KEY_BYTES; place++) out[place] = "0123456789abcdef"[mixed >> (60 - 4 * place) & 15];
}

static void value_of(uint64_t n, uint32_t round, char *out) {
    uint64_t stamp = mix_bits(n ^ ((uint64_t)round << 40) ^ 0xFA3E);
    memcpy(out, data.pool + (stamp >> 32) % POOL_BYTES, data.value_bytes);
    memcpy(out, &stamp, data.value_bytes < 8 ? data.value_bytes : 8);
}

/* ---- a Zipf distribution, as in fawn-bench ---- */

static struct { double exponent; uint64_t keys; double *sums; } zipf;

static void zipf_prepare(double exponent, uint64_t keys) {
    if (exponent == 0 || (zipf.exponent == exponent && zipf.keys == keys)) return;
    free(zipf.sums);
    zipf.sums = malloc(keys * sizeof *zipf.sums);
    if (!zipf.sums) die("zipf", "out of memory");
    double sum = 0;
    for (uint64_t rank = 1; rank <= keys; rank++) zipf.sums[rank - 1] = sum += pow((double)rank, -exponent);
    zipf.exponent = exponent, zipf.keys = keys;
}

static uint64_t scatter(uint64_t at, uint64_t keys) {
    uint64_t mask = 1;
    while (mask < keys) mask *= 2;
    mask -= 1;
    do {
        at = at * 0x9E3779B97F4A7C15u & mask;
        at ^= at >> 9;
        at = at * 0xD6E8FEB86659FD93u & mask;
        at ^= at >> 7;
    } while (at >= keys);
    return at;
}

static uint64_t pick(uint64_t *state, double exponent, uint64_t keys) {
    if (exponent == 0) return random_below(state, keys);
    double drawn = random_unit(state) * zipf.sums[keys - 1];
    uint64_t low = 0, high = keys - 1;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        if (zipf.sums[middle] < drawn) low = middle + 1;
        else high = middle;
    }
    return scatter(low, keys);
}

/* ---- words of a command: name=value ---- */

static double number(const char *line, const char *name, double otherwise) {
    size_t len = strlen(name);
    for (const char *at = line; (at = strstr(at, name)); at += len)
        if (at > line && at[-1] == ' ' && at[len] == '=') return atof(at + len + 1);
    return otherwise;
}

/* ---- fill and verify ---- */

static void put_range(int part, uint64_t first, uint64_t end) {
    static char key[KEY_BYTES], value[VALUE_BYTES_MAX];
    struct session *session = session_open(data.stores[part]);
    session_begin(session);
    for (uint64_t n = first; n < end; n++) {
        if (n % (uint64_t)data.parts != (uint64_t)part) continue;
        key_of(n, key);
        value_of(n, 0, value);
        session_put(session, key, value, data.value_bytes);
    }
    session_end(session);
    session_close(session);
}

static void fill(const char *dir, const char *line) {
    data.keys = (uint64_t)number(line, "keys", 0);
    data.value_bytes = (size_t)number(line, "value_bytes", 0);
    data.parts = (int)number(line, "parts", 1);
    if (data.keys == 0 || data.value_bytes == 0 || data.value_bytes > VALUE_BYTES_MAX) die("fill", "keys or value_bytes");
    if (data.parts < 1 || data.parts > PARTS_MAX) die("fill", "parts");
    data.rounds = calloc(data.keys, sizeof *data.rounds);
    data.pool = malloc(POOL_BYTES + data.value_bytes);
    if (!data.rounds || !data.pool) die("fill", "out of memory");
    uint64_t state = 0xFA3E;
    for (size_t at = 0; at < POOL_BYTES + data.value_bytes; at++) data.pool[at] = (char)random_next(&state);
    struct setup setup = {
        .memory_bytes = (uint64_t)number(line, "memory_bytes", 256 << 20) / (uint64_t)data.parts,
        .data_bytes = data.keys * (KEY_BYTES + data.value_bytes) / (uint64_t)data.parts,
        .sync = (int)number(line, "sync", 0),
        .row_cache_percent = (int)number(line, "row_cache_percent", 0),
    };
    for (int part = 0; part < data.parts; part++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/store-%03d", dir, part);
        if (mkdir(path, 0777) != 0) die(path, strerror(errno));
        data.stores[part] = store_open(path, &setup);
    }
    double began = seconds_now();
    uint64_t loaded = number(line, "load", 1) != 0 ? data.keys : 0;
    if (number(line, "in_sequence", 0) != 0) {
        uint64_t batch = BATCH * (uint64_t)data.parts;
        for (int part = 0; part < data.parts; part++)
            for (uint64_t n = 0; n < loaded; n += batch) put_range(part, n, n + batch < loaded ? n + batch : loaded);
    } else {
        uint64_t batch = BATCH * (uint64_t)data.parts;
        for (uint64_t n = 0; n < loaded; n += batch)
            for (int part = 0; part < data.parts; part++) put_range(part, n, n + batch < loaded ? n + batch : loaded);
    }
    double acknowledged = seconds_now() - began;
    for (int part = 0; part < data.parts; part++) store_flush(data.stores[part]);
    printf("{\"operations\": %llu, \"seconds\": %.6f, \"seconds_acknowledged\": %.6f}\n",
           (unsigned long long)loaded, seconds_now() - began, acknowledged);
}

static void verify(void) {
    static char key[KEY_BYTES], expected[VALUE_BYTES_MAX], found[VALUE_BYTES_MAX];
    struct session *sessions[PARTS_MAX];
    for (int part = 0; part < data.parts; part++) sessions[part] = session_open(data.stores[part]);
    uint64_t wrong = 0, first_wrong = 0;
    double began = seconds_now();
    for (uint64_t n = 0; n < data.keys; n++) {
        key_of(n, key);
        long len = session_get(sessions[n % (uint64_t)data.parts], key, found, sizeof found);
        int is_right = len == -1;
        if (data.rounds[n] != UINT32_MAX) {
            value_of(n, data.rounds[n], expected);
            is_right = len == (long)data.value_bytes && memcmp(found, expected, data.value_bytes) == 0;
        }
        if (!is_right && wrong++ == 0) first_wrong = n;
    }
    for (int part = 0; part < data.parts; part++) session_close(sessions[part]);
    printf("{\"operations\": %llu, \"seconds\": %.6f, \"wrong\": %llu, \"first_wrong\": %llu}\n",
           (unsigned long long)data.keys, seconds_now() - began, (unsigned long long)wrong, (unsigned long long)first_wrong);
}

/* ---- a mix of operations ---- */

struct mix {
    double seconds, zipf, rate;
    uint64_t operations_max, keys, seed;
    int put_percent, delete_percent, threads, absent;
};

struct worker {
    pthread_t thread;
    const struct mix *mix;
    uint64_t seed, counts[3], wrong, unserved;
    uint32_t *histogram;
    double max_s;
};

/* Writes of one key follow each other, so that the last round is the value that the store must have. */
static pthread_mutex_t writing[STRIPES];

static int bucket_of(double seconds) {
    uint64_t nanos = (uint64_t)(seconds * 1e9) + STEPS;
    int power = 63 - __builtin_clzll(nanos);
    return (power - 6) * STEPS + (int)(nanos >> (power - 6) & (STEPS - 1));
}

static double seconds_of(int bucket) {
    int power = bucket / STEPS;
    return ((double)((uint64_t)(STEPS + bucket % STEPS) << power) - STEPS) * 1e-9;
}

static void run_one(struct worker *worker, struct session **sessions, uint64_t *state, char *value) {
    const struct mix *mix = worker->mix;
    char key[KEY_BYTES];
    int kind = (int)random_below(state, 100);
    uint64_t n = pick(state, mix->zipf, mix->keys) + (mix->absent ? data.keys : 0);
    key_of(n, key);
    struct session *session = sessions[n % (uint64_t)data.parts];
    if (kind < mix->put_percent) {
        pthread_mutex_lock(&writing[n % STRIPES]);
        uint32_t round = data.rounds[n] + 1 >= UINT32_MAX - 1 ? 0 : data.rounds[n] + 1;
        __atomic_store_n(&data.rounds[n], round, __ATOMIC_RELAXED);
        value_of(n, round, value);
        session_put(session, key, value, data.value_bytes);
        pthread_mutex_unlock(&writing[n % STRIPES]);
        worker->counts[1]++;
    } else if (kind < mix->put_percent + mix->delete_percent) {
        pthread_mutex_lock(&writing[n % STRIPES]);
        __atomic_store_n(&data.rounds[n], UINT32_MAX, __ATOMIC_RELAXED);
        session_delete(session, key);
        pthread_mutex_unlock(&writing[n % STRIPES]);
        worker->counts[2]++;
    } else {
        /* Before the read: a put meanwhile makes a deleted key present, and such a key may be either. */
        int was_deleted = __atomic_load_n(&data.rounds[n], __ATOMIC_RELAXED) == UINT32_MAX;
        long len = session_get(session, key, value, VALUE_BYTES_MAX);
        int may_lack = mix->absent || mix->delete_percent > 0 || was_deleted;
        if (len == -1 ? !may_lack : mix->absent || len != (long)data.value_bytes) worker->wrong++;
        worker->counts[0]++;
    }
}

static void *work(void *argument) {
    struct worker *worker = argument;
    const struct mix *mix = worker->mix;
    struct session *sessions[PARTS_MAX];
    for (int part = 0; part < data.parts; part++) sessions[part] = session_open(data.stores[part]);
    char *value = malloc(VALUE_BYTES_MAX);
    if (!value) die("mix", "out of memory");
    uint64_t state = worker->seed, limit = mix->operations_max / (uint64_t)mix->threads;
    double began = seconds_now(), next = began, now = began;
    for (uint64_t taken = 0; taken < limit && now < began + (mix->rate > 0 ? 2 : 1) * mix->seconds; taken++) {
        double arrived = now;
        if (mix->rate > 0) {
            next -= log(random_unit(&state)) / mix->rate;
            if (next >= began + mix->seconds) break;
            arrived = next;
            while (now < next) now = seconds_now();
        }
        run_one(worker, sessions, &state, value);
        now = seconds_now();
        double took = now - arrived;
        worker->histogram[bucket_of(took)]++;
        if (took > worker->max_s) worker->max_s = took;
    }
    if (mix->rate > 0 && next < began + mix->seconds && now >= began + 2 * mix->seconds)
        worker->unserved = (uint64_t)((began + mix->seconds - next) * mix->rate);
    free(value);
    for (int part = 0; part < data.parts; part++) session_close(sessions[part]);
    return NULL;
}

static double quantile_us(const uint64_t *histogram, uint64_t all, double quantile) {
    uint64_t rank = (uint64_t)((double)all * quantile), seen = 0;
    for (int bucket = 0; bucket < BUCKETS; bucket++)
        if ((seen += histogram[bucket]) > rank) return seconds_of(bucket) * 1e6;
    return seconds_of(BUCKETS - 1) * 1e6;
}

static void mix(const char *line) {
    struct mix mix = {
        .seconds = number(line, "seconds", 1), .zipf = number(line, "zipf", 0), .rate = number(line, "rate", 0),
        .keys = (uint64_t)number(line, "mix_keys", (double)data.keys), .seed = (uint64_t)number(line, "seed", 1),
        .put_percent = (int)number(line, "put_percent", 0), .delete_percent = (int)number(line, "delete_percent", 0),
        .threads = (int)number(line, "threads", 1), .absent = (int)number(line, "absent", 0),
    };
    double operations_max = number(line, "operations_max", 1e18);
    mix.operations_max = (uint64_t)(operations_max < 1e18 ? operations_max : 1e18);     /* more would not fit */
    if (mix.threads < 1 || mix.threads > THREADS_MAX) die("mix", "threads");
    if (mix.keys == 0 || mix.keys > data.keys) die("mix", "mix_keys");
    zipf_prepare(mix.zipf, mix.keys);
    struct worker *workers = calloc((size_t)mix.threads, sizeof *workers);
    uint64_t *histogram = calloc(BUCKETS, sizeof *histogram);
    if (!workers || !histogram) die("mix", "out of memory");
    double began = seconds_now();
    for (int at = 0; at < mix.threads; at++) {
        workers[at].mix = &mix;
        workers[at].seed = mix_bits(mix.seed + (uint64_t)at * 0x9E3779B97F4A7C15u);
        workers[at].histogram = calloc(BUCKETS, sizeof *workers[at].histogram);
        if (!workers[at].histogram) die("mix", "out of memory");
        if (pthread_create(&workers[at].thread, NULL, work, &workers[at]) != 0) die("mix", "no thread");
    }
    uint64_t counts[3] = {0}, wrong = 0, unserved = 0;
    double max_s = 0;
    for (int at = 0; at < mix.threads; at++) {
        pthread_join(workers[at].thread, NULL);
        for (int kind = 0; kind < 3; kind++) counts[kind] += workers[at].counts[kind];
        for (int bucket = 0; bucket < BUCKETS; bucket++) histogram[bucket] += workers[at].histogram[bucket];
        wrong += workers[at].wrong, unserved += workers[at].unserved;
        if (workers[at].max_s > max_s) max_s = workers[at].max_s;
        free(workers[at].histogram);
    }
    uint64_t all = counts[0] + counts[1] + counts[2];
    printf("{\"operations\": %llu, \"seconds\": %.6f, \"gets\": %llu, \"puts\": %llu, \"deletes\": %llu, \"wrong\": %llu, "
           "\"unserved\": %llu, \"p50_us\": %.3f, \"p99_us\": %.3f, \"p999_us\": %.3f, \"max_us\": %.3f}\n",
           (unsigned long long)all, seconds_now() - began, (unsigned long long)counts[0], (unsigned long long)counts[1],
           (unsigned long long)counts[2], (unsigned long long)wrong, (unsigned long long)unserved,
           quantile_us(histogram, all, 0.5), quantile_us(histogram, all, 0.99), quantile_us(histogram, all, 0.999), max_s * 1e6);
    free(histogram);
    free(workers);
}

int main(int count, char **words) {
    if (count != 2) die("usage", "peer-NAME DIR, with commands on standard input");
    for (int at = 0; at < STRIPES; at++) pthread_mutex_init(&writing[at], NULL);
    char line[4096];
    while (fgets(line, sizeof line, stdin)) {
        int is_fill = strncmp(line, "fill ", 5) == 0;
        if (is_fill != (data.rounds == NULL)) die(line, "expected one fill, as the first command");
        if (is_fill) fill(words[1], line);
        else if (strncmp(line, "verify", 6) == 0) verify();
        else if (strncmp(line, "mix ", 4) == 0) mix(line);
        else if (strncmp(line, "flush", 5) == 0) {
            for (int part = 0; part < data.parts; part++) store_flush(data.stores[part]);
            printf("{}\n");
        } else die(line, "expected fill, verify, mix or flush");
        fflush(stdout);
    }
    for (int part = 0; part < data.parts; part++) store_close(data.stores[part]);
    return 0;
}
