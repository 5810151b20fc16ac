/* Bad input on a cluster that answers: misuse LOCATOR. */
#include <pthread.h>
#include <sched.h>

#include "should.h"

static sprat_client *client;
static uint64_t table;

static void null_pointers(void)
{
    sprat_client *other = (sprat_client *)&other;
    sprat_operation *operation = (sprat_operation *)&operation;
    sprat_scan *scan = (sprat_scan *)&scan;
    sprat_transaction *transaction = (sprat_transaction *)&transaction;
    sprat_table_info *list;
    sprat_entry entry;
    sprat_result result;
    sprat_counters counters = SPRAT_COUNTERS_INIT;
    size_t count;
    int number;
    uint64_t id;

    GIVES(SPRAT_INVALID_ARGUMENT, sprat_connect(NULL, NULL, &other, &error));
    SHOULD(other == NULL);
    GIVES(SPRAT_INVALID_ARGUMENT, sprat_connect("tcp:host=127.0.0.1,port=1", NULL, NULL, &error));
    SHOULD(sprat_connect(NULL, NULL, NULL, NULL) == SPRAT_INVALID_ARGUMENT);
    GIVES(SPRAT_INVALID_ARGUMENT, sprat_set_timeout(NULL, 1, &error));
    GIVES(SPRAT_INVALID_ARGUMENT, sprat_create_table(NULL, "t", NULL, &id, &error));
    GIVES(SPRAT_INVALID_ARGUMENT, sprat_create_table(client, NULL, NULL, &id, &error));
    GIVES(SPRAT_INVALID_ARGUMENT, sprat_create_table(client, "t", NULL, NULL, &error));
    GIVES(SPRAT_INVALID_ARGUMENT, sprat_open_table(client, NULL, &id, &error));
    GIVES(SPRAT_INVALID_ARGUMENT, sprat_drop_table(client, NULL, &error));
    GIVES(SPRAT_INVALID_ARGUMENT, sprat_list_tables(client, NULL, &count, &error));
    GIVES(SPRAT_INVALID_ARGUMENT, sprat_list_tables(client, &list, NULL, &error));
    GIVES(SPRAT_INVALID_ARGUMENT, sprat_read(NULL, table, "k", 1, NULL, NULL, 0, NULL, &error));
    GIVES(SPRAT_INVALID_ARGUMENT, sprat_read(client, table, NULL, 1, NULL, NULL, 0, NULL, &error));
    GIVES(SPRAT_INVALID_ARGUMENT, sprat_read(client, table, "k", 1, NULL, NULL, 9, NULL, &error));
    GIVES(SPRAT_INVALID_ARGUMENT, sprat_read_alloc(client, table, "k", 1, NULL, NULL, &error));
    GIVES(SPRAT_INVALID_ARGUMENT,
          sprat_write(client, table, "k", 1, NULL, 1, NULL, &result, &error));
    GIVES(SPRAT_INVALID_ARGUMENT, sprat_append(client, table, "k", 1, NULL, 1, NULL, NULL, &error));
    GIVES(SPRAT_INVALID_ARGUMENT, sprat_multi(client, NULL, 1, NULL, &error));
    GIVES(SPRAT_INVALID_ARGUMENT, sprat_start_read(client, table, "k", 1, NULL, NULL, &error));
    GIVES(SPRAT_INVALID_ARGUMENT, sprat_start_read(NULL, table, "k", 1, NULL, &operation, &error));
    SHOULD(operation == NULL);
    GIVES(SPRAT_INVALID_ARGUMENT, sprat_wait(NULL, 0, &error));
    GIVES(SPRAT_INVALID_ARGUMENT, sprat_take(NULL, &result, &error));
    GIVES(SPRAT_INVALID_ARGUMENT, sprat_take_parts(NULL, NULL, 0, &error));
    GIVES(SPRAT_INVALID_ARGUMENT, sprat_cancel(NULL, &error));
    GIVES(SPRAT_INVALID_ARGUMENT, sprat_poll(NULL, &number, &error));
    GIVES(SPRAT_INVALID_ARGUMENT, sprat_client_counters(client, NULL, &error));
    GIVES(SPRAT_INVALID_ARGUMENT, sprat_client_counters(NULL, &counters, &error));
    counters.size = 0;
    GIVES(SPRAT_INVALID_ARGUMENT, sprat_client_counters(client, &counters, &error));
    GIVES(SPRAT_INVALID_ARGUMENT, sprat_descriptor(client, NULL, &error));
    GIVES(SPRAT_INVALID_ARGUMENT, sprat_prepare_to_sleep(client, NULL, &error));
    GIVES(SPRAT_INVALID_ARGUMENT, sprat_transaction_open(NULL, &transaction, &error));
    SHOULD(transaction == NULL);
    GIVES(SPRAT_INVALID_ARGUMENT, sprat_transaction_open(client, NULL, &error));
    GIVES(SPRAT_INVALID_ARGUMENT,
          sprat_transaction_read(NULL, table, "k", 1, NULL, &result, &error));
    GIVES(SPRAT_INVALID_ARGUMENT,
          sprat_transaction_write(NULL, table, "k", 1, "v", 1, SPRAT_FOREVER, &error));
    GIVES(SPRAT_INVALID_ARGUMENT, sprat_transaction_remove(NULL, table, "k", 1, &error));
    GIVES(SPRAT_INVALID_ARGUMENT, sprat_transaction_commit(NULL, NULL, NULL, 0, &error));
    GIVES(SPRAT_INVALID_ARGUMENT, sprat_transaction_abort(NULL, &error));
    MUST(sprat_transaction_open(client, &transaction, &error));
    GIVES(SPRAT_INVALID_ARGUMENT,
          sprat_transaction_read(transaction, table, "k", 1, NULL, NULL, &error));
    GIVES(SPRAT_INVALID_ARGUMENT,
          sprat_transaction_read(transaction, table, NULL, 1, NULL, &result, &error));
    GIVES(SPRAT_INVALID_ARGUMENT,
          sprat_transaction_write(transaction, table, "k", 1, NULL, 1, SPRAT_FOREVER, &error));
    GIVES(SPRAT_INVALID_ARGUMENT, sprat_transaction_write(transaction, table, "k", 1, "v", 1,
                                                          UINT64_C(1) << 47, &error));
    GIVES(SPRAT_INVALID_ARGUMENT,
          sprat_transaction_check(transaction, table, "k", 1, NULL, &error));
    GIVES(SPRAT_INVALID_ARGUMENT, sprat_transaction_commit(transaction, NULL, NULL, 1, &error));
    sprat_transaction_close(transaction);
    sprat_transaction_close(NULL);
    GIVES(SPRAT_INVALID_ARGUMENT, sprat_scan_open(NULL, table, &scan, &error));
    SHOULD(scan == NULL);
    GIVES(SPRAT_INVALID_ARGUMENT, sprat_scan_open(client, table, NULL, &error));
    GIVES(SPRAT_INVALID_ARGUMENT, sprat_scan_next(NULL, &entry, &error));
    SHOULD(!sprat_is_ready(NULL) && sprat_error_message(NULL)[0] != 0);
    sprat_disconnect(NULL);
    sprat_release(NULL);
    sprat_scan_close(NULL);
    sprat_free(NULL);
    sprat_free_parts(NULL, 7);
    GIVES(SPRAT_OK, sprat_poll(client, NULL, &error));
}

static void lengths(void)
{
    static char long_value[SPRAT_MAX_VALUE + 1];
    sprat_part part = {.kind = SPRAT_READ, .table = table, .key = "k", .key_length = (size_t)-1};
    char name[300];
    uint64_t id;

    memset(name, 'n', sizeof name);
    name[256] = 0;
    GIVES(SPRAT_BAD_NAME, sprat_create_table(client, name, NULL, &id, &error));
    GIVES(SPRAT_BAD_NAME, sprat_create_table(client, "", NULL, &id, &error));
    GIVES(SPRAT_INVALID_ARGUMENT, sprat_create_table(client, "\xff", NULL, &id, &error));
    GIVES(SPRAT_KEY_TOO_LONG, sprat_read(client, table, long_value, SPRAT_MAX_KEY + 1, NULL, NULL,
                                         0, NULL, &error));
    GIVES(SPRAT_INVALID_ARGUMENT, sprat_read(client, table, "k", (size_t)-1, NULL, NULL, 0, NULL,
                                             &error));
    GIVES(SPRAT_VALUE_TOO_LONG, sprat_write(client, table, "k", 1, long_value, sizeof long_value,
                                            NULL, NULL, &error));
    GIVES(SPRAT_INVALID_ARGUMENT,
          sprat_write(client, table, "k", 1, "v", SIZE_MAX / 2 + 1, NULL, NULL, &error));
    MUST(sprat_write(client, table, "k", 1, long_value, SPRAT_MAX_VALUE, NULL, NULL, &error));
    GIVES(SPRAT_VALUE_TOO_LONG, sprat_append(client, table, "k", 1, "v", 1, NULL, NULL, &error));
    GIVES(SPRAT_INVALID_ARGUMENT, sprat_multi(client, &part, 1, NULL, &error));
    SHOULD(strstr(error.message, "part 0") != NULL);
    part.key_length = SPRAT_MAX_KEY + 1;
    GIVES(SPRAT_KEY_TOO_LONG, sprat_multi(client, &part, 1, NULL, &error));
    GIVES(SPRAT_TOO_MANY_PARTS, sprat_multi(client, &part, SPRAT_MAX_PARTS + 1, NULL, &error));
    GIVES(SPRAT_TOO_MANY_PARTS, sprat_multi(client, &part, SIZE_MAX, NULL, &error));
    GIVES(SPRAT_OK, sprat_multi(client, NULL, 0, NULL, &error));
}

static void fields(void)
{
    /* The options of a later version, which has one more field. */
    struct {
        sprat_operation_options known;
        uint64_t later;
    } longer = {{sizeof longer, 0, {SPRAT_ALWAYS, 0, 0}}, 0};
    sprat_operation_options options = SPRAT_OPERATION_OPTIONS_INIT;
    sprat_table_options table_options = SPRAT_TABLE_OPTIONS_INIT;
    sprat_options settings = SPRAT_OPTIONS_INIT;
    sprat_part part = {.kind = 99, .table = table, .key = "k", .key_length = 1};
    sprat_transaction *transaction;
    sprat_operation *operation;
    sprat_client *other;
    uint64_t id;

    options.condition.kind = 99;
    GIVES(SPRAT_INVALID_ARGUMENT, sprat_remove(client, table, "k", 1, &options, NULL, &error));
    options.condition.kind = SPRAT_IF_ABSENT;
    GIVES(SPRAT_INVALID_ARGUMENT, sprat_multi(client, &part, 0, &options, &error));
    MUST(sprat_transaction_open(client, &transaction, &error));
    GIVES(SPRAT_INVALID_ARGUMENT,
          sprat_transaction_commit(transaction, &options, NULL, 0, &error));
    sprat_transaction_close(transaction);
    options.condition.kind = SPRAT_ALWAYS;
    options.condition.reserved = 1;
    GIVES(SPRAT_INVALID_ARGUMENT, sprat_remove(client, table, "k", 1, &options, NULL, &error));
    options.condition.reserved = 0;
    /* Only the time of an older version. */
    options.size = offsetof(sprat_operation_options, condition);
    options.condition.kind = 99;
    GIVES(SPRAT_OK, sprat_remove(client, table, "k", 1, &options, NULL, &error));
    options.size = 0;
    GIVES(SPRAT_INVALID_ARGUMENT, sprat_remove(client, table, "k", 1, &options, NULL, &error));
    options.size = 1 << 20;
    GIVES(SPRAT_INVALID_ARGUMENT, sprat_remove(client, table, "k", 1, &options, NULL, &error));
    GIVES(SPRAT_OK, sprat_remove(client, table, "k", 1, &longer.known, NULL, &error));
    longer.later = 1;
    GIVES(SPRAT_INVALID_ARGUMENT, sprat_remove(client, table, "k", 1, &longer.known, NULL, &error));

    GIVES(SPRAT_INVALID_ARGUMENT, sprat_multi(client, &part, 1, NULL, &error));
    part.kind = SPRAT_READ;
    part.reserved[2] = 1;
    GIVES(SPRAT_INVALID_ARGUMENT, sprat_multi(client, &part, 1, NULL, &error));
    table_options.durability = 9;
    GIVES(SPRAT_INVALID_ARGUMENT, sprat_create_table(client, "t", &table_options, &id, &error));
    GIVES(SPRAT_INVALID_ARGUMENT, sprat_set_timeout(client, 0, &error));
    /* The longest time. */
    options.size = sizeof options;
    options.timeout_ms = UINT64_MAX;
    options.condition.kind = SPRAT_ALWAYS;
    GIVES(SPRAT_OK, sprat_remove(client, table, "k", 1, &options, NULL, &error));
    GIVES(SPRAT_OK, sprat_start_remove(client, table, "k", 1, &options, &operation, &error));
    GIVES(SPRAT_OK, sprat_wait(operation, INT64_MAX, &error));
    sprat_release(operation);
    GIVES(SPRAT_NOT_FINITE,
          sprat_increment_double(client, table, "k", 1, 1e308 * 10, NULL, NULL, &error));

    GIVES(SPRAT_SYSTEM, sprat_connect("nonsense", NULL, &other, &error));
    GIVES(SPRAT_SYSTEM, sprat_connect("", NULL, &other, &error));
    settings.local = "nonsense";
    GIVES(SPRAT_SYSTEM, sprat_connect("tcp:host=127.0.0.1,port=1", &settings, &other, &error));
    settings.local = NULL;
    settings.insecure_network = 2;
    GIVES(SPRAT_INVALID_ARGUMENT,
          sprat_connect("tcp:host=127.0.0.1,port=1", &settings, &other, &error));
    SHOULD(other == NULL);
    SHOULD(!strcmp(sprat_status_text(12345), "unknown status"));
    SHOULD(!strcmp(sprat_status_text(SPRAT_OK), "success") && sprat_version()[0] == '0');
}

/* A coordinator that does not answer: the error names its locator, and an operation in progress can
 * be waited for, cancelled and outlived. */
static void unreachable(void)
{
    sprat_options settings = SPRAT_OPTIONS_INIT;
    sprat_operation_options brief = SPRAT_OPERATION_OPTIONS_INIT;
    sprat_operation *operation, *second, *third;
    sprat_transaction *transaction;
    sprat_client *alone;
    sprat_scan *scan;
    sprat_entry entry;
    sprat_result result;
    uint64_t id;

    settings.timeout_ms = 200;
    settings.transports = "tcp";
    MUST(sprat_connect("tcp:host=127.0.0.1,port=1", &settings, &alone, &error));
    GIVES(SPRAT_DEADLINE, sprat_open_table(alone, "t", &id, &error));
    SHOULD(strstr(error.message, "127.0.0.1") && strstr(error.message, "refused"));
    SHOULD(!strcmp(sprat_error_message(&error), error.message));
    MUST(sprat_set_timeout(alone, 60000, &error));
    brief.timeout_ms = 100;
    GIVES(SPRAT_DEADLINE, sprat_write(alone, 1, "k", 1, "v", 1, &brief, NULL, &error));

    MUST(sprat_start_write(alone, 1, "k", 1, "v", 1, NULL, &operation, &error));
    MUST(sprat_start_read(alone, 1, "k", 1, NULL, &second, &error));
    MUST(sprat_start_read(alone, 1, "k", 1, &brief, &third, &error));
    MUST(sprat_scan_open(alone, 1, &scan, &error));
    MUST(sprat_transaction_open(alone, &transaction, &error));
    GIVES(SPRAT_DEADLINE,
          sprat_transaction_read(transaction, 1, "k", 1, &brief, &result, &error));
    MUST(sprat_transaction_write(transaction, 1, "k", 1, "v", 1, SPRAT_FOREVER, &error));
    GIVES(SPRAT_DEADLINE, sprat_transaction_commit(transaction, &brief, NULL, 0, &error));
    GIVES(SPRAT_NOT_READY, sprat_wait(operation, 0, &error));
    GIVES(SPRAT_NOT_READY, sprat_wait(operation, 20, &error));
    GIVES(SPRAT_NOT_READY, sprat_take(operation, &result, &error));
    GIVES(SPRAT_OK, sprat_cancel(operation, &error));
    SHOULD(sprat_is_ready(operation) && !sprat_is_ready(second));
    GIVES(SPRAT_OK, sprat_wait(operation, -1, &error));
    GIVES(SPRAT_CANCELLED, sprat_take(operation, &result, &error));
    GIVES(SPRAT_CANCELLED, sprat_take(operation, &result, &error));
    SHOULD(error.maybe_executed);
    GIVES(SPRAT_OK, sprat_cancel(operation, &error));
    sprat_release(operation);
    GIVES(SPRAT_OK, sprat_wait(third, -1, &error));
    GIVES(SPRAT_DEADLINE, sprat_take(third, &result, &error));
    sprat_release(third);

    /* What outlives its client. */
    sprat_disconnect(alone);
    SHOULD(sprat_is_ready(second));
    GIVES(SPRAT_OK, sprat_wait(second, -1, &error));
    GIVES(SPRAT_DISCONNECTED, sprat_take(second, &result, &error));
    GIVES(SPRAT_OK, sprat_cancel(second, &error));
    sprat_release(second);
    GIVES(SPRAT_DISCONNECTED, sprat_transaction_remove(transaction, 1, "k", 1, &error));
    GIVES(SPRAT_DISCONNECTED, sprat_transaction_commit(transaction, NULL, NULL, 0, &error));
    sprat_transaction_close(transaction);
    GIVES(SPRAT_DISCONNECTED, sprat_scan_next(scan, &entry, &error));
    sprat_scan_close(scan);
}

/* The most operations in progress. */
static void too_many(const char *locator)
{
    sprat_options settings = SPRAT_OPTIONS_INIT;
    sprat_operation *operations[3];
    sprat_client *small;
    sprat_result result;
    int i, refused = 0;

    settings.max_operations = 2;
    MUST(sprat_connect(locator, &settings, &small, &error));
    for (i = 0; i < 3; i++)
        MUST(sprat_start_read(small, table, "k", 1, NULL, &operations[i], &error));
    for (i = 0; i < 3; i++) {
        MUST(sprat_wait(operations[i], -1, &error));
        refused += sprat_take(operations[i], &result, &error) == SPRAT_TOO_MANY_OPERATIONS;
        sprat_release(operations[i]);
    }
    SHOULD(refused == 1);
    sprat_disconnect(small);
}

/* Waits for an operation that goes on, and meanwhile has the client. */
static void *wait_in_thread(void *operation)
{
    sprat_status status;

    /* Each thread yields without the client, so that the other one gets it. */
    while ((status = sprat_wait(operation, 200, NULL)) == SPRAT_IN_USE)
        sched_yield();
    return status == SPRAT_NOT_READY ? operation : NULL;
}

/* A second thread is refused while the first one waits, and served afterwards. */
static void threads(void)
{
    sprat_client *alone;
    sprat_operation *operation;
    pthread_t thread;
    void *returned;

    MUST(sprat_connect("tcp:host=127.0.0.1,port=1", NULL, &alone, &error));
    MUST(sprat_start_read(alone, 1, "k", 1, NULL, &operation, &error));
    SHOULD(pthread_create(&thread, NULL, wait_in_thread, operation) == 0);
    while (sprat_poll(alone, NULL, &error) != SPRAT_IN_USE) {
        SHOULD(error.status == SPRAT_OK);
        sched_yield();
    }
    SHOULD(pthread_join(thread, &returned) == 0 && returned == operation);
    GIVES(SPRAT_OK, sprat_poll(alone, NULL, &error));
    sprat_release(operation);
    sprat_disconnect(alone);
}

int main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    MUST(sprat_connect(argv[1], NULL, &client, &error));
    MUST(sprat_create_table(client, "misuse", NULL, &table, &error));
    null_pointers();
    lengths();
    fields();
    unreachable();
    too_many(argv[1]);
    threads();
    MUST(sprat_drop_table(client, "misuse", &error));
    sprat_disconnect(client);
    return ended();
}
