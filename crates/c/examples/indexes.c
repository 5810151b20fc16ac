/*
 * A small program of the store with an index: it finds people by their city.
 *
 *     cc -o indexes indexes.c $(pkg-config --cflags --libs sprat)
 *     ./indexes fast+shm:name=sprat
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <sprat.h>

/* Ends the program with the text of a failure. */
static void must(sprat_status status, const sprat_error *error, const char *what)
{
    if (status != SPRAT_OK) {
        fprintf(stderr, "%s: %s\n", what, sprat_error_message(error));
        exit(1);
    }
}

/* Writes an object and its entry in the index. */
static void write_one(sprat_indexed *people, const char *key, const char *value)
{
    sprat_error error;

    must(sprat_indexed_write(people, key, strlen(key), value, strlen(value), NULL, NULL, &error),
         &error, key);
}

/* Two people change their cities, both or none, with their entries in the index. */
static void exchange(sprat_client *client, uint64_t table, sprat_indexed *people)
{
    sprat_transaction *transaction;
    sprat_error error;

    must(sprat_transaction_open(client, &transaction, &error), &error, "transaction");
    must(sprat_transaction_keep_indexes(transaction, people, &error), &error, "transaction");
    must(sprat_transaction_write(transaction, table, "23", 2, "Bob,Bern", 8, SPRAT_FOREVER, &error),
         &error, "23");
    must(sprat_transaction_write(transaction, table, "42", 2, "Cleo,Oslo", 9, SPRAT_FOREVER,
                                 &error),
         &error, "42");
    must(sprat_transaction_commit(transaction, NULL, NULL, 0, &error), &error, "commit");
    sprat_transaction_close(transaction);
}

/* Prints the objects that a scan finds, and ends it. The last ones come first if `down` is 1. */
static void print(const char *what, sprat_index_scan *scan, int down)
{
    sprat_error error;
    sprat_index_entry entry;
    sprat_status status;

    printf("%s:", what);
    while ((status = down ? sprat_index_scan_next_back(scan, &entry, &error)
                          : sprat_index_scan_next(scan, &entry, &error)) == SPRAT_OK)
        printf(" %.*s", (int)entry.value_length, (const char *)entry.value);
    printf("\n");
    if (status != SPRAT_END)
        must(status, &error, what);
    sprat_index_scan_close(scan);
}

int main(int argc, char **argv)
{
    /* The second field of values such as "Ada,Paris". */
    sprat_index_source city = {.kind = SPRAT_SOURCE_FIELD, .number = 1, .separator = ','};
    sprat_index_keys from_m = {.from = "M", .from_length = 1, .from_bound = SPRAT_INCLUDED};
    sprat_client *client;
    sprat_indexed *people;
    sprat_index_scan *scan;
    sprat_error error;
    uint64_t table;
    char nodes[64];

    if (argc != 2) {
        fprintf(stderr, "usage: %s LOCATOR of the coordinator\n", argv[0]);
        return 2;
    }
    must(sprat_connect(argv[1], NULL, &client, &error), &error, argv[1]);
    must(sprat_create_table(client, "people", NULL, &table, &error), &error, "people");
    must(sprat_indexed_open(client, table, &people, &error), &error, "people");
    write_one(people, "17", "Ada,Paris");
    /* Objects that exist get into the index, too. */
    must(sprat_create_index(people, "by city", &city, NULL, NULL, &error), &error, "by city");
    write_one(people, "23", "Bob,Oslo");
    write_one(people, "42", "Cleo,Bern");
    write_one(people, "99", "Dora,Paris");

    must(sprat_index_look_up(people, "by city", "Paris", 5, &scan, &error), &error, "look-up");
    print("in Paris", scan, 0);
    /* Both the object and its entry change. */
    write_one(people, "17", "Ada,Oslo");
    must(sprat_index_look_up(people, "by city", "Oslo", 4, &scan, &error), &error, "look-up");
    print("in Oslo", scan, 0);
    exchange(client, table, people);
    must(sprat_index_look_up(people, "by city", "Oslo", 4, &scan, &error), &error, "look-up");
    print("in Oslo after the exchange", scan, 0);
    must(sprat_index_range(people, "by city", &from_m, &scan, &error), &error, "range");
    print("from the last one down to M", scan, 1);

    must(sprat_drop_index(people, "by city", &error), &error, "drop of the index");
    sprat_indexed_close(people);
    must(sprat_drop_table(client, "people", &error), &error, "drop");
    /* The index was in a table of its own. */
    snprintf(nodes, sizeof nodes, "indexes of table %" PRIu64, table);
    must(sprat_drop_table(client, nodes, &error), &error, nodes);
    sprat_disconnect(client);
    return 0;
}
