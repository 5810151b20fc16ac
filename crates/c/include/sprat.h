/*
 * The C API of Sprat's key-value store.
 *
 * A client belongs to one cluster. A table of it holds objects. An object has a key of up to
 * SPRAT_MAX_KEY bytes, a value of up to SPRAT_MAX_VALUE bytes, and a version, which every change
 * raises. Keys and values are bytes: a zero byte ends neither.
 *
 *     sprat_client *client;
 *     sprat_error error;
 *     if (sprat_connect("fast+shm:name=sprat", NULL, &client, &error) != SPRAT_OK)
 *         fprintf(stderr, "%s\n", sprat_error_message(&error));
 *
 * Errors. A function that can fail returns a status, and describes the failure in the sprat_error
 * that its last argument points to. That argument may be NULL. A failed function leaves its other
 * results unchanged, unless its comment says otherwise; a pointer to a new client, transaction,
 * table with indexes, scan or operation is NULL then. A null pointer where a value is required is
 * SPRAT_INVALID_ARGUMENT. A pointer that is not NULL must point to what its comment says: no
 * function can check that.
 *
 * Time. Every operation ends at its deadline at the latest, with SPRAT_DEADLINE. Times are in
 * milliseconds. The client repeats what slow, restarted or moved servers leave unanswered until
 * then, and every change happens exactly once, however often the client has to send it.
 *
 * Threads. One thread at a time uses a client, with its operations, transactions, tables with
 * indexes and scans. A call that meets another one in progress does nothing and returns
 * SPRAT_IN_USE. Any thread may make the next call. Different clients are independent of each other.
 * A client starts no thread: it makes progress while one of its functions runs. After fork() the
 * child must not use the clients of its parent.
 *
 * Ownership. The caller's memory (keys, values, names, arrays) is read or written only during the
 * call. sprat_free() frees memory that a function allocated for the caller.
 *
 * Growth. A structure that a caller passes starts with its size, or has reserved fields, which must
 * be 0. The macros SPRAT_..._INIT and `= {0}` see to both. Later versions add fields and functions;
 * the numbers of the constants stay.
 */
#ifndef SPRAT_H
#define SPRAT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The most bytes of a key. */
#define SPRAT_MAX_KEY 65536
/* The most bytes of a value. */
#define SPRAT_MAX_VALUE 1048576
/* The most parts of a multi-operation. */
#define SPRAT_MAX_PARTS 65536
/* The most objects of a transaction. */
#define SPRAT_MAX_TRANSACTION 256
/* The most bytes of the keys and values of a transaction. */
#define SPRAT_MAX_TRANSACTION_BYTES 4194304
/* The most bytes of an index key. */
#define SPRAT_MAX_INDEX_KEY 1024
/* The most indexes of a table. */
#define SPRAT_MAX_INDEXES 16
/* The most index keys of a packed value. */
#define SPRAT_MAX_PACKED 255
/* The bytes of a table's name, with the zero byte at its end. */
#define SPRAT_NAME_SIZE 256
/* The bytes of an index's name with all zero bytes at its end. The name has up to 64. */
#define SPRAT_INDEX_NAME_SIZE 72
/* The bytes of an error's text, with the zero byte at its end. */
#define SPRAT_MESSAGE_SIZE 1000

/* The outcome of a call. 0 is success. Later versions may add numbers. */
typedef enum sprat_status {
    SPRAT_OK = 0,

    /* Use of the API. Nothing was sent. */

    /* A required pointer is NULL, a length is impossible, or a field has no such value. */
    SPRAT_INVALID_ARGUMENT = 1,
    /* The value is longer than the buffer. The result has its length. */
    SPRAT_BUFFER_TOO_SMALL = 2,
    /* Another thread is inside of a call with this client. */
    SPRAT_IN_USE = 3,
    /* The client of the operation, the transaction, the table with indexes or the scan was
     * disconnected. */
    SPRAT_DISCONNECTED = 4,
    /* The operation has no result yet. */
    SPRAT_NOT_READY = 5,
    /* The result of the operation was taken before. */
    SPRAT_TAKEN = 6,
    /* The operation was cancelled. The cluster may have executed it. */
    SPRAT_CANCELLED = 7,
    /* The scan has returned all objects. */
    SPRAT_END = 8,
    /* The machine has no memory left for the result. */
    SPRAT_NO_MEMORY = 9,
    /* A bug of the library. The client answers nothing else from then on: disconnect it. */
    SPRAT_INTERNAL = 10,
    /* A locator is malformed, or the machine lacks something that the client needs. */
    SPRAT_SYSTEM = 11,
    /* The key is longer than SPRAT_MAX_KEY. */
    SPRAT_KEY_TOO_LONG = 12,
    /* The value is longer than SPRAT_MAX_VALUE, or an append would make it longer. */
    SPRAT_VALUE_TOO_LONG = 13,
    /* A multi-operation has more than SPRAT_MAX_PARTS parts. */
    SPRAT_TOO_MANY_PARTS = 14,
    /* The limit of operations in progress is reached (max_operations of sprat_options). */
    SPRAT_TOO_MANY_OPERATIONS = 15,
    /* A table's name is empty or longer than 255 bytes, or an index's name is empty, is longer than
     * 64 bytes or has control characters. */
    SPRAT_BAD_NAME = 16,
    /* The amount to add is infinite or not a number. */
    SPRAT_NOT_FINITE = 17,
    /* A transaction has more than SPRAT_MAX_TRANSACTION objects, or more than
     * SPRAT_MAX_TRANSACTION_BYTES bytes, or more than a server has room for at once. */
    SPRAT_TRANSACTION_TOO_LARGE = 18,

    /* Answers of the store. */

    /* The table was dropped, or never existed. */
    SPRAT_TABLE_NOT_FOUND = 32,
    /* The object does not exist. */
    SPRAT_OBJECT_NOT_FOUND = 33,
    /* The object exists, and the condition refuses that. The error has its version. */
    SPRAT_OBJECT_EXISTS = 34,
    /* The condition refuses the object's version, which the error has. */
    SPRAT_WRONG_VERSION = 35,
    /* The object to be incremented is not the decimal text of a number of that kind. */
    SPRAT_NOT_A_NUMBER = 36,
    /* The sum is too large for a number of its kind. The object is unchanged. */
    SPRAT_OVERFLOW = 37,
    /* The server has no memory left for objects. Remove some. */
    SPRAT_NO_SPACE = 38,
    /* The server of the data crashed, and no other server has the data. Drop the table. */
    SPRAT_TABLET_LOST = 39,
    /* Too few servers are up for the table, or for the replicas of a change. */
    SPRAT_TOO_FEW_SERVERS = 40,
    /* The coordinator cannot write its state. */
    SPRAT_NOT_DURABLE = 41,
    /* The server refused the request, probably because it is of another version. */
    SPRAT_REFUSED = 42,
    /* An object of the transaction has changed since it was read, or another transaction is about
     * to change it, or a condition does not hold. Nothing was changed: begin the transaction again.
     * The error has the object's version. */
    SPRAT_CONFLICT = 43,
    /* The table has no index of this name. */
    SPRAT_INDEX_NOT_FOUND = 44,
    /* The index does not have all objects yet: wait for the client that creates it. If that has
     * ended, create the index again. */
    SPRAT_INDEX_NOT_READY = 45,
    /* The table has an index of this name with another source. */
    SPRAT_INDEX_EXISTS = 46,
    /* The table has SPRAT_MAX_INDEXES indexes, or 255 were created in all. */
    SPRAT_TOO_MANY_INDEXES = 47,
    /* An index key of the object is longer than SPRAT_MAX_INDEX_KEY. Nothing was changed. */
    SPRAT_INDEX_KEY_TOO_LONG = 48,
    /* Something else has written to the table of the index's nodes. Drop the index and create it
     * again. */
    SPRAT_INDEX_DAMAGED = 49,

    /* The network and time. */

    /* The deadline passed. The error names each locator that was tried, with the cause. */
    SPRAT_DEADLINE = 64,
    /* The change was executed once or not at all, and never will be from now on. */
    SPRAT_UNKNOWN = 65,
    /* The server lists no transport that this client may use. */
    SPRAT_NO_TRANSPORT = 66,
    /* The coordinator is that of another cluster than before. Connect anew. */
    SPRAT_CLUSTER_REPLACED = 67,
    /* A failure for which this version of the API has no number. The error has its text. */
    SPRAT_OTHER = 68
} sprat_status;

/*
 * The description of a failure. The caller provides it, and need not initialise it. A call that
 * succeeds sets the status to SPRAT_OK and the text to "".
 */
typedef struct sprat_error {
    /* The status that the call returned, a sprat_status. */
    int32_t status;
    /* 1 if the failed operation may have been executed, or may still be, and 0 otherwise. */
    int32_t maybe_executed;
    /* The object's version after SPRAT_OBJECT_EXISTS, SPRAT_WRONG_VERSION, SPRAT_NOT_A_NUMBER,
     * SPRAT_OVERFLOW and SPRAT_CONFLICT, and 0 otherwise. */
    uint64_t version;
    /* The failure with its causes, as text in UTF-8 with a zero byte at its end. A text that is too
     * long loses its end. */
    char message[SPRAT_MESSAGE_SIZE];
} sprat_error;

/*
 * Returns the text of a failure: what failed, and why, from the outside to the innermost cause. The
 * text is part of `error`. Returns "" for success, and the text of SPRAT_INVALID_ARGUMENT if
 * `error` is NULL. Never fails.
 */
const char *sprat_error_message(const sprat_error *error);

/* Returns a few words for a status, "unknown status" for another number. Constant text. */
const char *sprat_status_text(int status);

/* Returns the version of the library, such as "0.1.0". Constant text. */
const char *sprat_version(void);

/* Frees memory that a function of this API allocated for the caller. NULL is allowed. */
void sprat_free(void *memory);

/* ---- The client ---- */

/* A client of one cluster. */
typedef struct sprat_client sprat_client;

/* Settings of a client. A field that is 0 or NULL has its default. */
typedef struct sprat_options {
    /* sizeof(sprat_options): the fields that the caller knows. */
    size_t size;
    /* The time that each operation may take, in milliseconds. The default is 10,000. */
    uint64_t timeout_ms;
    /* The time after which the client repeats a request at the latest, in milliseconds. The default
     * is 2,000. */
    uint64_t try_timeout_ms;
    /* The transports towards servers, with ';' between them and the preferred one first:
     * "fast+shm;tcp". The default is all that a server names, in its order. */
    const char *transports;
    /* This client's own ends of packet devices: locators with device and address, with ';' between
     * them. The default is none. */
    const char *local;
    /* The most operations in progress. The default is 1,048,576. */
    uint32_t max_operations;
    /* 1 to allow addresses other than loopback. Nothing is encrypted. The default is 0. */
    int32_t insecure_network;
} sprat_options;

/* The defaults of sprat_options. */
#define SPRAT_OPTIONS_INIT {sizeof(sprat_options), 0, 0, NULL, NULL, 0, 0}

/*
 * Makes a client of the cluster whose coordinator is at `coordinator`: one locator, or several with
 * ';' between them, the preferred one first. `options` may be NULL. Sets `*client`, which
 * sprat_disconnect() frees.
 *
 * Sends nothing: a coordinator that does not answer shows as SPRAT_DEADLINE of the first operation.
 *
 * Errors: SPRAT_SYSTEM for a locator that is malformed or whose transport this build lacks, or if
 * no file descriptor is left.
 */
sprat_status sprat_connect(const char *coordinator, const sprat_options *options,
                           sprat_client **client, sprat_error *error);

/*
 * Ends a client and frees it. Waits for a call of another thread to end. Operations in progress are
 * given up: the cluster may have executed them. What remains of operations, transactions, tables
 * with indexes and scans of the client answers SPRAT_DISCONNECTED, and still has to be released.
 * NULL is allowed.
 */
void sprat_disconnect(sprat_client *client);

/*
 * Sets the time that each operation that starts from now on may take, in milliseconds. 0 is
 * SPRAT_INVALID_ARGUMENT.
 */
sprat_status sprat_set_timeout(sprat_client *client, uint64_t timeout_ms, sprat_error *error);

/*
 * The work of a client since its start. Counters only grow. A multi-operation counts as one
 * operation, and each of its parts as one more.
 */
typedef struct sprat_counters {
    /* sizeof(sprat_counters): the fields that the caller knows. */
    size_t size;
    /* Operations that the program has started. */
    uint64_t started;
    /* Operations that have ended with success or an error. */
    uint64_t completed;
    /* Operations that the program has cancelled. */
    uint64_t cancelled;
    /* Pauses after which the client tried an operation again. An operation may have several. */
    uint64_t retried;
    /* Operations that have ended at their deadline. They are among the completed ones. */
    uint64_t late;
    /* Requests for the servers of a table to the coordinator, the first one included. */
    uint64_t route_refreshes;
    /* Requests that carried several parts of multi-operations. */
    uint64_t bundles;
    /* The round trips that these requests saved. */
    uint64_t saved_round_trips;
} sprat_counters;

/* A structure for sprat_client_counters(). */
#define SPRAT_COUNTERS_INIT {sizeof(sprat_counters), 0, 0, 0, 0, 0, 0, 0, 0}

/* Sets `*counters`, whose size must be set. Sends nothing. */
sprat_status sprat_client_counters(sprat_client *client, sprat_counters *counters,
                                   sprat_error *error);

/* ---- Tables ---- */

/* The time at which a change of a table's objects is acknowledged. */
typedef enum sprat_durability {
    /* The mode of the cluster decides. */
    SPRAT_DURABILITY_CLUSTER = 0,
    /* A change does not wait for its replicas. */
    SPRAT_DURABILITY_ASYNC = 1
} sprat_durability;

/* Settings of a table. A field that is 0 has its default. */
typedef struct sprat_table_options {
    /* sizeof(sprat_table_options): the fields that the caller knows. */
    size_t size;
    /* The number of servers that share the table, 1 to 256, each with all of its cores. With fewer
     * servers the table has this number of tablets at least. The default is 1. */
    uint32_t span;
    /* A sprat_durability. */
    int32_t durability;
} sprat_table_options;

/* The defaults of sprat_table_options. */
#define SPRAT_TABLE_OPTIONS_INIT {sizeof(sprat_table_options), 0, SPRAT_DURABILITY_CLUSTER}

/* A table in the list of sprat_list_tables(). */
typedef struct sprat_table_info {
    /* The table's id, which the operations on objects take. */
    uint64_t table;
    /* The number of the table's tablets. */
    uint32_t tablets;
    /* The number of its tablets that are lost: no server has their data. */
    uint32_t lost;
    /* The number of its tablets whose server crashed and whose data other servers recover. */
    uint32_t recovering;
    /* A sprat_durability. */
    int32_t durability;
    /* The table's name, with a zero byte at its end. */
    char name[SPRAT_NAME_SIZE];
} sprat_table_info;

/*
 * Creates a table, or finds the existing one of that name, whatever its options. `options` may be
 * NULL. Sets `*table` to its id.
 *
 * Errors: SPRAT_BAD_NAME, SPRAT_TOO_FEW_SERVERS, SPRAT_NOT_DURABLE, SPRAT_REFUSED for an option
 * that the cluster cannot have, and those of the network.
 */
sprat_status sprat_create_table(sprat_client *client, const char *name,
                                const sprat_table_options *options, uint64_t *table,
                                sprat_error *error);

/* Finds a table by its name and sets `*table` to its id. Errors: SPRAT_TABLE_NOT_FOUND. */
sprat_status sprat_open_table(sprat_client *client, const char *name, uint64_t *table,
                              sprat_error *error);

/* Drops a table with all its objects. Errors: SPRAT_TABLE_NOT_FOUND, SPRAT_NOT_DURABLE. */
sprat_status sprat_drop_table(sprat_client *client, const char *name, sprat_error *error);

/* Lists all tables. Sets `*tables` to an array of `*count` tables, which sprat_free() frees. */
sprat_status sprat_list_tables(sprat_client *client, sprat_table_info **tables, size_t *count,
                               sprat_error *error);

/* ---- Objects ---- */

/* The kind of a condition. */
typedef enum sprat_condition_kind {
    /* The operation executes in any case. */
    SPRAT_ALWAYS = 0,
    /* Only if the object does not exist. Otherwise: SPRAT_OBJECT_EXISTS. */
    SPRAT_IF_ABSENT = 1,
    /* Only if the object exists. Otherwise: SPRAT_OBJECT_NOT_FOUND. */
    SPRAT_IF_EXISTS = 2,
    /* Only if the object has exactly this version; version 0 stands for an object that does not
     * exist. Otherwise: SPRAT_WRONG_VERSION, SPRAT_OBJECT_EXISTS or SPRAT_OBJECT_NOT_FOUND. */
    SPRAT_IF_VERSION = 3,
    /* Only if the object's version is above this one, or the object does not exist. Otherwise:
     * SPRAT_WRONG_VERSION. */
    SPRAT_IF_NEWER_THAN = 4
} sprat_condition_kind;

/* A condition on the object that an operation names. `{0}` holds always. */
typedef struct sprat_condition {
    /* A sprat_condition_kind. */
    int32_t kind;
    /* Must be 0. */
    int32_t reserved;
    /* The version for SPRAT_IF_VERSION and SPRAT_IF_NEWER_THAN. */
    uint64_t version;
} sprat_condition;

/* Settings of one operation on an object. Where NULL is passed, all have their defaults. */
typedef struct sprat_operation_options {
    /* sizeof(sprat_operation_options): the fields that the caller knows. */
    size_t size;
    /* The time that this operation may take, in milliseconds. 0 stands for the client's. */
    uint64_t timeout_ms;
    /* The operation executes only if this condition holds. */
    sprat_condition condition;
} sprat_operation_options;

/* The defaults of sprat_operation_options. */
#define SPRAT_OPERATION_OPTIONS_INIT {sizeof(sprat_operation_options), 0, {SPRAT_ALWAYS, 0, 0}}

/* The result of an operation on an object. Fields that the operation does not have are 0. */
typedef struct sprat_result {
    /* The object's version: the one that was read or removed, or the new one. 0 after a removal of
     * an object that did not exist. */
    uint64_t version;
    /* The length of `value` in bytes, or that of the object's value after an append. */
    uint64_t length;
    /* The sum after an increment of an integer. */
    int64_t integer;
    /* The sum after an increment of a double. */
    double real;
    /* The value that was read, or that a swap has replaced. A zero byte follows an allocated one,
     * which `length` does not count. */
    void *value;
    /* The version of the object that a swap has replaced, 0 if there was none. */
    uint64_t old_version;
    /* The rest of the lifetime of the object that sprat_read_expiring() has read, in milliseconds,
     * or SPRAT_FOREVER. */
    uint64_t lifetime_ms;
    /* 0. */
    uint64_t reserved[1];
} sprat_result;

/*
 * All operations on objects take the id of a table, and a key of `key_length` bytes. `options` and
 * `result` may be NULL. Besides the errors of their conditions and those that their comments name,
 * they have SPRAT_TABLE_NOT_FOUND, SPRAT_KEY_TOO_LONG, SPRAT_TABLET_LOST and SPRAT_DEADLINE.
 * Operations that change an object also have SPRAT_NO_SPACE, SPRAT_TOO_FEW_SERVERS for its replicas
 * and SPRAT_UNKNOWN.
 */

/*
 * Reads an object into `buffer` of `room` bytes. Sets `version`, `length` and `value` (to `buffer`)
 * of the result. Writes no zero byte behind the value.
 *
 * Errors: SPRAT_OBJECT_NOT_FOUND. SPRAT_BUFFER_TOO_SMALL if the value is longer than `room`: the
 * buffer then has its first `room` bytes, and the result is as after success. A buffer of 0 bytes
 * may be NULL.
 */
sprat_status sprat_read(sprat_client *client, uint64_t table, const void *key, size_t key_length,
                        const sprat_operation_options *options, void *buffer, size_t room,
                        sprat_result *result, sprat_error *error);

/*
 * Reads an object into memory that the function allocates. Sets `version`, `length` and `value` of
 * the result, which must not be NULL; sprat_free() frees the value.
 *
 * Errors: SPRAT_OBJECT_NOT_FOUND, SPRAT_NO_MEMORY.
 */
sprat_status sprat_read_alloc(sprat_client *client, uint64_t table, const void *key,
                              size_t key_length, const sprat_operation_options *options,
                              sprat_result *result, sprat_error *error);

/*
 * Reads an object as sprat_read_alloc() does, and the rest of its lifetime: sets `lifetime_ms` of
 * the result too, to SPRAT_FOREVER if the object does not expire.
 *
 * Errors: SPRAT_OBJECT_NOT_FOUND, SPRAT_NO_MEMORY.
 */
sprat_status sprat_read_expiring(sprat_client *client, uint64_t table, const void *key,
                                 size_t key_length, const sprat_operation_options *options,
                                 sprat_result *result, sprat_error *error);

/* Writes an object. Sets `version` of the result. Errors: SPRAT_VALUE_TOO_LONG. */
sprat_status sprat_write(sprat_client *client, uint64_t table, const void *key, size_t key_length,
                         const void *value, size_t value_length,
                         const sprat_operation_options *options, sprat_result *result,
                         sprat_error *error);

/* The lifetime of an object that does not expire. */
#define SPRAT_FOREVER UINT64_MAX

/*
 * Writes an object that expires: after `lifetime_ms` milliseconds it does not exist any more.
 * Increments and appends leave the time as it is, a later write sets it anew. Sets `version` of the
 * result.
 *
 * Errors: SPRAT_VALUE_TOO_LONG. SPRAT_INVALID_ARGUMENT for a lifetime of 2^47 ms or more.
 */
sprat_status sprat_write_expiring(sprat_client *client, uint64_t table, const void *key,
                                  size_t key_length, const void *value, size_t value_length,
                                  uint64_t lifetime_ms, const sprat_operation_options *options,
                                  sprat_result *result, sprat_error *error);

/*
 * Gives an object another lifetime, from now on, or none with SPRAT_FOREVER, and leaves its value.
 * Sets `version` of the result: the object has a new one.
 *
 * Errors: SPRAT_OBJECT_NOT_FOUND. SPRAT_INVALID_ARGUMENT for a lifetime of 2^47 ms or more.
 */
sprat_status sprat_touch(sprat_client *client, uint64_t table, const void *key, size_t key_length,
                         uint64_t lifetime_ms, const sprat_operation_options *options,
                         sprat_result *result, sprat_error *error);

/*
 * Writes an object and returns the one that was there before; no other change comes between the
 * two. The object expires after `lifetime_ms` milliseconds, or never with SPRAT_FOREVER. Sets
 * `version`, `old_version`, `length` and `value` of the result, which must not be NULL;
 * sprat_free() frees the value. Without an object before, `old_version` is 0 and `value` is NULL.
 *
 * Errors: SPRAT_VALUE_TOO_LONG. SPRAT_INVALID_ARGUMENT for a lifetime of 2^47 ms or more.
 * SPRAT_NO_MEMORY: the object was written, and the one before is lost.
 */
sprat_status sprat_swap(sprat_client *client, uint64_t table, const void *key, size_t key_length,
                        const void *value, size_t value_length, uint64_t lifetime_ms,
                        const sprat_operation_options *options, sprat_result *result,
                        sprat_error *error);

/*
 * Removes an object. Sets `version` of the result to the version that it had. An object that does
 * not exist is no error, unless the condition says so: the version is 0.
 */
sprat_status sprat_remove(sprat_client *client, uint64_t table, const void *key, size_t key_length,
                          const sprat_operation_options *options, sprat_result *result,
                          sprat_error *error);

/*
 * Adds to an object that is a 64-bit integer in decimal text: digits with a minus before them if it
 * is negative, without leading zeros. An object that does not exist counts as 0. Sets `version` and
 * `integer` of the result.
 *
 * Errors: SPRAT_NOT_A_NUMBER and SPRAT_OVERFLOW, which leave the object unchanged.
 */
sprat_status sprat_increment(sprat_client *client, uint64_t table, const void *key,
                             size_t key_length, int64_t amount,
                             const sprat_operation_options *options, sprat_result *result,
                             sprat_error *error);

/*
 * Adds to an object that is a double in decimal text ("-1.5e3"). An object that does not exist
 * counts as 0. Sets `version` and `real` of the result.
 *
 * Errors: SPRAT_NOT_FINITE, SPRAT_NOT_A_NUMBER and SPRAT_OVERFLOW, which leave the object
 * unchanged.
 */
sprat_status sprat_increment_double(sprat_client *client, uint64_t table, const void *key,
                                    size_t key_length, double amount,
                                    const sprat_operation_options *options, sprat_result *result,
                                    sprat_error *error);

/*
 * Adds bytes to the end of an object's value. An object that does not exist counts as empty. Sets
 * `version` and `length` of the result, the length of the whole value.
 *
 * Errors: SPRAT_VALUE_TOO_LONG.
 */
sprat_status sprat_append(sprat_client *client, uint64_t table, const void *key, size_t key_length,
                          const void *bytes, size_t bytes_length,
                          const sprat_operation_options *options, sprat_result *result,
                          sprat_error *error);

/* ---- Several objects ---- */

/* The kind of a part of a multi-operation. */
typedef enum sprat_part_kind {
    SPRAT_READ = 1,
    SPRAT_WRITE = 2,
    SPRAT_REMOVE = 3,
    SPRAT_INCREMENT = 4,
    SPRAT_INCREMENT_DOUBLE = 5,
    SPRAT_APPEND = 6,
    SPRAT_WRITE_EXPIRING = 7,
    SPRAT_TOUCH = 8,
    SPRAT_SWAP = 9
} sprat_part_kind;

/* One operation of a multi-operation. Start from `{0}` and set what the kind needs. */
typedef struct sprat_part {
    /* A sprat_part_kind. */
    int32_t kind;
    /* Set by the call: the outcome of this part, a sprat_status. */
    int32_t status;
    /* The id of the object's table. */
    uint64_t table;
    /* The object's key. */
    const void *key;
    size_t key_length;
    /* The value of a write or of a swap, or the bytes of an append. */
    const void *value;
    size_t value_length;
    /* The amount of an increment of an integer. */
    int64_t integer;
    /* The amount of an increment of a double. */
    double real;
    /* The part executes only if this condition holds. */
    sprat_condition condition;
    /* The memory for the value of a read, or the old value of a swap, of `room` bytes. If it is
     * NULL, the call allocates the value. */
    void *buffer;
    size_t room;
    /* Set by the call: the result, as that of the single operation. */
    sprat_result result;
    /* Set by the call: the text of a failure, allocated, or NULL after success. */
    char *message;
    /* The lifetime of a write of an object that expires, of a touch or of a swap, in
     * milliseconds. */
    uint64_t lifetime_ms;
    /* Must be 0. */
    uint64_t reserved[3];
} sprat_part;

/*
 * Executes `count` operations on objects of any tables, in few requests. Sets `status`, `result`
 * and `message` of each part; sprat_free_parts() frees what they hold. The parts have no order
 * among each other, and one may fail while another succeeds. No parts are no error. Of `options`
 * only the time counts: the condition must be SPRAT_ALWAYS, for each part has its own.
 *
 * Returns SPRAT_OK if each part has its outcome. Errors: SPRAT_TOO_MANY_PARTS, and for a malformed
 * part SPRAT_INVALID_ARGUMENT, SPRAT_KEY_TOO_LONG or SPRAT_VALUE_TOO_LONG. Nothing was sent then,
 * and no part was set.
 */
sprat_status sprat_multi(sprat_client *client, sprat_part *parts, size_t count,
                         const sprat_operation_options *options, sprat_error *error);

/*
 * Frees the values that sprat_multi() or sprat_take_parts() allocated in parts, and their messages,
 * and sets these pointers to NULL. Buffers of the caller stay.
 */
void sprat_free_parts(sprat_part *parts, size_t count);

/* ---- Transactions ---- */

/*
 * A transaction: reads and changes of several objects, of any tables on any servers.
 *
 * Reads go to the store at once. Changes stay in the client until sprat_transaction_commit() makes
 * all of them, or none. Transactions are strictly serializable, also with operations outside of
 * them; scans are not a part of this. Each call may be made by any thread, one at a time.
 */
typedef struct sprat_transaction sprat_transaction;

/*
 * Begins a transaction. Sets `*transaction`, which sprat_transaction_close() frees. Sends nothing.
 */
sprat_status sprat_transaction_open(sprat_client *client, sprat_transaction **transaction,
                                    sprat_error *error);

/*
 * Reads an object into memory that the function allocates, as sprat_read_alloc() does. The commit
 * checks that the object has not changed since, or still does not exist. Later reads of it return
 * the same, or what this transaction has written, with version 0. Until the commit a program may
 * see two objects as they never were at one time. Of `options`, which may be NULL, only the time
 * counts: the condition must be SPRAT_ALWAYS.
 *
 * Errors: SPRAT_OBJECT_NOT_FOUND, SPRAT_TRANSACTION_TOO_LARGE for one object too many, those of a
 * condition of sprat_transaction_check(), and those of sprat_read_alloc().
 */
sprat_status sprat_transaction_read(sprat_transaction *transaction, uint64_t table,
                                    const void *key, size_t key_length,
                                    const sprat_operation_options *options, sprat_result *result,
                                    sprat_error *error);

/*
 * Plans to write an object. It expires `lifetime_ms` milliseconds after the commit, or never with
 * SPRAT_FOREVER. Copies key and value.
 *
 * Errors: SPRAT_KEY_TOO_LONG, SPRAT_VALUE_TOO_LONG, SPRAT_TRANSACTION_TOO_LARGE, and
 * SPRAT_INVALID_ARGUMENT for a lifetime of 2^47 ms or more. The transaction stays as it was.
 */
sprat_status sprat_transaction_write(sprat_transaction *transaction, uint64_t table,
                                     const void *key, size_t key_length, const void *value,
                                     size_t value_length, uint64_t lifetime_ms,
                                     sprat_error *error);

/* Plans to remove an object. Errors: SPRAT_KEY_TOO_LONG, SPRAT_TRANSACTION_TOO_LARGE. */
sprat_status sprat_transaction_remove(sprat_transaction *transaction, uint64_t table,
                                      const void *key, size_t key_length, sprat_error *error);

/*
 * Sets a condition on an object, without a read of it. The commit returns SPRAT_CONFLICT if it does
 * not hold then. A later condition on the object replaces it.
 *
 * Errors: SPRAT_OBJECT_EXISTS, SPRAT_OBJECT_NOT_FOUND or SPRAT_WRONG_VERSION if the transaction has
 * read the object, and the condition does not hold for it. SPRAT_KEY_TOO_LONG,
 * SPRAT_TRANSACTION_TOO_LARGE.
 */
sprat_status sprat_transaction_check(sprat_transaction *transaction, uint64_t table,
                                     const void *key, size_t key_length,
                                     const sprat_condition *condition, sprat_error *error);

/*
 * Makes all changes, or none. A transaction without changes is checked: what it has read was so at
 * one time. `versions` is an array of `room` numbers, which may be NULL if `room` is 0. The call
 * sets them to the new versions of the objects that the transaction wrote, in the order of the
 * first change of each, and further ones to 0. Of `options`, which may be NULL, only the time
 * counts.
 *
 * The transaction is empty afterwards, after a failure too, so that it can begin again. After
 * SPRAT_IN_USE and SPRAT_INVALID_ARGUMENT it is as it was.
 *
 * Errors: SPRAT_CONFLICT, SPRAT_TRANSACTION_TOO_LARGE, and those of sprat_write(). `maybe_executed`
 * of the error says if the changes may have been made, all or none.
 */
sprat_status sprat_transaction_commit(sprat_transaction *transaction,
                                      const sprat_operation_options *options, uint64_t *versions,
                                      size_t room, sprat_error *error);

/* Gives all reads and changes up: the transaction is empty, as after its start. Sends nothing. */
sprat_status sprat_transaction_abort(sprat_transaction *transaction, sprat_error *error);

/* Frees a transaction. One that was not committed changes nothing. NULL is allowed. */
void sprat_transaction_close(sprat_transaction *transaction);

/* ---- Scans ---- */

/* A scan over the objects of a table. */
typedef struct sprat_scan sprat_scan;

/* An object that a scan has found. Its memory belongs to the scan, up to the next call with it. */
typedef struct sprat_entry {
    const void *key;
    size_t key_length;
    const void *value;
    size_t value_length;
    uint64_t version;
} sprat_entry;

/*
 * Begins a scan over all objects of a table. Sets `*scan`, which sprat_scan_close() frees. Sends
 * nothing.
 */
sprat_status sprat_scan_open(sprat_client *client, uint64_t table, sprat_scan **scan,
                             sprat_error *error);

/*
 * Sets `*entry` to the next object. The objects have no order. One that does not change meanwhile
 * comes exactly once. Returns SPRAT_END behind the last one. After another error the scan goes on
 * where it was, so that a call may be repeated.
 *
 * Errors: SPRAT_TABLE_NOT_FOUND, SPRAT_TABLET_LOST, SPRAT_DEADLINE.
 */
sprat_status sprat_scan_next(sprat_scan *scan, sprat_entry *entry, sprat_error *error);

/* Ends a scan and frees it. NULL is allowed. */
void sprat_scan_close(sprat_scan *scan);

/* ---- Indexes ---- */

/*
 * A table whose objects a client also finds by other keys, and in their order.
 *
 * An index has the objects of the table in the order of a part of them: their own keys, some bytes
 * or a field of their values, or keys that sprat_pack() has put before the values. A change by this
 * handle changes an object and its entries at once, all or nothing, so that each look-up finds
 * exactly the objects that have the key. A change by the id of the table leaves the entries as they
 * are: then look-ups do not find the object by its new key, and never return it by the old one.
 * They find it again when its key changes, or when the index is created anew. Reads of objects take
 * the id of the table, as always.
 *
 * The handle keeps what the client knows of the indexes, so that a look-up reads little besides
 * the objects. Each call may be made by any thread, one at a time.
 */
typedef struct sprat_indexed sprat_indexed;

/*
 * Opens a table as one with indexes, and prepares it for them if that has not been done. Sets
 * `*indexed`, which sprat_indexed_close() frees.
 *
 * The entries are objects of a table of their own, whose name is "indexes of table " and the id of
 * this one. sprat_drop_table() of this one leaves it: drop that too.
 *
 * Errors: SPRAT_TABLE_NOT_FOUND, and those of sprat_create_table().
 */
sprat_status sprat_indexed_open(sprat_client *client, uint64_t table, sprat_indexed **indexed,
                                sprat_error *error);

/* Frees a table with indexes. Its scans may outlive it. NULL is allowed. */
void sprat_indexed_close(sprat_indexed *indexed);

/* The kind of the part of an object that is its key in an index. */
typedef enum sprat_source_kind {
    /* The object's own key: the index has the table in the order of its keys. */
    SPRAT_SOURCE_KEY = 1,
    /* `length` bytes of the value, from the offset `at` on. An object whose value is shorter is not
     * in the index. */
    SPRAT_SOURCE_BYTES = 2,
    /* The field `number` of the value, from 0 on, with the byte `separator` between two fields. An
     * object with fewer fields is not in the index. */
    SPRAT_SOURCE_FIELD = 3,
    /* The key `number`, from 0 on, of those that sprat_pack() has put before the value. An object
     * with fewer keys, or whose value is not packed, is not in the index. */
    SPRAT_SOURCE_PACKED = 4
} sprat_source_kind;

/* The part of an object that is its key in an index. Start from `{0}` and set what the kind needs.
 */
typedef struct sprat_index_source {
    /* A sprat_source_kind. In a list, 0 stands for a kind that this version does not know. */
    int32_t kind;
    /* The number of the field or of the packed key, from 0 on. */
    uint32_t number;
    /* The byte between two fields, such as ','. */
    uint32_t separator;
    /* The offset of the first byte, and the number of bytes. */
    uint32_t at;
    uint32_t length;
    /* Must be 0. */
    uint32_t reserved[3];
} sprat_index_source;

/*
 * Creates an index, and waits until it has all objects of the table. Other clients may use the
 * table meanwhile. If there is an index of this name and source that another call did not finish,
 * goes on with it. Sets `*objects` to the number of objects that existed, and `*skipped` to the
 * number of those that are not in the index since their index key is longer than
 * SPRAT_MAX_INDEX_KEY. Both pointers may be NULL.
 *
 * The time limit of the client is for each step of the call, with some of the objects. After
 * SPRAT_DEADLINE and other failures of a step the call may be repeated.
 *
 * Errors: SPRAT_INDEX_EXISTS, SPRAT_BAD_NAME, SPRAT_TOO_MANY_INDEXES, SPRAT_INVALID_ARGUMENT for
 * a source that cannot be, and those of sprat_write().
 */
sprat_status sprat_create_index(sprat_indexed *indexed, const char *name,
                                const sprat_index_source *source, uint64_t *objects,
                                uint64_t *skipped, sprat_error *error);

/* Drops an index. Does nothing to the objects. Errors: SPRAT_INDEX_NOT_FOUND. */
sprat_status sprat_drop_index(sprat_indexed *indexed, const char *name, sprat_error *error);

/* An index in the list of sprat_list_indexes(). */
typedef struct sprat_index_info {
    /* The part of an object that is its key in the index. */
    sprat_index_source source;
    /* 1 if the index has all objects of the table, and 0 if it is being built. */
    int32_t ready;
    /* The size in bytes from which on a node of the index is split. */
    uint32_t node_bytes;
    /* 0. */
    uint64_t reserved[2];
    /* The index's name, with zero bytes at its end. */
    char name[SPRAT_INDEX_NAME_SIZE];
} sprat_index_info;

/*
 * Lists the indexes of a table. Sets `*indexes` to an array of `*count` indexes, which sprat_free()
 * frees.
 */
sprat_status sprat_list_indexes(sprat_indexed *indexed, sprat_index_info **indexes, size_t *count,
                                sprat_error *error);

/*
 * Changes of objects that keep the indexes. `options` and `result` may be NULL. Besides the errors
 * of their conditions and those that their comments name, they have those of sprat_write() and
 * SPRAT_INDEX_DAMAGED. SPRAT_DEADLINE may also mean that other clients change the same objects
 * again and again.
 */

/* Writes an object. Sets `version` of the result. Errors: SPRAT_INDEX_KEY_TOO_LONG. */
sprat_status sprat_indexed_write(sprat_indexed *indexed, const void *key, size_t key_length,
                                 const void *value, size_t value_length,
                                 const sprat_operation_options *options, sprat_result *result,
                                 sprat_error *error);

/*
 * Writes an object that expires, as sprat_write_expiring() does. Sets `version` of the result. The
 * entries of an object that has expired go when a look-up meets them.
 *
 * Errors: SPRAT_INDEX_KEY_TOO_LONG. SPRAT_INVALID_ARGUMENT for a lifetime of 2^47 ms or more.
 */
sprat_status sprat_indexed_write_expiring(sprat_indexed *indexed, const void *key,
                                          size_t key_length, const void *value,
                                          size_t value_length, uint64_t lifetime_ms,
                                          const sprat_operation_options *options,
                                          sprat_result *result, sprat_error *error);

/*
 * Removes an object. Sets `version` of the result to the version that it had. An object that does
 * not exist is no error, unless the condition says so: the version is 0.
 */
sprat_status sprat_indexed_remove(sprat_indexed *indexed, const void *key, size_t key_length,
                                  const sprat_operation_options *options, sprat_result *result,
                                  sprat_error *error);

/*
 * Lets a transaction keep the indexes of a table of its client: from now on until its commit or
 * abort, its changes of objects of that table, also those before this call, change their entries
 * too. These count among the objects of the transaction, up to two for each index of an object and
 * one for the table, and among its bytes. Sends nothing.
 *
 * The commit then waits for objects that other transactions are about to change, as a write does,
 * until SPRAT_DEADLINE. It returns SPRAT_INDEX_KEY_TOO_LONG and SPRAT_INDEX_DAMAGED, too. Scans of
 * an index do not see the changes before the commit, and the commit does not check what they found:
 * for that, use sprat_transaction_check() with the version of each object.
 *
 * Errors: SPRAT_INVALID_ARGUMENT if the table was opened by another client.
 */
sprat_status sprat_transaction_keep_indexes(sprat_transaction *transaction, sprat_indexed *indexed,
                                            sprat_error *error);

/* ---- Scans of an index ---- */

/* A scan over objects in the order of their index keys. */
typedef struct sprat_index_scan sprat_index_scan;

/* An object that a scan of an index has found. Its memory belongs to the scan, up to the next call
 * with it. */
typedef struct sprat_index_entry {
    const void *index_key;
    size_t index_key_length;
    const void *key;
    size_t key_length;
    const void *value;
    size_t value_length;
    uint64_t version;
} sprat_index_entry;

/* The kind of an end of a range of index keys. */
typedef enum sprat_bound {
    /* The range has all index keys on this side. */
    SPRAT_UNBOUNDED = 0,
    /* The range ends with this index key. */
    SPRAT_INCLUDED = 1,
    /* The range ends beside this index key, which is not in it. */
    SPRAT_EXCLUDED = 2
} sprat_bound;

/* A range of index keys. Start from `{0}`, which has all of them. */
typedef struct sprat_index_keys {
    /* The first index key, unless `from_bound` is SPRAT_UNBOUNDED. */
    const void *from;
    size_t from_length;
    /* The last index key, unless `to_bound` is SPRAT_UNBOUNDED. */
    const void *to;
    size_t to_length;
    /* A sprat_bound for each of them. */
    int32_t from_bound;
    int32_t to_bound;
    /* Must be 0. */
    uint64_t reserved[2];
} sprat_index_keys;

/*
 * Each function that begins a scan sets `*scan`, which sprat_index_scan_close() frees. It sends
 * nothing: that there is no index of this name shows in sprat_index_scan_next(). The scan copies
 * name and keys.
 */

/*
 * Begins a scan over the objects that have an index key, in the order of their own keys.
 *
 * Errors: SPRAT_KEY_TOO_LONG above SPRAT_MAX_KEY.
 */
sprat_status sprat_index_look_up(sprat_indexed *indexed, const char *index, const void *key,
                                 size_t key_length, sprat_index_scan **scan, sprat_error *error);

/*
 * Begins a scan over the objects whose index keys are in a range, in their order. A range whose
 * first key is behind its last one is empty.
 *
 * Errors: SPRAT_INVALID_ARGUMENT for a kind of bound that does not exist, SPRAT_KEY_TOO_LONG.
 */
sprat_status sprat_index_range(sprat_indexed *indexed, const char *index,
                               const sprat_index_keys *keys, sprat_index_scan **scan,
                               sprat_error *error);

/*
 * Begins a scan over the objects whose index keys begin with these bytes, in the order of the keys.
 *
 * Errors: SPRAT_KEY_TOO_LONG.
 */
sprat_status sprat_index_prefix(sprat_indexed *indexed, const char *index, const void *prefix,
                                size_t prefix_length, sprat_index_scan **scan,
                                sprat_error *error);

/*
 * Sets `*entry` to the next object. Objects with the same index key come in the order of their own
 * keys. One that keeps its index key meanwhile comes exactly once. Returns SPRAT_END behind the
 * last one. After another error the scan goes on where it was, so that a call may be repeated.
 *
 * Errors: SPRAT_INDEX_NOT_FOUND, SPRAT_INDEX_NOT_READY, SPRAT_INDEX_DAMAGED,
 * SPRAT_TABLE_NOT_FOUND, SPRAT_TABLET_LOST, SPRAT_DEADLINE.
 */
sprat_status sprat_index_scan_next(sprat_index_scan *scan, sprat_index_entry *entry,
                                   sprat_error *error);

/*
 * Sets `*entry` to the last object that the scan has not returned. A scan with calls of this
 * function alone is in descending order. Calls of both functions take objects from both ends, until
 * they meet: each returns SPRAT_END then. Errors: those of sprat_index_scan_next().
 */
sprat_status sprat_index_scan_next_back(sprat_index_scan *scan, sprat_index_entry *entry,
                                        sprat_error *error);

/* Ends a scan and frees it. NULL is allowed. */
void sprat_index_scan_close(sprat_index_scan *scan);

/* ---- Packed values: index keys before a value, for SPRAT_SOURCE_PACKED ---- */

/* Bytes with their number. */
typedef struct sprat_bytes {
    const void *bytes;
    size_t length;
} sprat_bytes;

/*
 * Unites `count` index keys and a value. Sets `*packed` to `*packed_length` bytes, which
 * sprat_free() frees: the value of an object for sprat_indexed_write(). Sends nothing.
 *
 * Errors: SPRAT_INVALID_ARGUMENT for more than SPRAT_MAX_PACKED keys, SPRAT_INDEX_KEY_TOO_LONG,
 * SPRAT_VALUE_TOO_LONG, SPRAT_NO_MEMORY.
 */
sprat_status sprat_pack(const sprat_bytes *keys, size_t count, const void *value,
                        size_t value_length, void **packed, size_t *packed_length,
                        sprat_error *error);

/*
 * Divides what sprat_pack() has united. Sets the first `room` of `keys` to the index keys, as many
 * as there are, `*count` to their number, and `*value` to the value. All of them are parts of
 * `packed`. The pointers may be NULL, `keys` if `room` is 0. Sends nothing.
 *
 * Errors: SPRAT_INVALID_ARGUMENT for bytes that are not packed.
 */
sprat_status sprat_unpack(const void *packed, size_t packed_length, sprat_bytes *keys, size_t room,
                          size_t *count, sprat_bytes *value, sprat_error *error);

/* ---- Operations in progress ---- */

/*
 * An operation that was started and may be in progress.
 *
 * The sprat_start_... functions send an operation, set `*operation` and return at once.
 * sprat_poll() and sprat_wait() make progress. When sprat_is_ready() returns 1, sprat_take()
 * returns the result. sprat_release() frees the operation in every state.
 */
typedef struct sprat_operation sprat_operation;

/* Starts a read. sprat_take() allocates the value. */
sprat_status sprat_start_read(sprat_client *client, uint64_t table, const void *key,
                              size_t key_length, const sprat_operation_options *options,
                              sprat_operation **operation, sprat_error *error);

/* Starts a write, which sprat_write() describes. Copies key and value. */
sprat_status sprat_start_write(sprat_client *client, uint64_t table, const void *key,
                               size_t key_length, const void *value, size_t value_length,
                               const sprat_operation_options *options,
                               sprat_operation **operation, sprat_error *error);

/* Starts a removal, which sprat_remove() describes. */
sprat_status sprat_start_remove(sprat_client *client, uint64_t table, const void *key,
                                size_t key_length, const sprat_operation_options *options,
                                sprat_operation **operation, sprat_error *error);

/* Starts an increment of an integer, which sprat_increment() describes. */
sprat_status sprat_start_increment(sprat_client *client, uint64_t table, const void *key,
                                   size_t key_length, int64_t amount,
                                   const sprat_operation_options *options,
                                   sprat_operation **operation, sprat_error *error);

/* Starts a swap, which sprat_swap() describes. Copies key and value. */
sprat_status sprat_start_swap(sprat_client *client, uint64_t table, const void *key,
                              size_t key_length, const void *value, size_t value_length,
                              uint64_t lifetime_ms, const sprat_operation_options *options,
                              sprat_operation **operation, sprat_error *error);

/* Starts an append, which sprat_append() describes. Copies key and bytes. */
sprat_status sprat_start_append(sprat_client *client, uint64_t table, const void *key,
                                size_t key_length, const void *bytes, size_t bytes_length,
                                const sprat_operation_options *options,
                                sprat_operation **operation, sprat_error *error);

/*
 * Starts a multi-operation, which sprat_multi() describes. Copies what it needs of the parts:
 * sprat_take_parts() gets the array that receives the outcomes, this one or an equal one.
 */
sprat_status sprat_start_multi(sprat_client *client, const sprat_part *parts, size_t count,
                               const sprat_operation_options *options,
                               sprat_operation **operation, sprat_error *error);

/*
 * Makes one turn of the client: sends and receives what there is, and never waits. `worked` may be
 * NULL; sets it to 1 if there was work, and to 0 otherwise.
 */
sprat_status sprat_poll(sprat_client *client, int *worked, sprat_error *error);

/*
 * Makes progress until the operation has its outcome, `timeout_ms` milliseconds at most. A negative
 * time stands for the operation's own deadline, and 0 for one turn. While it waits, other
 * operations of the client make progress, too.
 *
 * Returns SPRAT_OK if the operation is ready, be its outcome success or failure, and
 * SPRAT_NOT_READY if it goes on.
 */
sprat_status sprat_wait(sprat_operation *operation, int64_t timeout_ms, sprat_error *error);

/*
 * Returns 1 if the operation has its outcome, and 0 if it is in progress or NULL. Makes no progress
 * and never waits. Any thread may call it at any time before the release.
 */
int sprat_is_ready(const sprat_operation *operation);

/*
 * Takes the outcome of an operation on one object. Returns and sets what the call that waits would:
 * `result` may be NULL, and the value of a read is allocated, for sprat_free().
 *
 * Errors: SPRAT_NOT_READY, SPRAT_TAKEN, SPRAT_CANCELLED, SPRAT_DISCONNECTED, and
 * SPRAT_INVALID_ARGUMENT for a multi-operation.
 */
sprat_status sprat_take(sprat_operation *operation, sprat_result *result, sprat_error *error);

/*
 * Takes the outcome of a multi-operation. Sets `status`, `result` and `message` of each part, which
 * must be as many as were started; of the rest only `buffer` and `room` count.
 *
 * Errors: those of sprat_take(), and SPRAT_INVALID_ARGUMENT for another count or for an operation
 * on one object. Such an error leaves the outcome to be taken.
 */
sprat_status sprat_take_parts(sprat_operation *operation, sprat_part *parts, size_t count,
                              sprat_error *error);

/*
 * Gives an operation up that is in progress. Its outcome is SPRAT_CANCELLED, and the cluster may
 * have executed it. An operation that has its outcome keeps it.
 */
sprat_status sprat_cancel(sprat_operation *operation, sprat_error *error);

/*
 * Frees an operation. One in progress is not cancelled: it goes on, and its outcome is lost. NULL
 * is allowed.
 */
void sprat_release(sprat_operation *operation);

/* ---- Loops of the program's own (poll, epoll) ---- */

/*
 * Sets `*descriptor` to a file descriptor that becomes readable when there is something to do after
 * sprat_prepare_to_sleep(). It belongs to the client, which closes it.
 */
sprat_status sprat_descriptor(sprat_client *client, int *descriptor, sprat_error *error);

/*
 * Prepares for a wait on the client's descriptor. Sets `*timeout_ms` to the longest wait in
 * milliseconds, as poll() takes it: 0 if there is work at once. Behind the wait call sprat_poll()
 * until it finds no work. Call this function again before each wait, and after each start of an
 * operation.
 */
sprat_status sprat_prepare_to_sleep(sprat_client *client, int *timeout_ms, sprat_error *error);

#ifdef __cplusplus
}
#endif

#endif
