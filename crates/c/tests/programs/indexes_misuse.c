/* Bad input to tables with indexes, on a cluster that answers: indexes_misuse LOCATOR. */
#include <pthread.h>
#include <sched.h>

#include "should.h"

static sprat_client *client;
static uint64_t table;
static sprat_indexed *indexed;
/* The source of the index "own". */
static const sprat_index_source own = {.kind = SPRAT_SOURCE_KEY};

static void null_pointers(void)
{
    sprat_indexed *other = (sprat_indexed *)&other;
    sprat_index_scan *scan = (sprat_index_scan *)&scan;
    sprat_index_info *list;
    sprat_index_entry entry;
    sprat_index_keys keys = {0};
    size_t count;

    GIVES(SPRAT_INVALID_ARGUMENT, sprat_indexed_open(NULL, table, &other, &error));
    SHOULD(other == NULL);
    GIVES(SPRAT_INVALID_ARGUMENT, sprat_indexed_open(client, table, NULL, &error));
    GIVES(SPRAT_INVALID_ARGUMENT, sprat_create_index(NULL, "i", &own, NULL, NULL, &error));
    GIVES(SPRAT_INVALID_ARGUMENT, sprat_create_index(indexed, NULL, &own, NULL, NULL, &error));
    GIVES(SPRAT_INVALID_ARGUMENT, sprat_create_index(indexed, "i", NULL, NULL, NULL, &error));
    GIVES(SPRAT_INVALID_ARGUMENT, sprat_drop_index(NULL, "i", &error));
    GIVES(SPRAT_INVALID_ARGUMENT, sprat_drop_index(indexed, NULL, &error));
    GIVES(SPRAT_INVALID_ARGUMENT, sprat_list_indexes(NULL, &list, &count, &error));
    GIVES(SPRAT_INVALID_ARGUMENT, sprat_list_indexes(indexed, NULL, &count, &error));
    GIVES(SPRAT_INVALID_ARGUMENT, sprat_list_indexes(indexed, &list, NULL, &error));
    GIVES(SPRAT_INVALID_ARGUMENT,
          sprat_indexed_write(NULL, "k", 1, "v", 1, NULL, NULL, &error));
    GIVES(SPRAT_INVALID_ARGUMENT,
          sprat_indexed_write(indexed, NULL, 1, "v", 1, NULL, NULL, &error));
    GIVES(SPRAT_INVALID_ARGUMENT,
          sprat_indexed_write(indexed, "k", 1, NULL, 1, NULL, NULL, &error));
    GIVES(SPRAT_INVALID_ARGUMENT,
          sprat_indexed_write_expiring(NULL, "k", 1, "v", 1, 5, NULL, NULL, &error));
    GIVES(SPRAT_INVALID_ARGUMENT, sprat_indexed_remove(NULL, "k", 1, NULL, NULL, &error));
    GIVES(SPRAT_INVALID_ARGUMENT, sprat_indexed_remove(indexed, NULL, 1, NULL, NULL, &error));
    GIVES(SPRAT_INVALID_ARGUMENT, sprat_index_look_up(NULL, "own", "k", 1, &scan, &error));
    SHOULD(scan == NULL);
    GIVES(SPRAT_INVALID_ARGUMENT, sprat_index_look_up(indexed, NULL, "k", 1, &scan, &error));
    GIVES(SPRAT_INVALID_ARGUMENT, sprat_index_look_up(indexed, "own", NULL, 1, &scan, &error));
    GIVES(SPRAT_INVALID_ARGUMENT, sprat_index_look_up(indexed, "own", "k", 1, NULL, &error));
    GIVES(SPRAT_INVALID_ARGUMENT, sprat_index_range(NULL, "own", &keys, &scan, &error));
    GIVES(SPRAT_INVALID_ARGUMENT, sprat_index_range(indexed, "own", NULL, &scan, &error));
    GIVES(SPRAT_INVALID_ARGUMENT, sprat_index_prefix(NULL, "own", "k", 1, &scan, &error));
    GIVES(SPRAT_INVALID_ARGUMENT, sprat_index_prefix(indexed, "own", NULL, 1, &scan, &error));
    GIVES(SPRAT_INVALID_ARGUMENT, sprat_index_scan_next(NULL, &entry, &error));
    GIVES(SPRAT_INVALID_ARGUMENT, sprat_index_scan_next_back(NULL, &entry, &error));
    MUST(sprat_index_prefix(indexed, "own", NULL, 0, &scan, &error));
    GIVES(SPRAT_INVALID_ARGUMENT, sprat_index_scan_next(scan, NULL, &error));
    GIVES(SPRAT_INVALID_ARGUMENT, sprat_index_scan_next_back(scan, NULL, &error));
    sprat_index_scan_close(scan);
    sprat_index_scan_close(NULL);
    sprat_indexed_close(NULL);
}

static void packed(void)
{
    static char long_key[SPRAT_MAX_INDEX_KEY + 1];
    sprat_bytes keys[1] = {{long_key, sizeof long_key}};
    void *bytes = NULL;
    size_t length;

    GIVES(SPRAT_INVALID_ARGUMENT, sprat_pack(NULL, 1, "v", 1, &bytes, &length, &error));
    GIVES(SPRAT_INVALID_ARGUMENT, sprat_pack(NULL, 0, NULL, 1, &bytes, &length, &error));
    GIVES(SPRAT_INVALID_ARGUMENT, sprat_pack(NULL, 0, "v", 1, NULL, &length, &error));
    GIVES(SPRAT_INVALID_ARGUMENT, sprat_pack(NULL, 0, "v", 1, &bytes, NULL, &error));
    GIVES(SPRAT_INVALID_ARGUMENT,
          sprat_pack(keys, SPRAT_MAX_PACKED + 1, "v", 1, &bytes, &length, &error));
    GIVES(SPRAT_INVALID_ARGUMENT, sprat_pack(keys, SIZE_MAX, "v", 1, &bytes, &length, &error));
    GIVES(SPRAT_INDEX_KEY_TOO_LONG, sprat_pack(keys, 1, "v", 1, &bytes, &length, &error));
    keys[0].length = SIZE_MAX;
    GIVES(SPRAT_INVALID_ARGUMENT, sprat_pack(keys, 1, "v", 1, &bytes, &length, &error));
    SHOULD(bytes == NULL);
    GIVES(SPRAT_INVALID_ARGUMENT, sprat_unpack("\2\0\1", 3, keys, 1, NULL, NULL, &error));
    GIVES(SPRAT_INVALID_ARGUMENT, sprat_unpack("", 0, keys, 1, NULL, NULL, &error));
    GIVES(SPRAT_INVALID_ARGUMENT, sprat_unpack(NULL, 3, keys, 1, NULL, NULL, &error));
    GIVES(SPRAT_INVALID_ARGUMENT, sprat_unpack("\0v", 2, NULL, 1, NULL, NULL, &error));
    GIVES(SPRAT_INVALID_ARGUMENT, sprat_unpack("\0v", 2, keys, SIZE_MAX, NULL, NULL, &error));
}

static void lengths_and_names(void)
{
    static char long_value[SPRAT_MAX_VALUE + 1];
    char name[66];
    sprat_index_scan *scan;

    memset(name, 'n', sizeof name);
    name[65] = 0;
    GIVES(SPRAT_BAD_NAME, sprat_create_index(indexed, name, &own, NULL, NULL, &error));
    GIVES(SPRAT_BAD_NAME, sprat_create_index(indexed, "", &own, NULL, NULL, &error));
    GIVES(SPRAT_BAD_NAME, sprat_create_index(indexed, "a\nb", &own, NULL, NULL, &error));
    GIVES(SPRAT_INVALID_ARGUMENT, sprat_create_index(indexed, "\xff", &own, NULL, NULL, &error));
    GIVES(SPRAT_KEY_TOO_LONG, sprat_indexed_write(indexed, long_value, SPRAT_MAX_KEY + 1, "v", 1,
                                                  NULL, NULL, &error));
    GIVES(SPRAT_INVALID_ARGUMENT,
          sprat_indexed_write(indexed, "k", SIZE_MAX, "v", 1, NULL, NULL, &error));
    GIVES(SPRAT_VALUE_TOO_LONG, sprat_indexed_write(indexed, "k", 1, long_value, sizeof long_value,
                                                    NULL, NULL, &error));
    GIVES(SPRAT_INVALID_ARGUMENT,
          sprat_indexed_write(indexed, "k", 1, "v", SIZE_MAX, NULL, NULL, &error));
    /* The object's own key is its index key. */
    GIVES(SPRAT_INDEX_KEY_TOO_LONG, sprat_indexed_write(indexed, long_value,
                                                        SPRAT_MAX_INDEX_KEY + 1, "v", 1, NULL,
                                                        NULL, &error));
    GIVES(SPRAT_OK, sprat_indexed_write(indexed, long_value, SPRAT_MAX_INDEX_KEY, "v", 1, NULL,
                                        NULL, &error));
    GIVES(SPRAT_OK,
          sprat_indexed_remove(indexed, long_value, SPRAT_MAX_INDEX_KEY, NULL, NULL, &error));
    GIVES(SPRAT_INVALID_ARGUMENT, sprat_indexed_write_expiring(indexed, "k", 1, "v", 1,
                                                               SPRAT_FOREVER, NULL, NULL, &error));
    GIVES(SPRAT_KEY_TOO_LONG, sprat_indexed_remove(indexed, long_value, SPRAT_MAX_KEY + 1, NULL,
                                                   NULL, &error));
    GIVES(SPRAT_KEY_TOO_LONG, sprat_index_look_up(indexed, "own", long_value, SPRAT_MAX_KEY + 1,
                                                  &scan, &error));
    GIVES(SPRAT_INVALID_ARGUMENT,
          sprat_index_look_up(indexed, "own", "k", SIZE_MAX, &scan, &error));
    GIVES(SPRAT_KEY_TOO_LONG,
          sprat_index_prefix(indexed, "own", long_value, SPRAT_MAX_KEY + 1, &scan, &error));
    SHOULD(scan == NULL);
}

static void fields(void)
{
    sprat_operation_options options = SPRAT_OPERATION_OPTIONS_INIT;
    sprat_index_source source = {0};
    sprat_index_keys keys = {0};
    sprat_index_scan *scan;

    GIVES(SPRAT_INVALID_ARGUMENT, sprat_create_index(indexed, "i", &source, NULL, NULL, &error));
    source.kind = 99;
    GIVES(SPRAT_INVALID_ARGUMENT, sprat_create_index(indexed, "i", &source, NULL, NULL, &error));
    source.kind = SPRAT_SOURCE_FIELD;
    source.separator = 256;
    GIVES(SPRAT_INVALID_ARGUMENT, sprat_create_index(indexed, "i", &source, NULL, NULL, &error));
    source.separator = ',';
    source.reserved[2] = 1;
    GIVES(SPRAT_INVALID_ARGUMENT, sprat_create_index(indexed, "i", &source, NULL, NULL, &error));
    keys.from_bound = 3;
    GIVES(SPRAT_INVALID_ARGUMENT, sprat_index_range(indexed, "own", &keys, &scan, &error));
    keys.from_bound = SPRAT_INCLUDED;
    keys.from_length = 1;
    GIVES(SPRAT_INVALID_ARGUMENT, sprat_index_range(indexed, "own", &keys, &scan, &error));
    keys.from_length = 0;
    keys.reserved[1] = 1;
    GIVES(SPRAT_INVALID_ARGUMENT, sprat_index_range(indexed, "own", &keys, &scan, &error));
    options.condition.kind = 99;
    GIVES(SPRAT_INVALID_ARGUMENT,
          sprat_indexed_write(indexed, "k", 1, "v", 1, &options, NULL, &error));
    options.size = 0;
    GIVES(SPRAT_INVALID_ARGUMENT, sprat_indexed_remove(indexed, "k", 1, &options, NULL, &error));
}

static void no_such_index(void)
{
    sprat_index_scan *scan;
    sprat_index_entry entry;
    sprat_indexed *other;
    char name[8];
    int i;

    MUST(sprat_index_prefix(indexed, "no such", "k", 1, &scan, &error));
    GIVES(SPRAT_INDEX_NOT_FOUND, sprat_index_scan_next(scan, &entry, &error));
    SHOULD(strstr(error.message, "no such") && !error.maybe_executed);
    sprat_index_scan_close(scan);
    GIVES(SPRAT_INDEX_NOT_FOUND, sprat_drop_index(indexed, "no such", &error));
    GIVES(SPRAT_TABLE_NOT_FOUND, sprat_indexed_open(client, 999999, &other, &error));
    SHOULD(other == NULL);
    for (i = 1; i < SPRAT_MAX_INDEXES; i++) {
        snprintf(name, sizeof name, "i%d", i);
        MUST(sprat_create_index(indexed, name, &own, NULL, NULL, &error));
    }
    GIVES(SPRAT_TOO_MANY_INDEXES, sprat_create_index(indexed, "i", &own, NULL, NULL, &error));
}

/* What outlives its client. */
static void disconnected(const char *locator)
{
    sprat_client *alone;
    sprat_indexed *left;
    sprat_index_scan *scan;
    sprat_index_entry entry;
    sprat_transaction *transaction;
    sprat_index_info *list;
    size_t count;

    MUST(sprat_connect(locator, NULL, &alone, &error));
    MUST(sprat_indexed_open(alone, table, &left, &error));
    MUST(sprat_index_prefix(left, "own", NULL, 0, &scan, &error));
    MUST(sprat_transaction_open(alone, &transaction, &error));
    sprat_disconnect(alone);
    GIVES(SPRAT_DISCONNECTED, sprat_transaction_keep_indexes(transaction, left, &error));
    sprat_transaction_close(transaction);
    GIVES(SPRAT_DISCONNECTED, sprat_index_scan_next(scan, &entry, &error));
    GIVES(SPRAT_DISCONNECTED, sprat_index_scan_next_back(scan, &entry, &error));
    GIVES(SPRAT_DISCONNECTED, sprat_indexed_write(left, "k", 1, "v", 1, NULL, NULL, &error));
    GIVES(SPRAT_DISCONNECTED, sprat_indexed_remove(left, "k", 1, NULL, NULL, &error));
    GIVES(SPRAT_DISCONNECTED, sprat_create_index(left, "i", &own, NULL, NULL, &error));
    GIVES(SPRAT_DISCONNECTED, sprat_drop_index(left, "i", &error));
    GIVES(SPRAT_DISCONNECTED, sprat_list_indexes(left, &list, &count, &error));
    sprat_indexed_close(left);
    GIVES(SPRAT_DISCONNECTED, sprat_index_scan_next(scan, &entry, &error));
    sprat_index_scan_close(scan);
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int has_ended;

/* Returns 1 once this or an earlier call has had `end` set. */
static int ends(int end)
{
    int ended;

    pthread_mutex_lock(&lock);
    ended = has_ended |= end;
    pthread_mutex_unlock(&lock);
    return ended;
}

/* Writes until the other thread has met a call of this one. */
static void *write_in_thread(void *table)
{
    while (!ends(0)) {
        sprat_status status = sprat_indexed_write(table, "k", 1, "v", 1, NULL, NULL, NULL);

        if (status != SPRAT_OK && status != SPRAT_IN_USE)
            return NULL;
        /* Each thread yields without the client, so that the other one gets it. */
        sched_yield();
    }
    return table;
}

/* A look-up is refused while another thread changes an object, and served before and afterwards. */
static void threads(void)
{
    sprat_index_scan *scan;
    sprat_index_entry entry;
    pthread_t thread;
    void *returned;
    sprat_status status;

    SHOULD(pthread_create(&thread, NULL, write_in_thread, indexed) == 0);
    do {
        MUST(sprat_index_look_up(indexed, "own", "k", 1, &scan, &error));
        status = sprat_index_scan_next(scan, &entry, &error);
        SHOULD(status == SPRAT_OK || status == SPRAT_END || status == SPRAT_IN_USE);
        sprat_index_scan_close(scan);
        sched_yield();
    } while (status != SPRAT_IN_USE);
    ends(1);
    SHOULD(pthread_join(thread, &returned) == 0 && returned == indexed);
    MUST(sprat_indexed_write(indexed, "k", 1, "v", 1, NULL, NULL, &error));
    MUST(sprat_index_look_up(indexed, "own", "k", 1, &scan, &error));
    GIVES(SPRAT_OK, sprat_index_scan_next(scan, &entry, &error));
    sprat_index_scan_close(scan);
}

int main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    MUST(sprat_connect(argv[1], NULL, &client, &error));
    MUST(sprat_create_table(client, "misuse", NULL, &table, &error));
    MUST(sprat_indexed_open(client, table, &indexed, &error));
    MUST(sprat_create_index(indexed, "own", &own, NULL, NULL, &error));
    null_pointers();
    packed();
    lengths_and_names();
    fields();
    no_such_index();
    disconnected(argv[1]);
    threads();
    sprat_indexed_close(indexed);
    MUST(sprat_drop_table(client, "misuse", &error));
    sprat_disconnect(client);
    return ended();
}
