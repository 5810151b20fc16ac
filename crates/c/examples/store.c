/*
 * A small program of the store: it counts birds.
 *
 *     cc -o store store.c $(pkg-config --cflags --libs sprat)
 *     ./store fast+shm:name=sprat
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

/* Writes an object, and changes it only if no other client has changed it since. */
static void versions(sprat_client *client, uint64_t birds)
{
    sprat_error error;
    sprat_result written, found;
    sprat_operation_options unchanged = SPRAT_OPERATION_OPTIONS_INIT;
    sprat_status status;

    must(sprat_write(client, birds, "sprat", 5, "a fish after all", 16, NULL, &written, &error),
         &error, "write");
    must(sprat_read_alloc(client, birds, "sprat", 5, NULL, &found, &error), &error, "read");
    printf("sprat: %s\n", (const char *)found.value);
    sprat_free(found.value);

    unchanged.condition.kind = SPRAT_IF_VERSION;
    unchanged.condition.version = found.version;
    must(sprat_write(client, birds, "sprat", 5, "Sprattus sprattus", 17, &unchanged, NULL, &error),
         &error, "write of an unchanged object");
    status = sprat_write(client, birds, "sprat", 5, "a bird", 6, &unchanged, NULL, &error);
    printf("a second write: %s\n", status == SPRAT_WRONG_VERSION ? "refused" : "accepted");
}

/* Executes three operations in one request. */
static void several(sprat_client *client, uint64_t birds)
{
    sprat_error error;
    sprat_part parts[3] = {
        {.kind = SPRAT_INCREMENT, .table = birds, .key = "robin", .key_length = 5, .integer = 2},
        {.kind = SPRAT_INCREMENT, .table = birds, .key = "wren", .key_length = 4, .integer = 3},
        {.kind = SPRAT_READ, .table = birds, .key = "eagle", .key_length = 5},
    };

    must(sprat_multi(client, parts, 3, NULL, &error), &error, "multi");
    printf("%" PRId64 " robins, %" PRId64 " wrens, ", parts[0].result.integer,
           parts[1].result.integer);
    printf("eagle: %s\n", sprat_status_text(parts[2].status));
    sprat_free_parts(parts, 3);
}

/* Has two reads in progress at a time. */
static void together(sprat_client *client, uint64_t birds)
{
    static const char *const names[2] = {"robin", "wren"};
    sprat_error error;
    sprat_operation *reads[2];
    sprat_result found;
    int i;

    for (i = 0; i < 2; i++)
        must(sprat_start_read(client, birds, names[i], strlen(names[i]), NULL, &reads[i], &error),
             &error, "start");
    for (i = 0; i < 2; i++) {
        must(sprat_wait(reads[i], -1, &error), &error, "wait");
        must(sprat_take(reads[i], &found, &error), &error, names[i]);
        printf("%s: %s\n", names[i], (const char *)found.value);
        sprat_free(found.value);
        sprat_release(reads[i]);
    }
}

/* Moves one bird from a count to another: both change, or none. Again if another client changes one
 * of them meanwhile. */
static void move_one(sprat_client *client, uint64_t birds, const char *from, const char *to)
{
    const char *const names[2] = {from, to};
    sprat_error error;
    sprat_transaction *transaction;
    sprat_result found;
    sprat_status status;
    int i;

    must(sprat_transaction_open(client, &transaction, &error), &error, "transaction");
    do {
        for (i = 0; i < 2; i++) {
            char text[32];
            int length;

            must(sprat_transaction_read(transaction, birds, names[i], strlen(names[i]), NULL,
                                        &found, &error), &error, names[i]);
            length = snprintf(text, sizeof text, "%d", atoi(found.value) + (i ? 1 : -1));
            sprat_free(found.value);
            must(sprat_transaction_write(transaction, birds, names[i], strlen(names[i]), text,
                                         (size_t)length, SPRAT_FOREVER, &error), &error, "write");
        }
        /* A transaction is empty after its commit, so that the loop begins it again. */
        status = sprat_transaction_commit(transaction, NULL, NULL, 0, &error);
    } while (status == SPRAT_CONFLICT);
    must(status, &error, "commit");
    sprat_transaction_close(transaction);
}

/* Returns the number of objects of a table. */
static int count(sprat_client *client, uint64_t birds)
{
    sprat_error error;
    sprat_scan *scan;
    sprat_entry entry;
    sprat_status status;
    int objects = 0;

    must(sprat_scan_open(client, birds, &scan, &error), &error, "scan");
    while ((status = sprat_scan_next(scan, &entry, &error)) == SPRAT_OK)
        objects++;
    if (status != SPRAT_END)
        must(status, &error, "scan");
    sprat_scan_close(scan);
    return objects;
}

int main(int argc, char **argv)
{
    sprat_options options = SPRAT_OPTIONS_INIT;
    sprat_client *client;
    sprat_error error;
    uint64_t birds;

    if (argc != 2) {
        fprintf(stderr, "usage: %s LOCATOR of the coordinator\n", argv[0]);
        return 2;
    }
    options.timeout_ms = 5000;
    must(sprat_connect(argv[1], &options, &client, &error), &error, argv[1]);
    must(sprat_create_table(client, "birds", NULL, &birds, &error), &error, "birds");
    versions(client, birds);
    several(client, birds);
    move_one(client, birds, "wren", "robin");
    together(client, birds);
    printf("%d objects\n", count(client, birds));
    must(sprat_drop_table(client, "birds", &error), &error, "drop");
    sprat_disconnect(client);
    return 0;
}
