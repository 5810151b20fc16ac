/* Every function on a cluster that answers: store LOCATOR. */
#include <poll.h>

#include "should.h"

static sprat_client *client;
static uint64_t table;

static void tables(void)
{
    sprat_table_options options = SPRAT_TABLE_OPTIONS_INIT;
    sprat_table_info *list;
    uint64_t again, other;
    size_t count, i, found = 0;

    options.span = 2;
    options.durability = SPRAT_DURABILITY_ASYNC;
    /* The cluster has no replicas. */
    GIVES(SPRAT_REFUSED, sprat_create_table(client, "other", &options, &other, &error));
    options.durability = SPRAT_DURABILITY_CLUSTER;
    GIVES(SPRAT_OK, sprat_create_table(client, "other", &options, &other, &error));
    GIVES(SPRAT_OK, sprat_open_table(client, "table", &again, &error));
    SHOULD(again == table && other != table);
    GIVES(SPRAT_OK, sprat_list_tables(client, &list, &count, &error));
    SHOULD(count == 2);
    for (i = 0; i < count; i++)
        if (list[i].table == other) {
            found++;
            SHOULD(!strcmp(list[i].name, "other") && list[i].tablets == 2 && !list[i].lost);
            SHOULD(list[i].durability == SPRAT_DURABILITY_CLUSTER && !list[i].recovering);
        }
    SHOULD(found == 1);
    sprat_free(list);
    GIVES(SPRAT_OK, sprat_drop_table(client, "other", &error));
    GIVES(SPRAT_TABLE_NOT_FOUND, sprat_drop_table(client, "other", &error));
    GIVES(SPRAT_TABLE_NOT_FOUND, sprat_open_table(client, "other", &other, &error));
    GIVES(SPRAT_TABLE_NOT_FOUND, sprat_read(client, 77, "k", 1, NULL, NULL, 0, NULL, &error));
}

static void objects(void)
{
    sprat_result result;
    char buffer[8];
    uint64_t version;

    GIVES(SPRAT_OK, sprat_write(client, table, "k", 1, "a\0b", 3, NULL, &result, &error));
    version = result.version;
    SHOULD(version != 0 && result.value == NULL);
    memset(buffer, 'x', sizeof buffer);
    GIVES(SPRAT_OK, sprat_read(client, table, "k", 1, NULL, buffer, 8, &result, &error));
    SHOULD(result.version == version && result.length == 3 && result.value == buffer);
    SHOULD(!memcmp(buffer, "a\0bx", 4));
    GIVES(SPRAT_OK, sprat_read(client, table, "k", 1, NULL, buffer, 3, NULL, &error));
    memset(buffer, 'x', sizeof buffer);
    GIVES(SPRAT_BUFFER_TOO_SMALL,
          sprat_read(client, table, "k", 1, NULL, buffer, 2, &result, &error));
    SHOULD(result.length == 3 && result.version == version && !memcmp(buffer, "a\0x", 3));
    GIVES(SPRAT_BUFFER_TOO_SMALL, sprat_read(client, table, "k", 1, NULL, NULL, 0, NULL, &error));
    GIVES(SPRAT_OK, sprat_read_alloc(client, table, "k", 1, NULL, &result, &error));
    SHOULD(result.length == 3 && !memcmp(result.value, "a\0b", 4));
    sprat_free(result.value);

    GIVES(SPRAT_OK, sprat_append(client, table, "k", 1, "cd", 2, NULL, &result, &error));
    SHOULD(result.length == 5 && result.version > version);
    version = result.version;
    GIVES(SPRAT_OK, sprat_remove(client, table, "k", 1, NULL, &result, &error));
    SHOULD(result.version == version);
    GIVES(SPRAT_OK, sprat_remove(client, table, "k", 1, NULL, &result, &error));
    SHOULD(result.version == 0);
    GIVES(SPRAT_OBJECT_NOT_FOUND,
          sprat_read(client, table, "k", 1, NULL, buffer, 8, &result, &error));

    GIVES(SPRAT_OK, sprat_increment(client, table, "n", 1, -7, NULL, &result, &error));
    SHOULD(result.integer == -7 && result.version != 0);
    GIVES(SPRAT_OVERFLOW, sprat_increment(client, table, "n", 1, INT64_MIN, NULL, &result, &error));
    SHOULD(error.version == result.version && !error.maybe_executed);
    GIVES(SPRAT_OK, sprat_increment_double(client, table, "d", 1, 1.5, NULL, &result, &error));
    SHOULD(result.real > 1.49 && result.real < 1.51);
    GIVES(SPRAT_OK, sprat_write(client, table, "empty", 5, NULL, 0, NULL, &result, &error));
    GIVES(SPRAT_OK, sprat_read_alloc(client, table, "empty", 5, NULL, &result, &error));
    SHOULD(result.length == 0 && result.value != NULL);
    sprat_free(result.value);
    GIVES(SPRAT_NOT_A_NUMBER,
          sprat_increment(client, table, "empty", 5, 1, NULL, &result, &error));
}

/* Objects that expire, and touches of them. */
static void expiry(void)
{
    sprat_result result;
    sprat_part parts[2] = {{0}, {0}};

    GIVES(SPRAT_OK,
          sprat_write_expiring(client, table, "e", 1, "v", 1, 0, NULL, &result, &error));
    GIVES(SPRAT_OBJECT_NOT_FOUND, sprat_read_alloc(client, table, "e", 1, NULL, &result, &error));
    GIVES(SPRAT_OBJECT_NOT_FOUND, sprat_touch(client, table, "e", 1, 5, NULL, NULL, &error));
    GIVES(SPRAT_OK,
          sprat_write_expiring(client, table, "e", 1, "v", 1, 3600000, NULL, &result, &error));
    GIVES(SPRAT_OK, sprat_read_expiring(client, table, "e", 1, NULL, &result, &error));
    SHOULD(result.lifetime_ms > 3000000 && result.lifetime_ms <= 3600000);
    SHOULD(result.length == 1 && !memcmp(result.value, "v", 2));
    sprat_free(result.value);
    GIVES(SPRAT_OK, sprat_touch(client, table, "e", 1, SPRAT_FOREVER, NULL, &result, &error));
    GIVES(SPRAT_OK, sprat_read_expiring(client, table, "e", 1, NULL, &result, &error));
    SHOULD(result.lifetime_ms == SPRAT_FOREVER);
    sprat_free(result.value);
    GIVES(SPRAT_OK, sprat_touch(client, table, "e", 1, 0, NULL, &result, &error));
    GIVES(SPRAT_OBJECT_NOT_FOUND, sprat_read_alloc(client, table, "e", 1, NULL, &result, &error));
    GIVES(SPRAT_INVALID_ARGUMENT,
          sprat_write_expiring(client, table, "e", 1, "v", 1, SPRAT_FOREVER, NULL, NULL, &error));
    parts[0].kind = SPRAT_WRITE_EXPIRING;
    parts[1].kind = SPRAT_TOUCH;
    parts[0].table = parts[1].table = table;
    parts[0].key = "p";
    parts[1].key = "q";
    parts[0].key_length = parts[1].key_length = 1;
    parts[0].lifetime_ms = parts[1].lifetime_ms = 1000;
    GIVES(SPRAT_OK, sprat_multi(client, parts, 2, NULL, &error));
    SHOULD(parts[0].status == SPRAT_OK && parts[1].status == SPRAT_OBJECT_NOT_FOUND);
    sprat_free_parts(parts, 2);
}

/* Swaps: alone, started and as parts. */
static void swaps(void)
{
    sprat_result result;
    sprat_operation *operation;
    sprat_part parts[2] = {{0}, {0}};
    char buffer[4];

    GIVES(SPRAT_OK,
          sprat_swap(client, table, "s", 1, "one", 3, SPRAT_FOREVER, NULL, &result, &error));
    SHOULD(result.version != 0 && result.old_version == 0);
    SHOULD(result.value == NULL && result.length == 0);
    GIVES(SPRAT_OK, sprat_swap(client, table, "s", 1, "", 0, SPRAT_FOREVER, NULL, &result, &error));
    SHOULD(result.version == result.old_version + 1 && result.length == 3);
    SHOULD(!memcmp(result.value, "one", 4));
    sprat_free(result.value);
    GIVES(SPRAT_OK, sprat_start_swap(client, table, "s", 1, "three", 5, SPRAT_FOREVER, NULL,
                                     &operation, &error));
    GIVES(SPRAT_OK, sprat_wait(operation, -1, &error));
    GIVES(SPRAT_OK, sprat_take(operation, &result, &error));
    sprat_release(operation);
    SHOULD(result.old_version != 0 && result.length == 0 && result.value != NULL);
    sprat_free(result.value);

    parts[0].kind = parts[1].kind = SPRAT_SWAP;
    parts[0].table = parts[1].table = table;
    parts[0].key = "s";
    parts[1].key = "t";
    parts[0].key_length = parts[1].key_length = 1;
    parts[0].lifetime_ms = parts[1].lifetime_ms = SPRAT_FOREVER;
    parts[0].buffer = buffer;
    parts[0].room = sizeof buffer;
    GIVES(SPRAT_OK, sprat_multi(client, parts, 2, NULL, &error));
    SHOULD(parts[0].status == SPRAT_BUFFER_TOO_SMALL && parts[0].result.length == 5);
    SHOULD(parts[0].result.old_version != 0 && !memcmp(buffer, "thre", 4));
    SHOULD(parts[1].status == SPRAT_OK && parts[1].result.old_version == 0);
    SHOULD(parts[1].result.value == NULL);
    sprat_free_parts(parts, 2);

    GIVES(SPRAT_OK, sprat_swap(client, table, "s", 1, "v", 1, 0, NULL, &result, &error));
    sprat_free(result.value);
    GIVES(SPRAT_OBJECT_NOT_FOUND, sprat_read_alloc(client, table, "s", 1, NULL, &result, &error));
    GIVES(SPRAT_INVALID_ARGUMENT,
          sprat_swap(client, table, "s", 1, "v", 1, UINT64_C(1) << 47, NULL, &result, &error));
    GIVES(SPRAT_INVALID_ARGUMENT,
          sprat_swap(client, table, "s", 1, "v", 1, SPRAT_FOREVER, NULL, NULL, &error));
}

/* Reads and changes of two tables that happen together, and conflicts. */
static void transactions(void)
{
    sprat_operation_options brief = SPRAT_OPERATION_OPTIONS_INIT;
    sprat_condition absent = {SPRAT_IF_ABSENT, 0, 0};
    sprat_transaction *transaction, *other;
    sprat_result result;
    uint64_t second, versions[4] = {7, 7, 7, 7};
    char key[8];
    int i;

    MUST(sprat_create_table(client, "second", NULL, &second, &error));
    MUST(sprat_write(client, table, "tx", 2, "old", 3, NULL, NULL, &error));
    MUST(sprat_write(client, table, "gone", 4, "old", 3, NULL, NULL, &error));
    GIVES(SPRAT_OK, sprat_transaction_open(client, &transaction, &error));
    GIVES(SPRAT_OK, sprat_transaction_read(transaction, table, "tx", 2, NULL, &result, &error));
    SHOULD(result.version != 0 && result.length == 3 && !memcmp(result.value, "old", 4));
    sprat_free(result.value);
    GIVES(SPRAT_OBJECT_NOT_FOUND,
          sprat_transaction_read(transaction, second, "tx", 2, NULL, &result, &error));
    GIVES(SPRAT_OK, sprat_transaction_write(transaction, second, "tx", 2, "new", 3, SPRAT_FOREVER,
                                            &error));
    GIVES(SPRAT_OK, sprat_transaction_write(transaction, table, "tx", 2, "new", 3, 3600000,
                                            &error));
    GIVES(SPRAT_OK, sprat_transaction_remove(transaction, table, "gone", 4, &error));
    GIVES(SPRAT_OK, sprat_transaction_check(transaction, table, "none", 4, &absent, &error));
    GIVES(SPRAT_OK, sprat_transaction_read(transaction, second, "tx", 2, NULL, &result, &error));
    SHOULD(result.version == 0 && !memcmp(result.value, "new", 4));
    sprat_free(result.value);
    GIVES(SPRAT_OBJECT_NOT_FOUND,
          sprat_transaction_read(transaction, table, "gone", 4, NULL, &result, &error));
    GIVES(SPRAT_OBJECT_NOT_FOUND,
          sprat_read_alloc(client, second, "tx", 2, NULL, &result, &error));
    brief.timeout_ms = 20000;
    GIVES(SPRAT_OK, sprat_transaction_commit(transaction, &brief, versions, 4, &error));
    SHOULD(versions[0] != 0 && versions[1] != 0 && versions[2] == 0 && versions[3] == 0);
    GIVES(SPRAT_OK, sprat_read_alloc(client, second, "tx", 2, NULL, &result, &error));
    SHOULD(result.version == versions[0]);
    sprat_free(result.value);
    GIVES(SPRAT_OK, sprat_read_expiring(client, table, "tx", 2, NULL, &result, &error));
    SHOULD(result.version == versions[1] && result.lifetime_ms <= 3600000);
    sprat_free(result.value);
    GIVES(SPRAT_OBJECT_NOT_FOUND,
          sprat_read_alloc(client, table, "gone", 4, NULL, &result, &error));

    /* Two that have read the same object: the second one to commit changes nothing. */
    GIVES(SPRAT_OK, sprat_transaction_open(client, &other, &error));
    for (i = 0; i < 2; i++) {
        sprat_transaction *one = i ? other : transaction;
        GIVES(SPRAT_OK, sprat_transaction_read(one, table, "tx", 2, NULL, &result, &error));
        sprat_free(result.value);
        GIVES(SPRAT_OK, sprat_transaction_write(one, table, "tx", 2, i ? "2" : "1", 1,
                                                SPRAT_FOREVER, &error));
    }
    GIVES(SPRAT_OK, sprat_transaction_commit(transaction, NULL, versions, 1, &error));
    GIVES(SPRAT_CONFLICT, sprat_transaction_commit(other, NULL, NULL, 0, &error));
    SHOULD(error.version == versions[0] && !error.maybe_executed);
    GIVES(SPRAT_OK, sprat_transaction_commit(other, NULL, NULL, 0, &error));
    GIVES(SPRAT_OK, sprat_transaction_read(other, table, "tx", 2, NULL, &result, &error));
    SHOULD(!memcmp(result.value, "1", 2));
    sprat_free(result.value);
    GIVES(SPRAT_OBJECT_EXISTS,
          sprat_transaction_check(other, table, "tx", 2, &absent, &error));
    GIVES(SPRAT_OK, sprat_transaction_write(other, table, "tx", 2, "3", 1, SPRAT_FOREVER, &error));
    GIVES(SPRAT_OK, sprat_transaction_abort(other, &error));
    GIVES(SPRAT_OK, sprat_transaction_commit(other, NULL, NULL, 0, &error));
    GIVES(SPRAT_OK, sprat_transaction_check(other, table, "tx", 2, &absent, &error));
    GIVES(SPRAT_CONFLICT, sprat_transaction_commit(other, NULL, NULL, 0, &error));
    sprat_transaction_close(other);

    for (i = 0; i < SPRAT_MAX_TRANSACTION; i++) {
        int length = snprintf(key, sizeof key, "%d", i);
        GIVES(SPRAT_OK, sprat_transaction_write(transaction, second, key, (size_t)length, key,
                                                (size_t)length, SPRAT_FOREVER, &error));
    }
    GIVES(SPRAT_TRANSACTION_TOO_LARGE,
          sprat_transaction_remove(transaction, second, "more", 4, &error));
    GIVES(SPRAT_OK, sprat_transaction_commit(transaction, NULL, NULL, 0, &error));
    GIVES(SPRAT_OK, sprat_transaction_remove(transaction, second, "0", 1, &error));
    sprat_transaction_close(transaction);
    GIVES(SPRAT_OK, sprat_read_alloc(client, second, "0", 1, NULL, &result, &error));
    sprat_free(result.value);
    GIVES(SPRAT_OK, sprat_drop_table(client, "second", &error));
}

static void conditions(void)
{
    sprat_operation_options only = SPRAT_OPERATION_OPTIONS_INIT;
    sprat_result result;
    uint64_t version;

    only.timeout_ms = 20000;
    only.condition.kind = SPRAT_IF_EXISTS;
    GIVES(SPRAT_OBJECT_NOT_FOUND, sprat_write(client, table, "c", 1, "1", 1, &only, NULL, &error));
    GIVES(SPRAT_OBJECT_NOT_FOUND, sprat_remove(client, table, "c", 1, &only, NULL, &error));
    only.condition.kind = SPRAT_IF_ABSENT;
    GIVES(SPRAT_OK, sprat_write(client, table, "c", 1, "1", 1, &only, &result, &error));
    version = result.version;
    GIVES(SPRAT_OBJECT_EXISTS, sprat_append(client, table, "c", 1, "2", 1, &only, NULL, &error));
    SHOULD(error.version == version);
    only.condition.kind = SPRAT_IF_VERSION;
    only.condition.version = version + 1;
    GIVES(SPRAT_WRONG_VERSION, sprat_increment(client, table, "c", 1, 1, &only, NULL, &error));
    SHOULD(error.version == version);
    GIVES(SPRAT_WRONG_VERSION, sprat_read_alloc(client, table, "c", 1, &only, &result, &error));
    only.condition.version = version;
    GIVES(SPRAT_OK, sprat_increment(client, table, "c", 1, 1, &only, &result, &error));
    SHOULD(result.integer == 2);
    only.condition.kind = SPRAT_IF_NEWER_THAN;
    GIVES(SPRAT_OK, sprat_remove(client, table, "c", 1, &only, NULL, &error));
}

static void several(void)
{
    char buffer[2];
    size_t i;
    sprat_part parts[] = {
        {.kind = SPRAT_WRITE, .key = "p", .key_length = 1, .value = "xyz", .value_length = 3},
        {.kind = SPRAT_INCREMENT, .key = "i", .key_length = 1, .integer = 5},
        {.kind = SPRAT_INCREMENT_DOUBLE, .key = "r", .key_length = 1, .real = 2.0},
        {.kind = SPRAT_APPEND, .key = "a", .key_length = 1, .value = "12", .value_length = 2},
        {.kind = SPRAT_REMOVE, .key = "none", .key_length = 4},
        {.kind = SPRAT_REMOVE, .key = "x", .key_length = 1, .condition = {.kind = SPRAT_IF_EXISTS}},
    };
    sprat_part reads[] = {
        {.kind = SPRAT_READ, .key = "p", .key_length = 1},
        {.kind = SPRAT_READ, .key = "p", .key_length = 1, .buffer = buffer, .room = 2},
        {.kind = SPRAT_READ, .key = "a", .key_length = 1, .buffer = buffer, .room = 2},
        {.kind = SPRAT_READ, .key = "none", .key_length = 4},
    };

    for (i = 0; i < 6; i++)
        parts[i].table = table;
    GIVES(SPRAT_OK, sprat_multi(client, parts, 6, NULL, &error));
    for (i = 0; i < 5; i++)
        SHOULD(parts[i].status == SPRAT_OK && parts[i].message == NULL);
    SHOULD(parts[0].result.version && parts[1].result.integer == 5 && parts[3].result.length == 2);
    SHOULD(parts[2].result.real > 1.9 && parts[4].result.version == 0);
    SHOULD(parts[5].status == SPRAT_OBJECT_NOT_FOUND && parts[5].message != NULL);
    sprat_free_parts(parts, 6);
    SHOULD(parts[5].message == NULL);

    for (i = 0; i < 4; i++)
        reads[i].table = table;
    GIVES(SPRAT_OK, sprat_multi(client, reads, 4, NULL, &error));
    SHOULD(reads[0].status == SPRAT_OK && !memcmp(reads[0].result.value, "xyz", 4));
    SHOULD(reads[1].status == SPRAT_BUFFER_TOO_SMALL && reads[1].result.length == 3);
    SHOULD(reads[2].status == SPRAT_OK && reads[2].result.value == buffer);
    SHOULD(!memcmp(buffer, "12", 2) && reads[3].status == SPRAT_OBJECT_NOT_FOUND);
    sprat_free_parts(reads, 4);
    SHOULD(reads[0].result.value == NULL && reads[2].buffer == buffer);
    sprat_free_parts(reads, 4);
}

static void in_progress(void)
{
    sprat_operation *operations[5], *many;
    sprat_result result;
    int i, worked;
    sprat_part parts[2] = {
        {.kind = SPRAT_READ, .table = table, .key = "w", .key_length = 1},
        {.kind = SPRAT_READ, .table = table, .key = "none", .key_length = 4},
    };

    GIVES(SPRAT_OK, sprat_start_write(client, table, "w", 1, "v", 1, NULL, &operations[0], &error));
    while (!sprat_is_ready(operations[0]))
        GIVES(SPRAT_OK, sprat_poll(client, &worked, &error));
    GIVES(SPRAT_OK, sprat_wait(operations[0], -1, &error));
    GIVES(SPRAT_OK, sprat_take(operations[0], &result, &error));
    SHOULD(result.version != 0);
    GIVES(SPRAT_TAKEN, sprat_take(operations[0], &result, &error));
    GIVES(SPRAT_OK, sprat_cancel(operations[0], &error));
    sprat_release(operations[0]);

    GIVES(SPRAT_OK, sprat_start_read(client, table, "w", 1, NULL, &operations[0], &error));
    GIVES(SPRAT_OK, sprat_start_increment(client, table, "s", 1, 4, NULL, &operations[1], &error));
    GIVES(SPRAT_OK, sprat_start_append(client, table, "t", 1, "uv", 2, NULL, &operations[2],
                                       &error));
    GIVES(SPRAT_OK, sprat_start_remove(client, table, "none", 4, NULL, &operations[3], &error));
    GIVES(SPRAT_OK, sprat_start_read(client, table, "none", 4, NULL, &operations[4], &error));
    for (i = 0; i < 5; i++)
        GIVES(SPRAT_OK, sprat_wait(operations[i], 20000, &error));
    GIVES(SPRAT_OK, sprat_take(operations[0], &result, &error));
    SHOULD(result.length == 1 && !memcmp(result.value, "v", 2));
    sprat_free(result.value);
    GIVES(SPRAT_OK, sprat_take(operations[1], &result, &error));
    SHOULD(result.integer == 4);
    GIVES(SPRAT_OK, sprat_take(operations[2], &result, &error));
    SHOULD(result.length == 2);
    GIVES(SPRAT_OK, sprat_take(operations[3], &result, &error));
    SHOULD(result.version == 0);
    GIVES(SPRAT_OBJECT_NOT_FOUND, sprat_take(operations[4], &result, &error));
    for (i = 0; i < 5; i++)
        sprat_release(operations[i]);

    GIVES(SPRAT_OK, sprat_start_multi(client, parts, 2, NULL, &many, &error));
    GIVES(SPRAT_OK, sprat_wait(many, -1, &error));
    GIVES(SPRAT_INVALID_ARGUMENT, sprat_take(many, &result, &error));
    GIVES(SPRAT_INVALID_ARGUMENT, sprat_take_parts(many, parts, 1, &error));
    GIVES(SPRAT_OK, sprat_take_parts(many, parts, 2, &error));
    SHOULD(parts[0].status == SPRAT_OK && parts[1].status == SPRAT_OBJECT_NOT_FOUND);
    GIVES(SPRAT_TAKEN, sprat_take_parts(many, parts, 2, &error));
    sprat_free_parts(parts, 2);
    sprat_release(many);
}

/* A loop of the program's own sleeps in poll() until the client has something to do. */
static void loop(void)
{
    sprat_operation *operation;
    struct pollfd fd = {.fd = -1, .events = POLLIN};
    int timeout, worked;

    GIVES(SPRAT_OK, sprat_descriptor(client, &fd.fd, &error));
    GIVES(SPRAT_OK, sprat_start_read(client, table, "w", 1, NULL, &operation, &error));
    while (!sprat_is_ready(operation)) {
        MUST(sprat_prepare_to_sleep(client, &timeout, &error));
        poll(&fd, 1, timeout);
        do
            MUST(sprat_poll(client, &worked, &error));
        while (worked);
    }
    /* Its result is dropped with it. */
    sprat_release(operation);
}

/* Operations that the program releases while they are in progress do their work. */
static void released(void)
{
    sprat_operation *operation;
    sprat_result result;
    int i;

    for (i = 0; i < 100; i++) {
        GIVES(SPRAT_OK,
              sprat_start_increment(client, table, "x", 1, 1, NULL, &operation, &error));
        sprat_release(operation);
    }
    /* Requests with the same key may pass each other, so that the sum may show some later. */
    do
        MUST(sprat_increment(client, table, "x", 1, 0, NULL, &result, &error));
    while (result.integer < 100);
    SHOULD(result.integer == 100);
}

static void scans(void)
{
    sprat_scan *scan;
    sprat_entry entry;
    uint64_t many;
    char key[8], seen[300] = {0};
    int i, found = 0;
    sprat_status status;

    MUST(sprat_create_table(client, "many", NULL, &many, &error));
    GIVES(SPRAT_OK, sprat_scan_open(client, many, &scan, &error));
    GIVES(SPRAT_END, sprat_scan_next(scan, &entry, &error));
    GIVES(SPRAT_END, sprat_scan_next(scan, &entry, &error));
    sprat_scan_close(scan);
    for (i = 0; i < 300; i++) {
        int length = snprintf(key, sizeof key, "%d", i);
        MUST(sprat_write(client, many, key, (size_t)length, key, (size_t)length, NULL, NULL,
                         &error));
    }
    GIVES(SPRAT_OK, sprat_scan_open(client, many, &scan, &error));
    while ((status = sprat_scan_next(scan, &entry, &error)) == SPRAT_OK) {
        SHOULD(entry.key_length == entry.value_length && entry.version != 0);
        SHOULD(!memcmp(entry.key, entry.value, entry.key_length));
        memcpy(key, entry.key, entry.key_length);
        key[entry.key_length] = 0;
        SHOULD(!seen[atoi(key)]++);
        found++;
    }
    SHOULD(status == SPRAT_END && found == 300);
    sprat_scan_close(scan);
    GIVES(SPRAT_OK, sprat_drop_table(client, "many", &error));
    GIVES(SPRAT_OK, sprat_scan_open(client, many, &scan, &error));
    GIVES(SPRAT_TABLE_NOT_FOUND, sprat_scan_next(scan, &entry, &error));
    sprat_scan_close(scan);
}

static void counters(void)
{
    sprat_counters all = SPRAT_COUNTERS_INIT;
    /* A program of a later version, and one that knows the first counter alone. */
    struct {
        sprat_counters known;
        uint64_t later;
    } longer = {SPRAT_COUNTERS_INIT, 7};
    sprat_counters shorter = SPRAT_COUNTERS_INIT;

    GIVES(SPRAT_OK, sprat_client_counters(client, &all, &error));
    SHOULD(all.size == sizeof all && all.started >= all.completed && all.completed > 400);
    SHOULD(all.bundles >= 2 && all.saved_round_trips > all.bundles && all.late == 0);
    SHOULD(all.route_refreshes > 0 && all.cancelled == 0);
    longer.known.size = sizeof longer;
    GIVES(SPRAT_OK, sprat_client_counters(client, &longer.known, &error));
    SHOULD(longer.later == 0 && longer.known.started == all.started);
    shorter.size = offsetof(sprat_counters, completed);
    shorter.completed = 7;
    GIVES(SPRAT_OK, sprat_client_counters(client, &shorter, &error));
    SHOULD(shorter.started == all.started && shorter.completed == 7);
}

int main(int argc, char **argv)
{
    sprat_options options = SPRAT_OPTIONS_INIT;

    if (argc != 2)
        return 2;
    options.timeout_ms = 30000;
    options.try_timeout_ms = 1000;
    options.max_operations = 1000;
    MUST(sprat_connect(argv[1], &options, &client, &error));
    MUST(sprat_create_table(client, "table", NULL, &table, &error));
    GIVES(SPRAT_OK, sprat_set_timeout(client, 25000, &error));
    tables();
    objects();
    conditions();
    expiry();
    swaps();
    several();
    transactions();
    in_progress();
    loop();
    released();
    scans();
    counters();
    sprat_disconnect(client);
    return ended();
}
