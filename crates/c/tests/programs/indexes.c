/* Tables with indexes on a cluster that answers: indexes LOCATOR. */
#include <inttypes.h>

#include "should.h"

static sprat_client *client;
static uint64_t table;
static sprat_indexed *people;

static void put(const char *key, const char *value)
{
    MUST(sprat_indexed_write(people, key, strlen(key), value, strlen(value), NULL, NULL, &error));
}

/* Returns the own keys of the objects that a scan returns, with a blank behind each, and closes the
 * scan. */
static const char *rest_of(sprat_index_scan *scan)
{
    static char keys[200];
    sprat_index_entry entry;
    sprat_status status;
    size_t length = 0;

    while ((status = sprat_index_scan_next(scan, &entry, &error)) == SPRAT_OK) {
        SHOULD(entry.version != 0 && length + entry.key_length + 2 < sizeof keys);
        memcpy(keys + length, entry.key, entry.key_length);
        length += entry.key_length;
        keys[length++] = ' ';
    }
    keys[length] = 0;
    GIVES(SPRAT_END, status);
    GIVES(SPRAT_END, sprat_index_scan_next(scan, &entry, &error));
    sprat_index_scan_close(scan);
    return keys;
}

static const char *look_up(const char *index, const char *key)
{
    sprat_index_scan *scan;

    MUST(sprat_index_look_up(people, index, key, strlen(key), &scan, &error));
    return rest_of(scan);
}

static const char *prefix(const char *index, const char *text)
{
    sprat_index_scan *scan;

    MUST(sprat_index_prefix(people, index, text, strlen(text), &scan, &error));
    return rest_of(scan);
}

static const char *range(const char *index, const char *from, int32_t from_bound, const char *to,
                         int32_t to_bound)
{
    sprat_index_keys keys = {0};
    sprat_index_scan *scan;

    keys.from = from;
    keys.from_length = from ? strlen(from) : 0;
    keys.from_bound = from_bound;
    keys.to = to;
    keys.to_length = to ? strlen(to) : 0;
    keys.to_bound = to_bound;
    MUST(sprat_index_range(people, index, &keys, &scan, &error));
    return rest_of(scan);
}

/* Indexes of each kind, one of them also of an object that exists. */
static void create(void)
{
    sprat_index_source by_city = {.kind = SPRAT_SOURCE_FIELD, .number = 1, .separator = ','};
    sprat_index_source by_start = {.kind = SPRAT_SOURCE_BYTES, .at = 1, .length = 2};
    sprat_index_source by_key = {.kind = SPRAT_SOURCE_KEY};
    sprat_index_source by_tag = {.kind = SPRAT_SOURCE_PACKED, .number = 1};
    sprat_index_info *list;
    uint64_t objects, skipped;
    size_t count, i;

    GIVES(SPRAT_OK, sprat_list_indexes(people, &list, &count, &error));
    SHOULD(count == 0);
    sprat_free(list);
    put("1", "Ada,Paris");
    GIVES(SPRAT_OK,
          sprat_create_index(people, "by city", &by_city, &objects, &skipped, &error));
    SHOULD(objects == 1 && skipped == 0);
    /* It is there already. */
    GIVES(SPRAT_OK, sprat_create_index(people, "by city", &by_city, NULL, NULL, &error));
    GIVES(SPRAT_INDEX_EXISTS,
          sprat_create_index(people, "by city", &by_key, &objects, &skipped, &error));
    GIVES(SPRAT_OK, sprat_create_index(people, "by start", &by_start, NULL, NULL, &error));
    GIVES(SPRAT_OK, sprat_create_index(people, "by key", &by_key, NULL, NULL, &error));
    GIVES(SPRAT_OK, sprat_create_index(people, "by tag", &by_tag, NULL, NULL, &error));
    GIVES(SPRAT_OK, sprat_list_indexes(people, &list, &count, &error));
    SHOULD(count == 4);
    for (i = 0; i < count; i++) {
        SHOULD(list[i].ready && list[i].node_bytes > 0);
        if (!strcmp(list[i].name, "by city"))
            SHOULD(!memcmp(&list[i].source, &by_city, sizeof by_city));
        else if (!strcmp(list[i].name, "by start"))
            SHOULD(!memcmp(&list[i].source, &by_start, sizeof by_start));
        else if (!strcmp(list[i].name, "by key"))
            SHOULD(!memcmp(&list[i].source, &by_key, sizeof by_key));
        else
            SHOULD(!memcmp(&list[i].source, &by_tag, sizeof by_tag));
    }
    sprat_free(list);
}

/* Each object is found by its keys, in their order. */
static void look_ups(void)
{
    sprat_index_scan *scan;
    sprat_index_entry entry;
    sprat_index_keys all = {0};

    put("2", "Bob,Oslo");
    put("3", "Cleo,Paris");
    put("4", "no field");
    SHOULD(!strcmp(look_up("by city", "Paris"), "1 3 "));
    SHOULD(!strcmp(look_up("by city", "Pari"), ""));
    SHOULD(!strcmp(look_up("by start", "ob"), "2 "));
    SHOULD(!strcmp(look_up("by key", "3"), "3 "));
    SHOULD(!strcmp(prefix("by city", "P"), "1 3 "));
    SHOULD(!strcmp(prefix("by key", ""), "1 2 3 4 "));
    SHOULD(!strcmp(range("by city", NULL, SPRAT_UNBOUNDED, NULL, SPRAT_UNBOUNDED), "2 1 3 "));
    SHOULD(!strcmp(range("by key", "2", SPRAT_INCLUDED, "4", SPRAT_INCLUDED), "2 3 4 "));
    SHOULD(!strcmp(range("by key", "2", SPRAT_EXCLUDED, "4", SPRAT_EXCLUDED), "3 "));
    SHOULD(!strcmp(range("by key", "3", SPRAT_INCLUDED, NULL, SPRAT_UNBOUNDED), "3 4 "));
    SHOULD(!strcmp(range("by key", NULL, SPRAT_UNBOUNDED, "2", SPRAT_EXCLUDED), "1 "));
    SHOULD(!strcmp(range("by key", "4", SPRAT_INCLUDED, "2", SPRAT_INCLUDED), ""));

    MUST(sprat_index_range(people, "by city", &all, &scan, &error));
    GIVES(SPRAT_OK, sprat_index_scan_next(scan, &entry, &error));
    SHOULD(entry.index_key_length == 4 && !memcmp(entry.index_key, "Oslo", 4));
    SHOULD(entry.key_length == 1 && !memcmp(entry.key, "2", 1));
    SHOULD(entry.value_length == 8 && !memcmp(entry.value, "Bob,Oslo", 8));
    sprat_index_scan_close(scan);
}

/* Conditions and lifetimes are those of other writes. */
static void changes(void)
{
    sprat_operation_options only = SPRAT_OPERATION_OPTIONS_INIT;
    sprat_result result;
    uint64_t version;

    GIVES(SPRAT_OK, sprat_indexed_write(people, "2", 1, "Bob,Rome", 8, NULL, &result, &error));
    version = result.version;
    SHOULD(version != 0 && !strcmp(look_up("by city", "Oslo"), ""));
    SHOULD(!strcmp(look_up("by city", "Rome"), "2 "));
    only.timeout_ms = 20000;
    only.condition.kind = SPRAT_IF_ABSENT;
    GIVES(SPRAT_OBJECT_EXISTS,
          sprat_indexed_write(people, "2", 1, "Bob,Bonn", 8, &only, NULL, &error));
    SHOULD(error.version == version);
    only.condition.kind = SPRAT_IF_VERSION;
    only.condition.version = version;
    GIVES(SPRAT_OK, sprat_indexed_write(people, "2", 1, "Bob,Bern", 8, &only, &result, &error));
    SHOULD(result.version > version);
    GIVES(SPRAT_WRONG_VERSION, sprat_indexed_remove(people, "2", 1, &only, NULL, &error));
    SHOULD(error.version == result.version && !strcmp(look_up("by city", "Bern"), "2 "));
    version = result.version;
    GIVES(SPRAT_OK, sprat_indexed_remove(people, "2", 1, NULL, &result, &error));
    SHOULD(result.version == version && !strcmp(look_up("by city", "Bern"), ""));
    GIVES(SPRAT_OK, sprat_indexed_remove(people, "2", 1, NULL, &result, &error));
    SHOULD(result.version == 0);
    only.condition.kind = SPRAT_IF_EXISTS;
    GIVES(SPRAT_OBJECT_NOT_FOUND, sprat_indexed_remove(people, "2", 1, &only, NULL, &error));

    GIVES(SPRAT_OK, sprat_indexed_write_expiring(people, "5", 1, "Eve,Bonn", 8, 3600000, NULL,
                                                 &result, &error));
    SHOULD(result.version != 0 && !strcmp(look_up("by city", "Bonn"), "5 "));
    GIVES(SPRAT_OK, sprat_read_expiring(client, table, "5", 1, NULL, &result, &error));
    SHOULD(result.lifetime_ms > 3000000 && result.lifetime_ms <= 3600000);
    sprat_free(result.value);
    GIVES(SPRAT_OK,
          sprat_indexed_write_expiring(people, "5", 1, "Eve,Bonn", 8, 0, NULL, NULL, &error));
    SHOULD(!strcmp(look_up("by city", "Bonn"), ""));
}

/* Objects with keys of their own before their values. */
static void packed(void)
{
    sprat_bytes keys[2] = {{"unused", 6}, {"red", 3}}, back[3], value;
    sprat_index_scan *scan;
    sprat_index_entry entry;
    size_t length, count;
    void *bytes;

    GIVES(SPRAT_OK, sprat_pack(keys, 2, "a\0b", 3, &bytes, &length, &error));
    MUST(sprat_indexed_write(people, "p", 1, bytes, length, NULL, NULL, &error));
    sprat_free(bytes);
    MUST(sprat_index_look_up(people, "by tag", "red", 3, &scan, &error));
    GIVES(SPRAT_OK, sprat_index_scan_next(scan, &entry, &error));
    memset(back, 0, sizeof back);
    GIVES(SPRAT_OK, sprat_unpack(entry.value, entry.value_length, back, 3, &count, &value, &error));
    SHOULD(count == 2 && back[0].length == 6 && !memcmp(back[0].bytes, "unused", 6));
    SHOULD(back[1].length == 3 && !memcmp(back[1].bytes, "red", 3) && back[2].bytes == NULL);
    SHOULD(value.length == 3 && !memcmp(value.bytes, "a\0b", 3));
    memset(back, 0, sizeof back);
    GIVES(SPRAT_OK, sprat_unpack(entry.value, entry.value_length, back, 1, NULL, NULL, &error));
    SHOULD(back[0].length == 6 && back[1].length == 0);
    sprat_index_scan_close(scan);
    GIVES(SPRAT_OK, sprat_indexed_remove(people, "p", 1, NULL, NULL, &error));
    GIVES(SPRAT_OK, sprat_pack(NULL, 0, NULL, 0, &bytes, &length, &error));
    SHOULD(length == 1 && !memcmp(bytes, "", 1));
    GIVES(SPRAT_OK, sprat_unpack(bytes, length, NULL, 0, &count, &value, &error));
    SHOULD(count == 0 && value.length == 0);
    sprat_free(bytes);
}

/* Returns the number of operations of the store that a look-up of one object takes. */
static uint64_t operations_of_look_up(sprat_indexed *numbers)
{
    sprat_counters before = SPRAT_COUNTERS_INIT, after = SPRAT_COUNTERS_INIT;
    sprat_index_scan *scan;
    sprat_index_entry entry;

    MUST(sprat_client_counters(client, &before, &error));
    MUST(sprat_index_look_up(numbers, "by value", "0123", 4, &scan, &error));
    GIVES(SPRAT_OK, sprat_index_scan_next(scan, &entry, &error));
    sprat_index_scan_close(scan);
    MUST(sprat_client_counters(client, &after, &error));
    return after.started - before.started;
}

/* A table with indexes keeps the nodes above the leaves, and a new one reads them first. */
static void known(sprat_indexed *numbers, uint64_t id)
{
    sprat_indexed *fresh;
    uint64_t first, later = operations_of_look_up(numbers);
    SHOULD(operations_of_look_up(numbers) == later);
    MUST(sprat_indexed_open(client, id, &fresh, &error));
    first = operations_of_look_up(fresh);
    SHOULD(first > later && operations_of_look_up(fresh) == later);
    sprat_indexed_close(fresh);
}

/* Many objects, on several leaves, whose order is that of their values. */
static void many(void)
{
    sprat_index_source by_value = {.kind = SPRAT_SOURCE_BYTES, .length = 4};
    sprat_index_scan *scan, *down, *both;
    sprat_index_entry entry;
    sprat_indexed *numbers;
    sprat_index_keys all = {0};
    uint64_t id;
    char key[16], value[16];
    int i, found = 0, last = 500;

    MUST(sprat_create_table(client, "numbers", NULL, &id, &error));
    MUST(sprat_indexed_open(client, id, &numbers, &error));
    MUST(sprat_create_index(numbers, "by value", &by_value, NULL, NULL, &error));
    for (i = 0; i < 500; i++) {
        snprintf(key, sizeof key, "%04d", i);
        snprintf(value, sizeof value, "%04d", i * 7 % 500);
        MUST(sprat_indexed_write(numbers, key, 4, value, 4, NULL, NULL, &error));
    }
    MUST(sprat_index_range(numbers, "by value", &all, &scan, &error));
    MUST(sprat_index_range(numbers, "by value", &all, &down, &error));
    MUST(sprat_index_prefix(numbers, "by value", "0", 1, &both, &error));
    known(numbers, id);
    /* The scans outlive the table that they belong to. */
    sprat_indexed_close(numbers);
    while (sprat_index_scan_next(scan, &entry, &error) == SPRAT_OK) {
        snprintf(value, sizeof value, "%04d", found++);
        SHOULD(entry.index_key_length == 4 && !memcmp(entry.index_key, value, 4));
    }
    SHOULD(error.status == SPRAT_END && found == 500);
    sprat_index_scan_close(scan);
    while (sprat_index_scan_next_back(down, &entry, &error) == SPRAT_OK) {
        snprintf(value, sizeof value, "%04d", --last);
        SHOULD(entry.index_key_length == 4 && !memcmp(entry.index_key, value, 4));
    }
    SHOULD(error.status == SPRAT_END && last == 0);
    sprat_index_scan_close(down);
    /* Two of three from the end, until both ends meet. */
    for (i = found = 0, last = 500; found < last; i++) {
        snprintf(value, sizeof value, "%04d", i % 3 ? --last : found++);
        GIVES(SPRAT_OK, i % 3 ? sprat_index_scan_next_back(both, &entry, &error)
                              : sprat_index_scan_next(both, &entry, &error));
        SHOULD(entry.index_key_length == 4 && !memcmp(entry.index_key, value, 4));
    }
    GIVES(SPRAT_END, sprat_index_scan_next_back(both, &entry, &error));
    GIVES(SPRAT_END, sprat_index_scan_next(both, &entry, &error));
    sprat_index_scan_close(both);
    MUST(sprat_drop_table(client, "numbers", &error));
}

/* Transactions that keep the indexes. "1" and "3" are in Paris before and afterwards. */
static void transactions(const char *locator)
{
    sprat_condition absent = {.kind = SPRAT_IF_ABSENT};
    char long_key[SPRAT_MAX_INDEX_KEY + 2];
    sprat_transaction *transaction;
    sprat_indexed *theirs;
    sprat_client *other;
    uint64_t version, plain;

    MUST(sprat_transaction_open(client, &transaction, &error));
    /* The changes before the call count, too. */
    MUST(sprat_transaction_write(transaction, table, "t", 1, "Tom,Vaduz", 9, SPRAT_FOREVER,
                                 &error));
    MUST(sprat_transaction_keep_indexes(transaction, people, &error));
    MUST(sprat_transaction_remove(transaction, table, "1", 1, &error));
    MUST(sprat_transaction_commit(transaction, NULL, &version, 1, &error));
    SHOULD(version != 0 && !strcmp(look_up("by city", "Vaduz"), "t "));
    SHOULD(!strcmp(look_up("by city", "Paris"), "3 "));
    /* It is empty now, and does not keep the indexes. */
    MUST(sprat_transaction_write(transaction, table, "u", 1, "Una,Vaduz", 9, SPRAT_FOREVER,
                                 &error));
    MUST(sprat_transaction_commit(transaction, NULL, NULL, 0, &error));
    SHOULD(!strcmp(look_up("by city", "Vaduz"), "t "));
    MUST(sprat_transaction_keep_indexes(transaction, people, &error));
    MUST(sprat_transaction_write(transaction, table, "1", 1, "Ada,Paris", 9, SPRAT_FOREVER,
                                 &error));
    MUST(sprat_transaction_remove(transaction, table, "u", 1, &error));
    MUST(sprat_transaction_remove(transaction, table, "t", 1, &error));
    MUST(sprat_transaction_commit(transaction, NULL, NULL, 0, &error));
    SHOULD(!strcmp(look_up("by city", "Vaduz"), ""));
    SHOULD(!strcmp(look_up("by city", "Paris"), "1 3 "));
    /* A transaction that keeps indexes and changes nothing of theirs. */
    MUST(sprat_create_table(client, "plain", NULL, &plain, &error));
    MUST(sprat_write(client, plain, "k", 1, "v", 1, NULL, NULL, &error));
    MUST(sprat_transaction_keep_indexes(transaction, people, &error));
    MUST(sprat_transaction_check(transaction, plain, "k", 1, &absent, &error));
    MUST(sprat_transaction_remove(transaction, plain, "k", 1, &error));
    GIVES(SPRAT_CONFLICT, sprat_transaction_commit(transaction, NULL, NULL, 0, &error));
    MUST(sprat_drop_table(client, "plain", &error));
    /* What fails changes nothing. */
    MUST(sprat_transaction_keep_indexes(transaction, people, &error));
    MUST(sprat_transaction_write(transaction, table, "t", 1, "Tom,Vaduz", 9, SPRAT_FOREVER,
                                 &error));
    MUST(sprat_transaction_check(transaction, table, "1", 1, &absent, &error));
    GIVES(SPRAT_CONFLICT, sprat_transaction_commit(transaction, NULL, NULL, 0, &error));
    MUST(sprat_transaction_keep_indexes(transaction, people, &error));
    memset(long_key, ',', 1);
    memset(long_key + 1, 'x', sizeof long_key - 1);
    MUST(sprat_transaction_write(transaction, table, "t", 1, long_key, sizeof long_key,
                                 SPRAT_FOREVER, &error));
    GIVES(SPRAT_INDEX_KEY_TOO_LONG, sprat_transaction_commit(transaction, NULL, NULL, 0, &error));
    SHOULD(!strcmp(look_up("by city", "Vaduz"), ""));
    MUST(sprat_connect(locator, NULL, &other, &error));
    MUST(sprat_indexed_open(other, table, &theirs, &error));
    GIVES(SPRAT_INVALID_ARGUMENT, sprat_transaction_keep_indexes(transaction, theirs, &error));
    sprat_indexed_close(theirs);
    sprat_disconnect(other);
    GIVES(SPRAT_INVALID_ARGUMENT, sprat_transaction_keep_indexes(transaction, NULL, &error));
    GIVES(SPRAT_INVALID_ARGUMENT, sprat_transaction_keep_indexes(NULL, people, &error));
    sprat_transaction_close(transaction);
}

/* Another client that drops what this one knows. */
static void dropped(const char *locator)
{
    sprat_index_source by_name = {.kind = SPRAT_SOURCE_FIELD, .separator = ','};
    sprat_client *other;
    sprat_indexed *theirs;
    sprat_index_scan *scan;
    sprat_index_entry entry;
    char nodes[64];

    SHOULD(!strcmp(look_up("by city", "Paris"), "1 3 "));
    MUST(sprat_connect(locator, NULL, &other, &error));
    MUST(sprat_indexed_open(other, table, &theirs, &error));
    GIVES(SPRAT_OK, sprat_drop_index(theirs, "by city", &error));
    GIVES(SPRAT_INDEX_NOT_FOUND, sprat_drop_index(theirs, "by city", &error));
    MUST(sprat_index_look_up(people, "by city", "Paris", 5, &scan, &error));
    GIVES(SPRAT_INDEX_NOT_FOUND, sprat_index_scan_next(scan, &entry, &error));
    GIVES(SPRAT_INDEX_NOT_FOUND, sprat_index_scan_next(scan, &entry, &error));
    MUST(sprat_create_index(theirs, "by city", &by_name, NULL, NULL, &error));
    /* The scan goes on where it was: the index has other keys now. */
    GIVES(SPRAT_END, sprat_index_scan_next(scan, &entry, &error));
    sprat_index_scan_close(scan);
    SHOULD(!strcmp(look_up("by city", "Ada"), "1 "));
    sprat_indexed_close(theirs);
    sprat_disconnect(other);

    MUST(sprat_drop_table(client, "people", &error));
    GIVES(SPRAT_TABLE_NOT_FOUND,
          sprat_indexed_write(people, "1", 1, "Ada,Rome", 8, NULL, NULL, &error));
    GIVES(SPRAT_TABLE_NOT_FOUND, sprat_indexed_remove(people, "1", 1, NULL, NULL, &error));
    MUST(sprat_index_look_up(people, "by city", "Ada", 3, &scan, &error));
    GIVES(SPRAT_TABLE_NOT_FOUND, sprat_index_scan_next(scan, &entry, &error));
    sprat_index_scan_close(scan);
    sprat_indexed_close(people);
    GIVES(SPRAT_TABLE_NOT_FOUND, sprat_indexed_open(client, table, &people, &error));
    SHOULD(people == NULL);
    snprintf(nodes, sizeof nodes, "indexes of table %" PRIu64, table);
    GIVES(SPRAT_OK, sprat_drop_table(client, nodes, &error));
}

int main(int argc, char **argv)
{
    sprat_options options = SPRAT_OPTIONS_INIT;

    if (argc != 2)
        return 2;
    options.timeout_ms = 30000;
    MUST(sprat_connect(argv[1], &options, &client, &error));
    MUST(sprat_create_table(client, "people", NULL, &table, &error));
    MUST(sprat_indexed_open(client, table, &people, &error));
    create();
    look_ups();
    changes();
    packed();
    many();
    transactions(argv[1]);
    dropped(argv[1]);
    sprat_disconnect(client);
    return ended();
}
